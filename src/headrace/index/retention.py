"""Which of a stream's oldest entries go by age and by size: the rule alone, as Kafka has it.

- By age: the oldest entry goes while its newest record is older than the topic allows. One whose time lies in the
  future stays, and so does everything behind it; one without timestamps, or with none since 1970, counts by when it
  was appended.
- By size: the oldest entry goes while what would be left is still as large as the topic allows.

Must stay true: entries go whole and in order, from the log start on; the first that stays ends it; nothing at or
above the high watermark is touched.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.index.values import IndexEntry, StreamHead
from headrace.model.extents import WalExtent
from headrace.model.topics import Retention


class MovedBy(enum.StrEnum):
    """Why a log start moves: what took the last of the entries that go."""

    AGE = "age"
    SIZE = "size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """When the oldest entry that stays may have to go: at a time, or when the log has grown to so many bytes.

    `None` is never. It says nothing once the log start has passed `end_offset`.
    """

    end_offset: int
    due_at_ms: int | None
    due_at_bytes: int | None

    def is_due(self, head: StreamHead, now_ms: int) -> bool:
        """Say whether entries must be looked at again."""
        if head.log_start >= self.end_offset:
            return True
        by_age = self.due_at_ms is not None and now_ms >= self.due_at_ms
        by_size = self.due_at_bytes is not None and head.cumulative_bytes >= self.due_at_bytes
        return by_age or by_size


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionVerdict:
    """What becomes of the entries that were looked at.

    `log_start` is the new one, or the old one where nothing goes. `outlook` is `None` where all of them go: what
    comes behind them was not looked at. `overdue_ms` is for how long the first that goes by age has had to.
    """

    log_start: int
    moved_by: MovedBy | None = None
    given_up_bytes: int = 0
    overdue_ms: int = 0
    outlook: Outlook | None = None


def decide_retention(
    head: StreamHead, entries: Sequence[IndexEntry], retention: Retention, *, now_ms: int
) -> RetentionVerdict:
    """Say where a stream's log should start. `entries` are its oldest, from the one that covers the log start on."""
    log_start, moved_by, overdue_ms, outlook = head.log_start, None, 0, None
    gone: list[IndexEntry] = []
    for entry in entries:
        if entry.start_offset > log_start or entry.end_offset > head.high_watermark:
            break  # between two reads the index has moved on: what is missing is looked at next time
        seen = _outlook(entry, retention)
        if seen.due_at_ms is not None and now_ms >= seen.due_at_ms:
            moved_by = MovedBy.AGE
            overdue_ms = max(overdue_ms, now_ms - seen.due_at_ms)
        elif seen.due_at_bytes is not None and head.cumulative_bytes >= seen.due_at_bytes:
            moved_by = MovedBy.SIZE
        else:
            outlook = seen
            break
        gone.append(entry)
        log_start = entry.end_offset
    return RetentionVerdict(
        log_start=log_start,
        moved_by=moved_by,
        given_up_bytes=_bytes_of(gone),
        overdue_ms=overdue_ms,
        outlook=outlook,
    )


def _outlook(entry: IndexEntry, retention: Retention) -> Outlook:
    # Also for times before 1970: by them a record would be gone before anybody has read it.
    newest_ms = entry.append_time_ms if entry.max_timestamp_ms < 0 else entry.max_timestamp_ms
    return Outlook(
        end_offset=entry.end_offset,
        due_at_ms=None if retention.max_age_ms is None else newest_ms + retention.max_age_ms + 1,
        due_at_bytes=None if retention.max_bytes is None else entry.cumulative_bytes + retention.max_bytes,
    )


def _bytes_of(gone: Sequence[IndexEntry]) -> int:
    """Return the bytes of entries as produced; of a first one that lies in a table they are not known."""
    if not gone:
        return 0
    first = gone[0].extent
    known = first.size_bytes if isinstance(first, WalExtent) else 0
    return gone[-1].cumulative_bytes - gone[0].cumulative_bytes + known
