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
    """Records of one size, a small and a large topic of them, and how many rounds count after those that warm up.

    A round reads both topics. What the large one takes more is what rows cost; the rest is what it costs to begin.
    """

    small: Load
    large: Load
    rounds: int
    warm_ups: int

    @property
    def title(self) -> str:
        size = self.large.record_bytes
        return f"{size // KIB} KiB values" if size % KIB == 0 else f"{size} B values"


def full_plan() -> Sequence[Cell]:
    """Return the cells in full."""
    return (
        Cell(small=_load(100, 1_000_000), large=_load(100, 6_000_000), rounds=3, warm_ups=1),
        Cell(small=_load(KIB, 250_000), large=_load(KIB, 1_500_000), rounds=3, warm_ups=1),
    )


def quick_plan() -> Sequence[Cell]:
    """Return the same cells in a few minutes; planning and starting tasks counts for more there."""
    return (
        Cell(small=_load(100, 500_000), large=_load(100, 2_000_000), rounds=2, warm_ups=1),
        Cell(small=_load(KIB, 125_000), large=_load(KIB, 500_000), rounds=2, warm_ups=1),
    )


def _load(record_bytes: int, records: int) -> Load:
    return Load(record_bytes=record_bytes, records=records, partitions=PARTITIONS)
