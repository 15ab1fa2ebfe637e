"""A table entry is cut into windows that cover all of its offsets, whatever its groups leave out."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace.fetch.windows import windows_of
from headrace.index.values import IndexEntry
from headrace.model.extents import RowGroup, TableExtent, TableFile


def extent_of(*files: list[int]) -> TableExtent:
    """Return an extent of files whose row groups begin at these offsets."""
    return TableExtent(
        tuple(
            TableFile(
                f"f{n}", 1000, 10, 0, tuple(RowGroup(g, at, 10 * g, 10, 1, 5, 0) for g, at in enumerate(starts))
            )
            for n, starts in enumerate(files)
        )
    )


def entry_of(start_offset: int, end_offset: int, extent: TableExtent) -> IndexEntry:
    return IndexEntry(start_offset, end_offset, end_offset - start_offset, 0, 0, 0, 0, 0, 0, 0, extent)


def ranges(start_offset: int, end_offset: int, *files: list[int], at: int = 0) -> list[tuple[str, int, int, int]]:
    extent = extent_of(*files)
    return [
        (
            window.file.path if window.file else "",
            window.group.number if window.group else -1,
            window.start_offset,
            window.end_offset,
        )
        for window in windows_of(entry_of(start_offset, end_offset, extent), extent, start_offset=at)
    ]


def test_group_reaches_to_the_next_one_and_the_last_to_the_end_of_the_entry() -> None:
    assert ranges(0, 100, [0, 30, 60]) == [("f0", 0, 0, 30), ("f0", 1, 30, 60), ("f0", 2, 60, 100)]


def test_groups_of_several_files_follow_each_other() -> None:
    assert ranges(0, 50, [0, 10], [20]) == [("f0", 0, 0, 10), ("f0", 1, 10, 20), ("f1", 0, 20, 50)]


def test_hole_before_the_first_group_belongs_to_it() -> None:
    assert ranges(5, 50, [20, 30]) == [("f0", 0, 5, 30), ("f0", 1, 30, 50)]


def test_entry_that_covers_a_part_of_its_groups_leaves_the_others_out() -> None:
    assert ranges(35, 70, [0, 30, 60, 90]) == [("f0", 1, 35, 60), ("f0", 2, 60, 70)]


def test_entry_inside_one_group_is_one_window() -> None:
    assert ranges(35, 40, [0, 30, 60]) == [("f0", 1, 35, 40)]


def test_entry_without_rows_is_one_window_that_names_nothing() -> None:
    assert ranges(5, 50) == [("", -1, 5, 50)]
    (window,) = windows_of(entry_of(5, 50, TableExtent(())), TableExtent(()))
    assert (window.size_bytes, window.max_timestamp_ms) == (0, None)


def test_windows_begin_with_the_one_that_covers_the_offset() -> None:
    assert ranges(0, 100, [0, 30, 60], at=29)[0] == ("f0", 0, 0, 30)
    assert ranges(0, 100, [0, 30, 60], at=30)[0] == ("f0", 1, 30, 60)
    assert ranges(0, 100, [0, 30, 60], at=99) == [("f0", 2, 60, 100)]


@given(st.sets(st.integers(0, 60), max_size=8), st.integers(0, 60), st.integers(1, 40), st.integers(0, 39))
def test_windows_lie_end_to_end_and_cover_the_entry(starts: set[int], start: int, size: int, at: int) -> None:
    extent = extent_of(sorted(starts))
    offset = start + min(at, size - 1)
    windows = windows_of(entry_of(start, start + size, extent), extent, start_offset=offset)
    assert windows[0].start_offset <= offset < windows[0].end_offset
    assert windows[-1].end_offset == start + size
    for before, after in itertools.pairwise(windows):
        assert before.end_offset == after.start_offset
    if at == 0:
        assert windows[0].start_offset == start
