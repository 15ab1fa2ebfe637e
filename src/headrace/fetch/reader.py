"""Read a stream's batches from wherever the offset index says they lie: in WAL objects, or in a table's files.

1. Locate the entries from an offset on; memory answers where it can.
2. Choose what to read of them: whole entries of the WAL, or single row groups of a table. One read has one kind.
3. Read it (`wal_reads.py`, `table_reads.py`).
4. Where bytes are wrong, read again and find out what is intact (`damage.py`).

Must stay true: an offset is never skipped. An object that is missing means that the plan was old: drop what is
remembered and plan again; it is damage only if the fresh index still names it.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from headrace.errors import Corrupt, Missing
from headrace.fetch.budget import ReadBudget
from headrace.fetch.damage import Damage, DamageBook, Damaged, readable
from headrace.fetch.runs import Run
from headrace.fetch.table_reads import TableReader
from headrace.fetch.wal_reads import WalEntry, WalReader
from headrace.fetch.windows import Window, windows_of
from headrace.index.cache import ENTRIES_PER_READ, IndexCache
from headrace.index.values import IndexEntry
from headrace.model.extents import WalExtent
from headrace.model.ids import DomainId, StreamId
from headrace.objects.port import ObjectStore
from headrace.runtime.executor import Executor, InlineExecutor

__all__ = ["MAX_PLANS", "LogReader", "Run"]

MAX_PLANS = 3
"""How often a read is planned again because objects vanished under it."""

MAX_ENTRIES = 1024
"""How many entries one read takes at most, however small they are."""

MORE_ENTRIES_PER_READ = 512
"""How many entries are asked for at once, after the first page was found to hold few bytes."""

MAX_WINDOWS = 64
"""How many row groups one read takes at most, however small they are."""


@dataclass(slots=True)
class _Plan:
    """What one read brings: entries of the WAL, or windows of table entries, in the order of offsets."""

    left_bytes: int
    wal: list[WalEntry] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.wal and not self.windows


class LogReader:
    """Reads from any broker's or job's process; it needs no leader and holds no state but the caches."""

    def __init__(
        self,
        *,
        domain: DomainId,
        cache: IndexCache,
        objects: ObjectStore,
        executor: Executor | None = None,
        tables: TableReader | None = None,
        damages: DamageBook | None = None,
    ) -> None:
        """Without an executor all work is done where the caller runs; `damages` hears of every damage."""
        self._cache = cache
        self.damages = damages or DamageBook()
        executor = executor or InlineExecutor()
        self._wal = WalReader(domain=domain, objects=objects, executor=executor)
        self._tables = tables or TableReader(objects=objects, executor=executor)

    async def read(
        self, stream: StreamId, offset: int, *, max_bytes: int, budget: ReadBudget | None = None
    ) -> list[Run]:
        """Return runs from the one that holds `offset` on: at least one, then up to about `max_bytes`.

        A run covers a whole entry of the WAL, or a piece of a row group. With a `max_bytes` of 0 one entry or one row
        group is read. Nothing is returned if the stream does not hold the offset. Where stored bytes are not those
        that were committed, the runs end before them; raises `Damaged` where they hide `offset` itself.

        With a budget, the bytes are lent from it while they are being read.
        """
        plan = _Plan(0)
        for _ in range(MAX_PLANS):
            plan = await self._plan(stream, offset, max_bytes)
            if plan.is_empty:
                return []
            try:
                return await self._perform(stream, offset, plan, budget)
            except Corrupt:
                break
            except Missing:
                self._cache.view.forget_folded(stream)
                await self._cache.refresh()
        found = readable(await self._salvage(stream, offset, plan, budget), offset)
        if isinstance(found, Damage):
            raise Damaged(stream, found)
        return found

    def close(self) -> None:
        """End reads that belong to nobody in particular."""
        self._tables.close()

    async def _perform(self, stream: StreamId, offset: int, plan: _Plan, budget: ReadBudget | None) -> list[Run]:
        if plan.windows:
            runs = await self._tables.read(stream, plan.windows, budget=budget)
            return [run for run in runs if run.end_offset > offset]
        size_bytes = sum(extent.size_bytes for _, extent in plan.wal)
        async with budget.lend(size_bytes) if budget is not None else nullcontext():
            return await self._wal.read(plan.wal)

    async def _salvage(
        self, stream: StreamId, offset: int, plan: _Plan, budget: ReadBudget | None
    ) -> list[Run | Damage]:
        """Find out what of a plan is intact, after it could not be read."""
        if plan.windows:
            parts = await self._tables.salvage(stream, plan.windows, offset, budget=budget)
        else:
            size_bytes = sum(extent.size_bytes for _, extent in plan.wal)
            async with budget.lend(size_bytes) if budget is not None else nullcontext():
                parts = await self._wal.salvage(plan.wal, offset)
        for part in parts:
            if isinstance(part, Damage):
                self.damages.note(stream, part)
        return parts

    async def _plan(self, stream: StreamId, offset: int, max_bytes: int) -> _Plan:
        """Choose what to read. Where entries are small, one page of the index is not enough."""
        plan = _Plan(max_bytes)
        limit = ENTRIES_PER_READ
        while plan.is_empty or (plan.left_bytes > 0 and len(plan.wal) < MAX_ENTRIES):
            head = self._cache.view.head(stream)
            if not plan.is_empty and head is not None and offset >= head.high_watermark:
                break  # nothing is known to lie behind: no reason to ask the store
            page = await self._cache.locate(stream, offset, limit=limit)
            if page and not plan.is_empty and page[0].start_offset < offset:
                break  # a swap came between two pages: the new entry begins within what is planned already
            if not page or not self._add(plan, page, offset):
                break
            offset, limit = page[-1].end_offset, MORE_ENTRIES_PER_READ
        return plan

    def _add(self, plan: _Plan, page: Sequence[IndexEntry], offset: int) -> bool:
        """Add entries to a plan while they fit and are of its kind; say whether more may follow."""
        for entry in page:
            extent = entry.extent
            if isinstance(extent, WalExtent):
                plan.left_bytes -= extent.size_bytes
                if plan.windows or (plan.wal and plan.left_bytes < 0):
                    return False
                plan.wal.append((entry, extent))
            elif plan.wal:
                return False
            else:
                for window in windows_of(entry, extent, start_offset=offset):
                    plan.left_bytes -= self._tables.expected_bytes(window)
                    if plan.windows and (plan.left_bytes < 0 or len(plan.windows) >= MAX_WINDOWS):
                        return False
                    plan.windows.append(window)
        return True
