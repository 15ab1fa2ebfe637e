"""Verify the log: read every byte that the index names, and say what cannot be read and which offsets that hides.

1. Walk the index of every partition (`index_walk.py`): no gap, no overlap.
2. Read what its entries name, in windows: batches of WAL objects by CRC, count and offsets; row groups of tables by
   checksum, row count and as the batches that a reader gets.
3. What is wrong is read again, then looked up in the index again. Only what is still named is damage: an entry that
   was swapped, trimmed or repacked meanwhile is followed to where its records lie now.

Must stay true: it only reads; what brokers do beside it is never taken for damage; and memory stays within the read
budget, however large the log is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.errors import Corrupt, Missing, Retryable
from headrace.fetch.budget import ReadBudget
from headrace.fetch.damage import Damage
from headrace.fetch.index_walk import IndexWalk
from headrace.fetch.log_report import LogReport
from headrace.fetch.runs import Run
from headrace.fetch.table_reads import TableReader
from headrace.fetch.wal_reads import WalEntry, WalReader
from headrace.fetch.windows import windows_of
from headrace.index.objects import wal_object_key
from headrace.index.values import IndexEntry
from headrace.model.extents import TableExtent, WalExtent
from headrace.model.ids import DomainId, StreamId
from headrace.records.batch import iter_batches
from headrace.runtime.executor import Executor

STREAMS_AT_ONCE = 8
"""How many partitions are walked at the same time."""

READS_AT_ONCE = 8
"""How many reads of the object store are under way at the same time."""

READ_MAX_BYTES = 64 * 1024 * 1024
"""How many bytes all reads under way hold together; one read that is larger waits until it is alone."""

WINDOW_MAX_BYTES = 4 * 1024 * 1024
"""How many bytes of neighbouring entries one read takes; one entry that is larger is read alone."""

WINDOW_ENTRIES = 256
"""How many entries one read takes at most, however small they are."""

MAX_ROUNDS = 8
"""How often the same offsets are looked up again because their entry was replaced before it could be read."""

Progress = Callable[[int], None]
"""Hears how many bytes were checked so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLog:
    """A partition to verify."""

    topic: str
    partition: int
    stream: StreamId


class LogVerifier:
    """Verifies partitions, several at a time."""

    def __init__(
        self,
        *,
        domain: DomainId,
        index: IndexWalk,
        wal: WalReader,
        tables: TableReader,
        executor: Executor,
        budget: ReadBudget | None = None,
        progress: Progress = lambda _: None,
    ) -> None:
        self._domain = domain
        self._index = index
        self._wal = wal
        self._tables = tables
        self._executor = executor
        self._budget = budget or ReadBudget(READ_MAX_BYTES, max_reads=READS_AT_ONCE)
        self._progress = progress
        self._report = LogReport()

    async def verify(self, partitions: Iterable[PartitionLog]) -> LogReport:
        """Verify partitions and return what was found. Raises `Retryable` and others where it cannot look at all."""
        left = iter(partitions)

        async def work() -> None:
            for partition in left:
                await self._verify_one(partition)

        await _all(work() for _ in range(STREAMS_AT_ONCE))
        for damage in self._index.lost_records:
            self._report.add(damage)
        return self._report

    async def _verify_one(self, partition: PartitionLog) -> None:
        self._report.partitions += 1
        try:
            await self._walk(partition)
        except Corrupt as error:  # the head itself
            damage = Damage(object_key="", start_byte=0, size_bytes=0, start_offset=0, end_offset=0, why=str(error))
            self._note(partition, damage)

    async def _walk(
        self, partition: PartitionLog, *, start_offset: int = 0, end_offset: int | None = None, round_: int = 0
    ) -> None:
        """Check what the index names between two offsets; without an end, up to the high watermark as it is now."""
        if round_ > MAX_ROUNDS:
            raise Retryable(
                f"{partition.topic}-{partition.partition}: the entry at offset {start_offset} was replaced"
                f" {MAX_ROUNDS} times before it could be read: try again when the pipeline rests"
            )
        offset = start_offset
        while end_offset is None or offset < end_offset:
            page = await self._index.page(partition.stream, offset)
            if page is None:
                return
            end_offset = page.head.high_watermark if end_offset is None else end_offset
            for damage in page.damages:
                if damage.start_offset < end_offset:
                    self._note(partition, damage)
            entries = [entry for entry in page.entries if entry.start_offset < end_offset]
            await _all(self._check(partition, window, round_) for window in _windows(entries))
            offset = page.next_offset

    async def _check(self, partition: PartitionLog, window: Sequence[IndexEntry], round_: int) -> None:
        """Check entries that are read together, and ask the index again about those that are wrong."""
        first = window[0].extent
        wrong = (
            await self._check_table(partition, window[0], first)
            if isinstance(first, TableExtent)
            else await self._check_wal(window)
        )
        self._report.entries += len(window)
        replaced: list[IndexEntry] = []
        for entry, damages in wrong:
            head = await self._index.head_if_named(partition.stream, entry)
            if head is None:
                replaced.append(entry)
                continue
            for damage in damages:
                if damage.end_offset > head.log_start:
                    self._note(partition, damage)
        if replaced:
            start_offset, end_offset = replaced[0].start_offset, replaced[-1].end_offset
            await self._walk(partition, start_offset=start_offset, end_offset=end_offset, round_=round_ + 1)

    async def _check_wal(self, window: Sequence[IndexEntry]) -> list[tuple[IndexEntry, list[Damage]]]:
        named = [(entry, entry.extent) for entry in window if isinstance(entry.extent, WalExtent)]
        size_bytes = sum(extent.size_bytes for _, extent in named)
        async with self._budget.lend(size_bytes):
            wrong = await self._read_wal(named)
        self._checked(size_bytes)
        return wrong

    async def _read_wal(self, named: Sequence[WalEntry]) -> list[tuple[IndexEntry, list[Damage]]]:
        try:
            runs = await self._wal.read(named)
        except (Corrupt, Missing):
            return [(one[0], damages) for one in named if (damages := await self._salvage(one))]
        return await self._executor.run(partial(_miscounted, self._domain, named, runs))

    async def _salvage(self, one: WalEntry) -> list[Damage]:
        parts = await self._wal.salvage([one], one[0].start_offset)
        return [part for part in parts if isinstance(part, Damage)]

    async def _check_table(
        self, partition: PartitionLog, entry: IndexEntry, extent: TableExtent
    ) -> list[tuple[IndexEntry, list[Damage]]]:
        self._report.table_entries += 1
        damages: list[Damage] = []
        for window in windows_of(entry, extent):
            parts = await self._tables.salvage(partition.stream, [window], window.start_offset, budget=self._budget)
            damages += [part for part in parts if isinstance(part, Damage)]
            self._checked(window.size_bytes)
        return [(entry, damages)] if damages else []

    def _checked(self, size_bytes: int) -> None:
        self._report.read_bytes += size_bytes
        self._progress(self._report.read_bytes)

    def _note(self, partition: PartitionLog, damage: Damage) -> None:
        self._report.add(damage, topic=partition.topic, partition=partition.partition)


def _windows(entries: Sequence[IndexEntry]) -> Iterator[Sequence[IndexEntry]]:
    """Cut entries into those that are read together: each table entry alone, and neighbours of the WAL."""
    window: list[IndexEntry] = []
    left_bytes = WINDOW_MAX_BYTES
    for entry in entries:
        extent = entry.extent
        size_bytes = extent.size_bytes if isinstance(extent, WalExtent) else WINDOW_MAX_BYTES
        is_full = left_bytes < size_bytes or len(window) >= WINDOW_ENTRIES or isinstance(extent, TableExtent)
        if window and is_full:
            yield window
            window, left_bytes = [], WINDOW_MAX_BYTES
        window.append(entry)
        left_bytes -= size_bytes
    if window:
        yield window


def _miscounted(
    domain: DomainId, named: Sequence[WalEntry], runs: Sequence[Run]
) -> list[tuple[IndexEntry, list[Damage]]]:
    """Return the entries whose batches hold another number of records than the index says."""
    wrong: list[tuple[IndexEntry, list[Damage]]] = []
    for (entry, extent), run in zip(named, runs, strict=True):
        found = sum(batch.record_count for batch in iter_batches(run.data))
        if found != entry.record_count:
            damage = Damage(
                object_key=wal_object_key(domain, extent.object_id),
                start_byte=extent.start_byte,
                size_bytes=extent.size_bytes,
                start_offset=entry.start_offset,
                end_offset=entry.end_offset,
                why=f"its batches hold {found} records, and the index says {entry.record_count}",
            )
            wrong.append((entry, [damage]))
    return wrong


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Do all of it, then raise the first error, if there was one."""
    for done in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(done, BaseException):
            raise done
