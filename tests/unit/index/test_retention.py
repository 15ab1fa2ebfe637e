"""The rule of retention: whole entries, oldest first, by age and by size, as Kafka has it."""

import pytest

from headrace.index.retention import MovedBy, decide_retention
from headrace.index.values import IndexEntry, StreamHead
from headrace.model.batches import NO_TIMESTAMP_MS
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectId
from headrace.model.topics import Retention

NOW_MS = 1_000_000


def entry(number: int, *, at_ms: int, append_time_ms: int = 0) -> IndexEntry:
    """Return the n-th entry: ten offsets and a hundred bytes each."""
    start, end = 10 * number, 10 * number + 10
    extent = WalExtent(ObjectId("o"), 100 * number, 100)
    return IndexEntry(start, end, 10, 100 * (number + 1), append_time_ms, at_ms, at_ms, start, at_ms, 0, extent)


def head_of(count: int, *, log_start: int = 0) -> StreamHead:
    return StreamHead(10 * count, log_start, 100 * count, NOW_MS, 0, 0, 0)


def aged(*ages_ms: int) -> list[IndexEntry]:
    return [entry(number, at_ms=NOW_MS - age_ms) for number, age_ms in enumerate(ages_ms)]


@pytest.mark.parametrize(
    ("ages_ms", "log_start"),
    [
        pytest.param((500, 400, 50), 20, id="what is too old goes"),
        pytest.param((500, 100, 50), 10, id="exactly as old as allowed stays"),
        pytest.param((500, 50, 500), 10, id="the first that stays ends it"),
        pytest.param((-500, 500, 500), 0, id="a time in the future stays"),
        pytest.param((500, 400, 300), 30, id="all of it may go"),
    ],
)
def test_by_age(ages_ms: tuple[int, ...], log_start: int) -> None:
    verdict = decide_retention(head_of(3), aged(*ages_ms), Retention(max_age_ms=100), now_ms=NOW_MS)
    assert verdict.log_start == log_start
    assert verdict.given_up_bytes == 10 * log_start
    assert (verdict.moved_by is MovedBy.AGE) == (log_start > 0)


@pytest.mark.parametrize(
    ("max_bytes", "log_start"), [(300, 0), (299, 0), (200, 10), (199, 10), (101, 10), (100, 20), (0, 30)]
)
def test_by_size_never_below_the_limit(max_bytes: int, log_start: int) -> None:
    verdict = decide_retention(head_of(3), aged(1, 1, 1), Retention(max_bytes=max_bytes), now_ms=NOW_MS)
    assert verdict.log_start == log_start
    assert verdict.moved_by is (MovedBy.SIZE if log_start else None)


def test_either_reason_is_enough() -> None:
    rules = Retention(max_age_ms=100, max_bytes=100)
    assert decide_retention(head_of(4), aged(500, 1, 500, 1), rules, now_ms=NOW_MS).log_start == 30


def test_without_limits_nothing_goes() -> None:
    verdict = decide_retention(head_of(3), aged(10**9, 10**9, 10**9), Retention(), now_ms=NOW_MS)
    assert verdict.log_start == 0 and verdict.outlook is not None
    assert not verdict.outlook.is_due(head_of(1000), 10**15)


@pytest.mark.parametrize("at_ms", [NO_TIMESTAMP_MS, -5, -(10**12)])
def test_entry_without_timestamps_since_1970_counts_by_its_append_time(at_ms: int) -> None:
    entries = [entry(0, at_ms=at_ms, append_time_ms=NOW_MS - append_age_ms) for append_age_ms in (99,)]
    young = decide_retention(head_of(1), entries, Retention(max_age_ms=99), now_ms=NOW_MS)
    old = decide_retention(head_of(1), entries, Retention(max_age_ms=98), now_ms=NOW_MS)
    assert (young.log_start, old.log_start) == (0, 10)


def test_log_start_in_the_middle_of_an_entry_moves_to_its_end() -> None:
    verdict = decide_retention(head_of(3, log_start=5), aged(500, 1, 1), Retention(max_age_ms=100), now_ms=NOW_MS)
    assert verdict.log_start == 10


def test_gap_ends_the_look() -> None:
    entries = aged(500, 500, 500)
    verdict = decide_retention(head_of(3), [entries[0], entries[2]], Retention(max_age_ms=1), now_ms=NOW_MS)
    assert verdict.log_start == 10 and verdict.outlook is None


def test_entry_beyond_the_known_end_is_left_for_the_next_look() -> None:
    assert decide_retention(head_of(1), aged(500, 500), Retention(max_age_ms=1), now_ms=NOW_MS).log_start == 10


def test_outlook_says_when_to_look_again() -> None:
    verdict = decide_retention(head_of(3), aged(60, 1, 1), Retention(max_age_ms=100, max_bytes=300), now_ms=NOW_MS)
    outlook = verdict.outlook
    assert outlook is not None and verdict.overdue_ms == 0
    assert not outlook.is_due(head_of(3), NOW_MS + 40) and outlook.is_due(head_of(3), NOW_MS + 41)
    assert outlook.is_due(head_of(4), NOW_MS), "grown beyond its limit"
    assert outlook.is_due(head_of(3, log_start=10), NOW_MS), "somebody has deleted that entry"


def test_overdue_is_told() -> None:
    verdict = decide_retention(head_of(2), aged(500, 1), Retention(max_age_ms=100), now_ms=NOW_MS)
    assert verdict.overdue_ms == 399
