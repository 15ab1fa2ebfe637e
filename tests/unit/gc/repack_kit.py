"""A log of two topics over scripted memory stores, and repackers beside it."""

import io
from collections.abc import Awaitable, Callable, Mapping

from headrace.gc.copying import Copier
from headrace.gc.leased import CollectorLease
from headrace.gc.packing import Packer
from headrace.gc.repacking import REPACKER_LEASE, Repacker, RepackerLimits, RepackMetrics
from headrace.index.objects import is_packed
from headrace.index.repack import RepackLimits
from headrace.index.values import INDEX_ENTRY, OBJECT_RECORD, IndexEntry, ObjectRecord
from headrace.metadata.keys import prefix_range
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectId, SessionId, StreamId
from headrace.model.topics import Topic, TopicId, TopicRules
from headrace.runtime.crash_points import CrashPoint, CrashPoints, NoCrashes
from headrace.runtime.executor import Executor, InlineExecutor
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import seeded_rng
from tests.unit.gc.folded import fold_all
from tests.unit.produce.scripted import WriterKit

MIN_AGE_MS = 60_000
FAST = 10**12
"""Bytes per second: a clock that stands still lets nobody sleep."""

PLAN = RepackLimits(min_age_ms=MIN_AGE_MS, entry_bytes=400, object_bytes=100_000)


class PowerCut(Exception):
    """Ends a repacker where a test wants it to die."""


class CutAt:
    """Cuts the power at the n-th arrival at one point."""

    def __init__(self, point: CrashPoint, arrival: int = 1) -> None:
        self._point = point
        self._left = arrival

    def reach(self, point: CrashPoint) -> None:
        if point is self._point:
            self._left -= 1
            if self._left == 0:
                raise PowerCut


class AtOnce:
    """A clock whose sleepers wake at once: what is paced goes on."""

    def __init__(self, kit: WriterKit) -> None:
        self._clock = kit.clock
        self.slept_seconds = 0.0

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        self.slept_seconds += seconds


class RepackKit:
    """Streams 0 and 1 are topic `left`, stream 2 is topic `right`; every frame holds batches of all of them."""

    def __init__(self, *, is_remote: bool = False) -> None:
        self.kit = WriterKit(is_remote=is_remote)
        self.metrics = Metrics()
        self.repack_metrics = RepackMetrics(self.metrics)
        self.ends: dict[TopicId, dict[int, int]] = {}
        self.log_text = io.StringIO()
        self.topics: list[Topic] = []
        self.executor: Executor = InlineExecutor()

    async def start(self) -> list[StreamId]:
        streams = await self.kit.start(3)
        self.topics = [self._topic(1, streams[:2]), self._topic(2, streams[2:])]
        return streams

    @staticmethod
    def _topic(number: int, streams: list[StreamId]) -> Topic:
        rules = TopicRules(max_message_bytes=10_000)
        return Topic(id=TopicId(bytes([number] * 16)), name=f"topic-{number}", streams=tuple(streams), rules=rules)

    async def append_round(self, count: int, *, text: bytes = b"") -> None:
        """Append `count` frames, each with a batch of every stream."""
        for n in range(count):
            tasks = [self.kit.offer(stream, text + b"%d/%d" % (stream, n)) for stream in self.kit.streams]
            for task in tasks:
                await task

    async def age(self, milliseconds: int = 2 * MIN_AGE_MS) -> None:
        await self.kit.clock.advance(milliseconds / 1000)
        await self.fold()

    async def fold(self) -> None:
        await fold_all(self.kit)

    async def new_session(self) -> SessionId:
        return await self.kit.metadata.open_session(timeout_ms=5_000)

    def repacker(
        self,
        session: SessionId,
        *,
        crash_points: CrashPoints | None = None,
        plan: RepackLimits = PLAN,
        seed: int = 5,
        takes_turns: bool = True,
        looks_per_tick: int = 10,
        bytes_per_tick: int = 1_000_000,
        bytes_per_second: int = FAST,
        entries_per_step: int = 3,
        high_watermark: Callable[[StreamId], int | None] | None = None,
    ) -> Repacker:
        kit, clock = self.kit, AtOnce(self.kit)

        async def table_ends(topic_id: TopicId) -> Mapping[int, int]:
            return self.ends.get(topic_id, {})

        async def always() -> bool:
            return True

        turn: Callable[[], Awaitable[bool]] = always
        if takes_turns:
            turn = CollectorLease(kit.metadata, lambda: session, key=REPACKER_LEASE).take
        copier = Copier(
            domain=kit.keys.domain,
            objects=kit.objects,
            executor=InlineExecutor(),
            clock=clock,
            bytes_per_second=bytes_per_second,
        )
        return Repacker(
            keys=kit.keys,
            metadata=kit.metadata,
            packer=Packer(
                keys=kit.keys,
                metadata=kit.metadata,
                objects=kit.objects,
                copier=copier,
                clock=clock,
                rng=seeded_rng(seed),
                crash_points=crash_points or NoCrashes(),
                entries_per_step=entries_per_step,
            ),
            topics=lambda: self.topics,
            table_ends=table_ends,
            high_watermark=high_watermark or (lambda stream: None),
            turn=turn,
            session=lambda: session,
            executor=self.executor,
            clock=clock,
            limits=RepackerLimits(plan=plan, looks_per_tick=looks_per_tick, bytes_per_tick=bytes_per_tick),
            metrics=self.repack_metrics,
            log=open_log(self.log_text, clock=kit.clock, format="json"),
        )

    async def entries(self, stream: StreamId) -> list[IndexEntry]:
        found = await self.kit.metadata.range(self.kit.keys.entries(stream, after_offset=0, limit=1000))
        return [INDEX_ENTRY.decode(item.value, item.key) for item in found]

    async def loose(self, stream: StreamId) -> int:
        """Return how many entries of a stream share an object with others."""
        extents = [entry.extent for entry in await self.entries(stream)]
        return sum(isinstance(extent, WalExtent) and not is_packed(extent.object_id) for extent in extents)

    async def objects(self) -> dict[ObjectId, ObjectRecord]:
        prefix = self.kit.keys.objects_prefix
        found = await self.kit.metadata.range(prefix_range(prefix, limit=1000))
        return {ObjectId(item.key.removeprefix(prefix)): OBJECT_RECORD.decode(item.value, item.key) for item in found}

    async def packed(self) -> list[ObjectRecord]:
        return [record for object_id, record in (await self.objects()).items() if is_packed(object_id)]

    def failures(self, why: str) -> float:
        return self.repack_metrics.failures.of(why).value
