"""Find the record that a time names: the first one at or after it, or the one with the greatest time of all.

The index leads to the entry, an entry of a table to the row groups that can hold the answer, the headers of the
batches to the batch, and only that batch is opened. Timestamps need not rise: what counts is the first offset whose
own time is late enough.

Must stay true: every answer holds for the log as the store has it after the call began, and never names an offset
below the log start.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from headrace.fetch.reader import LogReader
from headrace.fetch.runs import Run
from headrace.fetch.wal_reads import LOOP_MAX_BYTES
from headrace.fetch.windows import windows_of
from headrace.index.cache import IndexCache
from headrace.index.values import EntryFlags, IndexEntry, StreamHead
from headrace.model.extents import WalExtent
from headrace.model.ids import StreamId
from headrace.records.batch import BatchView, iter_batches
from headrace.records.columns import ColumnBuilder, Columns
from headrace.records.problems import InvalidBatch
from headrace.runtime.executor import Executor

MAX_SEARCHES = 4
"""How many entries or row groups are held in memory and searched at once."""

ENTRIES_PER_PAGE = 500
"""How many entries are looked at together where the greatest time has to be searched for."""


@dataclass(frozen=True, slots=True)
class TimedOffset:
    """A record's offset and its timestamp."""

    offset: int
    timestamp_ms: int


class TimestampFinder:
    """Looks records up by time."""

    def __init__(self, *, index: IndexCache, reader: LogReader, executor: Executor, max_open_bytes: int) -> None:
        """`max_open_bytes` limits what a compressed batch may become."""
        self._index = index
        self._reader = reader
        self._executor = executor
        self._max_open_bytes = max_open_bytes
        self._slots = asyncio.Semaphore(MAX_SEARCHES)

    async def first_since(self, stream: StreamId, target_ms: int) -> TimedOffset | None:
        """Return the first record at or after a time, or `None` if there is none."""
        start_offset = 0
        while True:
            entry = await self._index.find_timestamp(stream, target_ms, start_offset=start_offset)
            head = self._index.view.head(stream)
            if entry is None or head is None:
                return None
            found = await self._first_of(stream, entry, target_ms, head.log_start)
            if found is not None:
                return found
            # The time that led here belongs to a record below the log start, or a batch states a wrong one.
            start_offset = entry.end_offset

    async def latest(self, stream: StreamId) -> TimedOffset | None:
        """Return the first of the records with the greatest time, or `None` if the log is empty."""
        head = await self._index.fresh_head(stream)
        if head is None or head.log_start == head.high_watermark:
            return None
        if head.max_timestamp_offset >= head.log_start:
            found = await self._index.locate(stream, head.max_timestamp_offset, limit=1)
            if found and found[0].start_offset >= head.log_start:
                best = await self._greatest_of(stream, found[0], head.log_start)
                if best is not None and (_is_exact(found[0]) or best.timestamp_ms >= head.max_timestamp_ms):
                    return best
        return await self._latest_of_rest(stream, head)

    async def _latest_of_rest(self, stream: StreamId, head: StreamHead) -> TimedOffset | None:
        """Go through all entries, because the log's own maximum may have been trimmed away.

        What is known of an entry is an upper bound: the record may lie below the log start, be a marker, or lie in a
        part of a row group that is not the entry's. So the most promising one is opened, then the next, until none
        promises more than was found.
        """
        best: TimedOffset | None = None
        opened: set[int] = set()
        while True:
            candidate: IndexEntry | None = None
            offset = head.log_start
            while offset < head.high_watermark:
                page = await self._index.locate(stream, offset, limit=ENTRIES_PER_PAGE)
                if not page:
                    return await self.latest(stream)  # trimmed meanwhile
                offset = page[-1].end_offset
                for entry in page:
                    if entry.end_offset not in opened and _promises_more(entry, candidate, best):
                        candidate = entry
            if candidate is None:
                return best
            opened.add(candidate.end_offset)
            found = await self._greatest_of(stream, candidate, head.log_start)
            if found is not None and (best is None or _is_later(found, best)):
                best = found
            if _is_exact(candidate) and candidate.start_offset >= head.log_start:
                return best  # nothing else promises more

    async def _first_of(
        self, stream: StreamId, entry: IndexEntry, target_ms: int, log_start: int
    ) -> TimedOffset | None:
        """Look into an entry for the first record since a time: row group by row group, if it has any."""
        for offset, end_offset, bound_ms in _parts_of(entry, log_start):
            if bound_ms >= target_ms:
                found = await self._search(
                    stream,
                    offset,
                    end_offset,
                    partial(_first, target_ms=target_ms, log_start=log_start, end=entry.end_offset),
                )
                if found is not None:
                    return found
        return None

    async def _greatest_of(self, stream: StreamId, entry: IndexEntry, log_start: int) -> TimedOffset | None:
        """Look into an entry for the first record with the greatest time; the latest row groups first."""
        best: TimedOffset | None = None
        for offset, end_offset, bound_ms in sorted(_parts_of(entry, log_start), key=lambda part: (-part[2], part[0])):
            if best is not None and not _is_later(TimedOffset(offset, bound_ms), best):
                continue
            look = partial(_greatest, log_start=log_start, end=entry.end_offset)
            found = await self._search(stream, offset, end_offset, look, needs_all=True)
            if found is not None and (best is None or _is_later(found, best)):
                best = found
        return best

    async def _search(
        self, stream: StreamId, offset: int, end_offset: int, look: "_Look", *, needs_all: bool = False
    ) -> TimedOffset | None:
        """Read one entry of the WAL or one row group, and look into it: up to the first answer, or into all of it.

        One read brings all of it, unless it is damaged or was moved meanwhile. Raises `Corrupt` where damage may hide
        the answer.
        """
        best: TimedOffset | None = None
        async with self._slots:
            while offset < end_offset:
                runs = await self._reader.read(stream, offset, max_bytes=0)
                if not runs:
                    break  # trimmed meanwhile: the next look-up begins above it
                found = await self._look_into(runs, look)
                if found is not None and (best is None or _is_later(found, best)):
                    best = found
                if best is not None and not needs_all:
                    break
                offset = runs[-1].end_offset
        return best

    async def _look_into(self, runs: Sequence[Run], look: "_Look") -> TimedOffset | None:
        work = partial(look, runs, max_open_bytes=self._max_open_bytes)
        is_small = sum(len(run.data) for run in runs) <= LOOP_MAX_BYTES
        if is_small and not any(batch.codec for run in runs for batch in iter_batches(run.data)):
            return work()
        return await self._executor.run(work)


def _parts_of(entry: IndexEntry, log_start: int) -> list[tuple[int, int, int]]:
    """Return what of an entry can be read by itself: first offset, end, and the time that none of it is later than.

    Parts without records are left out.
    """
    start_offset = max(entry.start_offset, log_start)
    if isinstance(entry.extent, WalExtent):
        return [(start_offset, entry.end_offset, entry.max_timestamp_ms)]
    windows = windows_of(entry, entry.extent, start_offset=start_offset)
    return [
        (max(window.start_offset, start_offset), window.end_offset, window.max_timestamp_ms)
        for window in windows
        if window.max_timestamp_ms is not None
    ]


def _promises_more(entry: IndexEntry, candidate: IndexEntry | None, best: TimedOffset | None) -> bool:
    """Whether an entry may hold a later record than the best one, and a later one than the candidate so far."""
    bound_ms = _bound_of(entry)
    if bound_ms is None or (best is not None and not _is_later(TimedOffset(entry.start_offset, bound_ms), best)):
        return False
    known_ms = None if candidate is None else _bound_of(candidate)
    return known_ms is None or bound_ms > known_ms


def _bound_of(entry: IndexEntry) -> int | None:
    """Return the time that no record of an entry is later than; `None` if it has no records."""
    return max((bound_ms for _, _, bound_ms in _parts_of(entry, 0)), default=None)


def _is_exact(entry: IndexEntry) -> bool:
    """Whether an entry has what it promises: a batch is believed what it says of its times, unless it is a marker."""
    return isinstance(entry.extent, WalExtent) and not entry.flags & EntryFlags.CONTROL


def _is_later(one: TimedOffset, other: TimedOffset) -> bool:
    """Whether `one` is the better answer to "the greatest time": of equal times the first offset counts."""
    return (one.timestamp_ms, -one.offset) > (other.timestamp_ms, -other.offset)


class _Look(Protocol):
    def __call__(self, runs: Sequence[Run], *, max_open_bytes: int) -> TimedOffset | None: ...


def _batches(runs: Sequence[Run], log_start: int, end: int) -> Iterator[BatchView]:
    """Go through the batches that hold records from the log start up to an end.

    Markers are no records: so the answer is the same from the WAL and from a table, where they are holes.
    """
    for run in runs:
        for batch in iter_batches(run.data):
            is_inside = batch.end_offset > log_start and batch.base_offset < end
            if is_inside and batch.record_count and not batch.is_control:
                yield batch


def _first(
    runs: Sequence[Run], *, target_ms: int, log_start: int, end: int, max_open_bytes: int
) -> TimedOffset | None:
    for batch in _batches(runs, log_start, end):
        # The header's maximum is the greatest time, but some clients state the last one.
        if max(batch.max_timestamp_ms, batch.base_timestamp_ms) < target_ms:
            continue
        columns = _opened(batch, max_open_bytes)
        if columns is None:
            return TimedOffset(max(batch.base_offset, log_start), batch.max_timestamp_ms)
        for offset, timestamp_ms in zip(columns.offset, columns.timestamp_ms, strict=True):
            if timestamp_ms >= target_ms and offset >= log_start:
                return TimedOffset(offset, timestamp_ms)
    return None


def _greatest(runs: Sequence[Run], *, log_start: int, end: int, max_open_bytes: int) -> TimedOffset | None:
    best: TimedOffset | None = None
    for batch in _batches(runs, log_start, end):
        stated_ms = max(batch.max_timestamp_ms, batch.base_timestamp_ms)
        if best is not None and stated_ms <= best.timestamp_ms:
            continue
        columns = _opened(batch, max_open_bytes)
        if columns is None:
            best = TimedOffset(max(batch.base_offset, log_start), batch.max_timestamp_ms)
            continue
        for offset, timestamp_ms in zip(columns.offset, columns.timestamp_ms, strict=True):
            if offset >= log_start and (best is None or timestamp_ms > best.timestamp_ms):
                best = TimedOffset(offset, timestamp_ms)
    return best


def _opened(batch: BatchView, max_open_bytes: int) -> Columns | None:
    """Return a batch's records; `None` for one that cannot be opened, whose own times then stand for its records.

    A client may have compressed garbage: its consumers will find out, a look-up by time must not fail for ever.
    """
    builder = ColumnBuilder(max_open_bytes=max_open_bytes)
    try:
        builder.append(batch)
    except InvalidBatch:
        return None
    return builder.columns()
