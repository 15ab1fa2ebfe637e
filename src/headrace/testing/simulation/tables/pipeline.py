"""A simulated pipeline process, wired as its composition root wires it, with tasks that run in the process itself.

A session that was lost is replaced in the same process: what was begun under it is resumed like anybody else's.
"""

import io
from dataclasses import dataclass, field

from headrace.errors import Fenced, OutcomeUnknown, Retryable
from headrace.gc.folding import Folder, FoldLimits
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.metadata.sessions import SessionKeeper
from headrace.model.ids import DomainId, SessionId
from headrace.objects.port import ObjectStore
from headrace.objects.retrying import RetryingObjects
from headrace.pipeline.compaction_plan import CompactionLimits
from headrace.pipeline.keeping import KeepLimits
from headrace.pipeline.named_files import IndexNames
from headrace.pipeline.planner import PlanLimits
from headrace.pipeline.ports import NoProgress
from headrace.pipeline.runner import Pipeline, PipelineLimits, RunReport
from headrace.pipeline.sagas import Sagas
from headrace.pipeline.swapping import Swapper
from headrace.pipeline.topic_run import RunParts, WriteLimits
from headrace.runtime.logs import open_log
from headrace.runtime.rng import Rng
from headrace.tables.port import ExpiryRule
from headrace.testing.local_writer import LocalWriter
from headrace.testing.simulation.faults import FaultyMetadata, FaultyObjects
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.node import RETRY_POLICY
from headrace.testing.simulation.plan import FaultPlan
from headrace.testing.simulation.process import SimCrashPoints, SimProcess
from headrace.testing.simulation.tables.catalog import CatalogServer, FaultyCatalog
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory

FOLD_LIMITS = FoldLimits(records_per_step=5, steps_per_tick=4, lag_records=0)
SESSION_TIMEOUT_MS = 2_000
"""Shorter than a broker's, so that of a process which stops others have taken the work and gone on when it wakes."""

FORCED_RATE = 0.5
ROUND_SECONDS = 0.6

MAX_SNAPSHOTS = 6
SNAPSHOT_AGE_MS = 8_000

DAMAGE = ("Corrupt", "Invalid", "Unsupported")
"""Problems that neither a fault of a store nor another pipeline can be the reason of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """What differs from history to history: how finely runs, files, row groups and swaps are cut."""

    plan: PlanLimits
    row_group_bytes: int
    swap_max_entries: int
    topics_at_once: int
    keep: KeepLimits
    compaction: CompactionLimits = field(default_factory=CompactionLimits)
    tempo: int = 1
    """How many times faster than all else wall clocks go."""


class PipelineNode:
    """One incarnation of one pipeline process."""

    def __init__(
        self,
        process: SimProcess,
        *,
        shape: PipelineShape,
        metadata: MetadataStore,
        objects: ObjectStore,
        catalog: CatalogServer,
        plan: FaultPlan,
        crash_points: SimCrashPoints,
        rng: Rng,
    ) -> None:
        self.process = process
        self.clock = process.clock
        self.crash_points = crash_points
        self.is_forced = False
        """Whether every round takes all that waits, however young."""
        self.is_resting = False
        self.is_busy = False
        """Whether a round is under way."""
        self._rng = rng
        self._metadata = FaultyMetadata(metadata, process, plan)
        self._keeper: SessionKeeper | None = None
        faulty = FaultyObjects(objects, process, plan)
        retrying = RetryingObjects(faulty, clock=self.clock, rng=rng, policy=RETRY_POLICY)
        self._pipeline = self._assemble(shape, retrying, FaultyCatalog(catalog, process, plan))

    def _assemble(self, shape: PipelineShape, objects: ObjectStore, catalog: FaultyCatalog) -> Pipeline:
        keys, metadata, clock, crash_points = DomainKeys(DomainId(0)), self._metadata, self.clock, self.crash_points
        return Pipeline(
            store=metadata,
            keys=keys,
            topics=TopicDirectory(metadata, defaults=TopicDefaults(), clock=clock),
            folder=Folder(keys=keys, metadata=metadata, clock=clock, crash_points=crash_points, limits=FOLD_LIMITS),
            parts=RunParts(
                sagas=Sagas(metadata, keys),
                swapper=Swapper(
                    store=metadata,
                    keys=keys,
                    clock=clock,
                    crash_points=crash_points,
                    max_entries=shape.swap_max_entries,
                ),
                catalog=catalog,
                writer=LocalWriter(objects, rng=self._rng),
                objects=objects,
                clock=clock,
                rng=self._rng,
                crash_points=crash_points,
                progress=NoProgress(),
                expiry=ExpiryRule(max_snapshots=MAX_SNAPSHOTS, max_age_ms=SNAPSHOT_AGE_MS * shape.tempo),
                write=WriteLimits(row_group_bytes=shape.row_group_bytes),
                names=IndexNames(metadata, keys),
                domain=keys.domain,
            ),
            session=self._session,
            limits=PipelineLimits(
                plan=shape.plan,
                keep=shape.keep,
                compaction=shape.compaction,
                topics_at_once=shape.topics_at_once,
                failure_backoff_max_ms=4_000,
            ),
            log=open_log(io.StringIO(), clock=clock),
        )

    def start(self) -> None:
        """Start the process's main task."""
        self.process.spawn(self._run(), name="main")

    def _session(self) -> SessionId:
        assert self._keeper is not None, "a session comes first"
        return self._keeper.session

    async def _run(self) -> None:
        while True:
            await self.clock.sleep(ROUND_SECONDS * self._rng.uniform(0.3, 1.7))
            if self.is_resting:
                continue
            self.is_busy = True
            try:
                await self._renew_session()
                report = await self._pipeline.run_once(force=self.is_forced or self._rng.random() < FORCED_RATE)
            except (Retryable, OutcomeUnknown, Fenced):
                continue
            finally:
                self.is_busy = False
            self._judge(report)

    async def _renew_session(self) -> None:
        if self._keeper is not None and self._keeper.is_surely_alive():
            return
        if self._keeper is not None:
            await self._keeper.abandon()
        self._keeper = await SessionKeeper.open(self._metadata, self.clock, timeout_ms=SESSION_TIMEOUT_MS)

    def _judge(self, report: RunReport) -> None:
        for topic, problem in report.problems.items():
            if problem.startswith(DAMAGE):
                raise Violation(f"{self.process.name} could not run topic {topic}: {problem}")
