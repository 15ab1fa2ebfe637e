"""Which part of a stream may be compacted, when a round is due, and which files it rewrites."""

from typing import Any

import pytest

from headrace.index.values import IndexEntry
from headrace.model.extents import RowGroup, TableExtent, TableFile, WalExtent
from headrace.model.ids import ObjectId, StreamId
from headrace.pipeline.compaction import CompactedStream, choose_files, cleanable_end, plan_stream
from headrace.pipeline.compaction_state import CleanMark, StreamCompaction
from headrace.topics.compaction import CompactionRules

NOW_MS = 1_000_000
RULES = CompactionRules(enable=True)


def entry(
    start: int, end: int, *, size_bytes: int = 100, at_ms: int = 0, path: str = "", wal: bool = False, min_ms: int = 0
) -> IndexEntry:
    group = RowGroup(0, start, 4, size_bytes, end - start, at_ms, 0)
    file = TableFile(path or f"f{start}", size_bytes + 50, 40, 0, (group,))
    extent = WalExtent(ObjectId("w-1"), 0, size_bytes) if wal else TableExtent((file,))
    return IndexEntry(start, end, end - start, end * 10, at_ms, min_ms or at_ms, at_ms, start, at_ms, 0, extent)


def stream(*entries: IndexEntry, table_end: int | None = None, **changes: Any) -> CompactedStream:
    return CompactedStream(
        partition=0,
        stream=StreamId(7),
        log_start=changes.pop("log_start", 0),
        table_end=entries[-1].end_offset if table_end is None else table_end,
        entries=entries,
        **changes,
    )


# What may be compacted


def test_all_that_is_in_the_table_may_be_compacted() -> None:
    found = stream(entry(0, 10), entry(10, 20), entry(20, 30, wal=True), table_end=20)
    assert cleanable_end(found, RULES, now_ms=NOW_MS) == 20


def test_batch_that_was_held_back_is_stepped_over() -> None:
    found = stream(entry(0, 10), entry(10, 12, wal=True), entry(12, 20), entry(20, 30, wal=True), table_end=20)
    assert cleanable_end(found, RULES, now_ms=NOW_MS) == 20


def test_young_records_end_it_by_their_own_time() -> None:
    rules = CompactionRules(enable=True, min_lag_ms=1_000)
    old, young, older = NOW_MS - 1_000, NOW_MS - 999, NOW_MS - 5_000
    found = stream(entry(0, 10, at_ms=old), entry(10, 20, at_ms=young), entry(20, 30, at_ms=older))
    assert cleanable_end(found, rules, now_ms=NOW_MS) == 10
    assert cleanable_end(found, rules, now_ms=NOW_MS + 1) == 30


def test_record_of_the_future_is_not_spared_where_no_lag_is_asked_for() -> None:
    assert cleanable_end(stream(entry(0, 10, at_ms=NOW_MS + 99)), RULES, now_ms=NOW_MS) == 10


# When it is due


@pytest.mark.parametrize(("ratio", "is_due"), [(0.0, True), (0.24, True), (0.25, False), (1.0, False)])
def test_round_is_due_when_more_than_the_ratio_is_dirty(ratio: float, is_due: bool) -> None:
    found = stream(entry(0, 10, size_bytes=300), entry(10, 20), state=StreamCompaction(10))
    plan = plan_stream(found, CompactionRules(enable=True, dirty_ratio=ratio), now_ms=NOW_MS)
    assert (plan is not None) == is_due
    if plan is not None:
        assert (plan.clean_bytes, plan.dirty_bytes) == (300, 100)
        assert (plan.start_offset, plan.dirty_from, plan.cleanable_end) == (0, 10, 20)


def test_nothing_dirty_is_never_due() -> None:
    found = stream(entry(0, 10), state=StreamCompaction(10))
    assert plan_stream(found, CompactionRules(enable=True, dirty_ratio=0.0, max_lag_ms=1), now_ms=NOW_MS) is None


def test_old_dirt_is_due_whatever_the_ratio() -> None:
    found = stream(
        entry(0, 10, size_bytes=9_000, min_ms=1),
        entry(10, 20, at_ms=NOW_MS, min_ms=NOW_MS - 2_001),
        state=StreamCompaction(10),
    )
    assert plan_stream(found, CompactionRules(enable=True, max_lag_ms=2_001), now_ms=NOW_MS) is None
    plan = plan_stream(found, CompactionRules(enable=True, max_lag_ms=2_000), now_ms=NOW_MS)
    assert plan is not None and plan.dirty_from == 10


def test_old_tombstones_make_a_round_due_after_twice_their_time() -> None:
    rules = CompactionRules(enable=True, delete_retention_ms=1_000)
    marks = (CleanMark(10, NOW_MS - 1_999, 2),)
    found = stream(entry(0, 10), state=StreamCompaction(10, marks))
    assert plan_stream(found, rules, now_ms=NOW_MS) is None
    plan = plan_stream(found, rules, now_ms=NOW_MS + 1)
    assert plan is not None
    assert (plan.dirty_from, plan.cleanable_end, plan.expired_to) == (10, 10, 10)
    without = stream(entry(0, 10), state=StreamCompaction(10, (CleanMark(10, 0, 0),)))
    assert plan_stream(without, rules, now_ms=NOW_MS) is None


def test_round_that_is_due_takes_expired_tombstones_along() -> None:
    rules = CompactionRules(enable=True, delete_retention_ms=1_000)
    marks = (CleanMark(5, NOW_MS - 1_000, 2), CleanMark(10, NOW_MS - 999, 2))
    found = stream(entry(0, 10), entry(10, 90, size_bytes=900), state=StreamCompaction(10, marks))
    plan = plan_stream(found, rules, now_ms=NOW_MS)
    assert plan is not None and plan.expired_to == 5


# What is read


def test_ranges_are_cut_at_log_start_and_cleanable_end() -> None:
    rules = CompactionRules(enable=True, min_lag_ms=1)
    found = stream(
        entry(0, 10, path="a"), entry(10, 20, path="b"), entry(20, 30, path="c", at_ms=NOW_MS), log_start=4
    )
    plan = plan_stream(found, rules, now_ms=NOW_MS, fixed={"b"})
    assert plan is not None
    told = [(one.start_offset, one.end_offset, one.file.path, one.is_fixed) for one in plan.ranges]
    assert told == [(4, 10, "a", False), (10, 20, "b", True)]
    assert plan.start_offset == plan.dirty_from == 4


# Which files


def test_files_that_lose_most_per_byte_come_first_and_one_at_least() -> None:
    losses, sizes = {"a": 10, "b": 100, "c": 1}, {"a": 10, "b": 1_000, "c": 10}
    assert choose_files(losses, sizes, max_bytes=10**6, max_files=9) == {"a", "b", "c"}
    assert choose_files(losses, sizes, max_bytes=10**6, max_files=1) == {"a"}
    assert choose_files(losses, sizes, max_bytes=25, max_files=9) == {"a", "c"}
    assert choose_files({"b": 1}, sizes, max_bytes=1, max_files=1) == {"b"}
    assert choose_files({}, {}, max_bytes=1, max_files=1) == set()
