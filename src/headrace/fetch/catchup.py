"""Serve readers that are behind what memory holds: from objects, a little ahead of what they ask for.

A *cursor* stands where a reader will go on, and holds what was read beyond its last answer: the rest of an entry or
of a row group that was larger than the answer, and, once the reader has come back for more, one read ahead. Without
the former every answer would read and check its entry from the start; without the latter a reader would wait a round
trip to the store for each of its answers.

Must stay true:
- What a cursor holds was committed, and the log never changes: nobody has to be told. Whether the reader may still
  see the offset is for the caller to check, at the stream's head.
- Reads of readers far behind, and all reads ahead, are lent from `far`; a reader near the end of the log reads what
  another broker has just written, and does not stand in line behind backfills.
- Cursors and their bytes are bounded; those used least recently go. Reading ahead takes free room only: with more
  readers than fit, each would else throw away what was read for the others.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.fetch.budget import ReadBudget
from headrace.fetch.reader import LogReader
from headrace.fetch.runs import Cut, Run, cut_runs, rest_of
from headrace.fetch.tail import TailCache
from headrace.index.cache import IndexView
from headrace.model.extents import WalExtent
from headrace.model.ids import StreamId
from headrace.runtime.clock import Clock

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpLimits:
    """What bounds reading from objects."""

    far_bytes: int = 16 * MIB
    """Reads under way for readers far behind, and ahead of them."""
    far_reads: int = 1
    """How many such reads there are at once. On local disk one reads as fast as three, and three make an append wait
    three times as long (measured); a remote store, whose reads hold no thread and take long, wants more."""
    near_bytes: int = 32 * MIB
    """Reads under way for readers near the end of their log."""
    near_reads: int = 64
    near_distance_bytes: int = 8 * MIB
    """How far from the end of the log a reader still counts as near."""
    read_bytes: int = 2 * MIB
    """What one read asks for, once a reader has shown that it reads on."""
    held_bytes: int = 64 * MIB
    """What all cursors together may hold."""
    cursors: int = 2_000
    cursor_max_age_s: float = 30.0
    """A reader that has not come back for so long is not waited for."""


class _Cursor:
    """Where one reader will go on; `runs` begin there, `ahead` brings what follows them."""

    __slots__ = ("ahead", "held_bytes", "offset", "runs", "stream", "used_at")

    def __init__(self, stream: StreamId, offset: int) -> None:
        self.stream = stream
        self.offset = offset
        self.runs: list[Run] = []
        self.held_bytes = 0
        self.ahead: asyncio.Task[list[Run]] | None = None
        self.used_at = 0.0

    @property
    def end_offset(self) -> int:
        """Where what it holds ends."""
        return self.runs[-1].end_offset if self.runs else self.offset

    def absorb(self, runs: list[Run]) -> None:
        """Put what was read behind what is there."""
        self.ahead = None
        self.runs += runs

    def cut(self, max_bytes: int, *, whole_first: bool) -> Cut:
        """Cut an answer off and step behind it."""
        cut = cut_runs(self.runs, self.offset, max_bytes, whole_first=whole_first)
        self.runs = rest_of(self.runs, cut)
        self.offset = cut.end_offset
        return cut


class CatchUp:
    """Reads on behalf of many readers."""

    def __init__(
        self, *, reader: LogReader, view: IndexView, tail: TailCache, clock: Clock, limits: CatchUpLimits
    ) -> None:
        self._reader = reader
        self._view = view
        self._tail = tail
        self._clock = clock
        self._limits = limits
        self._cursors: OrderedDict[tuple[StreamId, int], _Cursor] = OrderedDict()
        self._era = 0
        """Grows whenever everything was dropped: what was being read then is not kept."""
        self.far = ReadBudget(limits.far_bytes, max_reads=limits.far_reads)
        self.near = ReadBudget(limits.near_bytes, max_reads=limits.near_reads)
        self.held_bytes = 0
        """What cursors hold now."""
        self.reads = 0
        self.reads_ahead = 0
        self.read_bytes = 0

    @property
    def damages_found(self) -> int:
        """How many damages of the log reads came upon, since the start."""
        return self._reader.damages.found

    def take(self, stream: StreamId, offset: int, max_bytes: int, *, whole_first: bool) -> Cut | None:
        """Return what a cursor holds at the offset; `None` means that it has to be read."""
        cursor = self._cursors.get((stream, offset))
        if cursor is None:
            return None
        is_ready = cursor.ahead is not None and cursor.ahead.done()
        if not cursor.runs and not is_ready:
            return None
        self._forget(cursor)
        if cursor.ahead is not None and is_ready:
            cursor.absorb(cursor.ahead.result())
        if not cursor.runs:
            return None
        return self._serve(cursor, max_bytes, whole_first=whole_first, is_reading_on=True)

    async def read(self, stream: StreamId, offset: int, max_bytes: int, *, whole_first: bool) -> Cut | None:
        """Read on from an offset; `None` if the stream does not hold it. Raises what reading objects raises."""
        era = self._era
        cursor = self._cursors.get((stream, offset))
        is_reading_on = cursor is not None
        if cursor is None:
            cursor = _Cursor(stream, offset)
        else:
            self._forget(cursor)
            if cursor.ahead is not None:
                cursor.absorb(await cursor.ahead)
        if not cursor.runs:
            wanted_bytes = (
                max(max_bytes, self._limits.read_bytes) if is_reading_on and self._has_room() else max_bytes
            )
            budget = self.near if self._is_near(stream, offset) else self.far
            cursor.absorb(await self._load(stream, offset, wanted_bytes, budget))
        if era != self._era:
            return await self.read(stream, offset, max_bytes, whole_first=whole_first)
        if not cursor.runs:
            return None
        return self._serve(cursor, max_bytes, whole_first=whole_first, is_reading_on=is_reading_on)

    def drop_all(self) -> None:
        """Forget what is held for all readers: the log has other bytes for these offsets now."""
        self._era += 1
        for cursor in list(self._cursors.values()):
            self._drop(cursor)

    def drop(self, stream: StreamId) -> None:
        """Forget what is held for the readers of a stream: its log has other bytes for these offsets now."""
        for cursor in [one for one in self._cursors.values() if one.stream == stream]:
            self._drop(cursor)

    def close(self) -> None:
        """Forget all cursors and end what is being read ahead."""
        self.drop_all()
        self._reader.close()

    async def _load(self, stream: StreamId, offset: int, max_bytes: int, budget: ReadBudget) -> list[Run]:
        runs = await self._reader.read(stream, offset, max_bytes=max_bytes, budget=budget)
        self.reads += 1
        self.read_bytes += sum(len(run.data) for run in runs)
        return runs

    async def _load_ahead(self, stream: StreamId, offset: int) -> list[Run]:
        """Read what nobody has asked for yet. If this fails, whoever asks reads again and hears why."""
        self.reads_ahead += 1
        try:
            return await self._load(stream, offset, self._limits.read_bytes, self.far)
        except HeadraceError:
            return []

    def _serve(self, cursor: _Cursor, max_bytes: int, *, whole_first: bool, is_reading_on: bool) -> Cut:
        cut = cursor.cut(max_bytes, whole_first=whole_first)
        if is_reading_on and cut.size_bytes:
            self._read_ahead(cursor)
        self._keep(cursor)
        return cut

    def _read_ahead(self, cursor: _Cursor) -> None:
        """Begin to read what follows, if it is worth it and takes nothing from anybody."""
        head = self._view.head(cursor.stream)
        end_offset = cursor.end_offset
        if cursor.ahead is not None or head is None or end_offset >= head.high_watermark:
            return
        held_bytes = sum(len(run.data) for run in cursor.runs)
        if held_bytes >= self._limits.read_bytes or self._tail.covers(cursor.stream, end_offset):
            return
        if self.far.is_free and self._has_room():
            cursor.ahead = asyncio.create_task(self._load_ahead(cursor.stream, end_offset))

    def _has_room(self) -> bool:
        """Whether one more read may bring more than was asked for."""
        wanted_bytes = self.held_bytes + self.far.lent_bytes + self._limits.read_bytes
        return wanted_bytes <= self._limits.held_bytes

    def _is_near(self, stream: StreamId, offset: int) -> bool:
        head = self._view.head(stream)
        found = self._view.find(stream, offset, limit=1)
        if head is None or not found or not isinstance(found[0].extent, WalExtent):
            return False  # what lies in a table is old, and takes work to bring back
        return head.cumulative_bytes - found[0].cumulative_bytes <= self._limits.near_distance_bytes

    def _keep(self, cursor: _Cursor) -> None:
        """Remember where a reader will go on, and let go of the cursors that are too old or too many."""
        rival = self._cursors.get((cursor.stream, cursor.offset))
        if rival is not None:  # another reader at the same place
            self._drop(rival)
        cursor.used_at = self._clock.monotonic()
        cursor.held_bytes = sum(len(run.data) for run in cursor.runs)
        self._cursors[cursor.stream, cursor.offset] = cursor
        self.held_bytes += cursor.held_bytes
        oldest_at = cursor.used_at - self._limits.cursor_max_age_s
        while (first := next(iter(self._cursors.values()))).used_at < oldest_at or self._is_over():
            self._drop(first)
            if not self._cursors:
                return

    def _is_over(self) -> bool:
        return self.held_bytes > self._limits.held_bytes or len(self._cursors) > self._limits.cursors

    def _forget(self, cursor: _Cursor) -> None:
        del self._cursors[cursor.stream, cursor.offset]
        self.held_bytes -= cursor.held_bytes

    def _drop(self, cursor: _Cursor) -> None:
        self._forget(cursor)
        if cursor.ahead is not None:
            cursor.ahead.cancel()
