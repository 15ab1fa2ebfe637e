"""Sets of offsets, kept as runs: what a log holds, what a table shows, and how the two differ.

Must stay true: an offset that was added twice is known to be double, however the additions were ordered. Memory goes
with the number of holes between runs (16 bytes each), never with the number of offsets.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import TypeAlias

Run: TypeAlias = tuple[int, int]
"""Offsets from the first number to the second, which is exclusive."""

UNSETTLED_RUNS = 100_000
"""How many runs are collected before they are sorted and merged; runs that come in order merge at once."""


class OffsetRuns:
    """A set of offsets that remembers which of them came more than once."""

    __slots__ = ("_doubles", "_ends", "_next_settling", "_starts")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._starts = array("q")
        self._ends = array("q")
        self._doubles: OffsetRuns | None = None
        self._next_settling = UNSETTLED_RUNS
        for start, end in runs:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Add the offsets from `start` to `end`."""
        if start >= end:
            return
        if self._ends and self._ends[-1] == start:
            self._ends[-1] = end
            return
        self._starts.append(start)
        self._ends.append(end)
        if len(self._starts) >= self._next_settling:
            self._settle()
            self._next_settling = max(UNSETTLED_RUNS, 2 * len(self._starts))

    def runs(self) -> Iterator[Run]:
        """Go through the set in order, in runs that neither touch nor overlap."""
        self._settle()
        return zip(self._starts, self._ends, strict=True)

    def doubles(self) -> "OffsetRuns":
        """Return the offsets that were added more than once."""
        self._settle()
        return self._doubles if self._doubles is not None else OffsetRuns()

    def count(self) -> int:
        """Return how many offsets there are, each counted once."""
        return sum(end - start for start, end in self.runs())

    def minus(self, other: "OffsetRuns") -> "OffsetRuns":
        """Return the offsets of this set that the other one has not."""
        left = OffsetRuns()
        others = other.runs()
        taken = next(others, None)
        for start, end in self.runs():
            while taken is not None and taken[1] <= start:
                taken = next(others, None)
            at = start
            while taken is not None and taken[0] < end:
                left.add(at, min(taken[0], end))
                at = max(at, taken[1])
                if taken[1] >= end:
                    break
                taken = next(others, None)
            left.add(at, end)
        return left

    def between(self, start: int, end: int) -> "OffsetRuns":
        """Return the offsets of this set from `start` to `end`."""
        return OffsetRuns(
            (max(low, start), min(high, end)) for low, high in self.runs() if low < end and high > start
        )

    def _settle(self) -> None:
        """Sort and merge what was added, and take note of what overlaps."""
        if not any(self._starts[n] <= self._ends[n - 1] for n in range(1, len(self._starts))):
            return
        pairs = sorted(zip(self._starts, self._ends, strict=True))
        self._starts, self._ends = array("q"), array("q")
        twice = []
        for start, end in pairs:
            if self._ends and start <= self._ends[-1]:
                if start < self._ends[-1]:
                    twice.append((start, min(end, self._ends[-1])))
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)
        if twice:
            known = [] if self._doubles is None else list(self._doubles.runs())
            self._doubles = _merged([*known, *twice])


def _merged(runs: Iterable[Run]) -> OffsetRuns:
    """Return a set from runs that may overlap, without calling anything double."""
    merged: list[Run] = []
    for start, end in sorted(runs):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return OffsetRuns(merged)


def shown(runs: Iterable[Run], *, most: int = 5) -> str:
    """Return runs as a person reads them: `7, 12–19 and 3 more runs`; both ends are inclusive."""
    first: list[str] = []
    more = 0
    for start, end in runs:
        if len(first) < most:
            first.append(str(start) if end == start + 1 else f"{start}–{end - 1}")
        else:
            more += 1
    return ", ".join(first) + (f" and {more} more {'run' if more == 1 else 'runs'}" if more else "")
