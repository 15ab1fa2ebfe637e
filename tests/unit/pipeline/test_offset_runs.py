"""Sets of offsets against Python's own."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline import offset_runs
from headrace.pipeline.offset_runs import OffsetRuns, shown

RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def _offsets(runs: OffsetRuns) -> list[int]:
    return [offset for start, end in runs.runs() for offset in range(start, end)]


def _counted(runs: list[tuple[int, int]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for start, end in runs:
        for offset in range(start, end):
            counts[offset] = counts.get(offset, 0) + 1
    return counts


@given(RUNS, st.integers(2, 5))
def test_it_holds_each_offset_once_in_order_and_knows_the_doubles(runs: list[tuple[int, int]], at_once: int) -> None:
    before = offset_runs.UNSETTLED_RUNS
    offset_runs.UNSETTLED_RUNS = at_once
    try:
        made = OffsetRuns(runs)
        counts = _counted(runs)
        assert _offsets(made) == sorted(counts)
        assert _offsets(made.doubles()) == sorted(offset for offset, count in counts.items() if count > 1)
        assert made.count() == len(counts)
    finally:
        offset_runs.UNSETTLED_RUNS = before


@given(RUNS, RUNS, st.integers(0, 70), st.integers(0, 70))
def test_differences_and_parts_are_those_of_sets(
    some: list[tuple[int, int]], others: list[tuple[int, int]], start: int, end: int
) -> None:
    one, other = set(_counted(some)), set(_counted(others))
    assert _offsets(OffsetRuns(some).minus(OffsetRuns(others))) == sorted(one - other)
    assert _offsets(OffsetRuns(some).between(start, end)) == sorted(n for n in one if start <= n < end)


def test_runs_are_shown_with_both_ends_and_what_is_too_many_is_counted() -> None:
    assert shown([(7, 8), (12, 20)]) == "7, 12–19"
    assert shown([(n, n + 1) for n in range(0, 20, 2)], most=2) == "0, 2 and 8 more runs"
