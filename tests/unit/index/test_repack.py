"""What moves, when, and into which entries."""

import math

import pytest

from headrace.index.objects import (
    is_packed,
    packed_object_id,
    stage_objects,
    wal_object_id,
    wal_object_id_at,
    wal_object_key,
)
from headrace.index.repack import RepackLimits, plan_repack, swap_packed, swap_steps
from headrace.index.rule import StalePlan
from headrace.index.values import IndexEntry
from headrace.model.extents import WalExtent
from headrace.model.ids import DomainId, WriterId
from tests.log_kit import LogKit
from tests.unit.index.repacking import HOUR_MS, REPACKER, STREAM, RepackedIndex, entry, size_of

LIMITS = RepackLimits(min_age_ms=1_000, entry_bytes=300, object_bytes=4_000, loose_max_entries=50)
LATE_MS = 1_000_000


def loose(count: int, *, start: int = 0, size: int = 100, at_ms: int = 0) -> list[IndexEntry]:
    return [entry(start + n, start + n + 1, size=size, at_ms=at_ms) for n in range(count)]


def packed(number: int, *entries: IndexEntry) -> list[IndexEntry]:
    """Return entries as if they lay in a packed object."""
    index = RepackedIndex(entries)
    index._next_number = number
    look = plan_repack(entries, held_below=0, now_ms=LATE_MS, limits=LIMITS)
    assert look.plan is not None
    index.carry_out(look.plan)
    return index.entries


def test_old_entries_move_into_one_object_and_become_entries_of_the_size_that_a_fetch_likes() -> None:
    index = RepackedIndex(loose(7))
    index.settle(LIMITS, now_ms=LATE_MS)
    assert [(one.start_offset, one.end_offset, size_of(one)) for one in index.entries] == [
        (0, 3, 300),
        (3, 6, 300),
        (6, 7, 100),
    ]
    assert [one.extent.start_byte for one in index.entries if isinstance(one.extent, WalExtent)] == [0, 300, 600]
    assert len(index.objects) == 1 and all(is_packed(one) for one in index.objects)


def test_young_entries_stay_and_nothing_behind_them_moves() -> None:
    entries = [*loose(2), entry(2, 3, at_ms=LATE_MS - 999), *loose(2, start=3)]
    look = plan_repack(entries, held_below=0, now_ms=LATE_MS, limits=LIMITS)
    assert look.plan is not None and [one.end_offset for one in look.plan.planned] == [1, 2]


def test_a_few_old_entries_wait_for_company_until_the_first_is_twice_as_old() -> None:
    entries = loose(3, at_ms=LATE_MS)
    waiting = plan_repack(entries, held_below=0, now_ms=LATE_MS + 1_999, limits=LIMITS)
    assert waiting.plan is None and waiting.due_at_ms == LATE_MS + 2_000 and waiting.settled_offset == 0
    assert plan_repack(entries, held_below=0, now_ms=LATE_MS + 2_000, limits=LIMITS).plan is not None


@pytest.mark.parametrize("entries", [loose(50, size=1), loose(5, size=100)])
def test_enough_entries_or_bytes_move_as_soon_as_they_are_old(entries: list[IndexEntry]) -> None:
    assert plan_repack(entries, held_below=0, now_ms=999, limits=LIMITS).due_at_ms == 1_000
    assert plan_repack(entries, held_below=0, now_ms=1_000, limits=LIMITS).plan is not None


def test_times_from_a_clock_that_was_ahead_do_not_keep_entries_where_they_are() -> None:
    entries = loose(3, at_ms=LATE_MS + 50 * HOUR_MS)
    assert plan_repack(entries, held_below=0, now_ms=LATE_MS, limits=LIMITS).plan is not None


def test_hours_flags_and_batches_held_back_stay_apart() -> None:
    index = RepackedIndex(
        [
            *loose(2),
            entry(2, 3, in_table=True),
            *loose(2, start=3),
            entry(5, 6, at_ms=HOUR_MS - 1),
            entry(6, 7, at_ms=HOUR_MS),
            entry(7, 8, at_ms=HOUR_MS, flags=1),
        ]
    )
    index.settle(LIMITS, now_ms=3 * HOUR_MS, held_below=4)
    ends = [one.end_offset for one in index.entries]
    assert ends == [1, 2, 3, 4, 6, 7, 8], "two held back, the table, one held back, two joined, an hour, a flag"
    assert len(index.objects) == 1, "one object holds runs that do not touch each other"


def test_a_packed_entry_keeps_what_the_last_one_said_of_the_log() -> None:
    index = RepackedIndex([entry(0, 2, at_ms=5), entry(2, 9, at_ms=7)])
    index.settle(LIMITS, now_ms=LATE_MS)
    (one,) = index.entries
    assert (one.record_count, one.cumulative_bytes, one.append_time_ms, one.running_max_ms) == (9, 900, 7, 7)
    assert (one.min_timestamp_ms, one.max_timestamp_ms, one.max_timestamp_offset) == (5, 7, 2)


def test_a_large_entry_moves_as_it_is() -> None:
    index = RepackedIndex([*loose(1), entry(1, 2, size=9_000), *loose(1, start=2)])
    index.settle(LIMITS, now_ms=LATE_MS)
    assert [size_of(one) for one in index.entries] == [100, 9_000, 100]
    assert len(index.objects) == 2, "what reached the size is an object; the rest is the next one"


def test_full_objects_are_left_alone_and_settled() -> None:
    entries = packed(1, *loose(20))
    look = plan_repack(entries, held_below=0, now_ms=LATE_MS, limits=LIMITS)
    assert look.plan is None and look.due_at_ms is None
    assert look.settled_offset == 20


def test_small_objects_are_merged_when_there_are_enough_of_about_one_size() -> None:
    entries: list[IndexEntry] = []
    for n in range(7):
        entries += packed(n, *loose(1, start=n))
    look = plan_repack(entries, held_below=0, now_ms=LATE_MS, limits=LIMITS)
    assert look.plan is None and look.settled_offset == 0
    entries += packed(7, *loose(1, start=7))
    look = plan_repack(entries, held_below=0, now_ms=LATE_MS, limits=LIMITS)
    assert look.plan is not None and len(look.plan.planned) == 8 and len(look.plan.entries) == 3


def test_what_is_much_larger_than_all_behind_it_is_not_copied_for_them() -> None:
    entries = packed(0, *loose(15))
    for n in range(8):
        entries += packed(n + 1, *loose(1, start=15 + n))
    look = plan_repack(entries, held_below=0, now_ms=LATE_MS, limits=LIMITS)
    assert look.plan is not None and [one.start_offset for one in look.plan.planned] == list(range(15, 23))


def test_what_lies_before_a_full_object_becomes_one_whatever_its_sizes() -> None:
    entries = [*packed(0, *loose(3)), *packed(1, *loose(1, start=3)), *packed(2, *loose(30, start=4))]
    look = plan_repack(entries, held_below=0, now_ms=LATE_MS, limits=LIMITS)
    assert look.plan is not None and look.plan.planned[-1].end_offset == 4


def test_loose_entries_take_much_smaller_neighbours_with_them() -> None:
    small = packed(0, *loose(1))
    look = plan_repack([*small, *loose(7, start=1)], held_below=0, now_ms=LATE_MS, limits=LIMITS)
    assert look.plan is not None and look.plan.planned[0] == small[0]
    look = plan_repack([*small, *loose(6, start=1)], held_below=0, now_ms=LATE_MS, limits=LIMITS)
    assert look.plan is not None and look.plan.planned[0].start_offset == 1


def test_damaged_entries_stay_and_their_neighbours_move() -> None:
    look = plan_repack(loose(4), held_below=0, now_ms=LATE_MS, limits=LIMITS, damaged={2})
    assert look.plan is not None
    assert [[one.start_offset for one in new.planned] for new in look.plan.entries] == [[0], [2, 3]]


def test_a_page_that_is_as_it_should_be_is_settled_where_more_follows() -> None:
    entries = packed(0, *loose(3))
    look = plan_repack(entries, held_below=0, now_ms=LATE_MS, limits=LIMITS, has_more=True)
    assert look.plan is None and look.settled_offset == 3 and look.due_at_ms == LATE_MS
    behind = [*packed(0, *loose(30)), *packed(1, *loose(2, start=30))]
    look = plan_repack(behind, held_below=0, now_ms=LATE_MS, limits=LIMITS, has_more=True)
    assert look.plan is None and look.settled_offset == 30, "the end of a full object is where the next look begins"


def test_bytes_are_copied_as_often_as_the_logarithm_says_and_few_objects_are_left() -> None:
    index = RepackedIndex()
    limits = RepackLimits(min_age_ms=1_000, entry_bytes=5_000, object_bytes=409_600)
    for n in range(4_096):
        index.append(entry(n, n + 1, size=100, at_ms=n * 10_000))
        index.settle(limits, now_ms=n * 10_000 + 2_000, max_entries=300)
    assert max(index.copies.values()) <= 2 + math.log(4_096, 8)
    assert index.copied_bytes <= 409_600 * (1 + math.log(4_096, 8))
    assert len(index.objects) <= 8 * math.log(4_096, 8)


async def test_steps_free_the_shared_object_and_grow_entries_that_are_made_of_many() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    shared = await log.writer()
    for _ in range(7):
        await log.append(stream)
    await log.fold()
    await log.seal(shared)
    entries = await log.index(stream)
    look = plan_repack(
        entries,
        held_below=0,
        now_ms=log.now_ms + 5_000,
        limits=RepackLimits(min_age_ms=1, entry_bytes=10_000, object_bytes=10_000),
    )
    assert look.plan is not None
    new = packed_object_id(WriterId("b" * 32), 0)
    stage = stage_objects(log.keys, [new], writer=WriterId("b" * 32), is_segment=False, now_ms=0)
    await stage.apply(log.store)
    freed, states = [], []
    for step in swap_steps(look.plan, stream, new, max_entries=3):
        assert len(step.planned) <= 3
        freed.append(await swap_packed(log.keys, step, now_ms=0).apply(log.store))
        assert await swap_packed(log.keys, step, now_ms=0).apply(log.store) == 0, "again without effect"
        current = await log.index(stream)
        assert current[0].start_offset == 0 and current[-1].end_offset == 7
        record = await log.object(new)
        assert record is not None
        states.append((record.entry_count, record.size_bytes))
    assert freed == [0, 0, 1]
    assert states == [(1, 300), (1, 500), (1, 700)], "one entry that grows is counted once"
    (one,) = await log.index(stream)
    assert one.extent == WalExtent(new, 0, 700)
    with pytest.raises(StalePlan):
        await swap_packed(log.keys, next(iter(swap_steps(look.plan, STREAM, new, max_entries=3))), now_ms=0).apply(
            log.store
        )


def test_ids_tell_packed_objects_from_others() -> None:
    ours = packed_object_id(REPACKER, 3)
    assert is_packed(ours) and not is_packed(wal_object_id(REPACKER, 3))
    assert wal_object_id_at(DomainId(0), wal_object_key(DomainId(0), ours)) == ours
