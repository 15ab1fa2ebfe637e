"""Plan releases: files of the branch that the index does not name any more, because the log has forgotten their rows.

Where `main` is to follow the log, files that only `main` still has go as well, once all of their rows are forgotten.
The index says nothing of them any more; their bounds do.

Must stay true: this is asked under the topic's lease while no saga is under way. Then the branch has nothing that a
swap is yet to name, and what the index does not name it never names again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.pipeline.merging import rewrite_of
from headrace.pipeline.named_files import NamedFiles
from headrace.pipeline.rewrites import Rewrite
from headrace.tables.port import RowSpan, TableListing

MAX_RELEASED_FILES = 1_000
"""How many files one release takes out; what is left goes with the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePlan:
    """What is to be released now, if anything. `released_to` holds the log starts behind which nothing is left."""

    rewrite: Rewrite | None
    released_to: Mapping[int, int]
    has_more: bool = False


def plan_release(named: NamedFiles, listing: TableListing, *, max_files: int = MAX_RELEASED_FILES) -> ReleasePlan:
    """Choose what to release, oldest partition values first."""
    gone = sorted(
        (file for file in listing.files if file.path not in named.paths),
        key=lambda file: (file.bucket or 0, file.path),
    )
    taken = gone[:max_files]
    has_more = len(gone) > len(taken)
    trimmed = {stream.partition: stream.log_start for stream in named.streams if stream.is_trimmed}
    rewrite = rewrite_of(taken) if taken else None
    return ReleasePlan(rewrite=rewrite, released_to={} if has_more else trimmed, has_more=has_more)


def plan_left_release(
    named: NamedFiles, listing: TableListing, *, max_files: int = MAX_RELEASED_FILES
) -> Rewrite | None:
    """Choose what is to go from `main` alone: files of which no row can be in the log any more."""
    gone = [file for file in listing.left if file.span is not None and _is_forgotten(file.span, named)]
    return rewrite_of(sorted(gone, key=lambda file: (file.bucket or 0, file.path))[:max_files]) if gone else None


def _is_forgotten(span: RowSpan, named: NamedFiles) -> bool:
    return all(
        stream.is_empty or stream.log_start > span.last_offset
        for stream in named.streams
        if span.first_partition <= stream.partition <= span.last_partition
    )
