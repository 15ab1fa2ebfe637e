"""Move log starts by age and size, as topics ask for, in bounded steps.

Once per interval a *round* begins: this broker tells its clock, hears the others', and finds the streams whose oldest
entry may have to go. What is known of the others is held in memory (heads through the index cache, and when each
stream's oldest entry comes due), so a quiet stream costs a comparison and no read. Then each tick

1. reads the oldest entries of some of them, folded and unfolded ones alike,
2. decides (`index/retention.py`),
3. moves their log starts, many in one transaction, in the session that has told its clock.

What lies below is removed by `trimming.py`. Any number of brokers could do this at once: a log start only moves
forward, and moving it twice changes nothing. The collectors' lease saves the work.

Must stay true: no log start moves past a record whose time has not come by the clock of any living broker.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.errors import Fenced, HeadraceError
from headrace.gc.clocks import ClockGuard
from headrace.gc.leased import CollectorLease
from headrace.index.cache import IndexCache
from headrace.index.retention import MovedBy, Outlook, RetentionVerdict, decide_retention
from headrace.index.streams import advance_log_starts
from headrace.index.values import INDEX_ENTRY, IndexEntry, StreamHead
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import SessionId, StreamId
from headrace.model.topics import Retention, Topic
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints
from headrace.runtime.metrics import Metrics, one_of
from headrace.runtime.turns import LoopTurns

STREAMS_PER_SLICE = 5_000
"""How many streams are looked over, in memory, before others have their turn on the loop: a few milliseconds."""


LOOKS_PER_TICK = 200
"""How many streams one tick reads, once a second while a round is under way."""

ENTRIES_PER_LOOK = 300
"""How many of a stream's oldest entries are read at once."""

STREAMS_PER_STEP = 50
"""How many log starts one transaction moves. Each is a head and a part of a commit record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainerLimits:
    """How often a round begins, how many streams one tick looks at, and how much one look and one step take."""

    interval_ms: int
    looks_per_tick: int = LOOKS_PER_TICK
    entries_per_look: int = ENTRIES_PER_LOOK
    streams_per_step: int = STREAMS_PER_STEP


class RetentionMetrics:
    """What retention has given up, and how late it is."""

    def __init__(self, metrics: Metrics) -> None:
        by = one_of("by", [why.value for why in MovedBy])
        self.moves = metrics.counters("retention_log_start_moves", "Log starts that this broker has moved.", by)
        self.records = metrics.counters("retention_records", "Offsets that lie below log starts since.", by)
        self.bytes = metrics.counters("retention_bytes", "Their bytes as produced, as far as they are known.", by)
        self._lag = metrics.gauges(
            "retention_lag_seconds",
            "For how long the oldest record has been too old when this broker last looked at all; 0 for none.",
        ).of()

    def moved(self, head: StreamHead, verdict: RetentionVerdict) -> None:
        """Count one log start; `head` is the one before."""
        assert verdict.moved_by is not None
        self.moves.of(verdict.moved_by).inc()
        self.records.of(verdict.moved_by).inc(verdict.log_start - head.log_start)
        self.bytes.of(verdict.moved_by).inc(verdict.given_up_bytes)

    def show_lag(self, overdue_ms: int) -> None:
        """Show what the last whole round has found."""
        self._lag.set(overdue_ms / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known of a stream's oldest entry, and of the rules under which that was found."""

    retention: Retention
    outlook: Outlook


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One stream as it was found, and what is to become of it."""

    stream: StreamId
    retention: Retention
    head: StreamHead
    verdict: RetentionVerdict


class Retainer:
    """Goes through the streams of all topics, round after round."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        index: IndexCache,
        topics: Callable[[], Sequence[Topic]],
        guard: ClockGuard,
        lease: CollectorLease,
        session: Callable[[], SessionId | None],
        clock: Clock,
        crash_points: CrashPoints,
        metrics: RetentionMetrics,
        limits: RetainerLimits,
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._index = index
        self._topics = topics
        self._guard = guard
        self._lease = lease
        self._session = session
        self._clock = clock
        self._crash_points = crash_points
        self._metrics = metrics
        self._limits = limits
        self._next_round: float | None = None
        self._now_ms: int | None = None
        self._known: dict[StreamId, _Known] = {}
        self._ahead: deque[tuple[StreamId, Retention]] = deque()
        self._overdue_ms = 0
        self._turns = LoopTurns()

    async def tick(self) -> int:
        """Begin a round if it is time, look at the next streams, and return how many log starts have moved.

        A stream that cannot be read holds up no other; the first failure is raised in the end.
        """
        now = self._clock.monotonic()
        if self._next_round is None or now >= self._next_round:
            self._next_round = now + self._limits.interval_ms / 1000
            self._now_ms = await self._guard.look()
            await self._begin_round()
        session = self._session()
        if not self._ahead or self._now_ms is None or session is None or not await self._lease.take():
            return 0
        try:
            return await self._look_at_some(self._now_ms, session)
        except Fenced:
            return 0  # the clock that was told is gone with its session: the next round begins in another one

    async def _begin_round(self) -> None:
        """Find the streams that must be looked at. Those of the last round that were not reached are among them.

        Between slices of all streams, others have their turn on the loop.
        """
        self._ahead.clear()
        self._overdue_ms = 0
        if self._now_ms is None:
            return
        known: dict[StreamId, _Known] = {}
        limited = ((stream, topic.retention) for topic in self._topics() for stream in topic.streams)
        while part := list(islice(limited, STREAMS_PER_SLICE)):
            for stream, retention in part:
                if retention.max_age_ms is None and retention.max_bytes is None:
                    continue
                kept = self._known.get(stream)
                if kept is not None and kept.retention == retention:
                    known[stream] = kept
                if self._is_due(stream, known.get(stream), self._now_ms):
                    self._ahead.append((stream, retention))
            await self._turns.next()
        self._known = known
        if not self._ahead:
            self._metrics.show_lag(0)

    def _is_due(self, stream: StreamId, known: _Known | None, now_ms: int) -> bool:
        head = self._index.view.head(stream)
        if head is None:
            return True
        if head.is_deleted or head.log_start >= head.high_watermark:
            return False
        return known is None or known.outlook.is_due(head, now_ms)

    async def _look_at_some(self, now_ms: int, session: SessionId) -> int:
        """Go on with the streams ahead, some at a time; each such step is one transaction."""
        moved, looks = 0, min(len(self._ahead), self._limits.looks_per_tick)
        failures: list[HeadraceError] = []
        while looks > 0:
            step = [self._ahead.popleft() for _ in range(min(looks, self._limits.streams_per_step))]
            looks -= len(step)
            moved += await self._step(step, now_ms, session, failures)
        if not self._ahead:
            self._metrics.show_lag(self._overdue_ms)
        if failures:
            raise failures[0]
        return moved

    async def _step(
        self,
        step: Sequence[tuple[StreamId, Retention]],
        now_ms: int,
        session: SessionId,
        failures: list[HeadraceError],
    ) -> int:
        found: list[_Look] = []
        for stream, retention in step:
            try:
                look = await self._look(stream, retention, now_ms)
            except HeadraceError as error:
                failures.append(error)
                continue
            if look is not None:
                found.append(look)
        moved = await self._move([look for look in found if look.verdict.moved_by is not None], session)
        for look in found:
            verdict = look.verdict
            self._overdue_ms = max(self._overdue_ms, verdict.overdue_ms)
            if verdict.outlook is not None:
                self._known[look.stream] = _Known(retention=look.retention, outlook=verdict.outlook)
            elif verdict.moved_by is not None and verdict.log_start < look.head.high_watermark:
                self._ahead.append((look.stream, look.retention))  # a whole page goes: more may lie behind it
        return moved

    async def _look(self, stream: StreamId, retention: Retention, now_ms: int) -> _Look | None:
        """Read a stream's oldest entries and decide; `None` where there are none."""
        head = self._index.view.head(stream) or await self._index.fresh_head(stream)
        if head is None or head.is_deleted or head.log_start >= head.high_watermark:
            return None
        entries = await self._oldest(stream, head.log_start)
        verdict = decide_retention(head, entries, retention, now_ms=now_ms)
        return _Look(stream=stream, retention=retention, head=head, verdict=verdict)

    async def _oldest(self, stream: StreamId, log_start: int) -> list[IndexEntry]:
        """Return entries from the one that covers the log start on: folded ones, then those of the tail."""
        limit = self._limits.entries_per_look
        found = await self._metadata.range(self._keys.entries(stream, after_offset=log_start, limit=limit))
        entries = [INDEX_ENTRY.decode(item.value, item.key) for item in found]
        if len(entries) < limit:
            end_offset = entries[-1].end_offset if entries else log_start
            entries += self._index.view.find(stream, end_offset, limit=limit - len(entries))
        return entries

    async def _move(self, looks: Sequence[_Look], session: SessionId) -> int:
        """Move log starts in one transaction; return how many have moved."""
        if not looks:
            return 0
        offsets = {look.stream: look.verdict.log_start for look in looks}
        rule = advance_log_starts(self._keys, offsets, now_ms=self._clock.now_ms())
        heads = await rule.apply(self._metadata, session=session)
        self._crash_points.reach(CrashPoint.RETAIN_AFTER_STEP)
        for look in looks:
            if look.stream in heads:
                self._metrics.moved(look.head, look.verdict)
        # This broker's readers, and the next look, see it at once.
        await self._index.refresh()
        return len(heads)
