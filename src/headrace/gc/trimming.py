"""Remove what lies below a stream's log start, and a deleted stream as a whole, in bounded steps."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from headrace.errors import Corrupt, HeadraceError
from headrace.gc.folding import Folder
from headrace.gc.leased import CollectorLease
from headrace.index.cache import IndexCache
from headrace.index.rule import StalePlan
from headrace.index.trim import (
    MAX_TRIM_BYTES,
    TrimPage,
    entries_below,
    finish_deletion,
    plan_trim,
    trim_entries,
    trim_streams,
)
from headrace.index.values import IndexEntry
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import StreamId
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints, NoCrashes


class Trimmer:
    """Makes single steps: of one stream, or of many in one transaction, each of bounded entries and bytes."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        clock: Clock,
        entries_per_step: int,
        crash_points: CrashPoints | None = None,
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._clock = clock
        self._crash_points = crash_points or NoCrashes()
        self.entries_per_step = entries_per_step

    async def trim(self, stream: StreamId) -> int:
        """Remove the oldest entries of one stream below its log start, at most one step; return how many went."""
        entries = await plan_trim(self._metadata, self._keys, stream, max_entries=self.entries_per_step)
        if not entries:
            return 0
        try:
            await trim_entries(self._keys, stream, entries, now_ms=self._clock.now_ms()).apply(self._metadata)
        except StalePlan:
            return 0
        self._crash_points.reach(CrashPoint.TRIM_AFTER_STEP)
        return len(entries)

    async def plan(self, stream: StreamId, log_start: int, *, max_entries: int, max_bytes: int) -> TrimPage:
        """Return the oldest entries of a stream below a log start."""
        return await entries_below(
            self._metadata, self._keys, stream, log_start, max_entries=max_entries, max_bytes=max_bytes
        )

    async def step(self, planned: Mapping[StreamId, Sequence[IndexEntry]]) -> frozenset[StreamId]:
        """Remove what was planned, in one transaction; leave out streams that another process was at.

        Return those of which it went.
        """
        rule = trim_streams(self._keys, planned, now_ms=self._clock.now_ms())
        trimmed = await rule.apply(self._metadata)
        self._crash_points.reach(CrashPoint.TRIM_AFTER_STEP)
        return trimmed

    async def remove(self, stream: StreamId) -> bool:
        """Go one step further in removing a deleted stream; say whether it is gone."""
        if await self.trim(stream):
            return False
        return await finish_deletion(self._keys, stream, max_keys=self.entries_per_step).apply(self._metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTrimmerLimits:
    """How many steps one tick makes, how many streams it reads for them, and how many heads that memory lacks.

    Of `streams_per_tick` streams it is compared, in memory, whether their log start has moved: a round over 100,000
    of them takes 20 ticks, and costs each tick a few milliseconds of the loop.
    """

    steps_per_tick: int = 50
    looks_per_tick: int = 1_000
    heads_per_tick: int = 200
    streams_per_tick: int = 5_000


@dataclass(slots=True)
class _Step:
    """What one transaction is to remove. Of `whole` streams that is all there is, of `longer` ones a part."""

    planned: dict[StreamId, list[IndexEntry]] = field(default_factory=dict)
    whole: list[tuple[StreamId, int]] = field(default_factory=list)
    longer: list[tuple[StreamId, int]] = field(default_factory=list)
    look_count: int = 0

    def done(self, trimmed: AbstractSet[StreamId]) -> dict[StreamId, int]:
        """Return how far streams are trimmed now: those without entries, and those whose last ones went."""
        return {
            stream: log_start for stream, log_start in self.whole if stream in trimmed or stream not in self.planned
        }


class LogTrimmer:
    """Trims behind every log start that has moved, whoever moved it: retention, or a client that deletes records.

    How far each stream is trimmed is remembered, so that one whose log start stands still costs a comparison. A new
    process knows nothing and looks at every stream once. Entries that are not folded yet go when they are folded;
    where the log is quiet, that is hurried along.
    """

    def __init__(
        self,
        *,
        trimmer: Trimmer,
        folder: Folder,
        index: IndexCache,
        streams: Callable[[], Sequence[StreamId]],
        lease: CollectorLease,
        limits: LogTrimmerLimits,
    ) -> None:
        self._trimmer = trimmer
        self._folder = folder
        self._index = index
        self._streams = streams
        self._lease = lease
        self._limits = limits
        self._trimmed_to: dict[StreamId, int] = {}
        self._round: list[StreamId] = []
        self._untrimmed: dict[StreamId, int] = {}
        self._unfolded: set[StreamId] = set()

    async def tick(self) -> int:
        """Make the next steps, if no other process collects, and return how many entries went.

        A stream that fails holds up no other; the first failure is raised in the end.
        """
        failures: list[HeadraceError] = []
        streams = self._next_streams()
        await self._learn([stream for stream in streams if self._index.view.head(stream) is None], failures)
        moved = self._moved(list(dict.fromkeys([*self._untrimmed, *streams])))
        self._unfolded.update(moved)
        self._unfolded = {stream for stream in self._unfolded if self._waits_for_folding(stream)}
        removed = 0
        if (moved or self._unfolded) and await self._lease.take():
            removed = await self._trim(moved, failures)
            if self._unfolded:
                await self._folder.tick()
        # What was not reached is tried in the next tick, and not only when its turn in the round comes again.
        self._untrimmed = {stream: to for stream, to in moved.items() if self._trimmed_to.get(stream, 0) < to}
        if failures:
            raise failures[0]
        return removed

    def _next_streams(self) -> list[StreamId]:
        """Return the next streams of a round over all of them; a new round forgets those that are gone."""
        if not self._round:
            self._round = list(reversed(self._streams()))
            known = self._trimmed_to
            if known:
                self._trimmed_to = {stream: known[stream] for stream in self._round if stream in known}
        next_ones = self._round[: -self._limits.streams_per_tick - 1 : -1]
        del self._round[-self._limits.streams_per_tick :]
        return next_ones

    async def _learn(self, unknown: Sequence[StreamId], failures: list[HeadraceError]) -> None:
        for stream in unknown[: self._limits.heads_per_tick]:
            try:
                await self._index.fresh_head(stream)
            except HeadraceError as error:
                failures.append(error)

    def _moved(self, streams: Sequence[StreamId]) -> dict[StreamId, int]:
        """Return the streams that are to be trimmed, and to where."""
        moved: dict[StreamId, int] = {}
        for stream in streams:
            head = self._index.view.head(stream)
            if head is not None and not head.is_deleted and head.log_start > self._trimmed_to.get(stream, 0):
                moved[stream] = head.log_start
        return moved

    def _waits_for_folding(self, stream: StreamId) -> bool:
        head = self._index.view.head(stream)
        return head is not None and self._index.view.has_tail_below(stream, head.log_start)

    async def _trim(self, moved: Mapping[StreamId, int], failures: list[HeadraceError]) -> int:
        """Make steps over the streams in turns, so that none waits for ever behind a large one, or one that fails."""
        ahead = deque(moved.items())
        removed, looks = 0, self._limits.looks_per_tick
        for _ in range(self._limits.steps_per_tick):
            if not ahead or looks <= 0:
                break
            step = await self._gather(ahead, looks, failures)
            looks -= step.look_count
            trimmed = await self._remove(step.planned, failures)
            removed += sum(len(step.planned[stream]) for stream in trimmed)
            self._trimmed_to.update(step.done(trimmed))
            ahead.extend(step.longer)
        return removed

    async def _gather(self, ahead: deque[tuple[StreamId, int]], looks: int, failures: list[HeadraceError]) -> _Step:
        """Take streams from the front until their entries fill a step."""
        step = _Step()
        room, room_bytes = self._trimmer.entries_per_step, MAX_TRIM_BYTES
        while ahead and room > 0 and room_bytes > 0 and step.look_count < looks:
            stream, log_start = ahead.popleft()
            step.look_count += 1
            try:
                page = await self._trimmer.plan(stream, log_start, max_entries=room, max_bytes=room_bytes)
            except HeadraceError as error:
                failures.append(error)
                continue
            (step.whole if page.is_all else step.longer).append((stream, log_start))
            if page.entries:
                step.planned[stream] = page.entries
                room, room_bytes = room - len(page.entries), room_bytes - page.size_bytes
        return step

    async def _remove(
        self, planned: Mapping[StreamId, Sequence[IndexEntry]], failures: list[HeadraceError]
    ) -> frozenset[StreamId]:
        """Make one step; where damage stops it, stream by stream, so that what is damaged holds up no other."""
        if not planned:
            return frozenset()
        try:
            return await self._trimmer.step(planned)
        except HeadraceError as error:
            if len(planned) == 1 or not isinstance(error, Corrupt):
                failures.append(error)
                return frozenset()
        alone = [await self._remove({stream: entries}, failures) for stream, entries in planned.items()]
        return frozenset().union(*alone)
