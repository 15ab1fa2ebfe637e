"""Cut what is to be read into tasks.

Pure: no clock, no store. `log_look.py` reads what is planned from.

1. Turn entries into units, what can be read by itself: an entry of the WAL, one row group of a table entry. Units
   that cannot have a row that fits the condition are left out.
2. Put consecutive units of a partition together until a task has its bytes.
3. Where more tasks are asked for, halve the largest ones: between units, and inside of one where there is only one.

Must stay true: every wanted offset is in exactly one task, whatever the limits; a task is of one partition, in order.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.errors import Corrupt
from headrace.index.values import IndexEntry
from headrace.model.extents import RowGroup, TableExtent, TableFile, WalExtent
from headrace.pipeline.plans import WalPiece
from headrace.pipeline.scan.conditions import US_PER_MS, Condition
from headrace.pipeline.scan.tasks import Part, ScanTask, TablePart, WalPart
from headrace.tables.rows import clamped_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedRange:
    """What is to be read of one partition, and the entries that cover it."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    entries: Sequence[IndexEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """How large a task may become, and how many there are to be at least."""

    task_bytes: int
    min_tasks: int = 1
    max_records: int | None = None


@dataclass(frozen=True, slots=True)
class _Unit:
    """What can be read by itself, and the offsets that are wanted of it."""

    start_offset: int
    end_offset: int
    size_bytes: int
    piece: WalPiece | None = None
    file: TableFile | None = None
    group: RowGroup | None = None

    def cut(self, offset: int) -> "tuple[_Unit, _Unit]":
        """Return the two parts on either side of an offset; both read the same bytes."""
        return replace(self, end_offset=offset), replace(self, start_offset=offset)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive units of one partition: a task in the making."""

    range_: ScannedRange
    units: tuple[_Unit, ...]

    @property
    def size_bytes(self) -> int:
        return sum(unit.size_bytes for unit in self.units)

    def halves(self) -> "tuple[_Stretch, _Stretch] | None":
        """Return two that are together what this is, about as large as each other; `None` if it is one offset."""
        if len(self.units) > 1:
            middle = _middle([unit.size_bytes for unit in self.units])
            return replace(self, units=self.units[:middle]), replace(self, units=self.units[middle:])
        (unit,) = self.units
        if unit.end_offset - unit.start_offset < 2:
            return None
        first, second = unit.cut((unit.start_offset + unit.end_offset) // 2)
        return replace(self, units=(first,)), replace(self, units=(second,))


def plan_tasks(
    ranges: Iterable[ScannedRange], *, condition: Condition, limits: TaskLimits, domain: int
) -> list[ScanTask]:
    """Return the tasks of a read, those of a partition in order. Raises `Corrupt` if entries do not cover a range."""
    stretches: list[_Stretch] = []
    units_by_range = [(range_, list(_units(range_, condition))) for range_ in ranges]
    total_bytes = sum(unit.size_bytes for _, units in units_by_range for unit in units)
    target_bytes = max(1, min(limits.task_bytes, total_bytes // limits.min_tasks))
    for range_, units in units_by_range:
        for stretch in _stretches(range_, units, target_bytes):
            stretches += _short(stretch, limits.max_records)
    return [_task(stretch, domain) for stretch in _at_least(stretches, limits.min_tasks)]


def _units(range_: ScannedRange, condition: Condition) -> Iterator[_Unit]:
    if not condition.allows_partition(range_.topic, range_.partition):
        return
    start, end = condition.offsets(range_.start_offset, range_.end_offset)
    next_offset = range_.start_offset
    for entry in range_.entries:
        if entry.start_offset > next_offset:
            break
        # The page after may begin inside of what the page before has covered, if a swap came between the two.
        first, last = max(next_offset, start), min(entry.end_offset, end)
        next_offset = max(next_offset, entry.end_offset)
        if first < last:
            yield from _units_of(entry, first, last, condition)
    if next_offset < range_.end_offset:
        raise Corrupt(
            f"partition {range_.partition} of {range_.topic}: no index entry covers offset {next_offset}, though it "
            f"lies before the end at {range_.end_offset}"
        )


def _units_of(entry: IndexEntry, first: int, last: int, condition: Condition) -> Iterator[_Unit]:
    extent = entry.extent
    if isinstance(extent, WalExtent):
        piece = WalPiece(entry.start_offset, entry.end_offset, entry.append_time_ms, extent)
        yield _Unit(first, last, extent.size_bytes, piece=piece)
        return
    for file, group, start, end in _groups(entry, extent):
        start, end = max(start, first), min(end, last)
        if start < end and condition.allows_times(None, US_PER_MS * clamped_ms(group.max_timestamp_ms)):
            yield _Unit(start, end, group.size_bytes, file=file, group=group)


def _groups(entry: IndexEntry, extent: TableExtent) -> Iterator[tuple[TableFile, RowGroup, int, int]]:
    """Go through an entry's row groups with the offsets that each answers for."""
    named = [(file, group) for file in extent.files for group in file.row_groups]
    ends = [*(group.first_offset for _, group in named), entry.end_offset][1:]
    for (file, group), end in zip(named, ends, strict=True):
        yield file, group, max(group.first_offset, entry.start_offset), min(end, entry.end_offset)


def _stretches(range_: ScannedRange, units: Sequence[_Unit], target_bytes: int) -> Iterator[_Stretch]:
    taken: list[_Unit] = []
    taken_bytes = 0
    for unit in units:
        if taken and taken_bytes + unit.size_bytes > target_bytes:
            yield _Stretch(range_, tuple(taken))
            taken, taken_bytes = [], 0
        taken.append(unit)
        taken_bytes += unit.size_bytes
    if taken:
        yield _Stretch(range_, tuple(taken))


def _short(stretch: _Stretch, max_records: int | None) -> Iterator[_Stretch]:
    """Cut a stretch where it would have more offsets than a task may have."""
    taken: list[_Unit] = []
    left = max_records or 0
    for unit in stretch.units:
        while max_records is not None and unit.end_offset - unit.start_offset > left:
            if left:
                first, unit = unit.cut(unit.start_offset + left)
                taken.append(first)
            yield replace(stretch, units=tuple(taken))
            taken, left = [], max_records
        taken.append(unit)
        left -= unit.end_offset - unit.start_offset
    if taken:
        yield replace(stretch, units=tuple(taken))


def _at_least(stretches: Sequence[_Stretch], min_tasks: int) -> list[_Stretch]:
    """Halve the largest until there are enough, or nothing is left that can be halved."""
    done: list[tuple[float, _Stretch]] = []
    largest = [(-stretch.size_bytes, float(place), stretch) for place, stretch in enumerate(stretches)]
    widths = dict.fromkeys((float(place) for place in range(len(stretches))), 1.0)
    heapq.heapify(largest)
    while largest and len(largest) + len(done) < min_tasks:
        weight, place, stretch = heapq.heappop(largest)
        halves = stretch.halves()
        if halves is None:
            done.append((place, stretch))
            continue
        # Places stay in the order of the offsets: the second half goes half-way to the next one.
        width = widths[place] = widths[place] / 2
        widths[place + width] = width
        is_one_unit = len(stretch.units) == 1
        for at, half in zip((place, place + width), halves, strict=True):
            heapq.heappush(largest, (weight // 2 if is_one_unit else -half.size_bytes, at, half))
    kept = [*done, *((place, stretch) for _, place, stretch in largest)]
    return [stretch for _, stretch in sorted(kept, key=lambda item: item[0])]


def _middle(sizes: Sequence[int]) -> int:
    """Return where a list of sizes falls into two halves, neither of them empty."""
    half, passed = sum(sizes) / 2, 0
    for number, size in enumerate(sizes[:-1], start=1):
        passed += size
        if passed >= half:
            return number
    return len(sizes) - 1


def _task(stretch: _Stretch, domain: int) -> ScanTask:
    parts: list[Part] = []
    for unit in stretch.units:
        if unit.piece is not None:
            parts.append(WalPart(unit.start_offset, unit.end_offset, unit.piece))
            continue
        assert unit.file is not None and unit.group is not None, "a unit is of the WAL or of a table"
        last = parts[-1] if parts else None
        if isinstance(last, TablePart) and last.file.path == unit.file.path and last.end_offset == unit.start_offset:
            groups = last.file.row_groups
            joined = groups if unit.group in groups else (*groups, unit.group)
            parts[-1] = TablePart(last.start_offset, unit.end_offset, _with_groups(unit.file, joined))
        else:
            parts.append(TablePart(unit.start_offset, unit.end_offset, _with_groups(unit.file, (unit.group,))))
    return ScanTask(topic=stretch.range_.topic, partition=stretch.range_.partition, parts=tuple(parts), domain=domain)


def _with_groups(file: TableFile, groups: tuple[RowGroup, ...]) -> TableFile:
    return TableFile(file.path, file.size_bytes, file.footer_bytes, file.footer_crc, groups)
