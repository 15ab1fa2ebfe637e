"""Offsets of Arrow arrays as runs, against plain Python."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.tables.arrow_runs import is_rising, place_runs, runs_of


@given(st.lists(st.integers(-5, 40)))
def test_runs_hold_each_offset_as_often_as_it_is_there(offsets: list[int]) -> None:
    runs = runs_of(pa.array(offsets, pa.int64()))
    assert sorted(offset for start, end in runs for offset in range(start, end)) == sorted(offsets)
    assert runs == sorted(runs)


def test_rows_without_a_place_are_counted_and_left_out() -> None:
    partitions = pa.array([0, 1, None, 0, 1], pa.int32())
    offsets = pa.array([5, 7, 9, None, 8], pa.int64())
    assert place_runs(partitions, offsets) == ({0: [(5, 6)], 1: [(7, 9)]}, 2)


def test_rising_means_greater_each_time() -> None:
    assert is_rising(pa.array([], pa.int64())) and is_rising(pa.array([1, 2, 9], pa.int64()))
    assert not is_rising(pa.array([1, 1], pa.int64())) and not is_rising(pa.array([2, 1], pa.int64()))
