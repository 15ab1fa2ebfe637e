"""Repack the WAL: copy what stays in it for long into packed objects, one stream after another, within a budget.

Where a topic has no table, or nobody runs the pipeline, records stay in the WAL until retention takes them. Without
this, each commit would keep an entry in the index, and one stream that is kept for a year would keep every segment
that it has a batch in. `index/repack.py` decides what moves, `packing.py` moves it.

1. Look over all streams in rounds, in memory, some thousands per tick, for those whose time has come. A quiet one
   costs a comparison: memory tells when it is worth to look at it again, and whether anything was appended since. One
   that never held a record is not even remembered. Go through those that were found, in turns.
2. Where a look finds something to do, take the topic's lease, look again under it, and do it until nothing is left.

Must stay true: whoever repacks a topic holds its lease, so no run of the pipeline goes on beside it, and a topic that
has a saga is left alone. One stream that fails holds up no other. What is damaged stays where it is, and is told.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from headrace.errors import Fenced, HeadraceError
from headrace.gc.copying import UnreadableEntry
from headrace.gc.packing import Packer
from headrace.index.commit import ObjectClosed
from headrace.index.objects import is_packed
from headrace.index.repack import RepackLimits, RepackLook, RepackPlan, plan_repack
from headrace.index.rule import StalePlan
from headrace.index.values import INDEX_ENTRY, STREAM_HEAD, IndexEntry
from headrace.metadata import keys as all_keys
from headrace.metadata.keys import DomainKeys, table_lease
from headrace.metadata.leases import Lease, LeaseHeld, release, take
from headrace.metadata.port import MetadataStore
from headrace.model.extents import WalExtent
from headrace.model.ids import SessionId, StreamId
from headrace.model.topics import Topic, TopicId
from headrace.runtime.clock import Clock
from headrace.runtime.executor import Executor
from headrace.runtime.logs import Log
from headrace.runtime.metrics import Metrics, one_of
from headrace.runtime.turns import LoopTurns

REPACKER_LEASE = all_keys.lease("repacker")
"""Who repacks now. Like the collectors' lease it saves work, and is not what makes it safe."""

ENTRIES_PER_READ = 1_000
LOOP_MAX_ENTRIES = 1_000
"""Up to how many entries are planned on the event loop."""

STREAMS_PER_SLICE = 5_000
"""How many streams are looked over, in memory, before others have their turn on the loop: a few milliseconds."""

STREAMS_PER_TICK = 20_000
"""How many streams one tick looks over, in memory: a round over 100,000 takes five ticks."""

MAX_FAILURES_PER_TICK = 3
"""After so many streams that failed the tick ends: the stores may be away."""

NEVER = 2**63
"""Beyond every offset: a stream that is deleted is not looked at again."""

MAX_DAMAGED = 1_000
"""How many damaged entries of a stream are remembered; a stream with more is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackerLimits:
    """What one tick does at most, and how long what cannot be done now is left alone."""

    plan: RepackLimits
    looks_per_tick: int
    bytes_per_tick: int
    entries_per_look: int = 10_000
    again_after_ms: int = 30_000
    """A topic that somebody else works on, and a stream that failed, wait for so long."""


@dataclass(slots=True)
class _Known:
    """What is remembered of a stream. `due_at` is monotonic time; `None` waits until the log goes beyond
    `seen_offset`, where the index ended when it was last read. The log ended at `high_watermark` then."""

    settled_offset: int = 0
    seen_offset: int = 0
    high_watermark: int = 0
    due_at: float | None = 0.0
    damaged: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    topic: Topic
    partition: int
    stream: StreamId


class RepackMetrics:
    """What was repacked, and what could not be."""

    def __init__(self, metrics: Metrics) -> None:
        self.bytes = metrics.counters("repacked_bytes", "Bytes that were copied into packed objects.").of()
        self.entries = metrics.counters(
            "repacked_entries", "Index entries before and after these copies.", one_of("side", ("before", "after"))
        )
        self.freed = metrics.counters(
            "repack_freed_objects", "Objects shared by streams that nothing names any more after a repack."
        ).of()
        self.failures = metrics.counters(
            "repack_failures",
            "Repacks that came to nothing: the log has moved on, another process acts, bytes are damaged, or a store "
            "has failed.",
            one_of("why", ("stale", "fenced", "damaged", "failed")),
        )
        self.waiting = metrics.gauges(
            "repack_waiting_streams",
            "Streams whose turn has come and is not over, as far as they were looked for: some thousands at most.",
        ).of()

    def done(self, plan: RepackPlan, *, freed: int) -> None:
        """Count one packed object."""
        self.bytes.inc(plan.size_bytes)
        self.entries.of("before").inc(len(plan.planned))
        self.entries.of("after").inc(len(plan.entries))
        self.freed.inc(freed)


class Repacker:
    """Walks the streams of a domain. One process does so at a time; several are safe, and only do some work twice."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        packer: Packer,
        topics: Callable[[], Iterable[Topic]],
        table_ends: Callable[[TopicId], Awaitable[Mapping[int, int]]],
        high_watermark: Callable[[StreamId], int | None],
        turn: Callable[[], Awaitable[bool]],
        session: Callable[[], SessionId | None],
        executor: Executor,
        clock: Clock,
        limits: RepackerLimits,
        metrics: RepackMetrics,
        log: Log,
    ) -> None:
        """`table_ends` tells where each partition ends in the topic's table; `high_watermark` answers from memory;
        `turn` says whether it is this process that repacks."""
        self._keys = keys
        self._metadata = metadata
        self._packer = packer
        self._topics = topics
        self._table_ends = table_ends
        self._high_watermark = high_watermark
        self._session = session
        self._executor = executor
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._log = log
        self._turn = turn
        self._known: dict[StreamId, _Known] = {}
        self._round: Iterator[tuple[Topic, int, StreamId]] | None = None
        self._met = 0
        """Of how many streams that were met in this round something is remembered."""
        self._waiting: dict[StreamId, _Target] = {}
        self._turns = LoopTurns()

    async def tick(self) -> int:
        """Repack what is due, within the limits; return how many bytes were copied.

        A stream that fails holds up no other; the first failure is raised in the end.
        """
        await self._packer.seal()
        if self._packer.is_full or not await self._turn():
            return 0
        await self._look_over()
        copied = 0
        failures: list[HeadraceError] = []
        for target in list(islice(self._waiting.values(), self._limits.looks_per_tick)):
            if copied >= self._limits.bytes_per_tick or len(failures) >= MAX_FAILURES_PER_TICK:
                break
            del self._waiting[target.stream]
            try:
                copied += await self._serve(target)
            except HeadraceError as error:
                self._metrics.failures.of("fenced" if isinstance(error, Fenced) else "failed").inc()
                self._wait(target)
                if not isinstance(error, Fenced):
                    failures.append(error)
            if self._is_due(target.stream):
                self._waiting[target.stream] = target  # there is more to do: behind all others that wait
        self._metrics.waiting.set(len(self._waiting))
        if failures:
            raise failures[0]
        return copied

    async def _look_over(self) -> None:
        """Find streams that it is time to look at, in the next part of a round over all; not while enough wait.

        Between slices, others have their turn on the loop.
        """
        if self._round is None:
            self._round, self._met = _all_of(list(self._topics())), 0
        for _ in range(STREAMS_PER_TICK // STREAMS_PER_SLICE):
            if len(self._waiting) >= self._limits.looks_per_tick:
                return
            part = list(islice(self._round, STREAMS_PER_SLICE))
            self._find_due(part)
            if len(part) < STREAMS_PER_SLICE:
                self._round = None
                self._forget_gone()
                return
            await self._turns.next()

    def _find_due(self, part: Iterable[tuple[Topic, int, StreamId]]) -> None:
        """Let those whose time has come wait for their turn, who was due first in front."""
        now = self._clock.monotonic()
        due: list[tuple[float, StreamId, _Target]] = []
        for topic, partition, stream in part:
            end_offset = self._high_watermark(stream)
            memory = self._known.get(stream)
            if memory is None:
                if end_offset == 0:
                    continue
                memory = self._known[stream] = _Known()
            self._met += 1
            if memory.due_at is None and max(memory.high_watermark, end_offset or 0) > memory.seen_offset:
                # What was appended or folded since the last look is too young until then.
                memory.due_at = now + self._limits.plan.min_age_ms / 1000
            if memory.due_at is not None and memory.due_at <= now:
                due.append((memory.due_at, stream, _Target(topic=topic, partition=partition, stream=stream)))
        for _, stream, target in sorted(due, key=lambda one: one[:2]):
            self._waiting.setdefault(stream, target)

    def _forget_gone(self) -> None:
        """Forget streams that are gone, if this round has met fewer than are remembered."""
        if len(self._known) > self._met:
            there = {stream for topic in self._topics() for stream in topic.streams}
            self._known = {stream: memory for stream, memory in self._known.items() if stream in there}
            self._waiting = {stream: target for stream, target in self._waiting.items() if stream in there}

    def _is_due(self, stream: StreamId) -> bool:
        due_at = self._known[stream].due_at
        return due_at is not None and due_at <= self._clock.monotonic()

    def _wait(self, target: _Target) -> None:
        self._known[target.stream].due_at = self._clock.monotonic() + self._limits.again_after_ms / 1000

    async def _serve(self, target: _Target) -> int:
        """Do what a stream needs; return how many bytes were copied."""
        if (await self._look(target)).plan is None:
            return 0
        session = self._session()
        if session is None:
            return 0
        try:
            # Anew: a step that was sent under an earlier epoch and arrives late is fenced.
            lease = await take(self._metadata, table_lease(target.topic.id), session, anew=True)
        except LeaseHeld:
            self._wait(target)
            return 0
        try:
            return await self._repack(lease, target)
        finally:
            await self._release(lease)

    async def _repack(self, lease: Lease, target: _Target) -> int:
        """Make packed objects of a stream under its topic's lease until nothing is left to do."""
        if await self._metadata.get(self._keys.saga(target.topic.id)) is not None:
            self._wait(target)  # a run is under way, although nobody works on it now
            return 0
        copied = 0
        while copied < self._limits.bytes_per_tick and not self._packer.is_full:
            plan = (await self._look(target)).plan
            if plan is None:
                break
            try:
                freed = await self._packer.pack(lease, target.stream, plan)
            except UnreadableEntry as error:
                if not await self._is_damage(target, error):
                    break
                continue
            except (StalePlan, ObjectClosed) as error:
                self._metrics.failures.of("stale").inc()
                self._log.info("a repack is planned anew", topic=target.topic.name, reason=str(error))
                self._wait(target)
                break
            finally:
                await self._packer.seal()
            copied += plan.size_bytes
            self._metrics.done(plan, freed=freed)
        return copied

    async def _look(self, target: _Target) -> RepackLook:
        """See what a stream needs, and remember when it is to be looked at again."""
        memory = self._known[target.stream]
        now_ms = self._clock.now_ms()
        entries, has_more = await self._entries(target.stream, memory, now_ms)
        if not entries or len(memory.damaged) > MAX_DAMAGED:
            memory.due_at = None
            return RepackLook(plan=None, settled_offset=memory.settled_offset, due_at_ms=None)
        ends = await self._table_ends(target.topic.id)
        plan = partial(
            plan_repack,
            entries,
            held_below=ends.get(target.partition, 0),
            now_ms=now_ms,
            limits=self._limits.plan,
            has_more=has_more,
            damaged=frozenset(memory.damaged),
        )
        # Ten thousand entries take ten milliseconds, for which nobody else's requests should wait.
        look = await self._executor.run(plan) if len(entries) > LOOP_MAX_ENTRIES else plan()
        memory.settled_offset = max(memory.settled_offset, look.settled_offset)
        memory.due_at = self._monotonic_at(look.due_at_ms, now_ms)
        return look

    def _monotonic_at(self, at_ms: int | None, now_ms: int) -> float | None:
        """A wall clock that is set back must not put off what was due."""
        return None if at_ms is None else self._clock.monotonic() + (at_ms - now_ms) / 1000

    async def _entries(self, stream: StreamId, memory: _Known, now_ms: int) -> tuple[list[IndexEntry], bool]:
        """Return the entries that are not settled, up to those that are too young; and whether a limit cut them."""
        raw = await self._metadata.get(self._keys.head(stream))
        head = None if raw is None else STREAM_HEAD.decode(raw.value, raw.key)
        if head is None or head.is_deleted:
            memory.seen_offset = NEVER
            return [], False
        memory.high_watermark = head.high_watermark
        offset = memory.seen_offset = max(memory.settled_offset, head.log_start)
        found: list[IndexEntry] = []
        most = self._limits.entries_per_look
        while len(found) < most:
            limit = min(ENTRIES_PER_READ, most - len(found))
            page = await self._metadata.range(self._keys.entries(stream, after_offset=offset, limit=limit))
            found += [INDEX_ENTRY.decode(item.value, item.key) for item in page]
            if found:
                offset = memory.seen_offset = found[-1].end_offset
            if len(page) < limit or self._is_young(found[-1], now_ms):
                return found, False
        return found, True

    def _is_young(self, entry: IndexEntry, now_ms: int) -> bool:
        extent = entry.extent
        is_loose = isinstance(extent, WalExtent) and not is_packed(extent.object_id)
        return is_loose and abs(now_ms - entry.append_time_ms) < self._limits.plan.min_age_ms

    async def _is_damage(self, target: _Target, error: UnreadableEntry) -> bool:
        """Say whether the index still names what could not be copied; then it is passed over from now on."""
        entry = error.entry
        raw = await self._metadata.get(self._keys.entry(target.stream, entry.end_offset))
        if raw is None or INDEX_ENTRY.decode(raw.value, raw.key) != entry:
            self._metrics.failures.of("stale").inc()
            self._wait(target)
            return False  # it was trimmed away, and its object collected
        self._metrics.failures.of("damaged").inc()
        self._known[target.stream].damaged.add(entry.end_offset)
        self._log.error(
            "damaged records are not repacked and stay where they are: restore the object, or delete the records",
            topic=target.topic.name,
            partition=target.partition,
            error=error,
        )
        return True

    async def _release(self, lease: Lease) -> None:
        try:
            await release(self._metadata, lease)
        except HeadraceError as error:
            # It goes with our session at the latest, and our next repack of the topic takes it anew.
            self._log.warning("a lease could not be given back", lease=lease.key, error=error)


def _all_of(topics: Iterable[Topic]) -> Iterator[tuple[Topic, int, StreamId]]:
    """Yield every stream, with its topic and the number of its partition."""
    return ((topic, partition, stream) for topic in topics for partition, stream in enumerate(topic.streams))
