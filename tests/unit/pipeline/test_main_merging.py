"""Which files that only `main` has kept become larger ones, and which are left alone."""

import random
from dataclasses import replace

from headrace.pipeline.main_merging import plan_main_merge
from headrace.pipeline.merging import MergeLimits, MergePlan
from headrace.tables.format import DAY_MS, Bucket, Partitioning, TableFormat
from headrace.tables.port import ListedFile, TableInfo, TableListing

DAY = 20_000
LIMITS = MergeLimits(file_target_bytes=1_000, min_files=4, max_bytes=100_000, max_files=500)
FORMAT = TableFormat(field_ids={}, schema_id=0, spec_id=0, partitioning=Partitioning(bucket=Bucket.DAY))
INFO = TableInfo(identifier=("t",), uuid="u", location="l", data_prefix="p/", format=FORMAT, head=None)


def file(number: int, *, size: int = 10, day: int = DAY, spec_id: int = 0) -> ListedFile:
    return ListedFile(
        path=f"file-{number:05d}",
        size_bytes=size,
        row_count=5,
        bucket=day,
        partition=None,
        spec_id=spec_id,
        sequence_number=number,
    )


def plan(
    *left: ListedFile, branch: tuple[ListedFile, ...] = (), now_day: int = DAY, limits: MergeLimits = LIMITS
) -> MergePlan:
    listing = TableListing(info=INFO, files=branch, formats={0: FORMAT}, left=left)
    return plan_main_merge(listing, now_ms=now_day * DAY_MS + 1, limits=limits)


def windows(found: MergePlan) -> list[list[str]]:
    return [] if found.rewrite is None else [[one.path for one in g.plan.files] for g in found.rewrite.gathers]


def numbers(*chosen: int) -> list[str]:
    return [f"file-{number:05d}" for number in chosen]


def test_a_few_files_of_today_wait_until_there_are_enough() -> None:
    assert windows(plan(file(1), file(2), file(3))) == []
    found = plan(file(4), file(1), file(3), file(2))
    assert windows(found) == [numbers(1, 2, 3, 4)], "in the order of their commits"
    assert found.rewrite is not None
    assert (found.rewrite.input_bytes, found.rewrite.input_rows, found.has_more) == (40, 20, False)
    assert found.rewrite.inputs == tuple(numbers(1, 2, 3, 4)) and found.rewrite.files == ()


def test_files_that_a_person_has_touched_are_left_alone() -> None:
    left = [file(number) for number in range(4)]
    assert windows(plan(*left[:3], replace(left[3], is_touched=True))) == []


def test_days_large_files_and_strange_specs_are_kept_apart() -> None:
    left = (
        file(1, size=500),
        *(file(number, day=DAY - number % 2) for number in range(2, 10)),
        file(20, spec_id=7),
    )
    assert windows(plan(*left)) == [numbers(3, 5, 7, 9), numbers(2, 4, 6, 8)]


def test_two_files_of_a_day_that_is_over_are_enough_if_the_larger_one_doubles() -> None:
    held = (file(99, day=DAY - 1),)
    assert windows(plan(file(1, day=DAY - 1), file(2, day=DAY - 1), branch=held)) == [numbers(1, 2)]
    assert windows(plan(file(1, size=100, day=DAY - 1), file(2, day=DAY - 1), branch=held)) == []


def test_a_day_of_which_the_branch_has_nothing_is_merged_down() -> None:
    left = (file(1, size=100, day=DAY - 1), file(2, day=DAY - 1))
    assert windows(plan(*left, branch=(file(99),))) == [numbers(1, 2)]
    assert windows(plan(file(1, day=DAY - 1))) == []


def test_one_merge_takes_no_more_than_its_limits() -> None:
    small = MergeLimits(file_target_bytes=100, min_files=4, max_bytes=150, max_files=500)
    found = plan(*(file(number, size=40, day=DAY - 1) for number in range(9)), limits=small)
    assert windows(found) == [numbers(0, 1)], "a second window would be more than 150 bytes"
    assert found.has_more


def test_files_left_one_by_one_stay_few_and_are_written_few_times() -> None:
    rng = random.Random(7)
    left: dict[str, tuple[ListedFile, int]] = {}
    writes = total = 0
    for number in range(600):
        total += (size := rng.randrange(5, 40))
        added = file(number, size=size, day=DAY - 1)
        left[added.path] = added, 0
        found = plan(*(one for one, _ in left.values()), branch=(file(9_999, day=DAY - 1),))
        for window in windows(found):
            merged = [left.pop(path) for path in window]
            bytes_ = sum(one.size_bytes for one, _ in merged)
            writes += bytes_
            one = file(10_000 + number, size=bytes_, day=DAY - 1)
            left[one.path] = one, 1 + max(times for _, times in merged)
    large = [one for one, _ in left.values() if one.size_bytes >= LIMITS.small_bytes]
    assert len(left) - len(large) <= 12, "those that are small double from one to the next"
    assert len(large) <= 2 * total // LIMITS.file_target_bytes + 1
    assert max(times for _, times in left.values()) <= 12
    assert writes <= 7 * total
