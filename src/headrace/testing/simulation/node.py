"""A simulated broker's storage side: one process with a writer, a reader and the keepers of the log.

It is wired as the real composition root wires it, over stores that fail. When its session is lost the process
ends, and the scenario starts a new incarnation.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.errors import Fenced, OutcomeUnknown, Retryable
from headrace.fetch.reader import LogReader, Run
from headrace.gc.collecting import Collector, CollectorLimits
from headrace.gc.folding import Folder, FoldLimits
from headrace.gc.sweeping import Sweeper
from headrace.gc.trimming import Trimmer
from headrace.index.cache import IndexCache
from headrace.index.objects import CollectingAges
from headrace.index.streams import advance_log_start
from headrace.index.values import PartResult, StreamHead
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.metadata.sessions import SessionKeeper, SessionReaper
from headrace.model.batches import BatchSummary
from headrace.model.ids import DomainId, StreamId, WriterId
from headrace.objects.port import ObjectStore
from headrace.objects.retrying import RetryingObjects, RetryPolicy
from headrace.produce.placement import PlacementLimits, open_placement
from headrace.produce.settlement import WriterLimits
from headrace.produce.writer import LogWriter
from headrace.runtime.rng import Rng
from headrace.testing.simulation.faults import FaultyMetadata, FaultyObjects
from headrace.testing.simulation.plan import FaultPlan
from headrace.testing.simulation.process import SimCrashPoints, SimProcess
from headrace.testing.simulation.repacker import Repacker

T = TypeVar("T")

STREAM_COUNT = 3
SESSION_TIMEOUT_MS = 5_000
START_RETRY_SECONDS = 0.3

FOLD_LIMITS = FoldLimits(records_per_step=5, steps_per_tick=4, lag_records=3)
RETRY_POLICY = RetryPolicy(attempts=3, initial_backoff_ms=20, throttled_backoff_ms=50, deadline_ms=4_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """What differs from history to history."""

    linger_ms: int
    frames_in_flight: int
    segment_max_bytes: int
    buffer_max_bytes: int
    ages: CollectingAges


class Node:
    """One incarnation. Clients reach it through `process.call`."""

    def __init__(
        self,
        process: SimProcess,
        *,
        shape: NodeShape,
        metadata: MetadataStore,
        objects: ObjectStore,
        plan: FaultPlan,
        crash_points: SimCrashPoints,
        rng: Rng,
    ) -> None:
        self.process = process
        self.clock = process.clock
        self.keys = DomainKeys(DomainId(0))
        self.metadata = FaultyMetadata(metadata, process, plan)
        faulty = FaultyObjects(objects, process, plan)
        self.objects = RetryingObjects(faulty, clock=self.clock, rng=rng, policy=RETRY_POLICY)
        self.cache = IndexCache(self.metadata, self.keys, max_folded_entries=30)
        self.reader = LogReader(domain=self.keys.domain, cache=self.cache, objects=self.objects)
        self.crash_points = crash_points
        self._rng = rng
        self._shape = shape
        self.is_repacking = True
        self._writer: LogWriter | None = None
        self._writer_id = WriterId(f"{rng.getrandbits(128):032x}")

    def start(self) -> None:
        """Start the process's main task."""
        self.process.spawn(self._run(), name="main")

    async def _run(self) -> None:
        keeper = await self._insist(
            lambda: SessionKeeper.open(self.metadata, self.clock, timeout_ms=SESSION_TIMEOUT_MS)
        )
        writer = self._make_writer()
        try:
            await self._insist(lambda: writer.start(keeper.session))
        except Fenced:
            self.process.crash()
        self._writer = writer
        self._start_keepers(keeper, writer)
        losses = [asyncio.create_task(event.wait()) for event in (keeper.lost, writer.fenced)]
        await asyncio.wait(losses, return_when=asyncio.FIRST_COMPLETED)
        self.process.crash()

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await work()
            except (Retryable, OutcomeUnknown):
                await self.clock.sleep(START_RETRY_SECONDS)

    def _make_writer(self) -> LogWriter:
        placement = open_placement(
            keys=self.keys,
            writer=self._writer_id,
            metadata=self.metadata,
            objects=self.objects,
            clock=self.clock,
            crash_points=self.crash_points,
            limits=PlacementLimits(
                segment_max_bytes=self._shape.segment_max_bytes,
                segment_max_age_ms=4_000,
                staged_ahead=3,
                staged_max_age_ms=self._shape.ages.staged_max_age_ms,
            ),
        )
        return LogWriter(
            keys=self.keys,
            writer=self._writer_id,
            metadata=self.metadata,
            placement=placement,
            clock=self.clock,
            crash_points=self.crash_points,
            limits=WriterLimits(
                buffer_max_bytes=self._shape.buffer_max_bytes,
                frame_max_bytes=600,
                frames_in_flight=self._shape.frames_in_flight,
                small_frames_in_flight=self._shape.frames_in_flight,
                linger_ms=self._shape.linger_ms,
                commit_attempts=3,
                retry_backoff_ms=50,
                producer_expiration_ms=86_400_000,
            ),
            cache=self.cache,
        )

    def _start_keepers(self, keeper: SessionKeeper, writer: LogWriter) -> None:
        """Start what runs beside the writer, each with a period of its own."""
        clock, metadata, crash_points = self.clock, self.metadata, self.crash_points
        folder = Folder(keys=self.keys, metadata=metadata, clock=clock, crash_points=crash_points, limits=FOLD_LIMITS)
        collector = Collector(
            keys=self.keys,
            metadata=metadata,
            objects=self.objects,
            clock=clock,
            crash_points=crash_points,
            limits=CollectorLimits(ages=self._shape.ages, records_per_tick=20, writers_per_tick=100),
        )
        sweeper = Sweeper(keys=self.keys, metadata=metadata, objects=self.objects, objects_per_tick=20)
        trimmer = Trimmer(keys=self.keys, metadata=metadata, clock=clock, entries_per_step=3)
        repacker = Repacker(
            keys=self.keys,
            writer=WriterId(f"{self._rng.getrandbits(128):032x}"),
            session=keeper.session,
            metadata=metadata,
            objects=self.objects,
            clock=clock,
            crash_points=crash_points,
            rng=self._rng,
        )
        self.process.spawn(SessionReaper(metadata, clock).run(), name="reaper")
        self._repeat("cache", self.cache.follow, 0.5)
        self._repeat("fold", folder.tick, 0.4)
        self._repeat("collect", collector.tick, 1.0)
        self._repeat("sweep", sweeper.tick, 5.0)
        self._repeat("writer", writer.tick, 1.5)
        self._repeat("trim", lambda: self._trim_all(trimmer), 1.2)
        self._repeat("repack", lambda: self._repack(repacker), 1.7)

    def _repeat(self, name: str, tick: Callable[[], Awaitable[object]], period_seconds: float) -> None:
        async def run() -> None:
            while True:
                await self.clock.sleep(period_seconds * self._rng.uniform(0.5, 1.5))
                try:
                    await tick()
                except (Retryable, OutcomeUnknown):
                    continue
                except Fenced:
                    return

        self.process.spawn(run(), name=name)

    async def _repack(self, repacker: Repacker) -> None:
        if self.is_repacking:
            await repacker.tick()

    async def _trim_all(self, trimmer: Trimmer) -> None:
        for number in range(STREAM_COUNT):
            await trimmer.trim(StreamId(number))

    # What clients ask for

    async def produce(self, stream: StreamId, data: bytes, batch: BatchSummary) -> PartResult:
        """Append one batch, as a produce request does."""
        if self._writer is None:
            raise Retryable("the broker is starting")
        return await self._writer.append(stream, data, [batch])

    async def head(self, stream: StreamId) -> StreamHead | None:
        """Return log start and high watermark, validated."""
        return await self.cache.fresh_head(stream)

    async def read(self, stream: StreamId, offset: int) -> list[Run]:
        """Return batches from an offset on, as a fetch request does."""
        return await self.reader.read(stream, offset, max_bytes=400)

    async def advance_log_start(self, stream: StreamId, offset: int) -> None:
        """Delete records, as a client's DeleteRecords does."""
        await advance_log_start(self.keys, stream, offset, now_ms=self.clock.now_ms()).apply(self.metadata)
