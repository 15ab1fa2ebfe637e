"""A simulated broker's storage side: one process with a writer, a reader and the keepers of the log.

It is wired as the real composition root wires it, over stores that fail. When its session is lost the process
ends, and the scenario starts a new incarnation.
"""

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.errors import Fenced, OutcomeUnknown, Retryable
from headrace.fetch.reader import LogReader, Run
from headrace.gc.clocks import ClockGuard
from headrace.gc.collecting import Collector, CollectorLimits
from headrace.gc.expiring import SinkExpirer
from headrace.gc.folding import Folder, FoldLimits
from headrace.gc.leased import CollectorLease
from headrace.gc.pins import PinKeeper, PinKeeperLimits
from headrace.gc.retaining import Retainer, RetainerLimits, RetentionMetrics
from headrace.gc.sweeping import Sweeper
from headrace.gc.trimming import LogTrimmer, LogTrimmerLimits, Trimmer
from headrace.index.cache import IndexCache
from headrace.index.objects import CollectingAges
from headrace.index.pins import PinLimits, put_pin, release_pin
from headrace.index.streams import advance_log_start
from headrace.index.values import IndexEntry, PartResult, PinRecord, StreamHead
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.metadata.sessions import SessionKeeper, SessionReaper
from headrace.model.batches import BatchSummary
from headrace.model.ids import DomainId, PinId, StreamId, WriterId
from headrace.model.topics import Retention, Topic, TopicId, TopicRules
from headrace.objects.port import ObjectStore
from headrace.objects.retrying import RetryingObjects, RetryPolicy
from headrace.produce.placement import PlacementLimits, open_placement
from headrace.produce.settlement import WriterLimits
from headrace.produce.writer import LogWriter
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import Rng
from headrace.testing.simulation.faults import FaultyMetadata, FaultyObjects
from headrace.testing.simulation.plan import FaultPlan
from headrace.testing.simulation.process import SimCrashPoints, SimProcess
from headrace.testing.simulation.repacker import RepackShape, make_repacker
from headrace.testing.simulation.retention import topics_of

T = TypeVar("T")

STREAM_COUNT = 3
TOPICS = [
    Topic(
        id=TopicId(bytes([number] * 16)),
        name=f"topic-{number}",
        streams=streams,
        rules=TopicRules(max_message_bytes=1_000_000),
    )
    for number, streams in enumerate([(StreamId(0), StreamId(1)), (StreamId(2),)], 1)
]
"""Whose partitions the streams are. Nothing but the repackers asks."""

SESSION_TIMEOUT_MS = 5_000
START_RETRY_SECONDS = 0.3
SINK_EXPIRATION_MS = 86_400_000
PRODUCER_EXPIRATION_MS = 86_400_000

FOLD_LIMITS = FoldLimits(records_per_step=5, steps_per_tick=4, lag_records=3, entries_per_step=3)
QUICK_FOLD_LIMITS = FoldLimits(records_per_step=5, steps_per_tick=2, lag_records=0, entries_per_step=2)
"""So few entries per step that most records are folded in several."""
RETAINER_LIMITS = RetainerLimits(interval_ms=1_500, looks_per_tick=2, entries_per_look=4, streams_per_step=2)
TRIM_LIMITS = LogTrimmerLimits(steps_per_tick=3, heads_per_tick=2)
MAX_JUMP_MS = 1_000
SWEEP_FLOOR_MS = 500
PIN_KEEPER_LIMITS = PinKeeperLimits(
    pins=PinLimits(max_age_ms=10**9, skew_ms=10**9), pins_per_tick=5, objects_per_tick=5
)
"""Clocks are set wrong by hours here, so that no pin may count as expired before its reader is done."""

RETRY_POLICY = RetryPolicy(attempts=3, initial_backoff_ms=20, throttled_backoff_ms=50, deadline_ms=4_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """What differs from history to history."""

    linger_ms: int
    frames_in_flight: int
    segment_max_bytes: int
    buffer_max_bytes: int
    ages: CollectingAges
    repack: RepackShape
    retention: Mapping[StreamId, Retention] = field(default_factory=dict)
    """What is kept of each stream; a scenario without it trims behind its clients only."""
    follows_topics: bool = False
    """Whether what is kept is what the topics' own configs say."""
    tempo: int = 1
    """How many times faster than all else wall clocks go."""
    max_jump_ms: int = MAX_JUMP_MS


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
        self.cache = IndexCache(self.metadata, self.keys, max_folded_entries=30, on_rewind=_never_rewound)
        self.reader = LogReader(domain=self.keys.domain, cache=self.cache, objects=self.objects)
        self.crash_points = crash_points
        self._rng = rng
        self._shape = shape
        self.slot = 0
        """Which broker this is; the next incarnation of it has the same number."""
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
                segment_max_age_ms=4_000 * self._shape.tempo,
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
                producer_expiration_ms=PRODUCER_EXPIRATION_MS,
            ),
            cache=self.cache,
        )

    async def _own_time_ms(self) -> int:
        return self.clock.now_ms()

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
        expirer = SinkExpirer(
            keys=self.keys,
            metadata=metadata,
            agreed_ms=self._own_time_ms,
            expiration_ms=SINK_EXPIRATION_MS,
            sinks_per_step=5,
        )
        sweeper = Sweeper(
            keys=self.keys,
            metadata=metadata,
            objects=self.objects,
            clock=clock,
            age_floor_ms=SWEEP_FLOOR_MS * self._shape.tempo,
            objects_per_tick=20,
        )
        trimmer = Trimmer(
            keys=self.keys, metadata=metadata, clock=clock, entries_per_step=3, crash_points=crash_points
        )
        repacker = make_repacker(
            self._shape.repack,
            keys=self.keys,
            metadata=metadata,
            objects=self.objects,
            cache=self.cache,
            topics=self._topics,
            table_ends=self._table_ends,
            session=keeper.session,
            clock=clock,
            rng=self._rng,
            crash_points=crash_points,
        )
        self.process.spawn(SessionReaper(metadata, clock).run(), name="reaper")
        self._repeat("cache", self.cache.follow, 0.5)
        self._repeat("fold", folder.tick, 0.4)
        self._repeat("collect", collector.tick, 1.0)
        self._repeat("sweep", sweeper.tick, 5.0)
        self._repeat("sinks", expirer.tick, 2.0)
        self._repeat("writer", writer.tick, 1.5)
        self._repeat("repack", repacker.tick, 1.0)
        if self._shape.retention or self._shape.follows_topics:
            self._start_retention(keeper, trimmer)
        else:
            self._repeat("trim", lambda: self._trim_all(trimmer), 1.2)

    def _start_retention(self, keeper: SessionKeeper, trimmer: Trimmer) -> None:
        clock, metadata, crash_points = self.clock, self.metadata, self.crash_points
        retainer = Retainer(
            keys=self.keys,
            metadata=metadata,
            index=self.cache,
            topics=self._retained,
            guard=ClockGuard(
                node_id=self.slot,
                metadata=metadata,
                session=lambda: keeper.session,
                clock=clock,
                log=open_log(io.StringIO(), clock=clock, level="error", format="json"),
                max_jump_ms=self._shape.max_jump_ms,
            ),
            lease=CollectorLease(metadata, lambda: keeper.session),
            session=lambda: keeper.session,
            clock=clock,
            crash_points=crash_points,
            metrics=RetentionMetrics(Metrics()),
            limits=RETAINER_LIMITS,
        )
        quick_folder = Folder(
            keys=self.keys, metadata=metadata, clock=clock, crash_points=crash_points, limits=QUICK_FOLD_LIMITS
        )
        log_trimmer = LogTrimmer(
            trimmer=trimmer,
            folder=quick_folder,
            index=self.cache,
            streams=lambda: [stream for topic in self._retained() for stream in topic.streams],
            lease=CollectorLease(metadata, lambda: keeper.session),
            limits=TRIM_LIMITS,
        )
        pins = PinKeeper(
            keys=self.keys, metadata=metadata, objects=self.objects, clock=clock, limits=PIN_KEEPER_LIMITS
        )
        self._repeat("retain", retainer.tick, 0.7)
        self._repeat("trim", log_trimmer.tick, 0.8)
        self._repeat("pins", pins.tick, 2.0)

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

    def _topics(self) -> Sequence[Topic]:
        return TOPICS

    def _retained(self) -> Sequence[Topic]:
        """Return the topics whose retention is looked after."""
        return topics_of(self._shape.retention)

    async def _table_ends(self, topic_id: TopicId) -> Mapping[int, int]:
        return {}  # no topic of this scenario has a table

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

    async def pin(self, pin_id: PinId, record: PinRecord) -> None:
        """Pin what is planned from now on, as a Spark driver does."""
        await put_pin(self.keys, pin_id, record).apply(self.metadata)

    async def release(self, pin_id: PinId) -> None:
        """End a pin."""
        await release_pin(self.keys, pin_id).apply(self.metadata)

    async def plan(self, stream: StreamId) -> list[IndexEntry]:
        """Return what a read of a whole stream would read, as a Spark driver plans it: from an index of its own."""
        cache = IndexCache(self.metadata, self.keys, max_folded_entries=100)
        head = await cache.fresh_head(stream)
        planned: list[IndexEntry] = []
        offset = 0 if head is None else head.log_start
        while head is not None and offset < head.high_watermark:
            found = await cache.locate(stream, offset)
            if not found:
                break  # the log start has moved past it: the rest is not there to be read
            planned += found
            offset = found[-1].end_offset
        return planned


def _never_rewound(what: str) -> None:
    raise AssertionError(f"a store that goes on was taken for one that was taken back to an earlier state: {what}")
