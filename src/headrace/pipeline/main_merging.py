"""Plan merges of what only `main` names: files of ours that the branch has let go of before they were merged.

The branch lets go of files that the log has forgotten, where `main` keeps them, and of files that compaction by key
has written anew, where `main` is the full history. Nothing else would ever merge what is left of them.

Pure: no clock, no store. The index knows nothing of these files, so there is no order of streams to keep: any files
of one partition value may become one.

Must stay true: a row is written again O(log n) times, as in `merging.py`. In a bucket that is over, two files are
enough for a merge, if it doubles the larger one; once the branch has nothing of that bucket any more, so that nothing
can be left of it any more, its files are merged down.
"""

from dataclasses import replace

from headrace.pipeline.merging import MergeLimits, MergePlan, choose_windows, rewrite_of, within_limits
from headrace.pipeline.rewrites import GatheredFile, GatherPlan, PlannedGather
from headrace.tables.port import ListedFile, TableListing

OVER_MIN_FILES = 2


def plan_main_merge(listing: TableListing, *, now_ms: int, limits: MergeLimits) -> MergePlan:
    """Choose which files of `main` alone to merge. The same input gives the same plan."""
    held = {(file.spec_id, file.bucket) for file in listing.files}
    lines: dict[tuple[int, int | None, int | None], list[ListedFile]] = {}
    for file in sorted(listing.left, key=lambda one: (one.sequence_number, one.path)):
        is_small = file.size_bytes < limits.small_bytes
        if is_small and not file.is_touched and file.spec_id in listing.formats:
            lines.setdefault((file.spec_id, file.bucket, file.partition), []).append(file)
    windows: list[list[ListedFile]] = []
    for (spec_id, bucket, _), line in sorted(lines.items(), key=lambda item: repr(item[0])):
        now_bucket = listing.formats[spec_id].partitioning.bucket.of(now_ms)
        is_over = bucket is not None and now_bucket is not None and bucket < now_bucket
        rules = replace(limits, min_files=OVER_MIN_FILES) if is_over else limits
        is_settled = is_over and (spec_id, bucket) not in held
        sizes = [file.size_bytes for file in line]
        windows += [line[one.start : one.stop] for one in choose_windows(sizes, is_over=is_settled, limits=rules)]
    if not windows:
        return MergePlan(rewrite=None)
    count = within_limits(windows, limits)
    gathers = tuple(_planned(number, window, listing) for number, window in enumerate(windows[:count]))
    rewrite = replace(rewrite_of([file for window in windows[:count] for file in window]), gathers=gathers)
    return MergePlan(rewrite=rewrite, has_more=count < len(windows))


def _planned(number: int, window: list[ListedFile], listing: TableListing) -> PlannedGather:
    first = window[0]
    files = tuple(GatheredFile(file.path, file.size_bytes, file.row_count) for file in window)
    plan = GatherPlan(number, first.bucket, first.partition, files)
    return PlannedGather(plan=plan, format=listing.formats[first.spec_id])
