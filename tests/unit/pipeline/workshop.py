"""A small cluster's table side in one process: real WAL bytes and Parquet on disk, a real catalog, no Spark."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from headrace.index.objects import wal_object_key
from headrace.metadata.keys import table_lease
from headrace.metadata.leases import release, take
from headrace.model.ids import StreamId
from headrace.model.topics import Topic, TopicId, TopicRules
from headrace.objects.open import open_objects
from headrace.objects.port import ObjectStore
from headrace.pipeline.backlog import read_backlog
from headrace.pipeline.keeping import Due, KeepLimits, Kept, TableKeeper
from headrace.pipeline.key_scanning import scan_keys
from headrace.pipeline.named_files import IndexNames
from headrace.pipeline.performing import perform_task
from headrace.pipeline.planner import PlanLimits, plan_run
from headrace.pipeline.ports import NoProgress
from headrace.pipeline.rewrites import TableTask
from headrace.pipeline.sagas import Sagas
from headrace.pipeline.scans import ScannedStream, ScanTask
from headrace.pipeline.swapping import Swapper
from headrace.pipeline.topic_run import RunParts, TopicRun, WriteLimits
from headrace.pipeline.verify import Verifier
from headrace.pipeline.verify_report import VerifyReport
from headrace.records.batch import BatchView, iter_batches
from headrace.runtime.crash_points import CrashPoint, CrashPoints, NoCrashes
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.logs import open_log
from headrace.runtime.rng import seeded_rng
from headrace.tables.files import WrittenFile
from headrace.tables.iceberg.catalog import IcebergCatalog
from headrace.tables.iceberg.open import open_catalog
from headrace.tables.port import ExpiryRule, TopicTable
from headrace.testing.clock import ManualClock
from headrace.topics.tables import table_rules_of
from tests.log_kit import LogKit

TOPIC_ID = TopicId(bytes(range(16)))
NOON_MS = 1_700_049_600_000
PAD_BYTES = 64


class PowerCut(Exception):
    """The process is gone."""


class CutAt:
    """Ends the run at the n-th arrival at one point."""

    def __init__(self, point: CrashPoint, *, arrival: int = 1) -> None:
        self._point = point
        self._left = arrival

    def reach(self, point: CrashPoint) -> None:
        self._left -= point is self._point
        if point is self._point and self._left == 0:
            raise PowerCut(point)


class OwnWriter:
    """Writes files in this very process."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def write(self, tasks: Sequence[TableTask]) -> list[WrittenFile]:
        return [await perform_task(task, self._objects, attempt="only") for task in tasks]

    async def scan(self, tasks: Sequence[ScanTask]) -> list[ScannedStream]:
        return [await scan_keys(task, self._objects, attempt="only") for task in tasks]


class Workshop(LogKit):
    """One topic on memory metadata, local disk and a catalog in SQLite."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.now_ms = NOON_MS
        self.directory = directory
        self.clock = ManualClock(now_ms=NOON_MS)
        self.objects = open_objects(
            f"file://{directory}/objects", executor=InlineExecutor(), clock=self.clock, rng=seeded_rng(5)
        )
        self.catalog: IcebergCatalog = open_catalog(
            f"sqlite:{directory}/catalog.db",
            objects_url=f"file://{directory}/objects",
            executor=InlineExecutor(),
            rng=seeded_rng(6),
            log=open_log(io.StringIO(), clock=self.clock),
            environment={},
        )
        self._objects_made = 0
        self._rng = seeded_rng(7)

    async def begin(self, *, partitions: int = 1, **overrides: str) -> Topic:
        """Make the topic; its name is `orders`."""
        streams = await self.streams(partitions)
        await self.writer()
        self.topic = Topic(
            id=TOPIC_ID,
            name="orders",
            streams=tuple(streams),
            rules=TopicRules(max_message_bytes=1_000_000),
            overrides=overrides,
        )
        return self.topic

    @property
    def table(self) -> TopicTable:
        rules = table_rules_of(self.topic.overrides)
        return TopicTable(
            topic_id=TOPIC_ID, topic_name="orders", partitioning=rules.partitioning, schema=rules.schema
        )

    def configure(self, **overrides: str) -> None:
        """Give the topic other configs from now on."""
        self.topic = replace(self.topic, overrides=overrides)

    async def put(self, stream: StreamId, *batches: bytes) -> None:
        """Commit batches to a stream, as one WAL object and one index entry."""
        self._objects_made += 1
        object_id = await self.stage(number=self._objects_made, is_segment=False)
        views: Iterable[BatchView] = iter_batches(memoryview(b"".join(batches)))
        frame = self.frame([(stream, [view.summary() for view in views])], object_id=object_id)
        pad = bytes(PAD_BYTES)
        await self.objects.put(wal_object_key(self.keys.domain, object_id), [pad, *batches, pad])
        await self.apply(frame)

    async def keep(self, limits: KeepLimits, *, crash_points: CrashPoints | None = None) -> Kept:
        """Release and merge what can be, under the topic's lease."""
        parts = self.parts(crash_points or NoCrashes())
        session = await self.store.open_session(timeout_ms=60_000)
        lease = await take(self.store, table_lease(TOPIC_ID), session)
        try:
            saga = await parts.sagas.load(TOPIC_ID)
            if saga is not None:
                await TopicRun(parts, lease, self.table, self.topic.streams).resume(saga)
            keeper = TableKeeper(store=self.store, keys=self.keys, parts=parts, limits=limits)
            return await keeper.keep(lease, self.topic, Due(release=True, merge=True, expiry=False, since_ms=0))
        finally:
            await release(self.store, lease)

    async def run(self, *, crash_points: CrashPoints | None = None) -> int:
        """Fold, plan and run the topic to its end, or to where the power is cut; return the rows."""
        while await self.fold():
            pass
        parts = self.parts(crash_points or NoCrashes())
        session = await self.store.open_session(timeout_ms=60_000)
        lease = await take(self.store, table_lease(TOPIC_ID), session)
        try:
            saga = await parts.sagas.load(TOPIC_ID)
            if saga is not None:
                return await TopicRun(parts, lease, self.table, self.topic.streams).resume(saga)
            limits = PlanLimits()
            state = await parts.sagas.state(TOPIC_ID)
            planned = await read_backlog(self.store, self.keys, self.topic, state, limits)
            plan = plan_run(planned, now_ms=self.clock.now_ms(), limits=limits, force=True)
            known_uuid = state.uuid if state is not None and state.ends else ""
            return (
                0
                if plan is None
                else await TopicRun(parts, lease, self.table, self.topic.streams).begin(plan, known_uuid=known_uuid)
            )
        finally:
            await release(self.store, lease)

    def parts(self, crash_points: CrashPoints) -> RunParts:
        return RunParts(
            sagas=Sagas(self.store, self.keys),
            swapper=Swapper(
                store=self.store, keys=self.keys, clock=self.clock, crash_points=crash_points, max_entries=2
            ),
            catalog=self.catalog,
            writer=OwnWriter(self.objects),
            objects=self.objects,
            clock=self.clock,
            rng=self._rng,
            crash_points=crash_points,
            progress=NoProgress(),
            expiry=ExpiryRule(),
            write=WriteLimits(row_group_bytes=2_000),
            names=IndexNames(self.store, self.keys),
            domain=0,
        )

    async def verify(self) -> VerifyReport:
        verifier = Verifier(
            metadata=self.store,
            keys=self.keys,
            objects=self.objects,
            scanner=self.catalog,
            executor=InlineExecutor(),
            clock=self.clock,
        )
        return await verifier.verify(self.topic)

    async def close(self) -> None:
        await self.catalog.close()
        await self.objects.close()
