"""A task of the pipeline: find which rows of one stream are obsolete, because a later one has the same key.

1. Read the keys of the dirty part, and keep the latest offset of each, as far as the map has room.
2. Read the keys of the clean and the dirty part: what comes before the latest of its key is obsolete, and so is what
   has no key at all (written before the topic was compacted), as for Kafka's cleaner.
3. A tombstone that was kept long enough is obsolete, too, unless an earlier record of its key is still there (in a
   file that could not be rewritten): the key would come back to life.
4. Put the list of obsolete offsets into an object, and answer with what it means for each file.

Must stay true: the latest record of a key is never listed, but for such a tombstone. Whatever the stream holds, a
task keeps the map, one chunk of keys, one piece of reading, and the list: all of them have limits (`ScanLimits`). It
needs no broker, no metadata store, no catalog.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import Invalid
from headrace.model.extents import RowGroup
from headrace.objects.port import ByteRange, ObjectStore, object_key
from headrace.pipeline.dropped_offsets import pack_offsets
from headrace.pipeline.latest_offsets import ENTRY_BYTES, LatestOffsets
from headrace.pipeline.scans import ScannedStream, ScanRange, ScanTask
from headrace.runtime.executor import Executor, InlineExecutor
from headrace.tables.columns import KEY, OFFSET, VALUE
from headrace.tables.parquet_reading import Footer, parse_footer, read_rows

READ_BYTES = 16 * 1024 * 1024
"""How many bytes of row groups are asked for at once; one group may be more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Rows of one row group inside of one range; `is_tombstone` is `None` where nobody needs to know."""

    path: str
    keys: Any
    offsets: Any
    is_tombstone: Any | None

    @property
    def size_bytes(self) -> int:
        return ENTRY_BYTES * len(self.keys) + int(pc.sum(pc.binary_length(self.keys)).as_py() or 0)


async def scan_keys(
    task: ScanTask, objects: ObjectStore, *, attempt: str, executor: Executor | None = None
) -> ScannedStream:
    """Find the obsolete rows of the task's stream; their list is durable then.

    Raises `Missing` if a file is gone (the plan is old), `Corrupt` if stored bytes are not what was committed.
    """
    _check(task)
    worker = executor or InlineExecutor()
    scan = _Scan(task)
    async with aclosing(_read(scan.dirty_ranges(), objects, worker)) as reads:
        async for rows in reads:
            if not await worker.run(partial(scan.collect, rows)):
                break
    ranges = scan.ranges_to_clean()
    async with aclosing(_read(ranges, objects, worker, knows_tombstones=scan.must_know_values)) as reads:
        async for rows in reads:
            if not await worker.run(partial(scan.compare, rows)):
                break
    await worker.run(scan.end_chunk)
    async with aclosing(_read(scan.ranges_before_candidates(), objects, worker)) as reads:
        async for rows in reads:
            await worker.run(partial(scan.spare, rows))
    offsets = await worker.run(scan.obsolete)
    path = ""
    if len(offsets):
        name = f"{task.partition:05d}-{task.stream}-{task.epoch}-{attempt}.offsets"
        path = f"{task.data_prefix}{task.saga_id}/{name}"
        await objects.put(object_key(path), [await worker.run(partial(pack_offsets, offsets))])
    return scan.result(path)


def _check(task: ScanTask) -> None:
    """Raise `Invalid` unless the ranges ascend and end where they should."""
    at = 0
    for range_ in task.ranges:
        if not at <= range_.start_offset < range_.end_offset:
            raise Invalid(f"stream {task.stream}: a range at {range_.start_offset} follows one that ends at {at}")
        at = range_.end_offset


async def _read(
    ranges: Sequence[ScanRange],
    objects: ObjectStore,
    worker: Executor,
    *,
    knows_tombstones: Any = lambda _start, _end: False,
) -> AsyncGenerator[_Rows, None]:
    """Go through the rows of ranges, row group by row group."""
    footer: tuple[str, Footer] | None = None
    for range_ in ranges:
        file = range_.file
        if footer is None or footer[0] != file.path:
            tail = ByteRange(start_byte=file.size_bytes - file.footer_bytes, size_bytes=file.footer_bytes)
            (data,) = await objects.get_ranges(object_key(file.path), [tail])
            footer = (file.path, await worker.run(partial(parse_footer, file, data)))
        for groups in _bites(_groups_of(range_)):
            wanted = [ByteRange(start_byte=one.start_byte, size_bytes=one.size_bytes) for one, _, _ in groups]
            buffers = await objects.get_ranges(object_key(file.path), wanted)
            for (group, start, end), data in zip(groups, buffers, strict=True):
                with_values = knows_tombstones(start, end)
                yield await worker.run(partial(_rows_of, range_, group, footer[1], data, start, end, with_values))


def _groups_of(range_: ScanRange) -> list[tuple[RowGroup, int, int]]:
    """Return the row groups that reach into a range, each with the offsets of the range that it covers."""
    groups = range_.file.row_groups
    ends = [*(group.first_offset for group in groups[1:]), range_.end_offset]
    placed = [
        (group, max(group.first_offset, range_.start_offset), min(end, range_.end_offset))
        for group, end in zip(groups, ends, strict=True)
    ]
    return [(group, start, end) for group, start, end in placed if start < end]


def _bites(groups: Sequence[tuple[RowGroup, int, int]]) -> Iterator[list[tuple[RowGroup, int, int]]]:
    bite: list[tuple[RowGroup, int, int]] = []
    size_bytes = 0
    for one in groups:
        if bite and size_bytes + one[0].size_bytes > READ_BYTES:
            yield bite
            bite, size_bytes = [], 0
        bite.append(one)
        size_bytes += one[0].size_bytes
    if bite:
        yield bite


def _rows_of(
    range_: ScanRange, group: RowGroup, footer: Footer, data: Any, start: int, end: int, with_values: bool
) -> _Rows:
    columns = (OFFSET, KEY, VALUE) if with_values else (OFFSET, KEY)
    rows = read_rows(range_.file, group, footer, data, columns=columns)
    offsets = rows.column(OFFSET)
    inside = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
    is_tombstone = pc.is_null(rows.column(VALUE)).filter(inside) if with_values else None
    return _Rows(
        path=range_.file.path,
        keys=rows.column(KEY).filter(inside),
        offsets=offsets.filter(inside),
        is_tombstone=is_tombstone,
    )


class _Scan:
    """What a scan knows so far. No await, no I/O: the shell reads and calls."""

    def __init__(self, task: ScanTask) -> None:
        self._task = task
        self._limits = task.limits
        self._map = LatestOffsets(max_bytes=task.limits.map_bytes)
        self.cleaned_to = max(task.cleanable_end, task.dirty_from)
        self._chunk: list[_Rows] = []
        self._chunk_bytes = 0
        self._obsolete: list[Any] = []
        self._obsolete_count = 0
        self._losses: dict[str, int] = {}
        self._candidates: list[tuple[str, Any, Any]] = []  # path, keys, offsets of tombstones that may go
        self._candidate_bytes = 0
        self._hidden = LatestOffsets(max_bytes=1)
        self._tombstones = 0
        self._expired_left = 0
        self._rows = 0
        self._is_whole = True
        self._fixed = {range_.file.path for range_ in task.ranges if range_.is_fixed}

    def dirty_ranges(self) -> list[ScanRange]:
        return _between(self._task.ranges, self._task.dirty_from, self.cleaned_to)

    def ranges_to_clean(self) -> list[ScanRange]:
        """Return what the map is compared with. Without new keys only tombstones can go."""
        start = self._task.ranges[0].start_offset if self._task.ranges else 0
        end = self.cleaned_to if self.cleaned_to > self._task.dirty_from else self._task.expired_to
        return _between(self._task.ranges, start, end)

    def ranges_before_candidates(self) -> list[ScanRange]:
        """Return the ranges whose keys must be known before a tombstone goes."""
        if not self._candidates:
            return []
        self._hidden = LatestOffsets(max_bytes=2 * self._limits.chunk_bytes)
        for _, keys, offsets in self._candidates:
            self._hidden.add(keys, offsets)
        return _between(self._task.ranges, self._task.ranges[0].start_offset, self._candidates[-1][2][-1].as_py())

    def must_know_values(self, start: int, end: int) -> bool:
        return start < self._task.expired_to or end > self._task.dirty_from

    def collect(self, rows: _Rows) -> bool:
        """Take the keys of dirty rows; say whether the map had room. If not, the round ends before them."""
        if not len(rows.keys):
            return True
        has_key = pc.is_valid(rows.keys)
        if self._map.add(rows.keys.filter(has_key), rows.offsets.filter(has_key)):
            return True
        self.cleaned_to = rows.offsets[0].as_py()
        return False

    def compare(self, rows: _Rows) -> bool:
        """Take rows to be compared with the map; say whether there is room for more obsolete ones."""
        self._rows += len(rows.keys)
        self._chunk.append(rows)
        self._chunk_bytes += rows.size_bytes
        if self._chunk_bytes < max(self._limits.chunk_bytes, self._map.size_bytes // 2):
            return True
        self.end_chunk()
        self._is_whole = self._obsolete_count < self._limits.max_obsolete
        return self._is_whole

    def end_chunk(self) -> None:
        """Compare what was taken."""
        chunk, self._chunk, self._chunk_bytes = self._chunk, [], 0
        if not chunk:
            return
        latest = self._map.latest(pa.concat_arrays([rows.keys for rows in chunk]))
        at = 0
        for rows in chunk:
            self._sort_out(rows, latest.slice(at, len(rows.keys)))
            at += len(rows.keys)

    def _sort_out(self, rows: _Rows, latest: Any) -> None:
        """Note which rows of a row group go."""
        task = self._task
        is_replaced = pc.fill_null(pc.less(rows.offsets, latest), False)
        is_obsolete = pc.or_(is_replaced, pc.is_null(rows.keys))
        if rows.path not in self._fixed:
            self._drop(rows.path, rows.offsets.filter(is_obsolete))
        if rows.is_tombstone is None:
            return
        stays = pc.and_(rows.is_tombstone, pc.invert(is_obsolete))
        is_new = pc.and_(stays, pc.greater_equal(rows.offsets, task.dirty_from))
        self._tombstones += _count(is_new)
        is_expired = pc.and_(stays, pc.less(rows.offsets, task.expired_to))
        count = _count(is_expired)
        if not count:
            return
        keys, offsets = rows.keys.filter(is_expired), rows.offsets.filter(is_expired)
        size_bytes = ENTRY_BYTES * count + int(pc.sum(pc.binary_length(keys)).as_py() or 0)
        is_full = self._candidates and self._candidate_bytes + size_bytes > self._limits.chunk_bytes
        if rows.path in self._fixed or is_full:
            self._expired_left += count  # the next round comes to these
            return
        self._candidates.append((rows.path, keys, offsets))
        self._candidate_bytes += size_bytes

    def _drop(self, path: str, offsets: Any) -> None:
        if len(offsets):
            self._obsolete.append(offsets)
            self._obsolete_count += len(offsets)
            self._losses[path] = self._losses.get(path, 0) + len(offsets)

    def spare(self, rows: _Rows) -> None:
        """Keep tombstones that hide one of these rows; the rows themselves are obsolete."""
        is_hidden = pc.fill_null(pc.less(rows.offsets, self._hidden.latest(rows.keys)), False)
        if not _count(is_hidden):
            return
        if rows.path not in self._fixed:
            self._drop(rows.path, rows.offsets.filter(is_hidden))
        keys_found = rows.keys.filter(is_hidden)
        kept: list[tuple[str, Any, Any]] = []
        for path, keys, offsets in self._candidates:
            may_go = pc.invert(pc.is_in(keys, value_set=keys_found))
            self._expired_left += len(keys) - _count(may_go)
            kept.append((path, keys.filter(may_go), offsets.filter(may_go)))
        self._candidates = kept

    def obsolete(self) -> Any:
        """Return all obsolete offsets, in order."""
        for path, _, offsets in self._candidates:
            self._drop(path, offsets)
        self._candidates = []
        if not self._obsolete:
            return pa.array([], pa.int64())
        offsets = pa.concat_arrays(self._obsolete)
        return offsets.take(pc.array_sort_indices(offsets))

    def result(self, path: str) -> ScannedStream:
        return ScannedStream(
            partition=self._task.partition,
            stream=self._task.stream,
            cleaned_to=self.cleaned_to,
            is_whole=self._is_whole,
            path=path,
            losses=self._losses,
            tombstones=self._tombstones,
            expired_left=self._expired_left,
            row_count=self._rows,
        )


def _between(ranges: Sequence[ScanRange], start: int, end: int) -> list[ScanRange]:
    """Return the parts of ranges from one offset to another."""
    cut = [
        ScanRange(max(range_.start_offset, start), min(range_.end_offset, end), range_.file, range_.is_fixed)
        for range_ in ranges
    ]
    return [range_ for range_ in cut if range_.start_offset < range_.end_offset]


def _count(mask: Any) -> int:
    return int(pc.sum(mask).as_py() or 0)
