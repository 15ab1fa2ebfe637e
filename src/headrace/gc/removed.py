"""What collectors tell of their work: every object that they have deleted, or would delete, and why."""

import enum
from dataclasses import dataclass

from headrace.model.ids import ObjectKey


class Why(enum.StrEnum):
    """Why an object may go."""

    WAL_OBJECT = "wal-object"
    """No index entry names it, and its grace is over; or it was staged and never committed."""
    ORPHAN = "orphan"
    """A WAL object without a record."""
    LOST_ATTEMPT = "lost-attempt"
    """A table file that a task wrote and no run took."""
    TABLE_FILE = "table-file"
    """A file of a table that neither the index nor any snapshot names."""
    TABLE_ORPHAN = "table-orphan"
    """A file below a table that neither its snapshots nor the index nor a run under way names."""
    PIN = "pin"
    """What a task of a read left, whose pin has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """One object. `size_bytes` is 0 where only its name was known."""

    key: ObjectKey
    size_bytes: int
    why: Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What nothing names and is still there: its grace is not over, or it could not be deleted yet."""

    object_count: int = 0
    size_bytes: int = 0

    def and_(self, other: "Waiting") -> "Waiting":
        """Return both together."""
        return Waiting(
            object_count=self.object_count + other.object_count, size_bytes=self.size_bytes + other.size_bytes
        )
