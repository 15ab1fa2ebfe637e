"""Where a read begins and ends, against what the log holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Invalid, Missing
from headrace.pipeline.scan.offsets import (
    EARLIEST,
    LATEST,
    LogBounds,
    Losses,
    Position,
    flat,
    limited,
    nested,
    ranges_between,
    resolve,
)

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
BOUNDS = {
    A0: LogBounds(log_start=10, high_watermark=20),
    A1: LogBounds(log_start=0, high_watermark=5),
}


def test_edges_and_given_offsets_are_resolved() -> None:
    assert resolve(Position(edge=EARLIEST), BOUNDS, {}) == {A0: 10, A1: 0}
    assert resolve(Position(edge=LATEST), BOUNDS, {}) == {A0: 20, A1: 5}
    given_offsets = Position(edge=LATEST, offsets={"a": {0: -2, 1: 3}})
    assert resolve(given_offsets, BOUNDS, {}) == {A0: 10, A1: 3}


def test_offsets_are_given_for_every_partition_or_for_none() -> None:
    with pytest.raises(Invalid, match="partition 1 of a is not named"):
        resolve(Position(edge=LATEST, offsets={"a": {0: 1}}), BOUNDS, {})
    with pytest.raises(Invalid, match="partition 7 of a has a place given"):
        resolve(Position(edge=LATEST, offsets={"a": {0: 1, 1: 1, 7: 1}}), BOUNDS, {})


def test_a_time_that_no_record_reaches_is_refused_or_means_the_end() -> None:
    found = {A0: 13, A1: None}
    with pytest.raises(Invalid, match="no record at or after 99 ms"):
        resolve(Position(edge=LATEST, timestamp_ms=99), BOUNDS, found)
    assert resolve(Position(edge=LATEST, timestamp_ms=99, latest_without_time=True), BOUNDS, found) == {A0: 13, A1: 5}


def test_what_is_gone_is_a_loss_and_the_rest_is_read() -> None:
    losses = Losses()
    ranges = ranges_between({A0: 3, A1: 2, B0: 0}, {A0: 15, A1: 9, B0: 4}, BOUNDS, losses)
    assert ranges == {A0: (10, 15), A1: (2, 5)}
    assert len(losses.judge(fails=False)) == 3
    with pytest.raises(Missing, match=r"offsets 3 to 9 are lost.*ends at 5.*partition 0 of b is gone"):
        losses.judge(fails=True)


def test_a_log_that_is_shorter_than_it_was_is_a_loss() -> None:
    losses = Losses()
    assert ranges_between({A0: 18}, {A0: 15}, BOUNDS, losses) == {}
    assert losses.told


def test_an_empty_range_below_the_log_start_loses_nothing() -> None:
    losses = Losses()
    assert ranges_between({A0: 3}, {A0: 3}, BOUNDS, losses) == {} and not losses.told


PLACES = st.sampled_from([A0, A1, B0, ("b", 1), ("c", 0)])


@given(st.dictionaries(PLACES, st.tuples(st.integers(0, 50), st.integers(0, 100)), min_size=1), st.integers(1, 200))
def test_limits_share_what_there_is_and_never_go_back(
    sizes: dict[tuple[str, int], tuple[int, int]], most: int
) -> None:
    starts = {place: start for place, (start, _) in sizes.items()}
    ends = {place: start + size for place, (start, size) in sizes.items()}
    cut = limited(starts, ends, most)
    assert all(starts[place] <= cut[place] <= ends[place] for place in ends)
    grown = [size for _, size in sizes.values() if size]
    assert sum(cut[place] - starts[place] for place in ends) == min(max(most, len(grown)), sum(grown))
    assert all(cut[place] > starts[place] for place, (_, size) in sizes.items() if size)


def test_vectors_come_back_from_json_as_they_were() -> None:
    offsets = {A1: 5, A0: 3, B0: 0}
    assert nested(offsets) == {"a": {0: 3, 1: 5}, "b": {0: 0}}
    assert list(nested(offsets)["a"]) == [0, 1]
    assert flat({"a": {"0": 3, "1": 5}, "b": {"0": 0}}) == offsets
