"""Tasks: every wanted offset in exactly one of them, whatever the limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Corrupt
from headrace.index.values import IndexEntry
from headrace.model.extents import Extent, RowGroup, TableExtent, TableFile, WalExtent
from headrace.model.ids import ObjectId
from headrace.pipeline.scan.conditions import Condition, parse_condition
from headrace.pipeline.scan.planning import ScannedRange, TaskLimits, plan_tasks
from headrace.pipeline.scan.tasks import ScanTask, TablePart, WalPart

MIB = 1024 * 1024


def entry(start: int, end: int, extent: Extent, *, max_ms: int = 0) -> IndexEntry:
    return IndexEntry(start, end, end - start, 0, 0, 0, max_ms, start, max_ms, 0, extent)


def wal(start: int, end: int, *, size_bytes: int = MIB) -> IndexEntry:
    return entry(start, end, WalExtent(ObjectId(f"object-{start}"), 0, size_bytes))


def group(number: int, first_offset: int, *, size_bytes: int = MIB, max_ms: int = 0) -> RowGroup:
    return RowGroup(number, first_offset, number * size_bytes, size_bytes, 1, max_ms, 0)


def table(start: int, end: int, *groups: RowGroup, path: str = "file") -> IndexEntry:
    return entry(start, end, TableExtent((TableFile(path, 10 * MIB, 10, 0, groups),) if groups else ()))


def planned(
    *entries: IndexEntry,
    start: int | None = None,
    end: int | None = None,
    task_bytes: int = 100 * MIB,
    min_tasks: int = 1,
    max_records: int | None = None,
    condition: Condition | None = None,
) -> list[ScanTask]:
    range_ = ScannedRange(
        topic="orders",
        partition=3,
        start_offset=entries[0].start_offset if start is None else start,
        end_offset=entries[-1].end_offset if end is None else end,
        entries=entries,
    )
    limits = TaskLimits(task_bytes=task_bytes, min_tasks=min_tasks, max_records=max_records)
    return plan_tasks([range_], condition=condition or Condition(), limits=limits, domain=0)


def offsets_of(tasks: list[ScanTask]) -> list[int]:
    return [offset for task in tasks for part in task.parts for offset in range(part.start_offset, part.end_offset)]


def test_a_small_range_is_one_task_of_wal_and_table_parts() -> None:
    tasks = planned(table(0, 10, group(0, 0), group(1, 6)), wal(10, 12), wal(12, 20), start=4, end=15)
    [task] = tasks
    assert (task.topic, task.partition) == ("orders", 3)
    first, second, third = task.parts
    assert isinstance(first, TablePart) and (first.start_offset, first.end_offset) == (4, 10)
    assert [each.number for each in first.file.row_groups] == [0, 1]
    assert isinstance(second, WalPart) and isinstance(third, WalPart)
    assert (third.start_offset, third.end_offset, third.piece.end_offset) == (12, 15, 20)
    assert (task.size_bytes, task.offset_count) == (4 * MIB, 11)


def test_a_row_group_that_lies_outside_of_the_range_is_not_read() -> None:
    [task] = planned(table(0, 30, group(0, 0), group(1, 10), group(2, 20)), start=10, end=20)
    [part] = task.parts
    assert isinstance(part, TablePart) and [each.number for each in part.file.row_groups] == [1]


def test_row_groups_too_old_for_the_condition_are_left_out() -> None:
    condition = parse_condition("timestamp >= 50")
    entries = table(0, 30, group(0, 0, max_ms=10), group(1, 10, max_ms=60), group(2, 20, max_ms=49))
    [task] = planned(entries, wal(30, 40), condition=condition)
    assert offsets_of([task]) == list(range(10, 20)) + list(range(30, 40))


def test_a_client_that_lies_about_times_loses_no_row_of_the_wal() -> None:
    [task] = planned(wal(0, 10), condition=parse_condition("timestamp >= 50"))
    assert offsets_of([task]) == list(range(10))


def test_partitions_and_offsets_outside_of_the_condition_are_left_out() -> None:
    assert planned(wal(0, 10), condition=parse_condition("partition = 4")) == []
    assert offsets_of(planned(wal(0, 10), wal(10, 20), condition=parse_condition("offset >= 12"))) == list(
        range(12, 20)
    )


def test_an_entry_without_rows_needs_no_task() -> None:
    assert planned(table(0, 10)) == []


def test_tasks_are_cut_by_bytes_at_entries_and_row_groups() -> None:
    tasks = planned(table(0, 30, group(0, 0), group(1, 10), group(2, 20)), wal(30, 40), task_bytes=2 * MIB)
    assert [task.offset_count for task in tasks] == [20, 20]


def test_more_tasks_than_entries_cut_entries_apart() -> None:
    tasks = planned(wal(0, 8), min_tasks=4)
    assert [[(part.start_offset, part.end_offset) for part in task.parts] for task in tasks] == [
        [(0, 2)],
        [(2, 4)],
        [(4, 6)],
        [(6, 8)],
    ]
    assert len(planned(wal(0, 2), min_tasks=50)) == 2


def test_a_swap_between_two_pages_doubles_nothing() -> None:
    tasks = planned(wal(0, 5), wal(5, 10), table(0, 20, group(0, 0), group(1, 12)), start=0, end=20)
    assert offsets_of(tasks) == list(range(20))


def test_a_gap_in_the_index_is_told() -> None:
    with pytest.raises(Corrupt, match="no index entry covers offset 5"):
        planned(wal(0, 5), wal(6, 10))
    with pytest.raises(Corrupt, match="no index entry covers offset 10"):
        planned(wal(0, 10), end=12)


SIZES = st.lists(st.tuples(st.booleans(), st.integers(1, 30), st.integers(1, 5 * MIB)), min_size=1, max_size=12)


@given(SIZES, st.integers(0, 20), st.integers(0, 20), st.integers(1, 12 * MIB), st.integers(1, 40), st.data())
def test_every_wanted_offset_is_in_exactly_one_task(
    sizes: list[tuple[bool, int, int]], skip: int, short: int, task_bytes: int, min_tasks: int, data: st.DataObject
) -> None:
    entries, at = [], 0
    for is_wal, count, size_bytes in sizes:
        end = at + count
        if is_wal:
            entries.append(wal(at, end, size_bytes=size_bytes))
        else:
            middle = data.draw(st.integers(at, end - 1))
            entries.append(
                table(at, end, group(0, at, size_bytes=size_bytes), group(1, middle, size_bytes=9), path=f"f{at}")
            )
        at = end
    start, end = min(skip, at), max(min(skip, at), at - short)
    max_records = data.draw(st.none() | st.integers(1, 50))
    tasks = planned(
        *entries, start=start, end=end, task_bytes=task_bytes, min_tasks=min_tasks, max_records=max_records
    )
    wanted = list(range(start, end))
    assert offsets_of(tasks) == wanted
    assert all(task.offset_count for task in tasks)
    assert len(tasks) >= min(min_tasks, len(wanted))
    if max_records is not None:
        assert all(task.offset_count <= max_records for task in tasks)
