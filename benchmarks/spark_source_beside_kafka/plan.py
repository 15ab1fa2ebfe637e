"""Which cells are measured, and how often: in full so long that no session's start counts, in short to try it."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.tables_beside_spark.load import Load

PARTITIONS = 6
KIB = 1024


class Place(enum.StrEnum):
    """Where Headrace's records lie when they are read."""

    WAL = "log"
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load, read in batches and as a stream, and how many rounds count after those that warm sessions up."""

    load: Load
    rounds: int
    warm_ups: int

    @property
    def title(self) -> str:
        size = self.load.record_bytes
        return f"{size // KIB} KiB values" if size % KIB == 0 else f"{size} B values"


def full_plan() -> Sequence[Cell]:
    """Return the cells in full."""
    return (
        Cell(load=_load(100, 8_000_000), rounds=3, warm_ups=1),
        Cell(load=_load(KIB, 2_000_000), rounds=3, warm_ups=1),
    )


def quick_plan() -> Sequence[Cell]:
    """Return the same cells in a few minutes; planning and starting tasks counts for more there."""
    return (
        Cell(load=_load(100, 2_000_000), rounds=2, warm_ups=1),
        Cell(load=_load(KIB, 500_000), rounds=2, warm_ups=1),
    )


def _load(record_bytes: int, records: int) -> Load:
    return Load(record_bytes=record_bytes, records=records, partitions=PARTITIONS)
