"""Which cells are measured, and how often: in full so long that neither side's start counts, in short to try it."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.tables_beside_spark.load import Load

PARTITIONS = 6
KIB = 1024
FILE_BYTES = 256 * 1024 * 1024
"""The size of files that both sides are told to aim at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load, and how many rounds of it are played after as many that only warm both sessions up."""

    load: Load
    rounds: int
    warm_ups: int
    profile_bytes: int

    @property
    def title(self) -> str:
        size = self.load.record_bytes
        return f"{size // KIB} KiB values" if size % KIB == 0 else f"{size} B values"


def full_plan() -> Sequence[Cell]:
    """Return the cells in full: ten seconds and more on each side, three rounds."""
    return (
        Cell(load=_load(100, 12_000_000), rounds=3, warm_ups=1, profile_bytes=200_000_000),
        Cell(load=_load(KIB, 3_000_000), rounds=3, warm_ups=1, profile_bytes=200_000_000),
    )


def quick_plan() -> Sequence[Cell]:
    """Return the same cells in a few minutes. Both sides still pay for much of their start there."""
    return (
        Cell(load=_load(100, 2_000_000), rounds=2, warm_ups=1, profile_bytes=50_000_000),
        Cell(load=_load(KIB, 500_000), rounds=2, warm_ups=1, profile_bytes=50_000_000),
    )


def _load(record_bytes: int, records: int) -> Load:
    return Load(record_bytes=record_bytes, records=records, partitions=PARTITIONS)
