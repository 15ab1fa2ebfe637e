"""Cutting: from the batch that holds the offset to the last one that fits; the first one whole where it must be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.fetch.runs import MAX_SMALL_PIECES, SMALL_PIECE_BYTES, Cut, Run, cut_runs, rest_of
from headrace.testing.batches import make_batch, read_batches
from tests.unit.fetch.kit import stamped_run

ONE = len(make_batch([b"x"]))
TWO = len(make_batch([b"x", b"x"]))


def offsets(cut: Cut) -> list[int]:
    return [record.offset for piece in cut.pieces for record in read_batches(memoryview(piece))]


def runs_of(*sizes: list[int]) -> list[Run]:
    """Return consecutive runs; each number is how many records a batch has."""
    runs: list[Run] = []
    for batches in sizes:
        start = runs[-1].end_offset if runs else 0
        runs.append(stamped_run(start, *[[b"x"] * count for count in batches]))
    return runs


def test_whole_runs_are_handed_on_as_they_are() -> None:
    runs = runs_of([1, 1], [2])
    cut = cut_runs(runs, 0, 10_000, whole_first=False)
    assert [piece.obj for piece in cut.pieces if isinstance(piece, memoryview)] == [run.data.obj for run in runs]
    assert (offsets(cut), cut.end_offset, cut.size_bytes) == ([0, 1, 2, 3], 4, 2 * ONE + TWO)
    assert rest_of(runs, cut) == []


@pytest.mark.parametrize(("offset", "first"), [(0, 0), (1, 1), (2, 1), (3, 3)])
def test_answer_begins_with_the_batch_that_holds_the_offset(offset: int, first: int) -> None:
    cut = cut_runs(runs_of([1, 2, 1]), offset, 10_000, whole_first=False)
    assert offsets(cut) == list(range(first, 4))


@pytest.mark.parametrize(
    ("max_bytes", "end"), [(ONE, 1), (2 * ONE - 1, 1), (2 * ONE, 2), (3 * ONE, 3), (4 * ONE, 4), (4 * ONE - 1, 3)]
)
def test_answer_ends_between_batches_within_its_limit(max_bytes: int, end: int) -> None:
    runs = runs_of([1, 1], [1, 1])
    cut = cut_runs(runs, 0, max_bytes, whole_first=False)
    assert (offsets(cut), cut.end_offset, cut.size_bytes) == (list(range(end)), end, end * ONE)


@pytest.mark.parametrize("max_bytes", [0, 1, ONE - 1])
def test_first_batch_is_whole_only_where_it_must_be(max_bytes: int) -> None:
    runs = runs_of([1, 1])
    assert offsets(cut_runs(runs, 0, max_bytes, whole_first=True)) == [0]
    empty = cut_runs(runs, 1, max_bytes, whole_first=False)
    assert (empty.pieces, empty.size_bytes, empty.end_offset) == ([], 0, 1)
    assert rest_of(runs, empty) == runs


def test_many_small_pieces_are_joined_and_large_ones_left_alone() -> None:
    large = stamped_run(3, [b"x" * SMALL_PIECE_BYTES])
    runs = [*runs_of([1], [1], [1]), large, *[stamped_run(4 + n, [b"y"]) for n in range(MAX_SMALL_PIECES)]]
    cut = cut_runs(runs, 0, 100_000, whole_first=False)
    assert [type(piece) for piece in cut.pieces] == [bytes, memoryview, bytes]
    assert cut.pieces[1] is large.data
    assert offsets(cut) == list(range(4 + MAX_SMALL_PIECES))


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4),
    st.data(),
)
def test_cuts_one_after_the_other_give_every_batch_once(sizes: list[list[int]], data: st.DataObject) -> None:
    runs = runs_of(*sizes)
    offset, end, seen = 0, runs[-1].end_offset, []
    while offset < end:
        cut = cut_runs(runs, offset, data.draw(st.integers(0, 400)), whole_first=True)
        assert cut.size_bytes == sum(map(len, cut.pieces)) > 0
        seen += offsets(cut)
        runs, offset = rest_of(runs, cut), cut.end_offset
        assert not runs or runs[0].start_offset == offset
    assert seen == list(range(end)) and runs == []
