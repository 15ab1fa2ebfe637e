"""The repack planner over random logs: the same offsets in the same order, and few entries, objects and copies."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from headrace.index.objects import is_packed
from headrace.index.repack import RepackLimits
from headrace.index.values import IndexEntry
from headrace.model.extents import WalExtent
from tests.unit.index.repacking import HOUR_MS, RepackedIndex, entry, size_of

LIMITS = st.builds(
    RepackLimits,
    min_age_ms=st.integers(1, HOUR_MS),
    entry_bytes=st.integers(1, 400),
    object_bytes=st.integers(50, 4_000),
    factor=st.integers(2, 8),
    loose_max_entries=st.integers(1, 30),
)


@st.composite
def logs(draw: st.DrawFn) -> list[IndexEntry]:
    """Entries of any size, some in a table; append times may step back, flags change."""
    at, at_ms, found = draw(st.integers(0, 5)), 100 * HOUR_MS, []
    for _ in range(draw(st.integers(1, 60))):
        end = at + draw(st.integers(1, 4))
        at_ms += draw(st.sampled_from([0, 0, 0, 1, 1_000, HOUR_MS // 2, -1_000]))
        found.append(
            entry(
                at,
                end,
                size=draw(st.integers(1, 600)),
                at_ms=at_ms,
                flags=draw(st.sampled_from([0, 0, 0, 0, 1])),
                object_id=f"{draw(st.integers(0, 3)):032x}-00000001",
                in_table=draw(st.integers(0, 9)) == 0,
            )
        )
        at = end
    return found


def bytes_of(entries: list[IndexEntry]) -> int:
    return sum(size_of(one) for one in entries if isinstance(one.extent, WalExtent))


def boundaries(entries: list[IndexEntry], held_below: int) -> int:
    """Return between how many neighbours there has to be an end, whatever their sizes."""
    return sum(
        not (
            isinstance(left.extent, WalExtent)
            and isinstance(right.extent, WalExtent)
            and left.start_offset >= held_below
            and left.flags == right.flags
            and left.append_time_ms // HOUR_MS == right.append_time_ms // HOUR_MS
        )
        for left, right in itertools.pairwise(entries)
    )


@given(logs(), LIMITS, st.integers(0, 100), st.integers(1, 7), st.lists(st.integers(1, 20), max_size=20))
def test_whatever_is_appended_between_repacks_the_log_stays_the_same(
    log: list[IndexEntry], limits: RepackLimits, held_below: int, max_entries: int, pages: list[int]
) -> None:
    index = RepackedIndex()
    appended: list[IndexEntry] = []
    late_ms = 1_000 * HOUR_MS
    for page in [*pages, len(log)]:
        new, log = log[:page], log[page:]
        appended += new
        index.append(*new)
        index.settle(limits, now_ms=late_ms, held_below=held_below, max_entries=max_entries)
        assert all(is_packed(object_id) for object_id in index.objects), "nothing old is left in a shared object"
        for left, right in itertools.pairwise(index.entries):
            assert left.end_offset == right.start_offset
        check_entries(appended, index.entries, held_below, limits)


def check_entries(before: list[IndexEntry], after: list[IndexEntry], held_below: int, limits: RepackLimits) -> None:
    """Check that new entries are whole old ones, joined where they may be."""
    left = iter(before)
    for new in after:
        old = [next(left)]
        while old[-1].end_offset < new.end_offset:
            old.append(next(left))
        assert old[0].start_offset == new.start_offset and old[-1].end_offset == new.end_offset
        assert new.cumulative_bytes == old[-1].cumulative_bytes and new.append_time_ms == old[-1].append_time_ms
        assert new.record_count == sum(one.record_count for one in old)
        assert new.max_timestamp_ms == max(one.max_timestamp_ms for one in old)
        if isinstance(new.extent, WalExtent):
            assert size_of(new) == bytes_of(old)
            assert len(old) == 1 or size_of(new) <= limits.entry_bytes
            assert len(old) == 1 or boundaries(old, held_below) == 0
        else:
            assert old == [new]
    assert next(left, None) is None


@given(logs(), LIMITS, st.integers(0, 100))
def test_what_is_repacked_at_once_has_few_entries_and_objects(
    log: list[IndexEntry], limits: RepackLimits, held_below: int
) -> None:
    index = RepackedIndex(log)
    index.settle(limits, now_ms=1_000 * HOUR_MS, held_below=held_below)
    size_bytes = bytes_of(log)
    cuts = 2 * size_bytes // limits.object_bytes + 1  # an object ends where it is full
    assert len(index.entries) <= 2 * size_bytes / limits.entry_bytes + boundaries(log, held_below) + cuts + 2
    # Of two neighbours one is full; one that is not full may be left in the end.
    assert len(index.objects) <= 4 * size_bytes / limits.object_bytes + 1


@given(st.lists(st.integers(1, 2_000), min_size=1, max_size=150), st.integers(2, 8))
def test_however_small_the_pieces_come_objects_are_few_and_bytes_are_copied_seldom(
    sizes: list[int], factor: int
) -> None:
    limits = RepackLimits(min_age_ms=1, entry_bytes=500, object_bytes=20_000, factor=factor)
    index = RepackedIndex()
    for n, size in enumerate(sizes):
        index.append(entry(n, n + 1, size=size, at_ms=0))
        index.settle(limits, now_ms=HOUR_MS)
    total = sum(sizes)
    doublings = math.log(limits.object_bytes / min(sizes), factor / (factor - 1))
    assert len(index.objects) <= 4 * total / limits.object_bytes + factor + doublings + 1
    assert index.copied_bytes <= total * (3 + 2 * math.log(limits.object_bytes, factor))
