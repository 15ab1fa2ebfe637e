"""Remove what lies below a stream's log start, and a deleted stream as a whole, in bounded steps."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.gc.folding import Folder
from headrace.gc.leased import CollectorLease
from headrace.index.cache import IndexCache
from headrace.index.rule import StalePlan
from headrace.index.trim import finish_deletion, plan_trim, trim_entries
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import StreamId
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints, NoCrashes


class Trimmer:
    """Tidies one stream at a time."""

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
        """Remove the oldest entries below the log start, at most one step; return how many went."""
        return await self.step(stream) or 0

    async def step(self, stream: StreamId) -> int | None:
        """Do the same; return `None` where another process was at it, so that nothing is known."""
        entries = await plan_trim(self._metadata, self._keys, stream, max_entries=self.entries_per_step)
        if not entries:
            return 0
        try:
            await trim_entries(self._keys, stream, entries, now_ms=self._clock.now_ms()).apply(self._metadata)
        except StalePlan:
            return None
        self._crash_points.reach(CrashPoint.TRIM_AFTER_STEP)
        return len(entries)

    async def remove(self, stream: StreamId) -> bool:
        """Go one step further in removing a deleted stream; say whether it is gone."""
        if await self.trim(stream):
            return False
        return await finish_deletion(self._keys, stream, max_keys=self.entries_per_step).apply(self._metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTrimmerLimits:
    """How many steps one tick makes, and how many heads it reads that are not in memory yet."""

    steps_per_tick: int = 50
    heads_per_tick: int = 200


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
        self._unfolded: set[StreamId] = set()

    async def tick(self) -> int:
        """Make the next steps, if no other process collects, and return how many entries went."""
        streams = self._streams()
        await self._learn([stream for stream in streams if self._index.view.head(stream) is None])
        moved = self._moved(streams)
        self._unfolded.update(moved)
        self._unfolded = {stream for stream in self._unfolded if self._waits_for_folding(stream)}
        if not (moved or self._unfolded) or not await self._lease.take():
            return 0
        removed = await self._trim(moved)
        if self._unfolded:
            await self._folder.tick()
        return removed

    async def _learn(self, unknown: Sequence[StreamId]) -> None:
        for stream in unknown[: self._limits.heads_per_tick]:
            await self._index.fresh_head(stream)

    def _moved(self, streams: Sequence[StreamId]) -> dict[StreamId, int]:
        """Return the streams that are to be trimmed, and to where; forget those that are gone."""
        moved: dict[StreamId, int] = {}
        known: dict[StreamId, int] = {}
        for stream in streams:
            head = self._index.view.head(stream)
            trimmed_to = known[stream] = self._trimmed_to.get(stream, 0)
            if head is not None and not head.is_deleted and head.log_start > trimmed_to:
                moved[stream] = head.log_start
        self._trimmed_to = known
        return moved

    def _waits_for_folding(self, stream: StreamId) -> bool:
        head = self._index.view.head(stream)
        return head is not None and self._index.view.has_tail_below(stream, head.log_start)

    async def _trim(self, moved: Mapping[StreamId, int]) -> int:
        """Make steps over the streams in turns, so that none waits for ever behind a large one, or one that fails."""
        ahead = deque(moved.items())
        failures: list[HeadraceError] = []
        removed = 0
        for _ in range(self._limits.steps_per_tick):
            if not ahead:
                break
            stream, log_start = ahead.popleft()
            try:
                count = await self._trimmer.step(stream)
            except HeadraceError as error:
                failures.append(error)
                continue
            removed += count or 0
            if count is not None and count < self._trimmer.entries_per_step:
                self._trimmed_to[stream] = log_start
            else:
                ahead.append((stream, log_start))
        if failures:
            raise failures[0]
        return removed
