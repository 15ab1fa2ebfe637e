"""A stream's index as a list that plans are carried out on, for tests of planning repacks."""

from collections import Counter
from collections.abc import Sequence

from headrace.index.objects import packed_object_id
from headrace.index.repack import RepackLimits, RepackPlan, plan_repack, swap_steps
from headrace.index.values import IndexEntry
from headrace.model.extents import TableExtent, WalExtent
from headrace.model.ids import ObjectId, StreamId, WriterId

HOUR_MS = 3_600_000
STREAM = StreamId(7)
REPACKER = WriterId("9" * 32)
MAX_PLANS = 10_000


def entry(
    start: int,
    end: int,
    *,
    size: int = 100,
    at_ms: int = 0,
    flags: int = 0,
    object_id: str = "a" * 32 + "-00000001",
    in_table: bool = False,
) -> IndexEntry:
    """Return an entry in a shared object, or in a table."""
    extent = TableExtent(()) if in_table else WalExtent(ObjectId(object_id), start * 1000, size)
    return IndexEntry(start, end, end - start, end * 100, at_ms, at_ms, at_ms, start, at_ms, flags, extent)


def size_of(one: IndexEntry) -> int:
    assert isinstance(one.extent, WalExtent)
    return one.extent.size_bytes


class RepackedIndex:
    """Entries, how often the bytes of each offset were copied, and which packed objects are named."""

    def __init__(self, entries: Sequence[IndexEntry] = ()) -> None:
        self.entries = list(entries)
        self.copied_bytes = 0
        self.copies: Counter[int] = Counter()
        """How often a byte of the entry that began at this offset, when it was appended, was copied."""
        self._next_number = 0

    def append(self, *entries: IndexEntry) -> None:
        self.entries += entries

    def settle(self, limits: RepackLimits, *, now_ms: int, held_below: int = 0, max_entries: int = 4) -> None:
        """Carry out plans until nothing is left to do."""
        for _ in range(MAX_PLANS):
            look = plan_repack(self.entries, held_below=held_below, now_ms=now_ms, limits=limits)
            if look.plan is None:
                return
            self.carry_out(look.plan, max_entries=max_entries)
        raise AssertionError("the planner finds no end")

    def carry_out(self, plan: RepackPlan, *, max_entries: int = 4) -> None:
        packed = packed_object_id(REPACKER, self._next_number)
        self._next_number += 1
        self.copied_bytes += plan.size_bytes
        for one in plan.planned:
            self.copies.update(range(one.start_offset, one.end_offset))
        for step in swap_steps(plan, STREAM, packed, max_entries=max_entries):
            step.check()
            assert len(step.planned) <= max(max_entries, 2)
            first = self.entries.index(step.planned[0])
            assert self.entries[first : first + len(step.planned)] == list(step.planned)
            self.entries[first : first + len(step.planned)] = step.replacements

    @property
    def objects(self) -> dict[ObjectId, int]:
        """How many bytes of each object are named."""
        found: Counter[ObjectId] = Counter()
        for one in self.entries:
            if isinstance(one.extent, WalExtent):
                found[one.extent.object_id] += one.extent.size_bytes
        return dict(found)
