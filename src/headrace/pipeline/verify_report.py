"""What a proof about one topic's table has found, for people and for programs.

Must stay true: every finding is counted; only so many of each kind are spelled out, so that a ruined table of a
billion rows still makes a report that fits into memory and onto a screen.
"""

import enum
from dataclasses import dataclass, field

MAX_SPELLED_OUT = 20


class Severity(enum.StrEnum):
    """What a finding means for whoever reads it."""

    DAMAGE = "damage"
    """A promise is broken: a record is lost, double or not what was written."""
    WARNING = "warning"
    """Accounted for, and still worth knowing: a batch that was held back, rows that a user changed."""
    NOTE = "note"


class Kind(enum.StrEnum):
    """What was found."""

    GAP = "gap"
    OVERLAP = "overlap"
    FILE_NOT_IN_TABLE = "file-not-in-table"
    FILE_TWICE = "file-twice"
    FILE_DIFFERS = "file-differs"
    BYTES = "bytes"
    ROWS = "rows"
    VECTOR = "vector"
    TABLE = "table"
    DOUBLE = "double"
    LOST = "lost"
    UNKNOWN_ROW = "unknown-row"
    ASTRAY = "astray"
    RECORD_DIFFERS = "record-differs"
    UNSWAPPED = "unswapped"
    HELD_BACK = "held-back"
    FOREIGN_ROW = "foreign-row"
    MISSING_ON_MAIN = "missing-on-main"
    EXPIRED = "expired"
    COMPACTED = "compacted"
    UNDER_WAY = "under-way"
    NOT_PROVED = "not-proved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found. `count` is how many offsets, rows, files or entries it is about."""

    severity: Severity
    kind: Kind
    message: str
    count: int = 1


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was looked at."""

    entries: int = 0
    table_entries: int = 0
    files: int = 0
    row_groups: int = 0
    read_bytes: int = 0
    log_rows: int = 0
    branch_rows: int = 0
    main_rows: int = 0
    compared_records: int = 0
    held_back_batches: int = 0


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """What is true of one topic. It grows while the proof goes on."""

    topic: str
    table: str | None = None
    tally: Tally = field(default_factory=Tally)
    findings: list[Finding] = field(default_factory=list)
    counts: dict[Kind, int] = field(default_factory=dict)
    worst: dict[Severity, int] = field(default_factory=dict)

    def add(self, severity: Severity, kind: Kind, message: str, *, count: int = 1) -> None:
        """Take note of a finding; beyond `MAX_SPELLED_OUT` of a kind it is only counted."""
        spelled_out = sum(finding.kind is kind for finding in self.findings)
        self.counts[kind] = self.counts.get(kind, 0) + count
        self.worst[severity] = self.worst.get(severity, 0) + 1
        if spelled_out < MAX_SPELLED_OUT:
            self.findings.append(Finding(severity=severity, kind=kind, message=message, count=count))

    def damage(self, kind: Kind, message: str, *, count: int = 1) -> None:
        self.add(Severity.DAMAGE, kind, message, count=count)

    def warn(self, kind: Kind, message: str, *, count: int = 1) -> None:
        self.add(Severity.WARNING, kind, message, count=count)

    def note(self, kind: Kind, message: str, *, count: int = 1) -> None:
        self.add(Severity.NOTE, kind, message, count=count)

    @property
    def is_clean(self) -> bool:
        """Whether no promise is broken; warnings are none."""
        return Severity.DAMAGE not in self.worst
