"""Find the record that a time names: the first one at or after it, or the one with the greatest time of all.

The index leads to the entry, the headers of its batches to the batch, and only that batch is opened. Timestamps need
not rise: what counts is the first offset whose own time is late enough.

Must stay true: every answer holds for the log as the store has it after the call began, and never names an offset
below the log start.
"""

import asyncio
from dataclasses import dataclass
from functools import partial

from headrace.fetch.reader import LOOP_MAX_BYTES, LogReader
from headrace.fetch.runs import Run
from headrace.index.cache import IndexCache
from headrace.index.values import IndexEntry, StreamHead
from headrace.model.ids import StreamId
from headrace.records.batch import BatchView, iter_batches
from headrace.records.columns import ColumnBuilder, Columns
from headrace.records.problems import InvalidBatch
from headrace.runtime.executor import Executor

MAX_SEARCHES = 4
"""How many entries are held in memory and searched at once."""

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
            found = await self._search(stream, entry, target_ms, head.log_start)
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
                return await self._search(stream, found[0], None, head.log_start)
        return await self._latest_of_rest(stream, head)

    async def _latest_of_rest(self, stream: StreamId, head: StreamHead) -> TimedOffset | None:
        """Go through all entries, because the log's own maximum may have been trimmed away."""
        best: TimedOffset | None = None
        candidate: IndexEntry | None = None
        offset = head.log_start
        while offset < head.high_watermark:
            page = await self._index.locate(stream, offset, limit=ENTRIES_PER_PAGE)
            if not page:
                return await self.latest(stream)  # trimmed meanwhile
            offset = page[-1].end_offset
            if page[0].start_offset < head.log_start:
                # Its greatest time may be that of a record below the log start: it is opened at once.
                best = await self._search(stream, page[0], None, head.log_start)
                page = page[1:]
            for entry in page:
                if candidate is None or entry.max_timestamp_ms > candidate.max_timestamp_ms:
                    candidate = entry
        if candidate is not None and (best is None or candidate.max_timestamp_ms > best.timestamp_ms):
            best = await self._search(stream, candidate, None, head.log_start)
        return best

    async def _search(
        self, stream: StreamId, entry: IndexEntry, target_ms: int | None, log_start: int
    ) -> TimedOffset | None:
        """Look into an entry: for the first record since a time, or (`None`) for the greatest time."""
        async with self._slots:
            runs = await self._reader.read(stream, max(entry.start_offset, log_start), max_bytes=0)
            if not runs:
                return None  # trimmed meanwhile: the next look-up begins above it
            if target_ms is None:
                work = partial(_greatest, runs[0], log_start, self._max_open_bytes)
            else:
                work = partial(_first, runs[0], target_ms, log_start, self._max_open_bytes)
            is_small = len(runs[0].data) <= LOOP_MAX_BYTES
            if is_small and not any(batch.codec for batch in iter_batches(runs[0].data)):
                return work()
            return await self._executor.run(work)


def _first(run: Run, target_ms: int, log_start: int, max_open_bytes: int) -> TimedOffset | None:
    for batch in iter_batches(run.data):
        # The header's maximum is the greatest time, but some clients state the last one.
        if batch.end_offset <= log_start or max(batch.max_timestamp_ms, batch.base_timestamp_ms) < target_ms:
            continue
        columns = _opened(batch, max_open_bytes)
        if columns is None:
            return TimedOffset(max(batch.base_offset, log_start), batch.max_timestamp_ms)
        for offset, timestamp_ms in zip(columns.offset, columns.timestamp_ms, strict=True):
            if timestamp_ms >= target_ms and offset >= log_start:
                return TimedOffset(offset, timestamp_ms)
    return None


def _greatest(run: Run, log_start: int, max_open_bytes: int) -> TimedOffset | None:
    best: TimedOffset | None = None
    for batch in iter_batches(run.data):
        stated_ms = max(batch.max_timestamp_ms, batch.base_timestamp_ms)
        if batch.end_offset <= log_start or (best is not None and stated_ms <= best.timestamp_ms):
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
