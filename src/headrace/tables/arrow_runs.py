"""Offsets in Arrow arrays as runs: what proofs about tables count with. Vector operations only, whatever the rows."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def runs_of(offsets: Any) -> list[tuple[int, int]]:
    """Return offsets, in any order, as sorted half-open runs; one that is there twice stands in two of them."""
    if not len(offsets):
        return []
    ordered = offsets.take(pc.array_sort_indices(offsets))
    steps = pc.subtract(ordered[1:], ordered[:-1])
    breaks = pc.indices_nonzero(pc.not_equal(steps, 1)).to_pylist()
    firsts = [0, *(index + 1 for index in breaks)]
    lasts = [*breaks, len(ordered) - 1]
    return [(ordered[first].as_py(), ordered[last].as_py() + 1) for first, last in zip(firsts, lasts, strict=True)]


def place_runs(partitions: Any, offsets: Any) -> tuple[dict[int, list[tuple[int, int]]], int]:
    """Return the runs of offsets per partition, and how many rows have no place at all."""
    placed = pc.and_(pc.is_valid(partitions), pc.is_valid(offsets))
    unplaced = len(placed) - int(pc.sum(placed).as_py() or 0)
    if unplaced:
        partitions, offsets = partitions.filter(placed), offsets.filter(placed)
    runs = {}
    for partition in pc.unique(partitions).to_pylist():
        own = offsets.filter(pc.equal(partitions, partition)).cast(pa.int64())
        runs[int(partition)] = runs_of(own)
    return runs, unplaced


def is_rising(offsets: Any) -> bool:
    """Whether each offset is greater than the one before it."""
    return bool(pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py()) if len(offsets) > 1 else True
