"""A task of a read: bring its rows from the object store, batch by batch.

1. Parts of the WAL are read through windows, a little ahead; every batch is checked, opened, collected as columns.
2. Of a table's file the footer is read once, and then one row group after the other, only the columns that are
   wanted of it decoded.

Control batches are holes. A batch that cannot be opened fails the task, and its place is told: leaving it out would
be a gap that nobody notices.

Must stay true: whatever the parts hold, a task keeps about `batch_bytes` of columns or one row group, and what is
read ahead. It needs no broker, no metadata store, no catalog.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from headrace.errors import Corrupt, Missing
from headrace.model.extents import RowGroup, TableFile
from headrace.model.ids import DomainId
from headrace.objects.port import Buffer, ByteRange, ObjectStore, object_key
from headrace.pipeline.scan.conditions import Condition
from headrace.pipeline.scan.rows import RowMaker
from headrace.pipeline.scan.tasks import Part, ScanTask, TablePart, WalPart
from headrace.pipeline.wal_batches import BatchSplitter
from headrace.pipeline.wal_windows import Window, read_windows
from headrace.records.arrow import to_arrow
from headrace.records.batch import BatchView
from headrace.records.columns import MAX_OPEN_BYTES, ColumnBuilder
from headrace.records.problems import InvalidBatch
from headrace.tables.parquet_reading import Footer, parse_footer, read_rows, times_of

BATCH_BYTES = 4 * 1024 * 1024
"""How many bytes of keys, values and headers are handed on at once."""

BATCH_ROWS = 64 * 1024
"""How many rows are handed on at once."""

BUILDERS = 3
"""Whoever takes rows may look at a batch while it asks for the next: the buffers of the one before are free again."""

GROUPS_AHEAD = 1
"""How many row groups are asked for while one is decoded."""


def new_builders(max_open_bytes: int = MAX_OPEN_BYTES) -> list[ColumnBuilder]:
    """Return what a reader collects records with, empty."""
    return [ColumnBuilder(max_open_bytes=max_open_bytes) for _ in range(BUILDERS)]


class ScanReader:
    """Reads one task."""

    def __init__(
        self,
        task: ScanTask,
        objects: ObjectStore,
        *,
        columns: tuple[str, ...],
        condition: Condition,
        builders: Sequence[ColumnBuilder] | None = None,
        batch_bytes: int = BATCH_BYTES,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        """Read with builders of one's own, or with those of a reader that has ended, whose memory is used again."""
        self._task = task
        self._objects = objects
        self._domain = DomainId(task.domain)
        self._condition = condition
        self._batch_bytes = batch_bytes
        self._batch_rows = batch_rows
        self._rows = RowMaker(topic=task.topic, partition=task.partition, columns=columns, condition=condition)
        self._builders = list(new_builders() if builders is None else builders)
        for builder in self._builders:
            builder.clear()

    async def rows(self) -> AsyncGenerator[Any, None]:
        """Bring the rows, as record batches of the columns that were asked for.

        A batch may be empty: where nothing fits for long, the caller gets its turn all the same.

        Raises `Missing` if an object is gone, `Corrupt` if stored bytes are not what was committed or a batch cannot
        be opened, and what the store raises.
        """
        for run in _runs(self._task.parts):
            async with aclosing(self._wal_rows(run) if isinstance(run, list) else self._table_rows(run)) as found:
                async for rows in found:
                    yield rows
                    del rows

    async def _wal_rows(self, run: Sequence[WalPart]) -> AsyncGenerator[Any, None]:
        start_offset, end_offset = run[0].start_offset, run[-1].end_offset
        splitter = BatchSplitter(self._domain, run[0].piece.start_offset)
        async with aclosing(read_windows(self._objects, self._domain, [part.piece for part in run])) as reads:
            try:
                async for windows in reads:
                    for records in self._collect(windows, splitter, start_offset, end_offset):
                        yield self._rows.of_records(records, start_offset, end_offset)
                        del records
            except Missing as error:
                raise self._gone(error) from error
        for records in self._flush():
            yield self._rows.of_records(records, start_offset, end_offset)
            del records

    def _collect(
        self, windows: Sequence[Window], splitter: BatchSplitter, start_offset: int, end_offset: int
    ) -> Iterator[Any]:
        for window in windows:
            for _, batch in splitter.split(window):
                is_wanted = batch.end_offset > start_offset and batch.base_offset < end_offset
                if batch.is_control or batch.record_count == 0 or not is_wanted:
                    continue
                builder = self._builders[0]
                if builder.data_bytes + batch.size_bytes > 2 * self._batch_bytes:
                    yield from self._flush()
                self._open(batch)
                builder = self._builders[0]
                if builder.data_bytes >= self._batch_bytes or builder.row_count >= self._batch_rows:
                    yield from self._flush()

    def _open(self, batch: BatchView) -> None:
        try:
            self._builders[0].append(batch)
        except InvalidBatch as error:
            where = f"partition {self._task.partition} of {self._task.topic}"
            raise Corrupt(
                f"{where}: the batch at offsets {batch.base_offset} to {batch.end_offset - 1} cannot be opened "
                f"({error}). Read around it, with offsets before and behind it"
            ) from error

    def _flush(self) -> Iterator[Any]:
        builder = self._builders.pop(0)
        self._builders.append(builder)
        if builder.row_count:
            yield to_arrow(builder.columns())
        self._builders[0].clear()

    async def _table_rows(self, part: TablePart) -> AsyncGenerator[Any, None]:
        try:
            footer = await self._footer(part.file)
            groups = [group for group in part.file.row_groups if self._may_fit(group, footer)]
            async with aclosing(self._groups(part.file, groups)) as found:
                async for group, data in found:
                    read = read_rows(part.file, group, footer, data, columns=self._rows.table_columns)
                    rows = self._rows.of_table(read, part.start_offset, part.end_offset)
                    for first in range(0, max(1, rows.num_rows), self._batch_rows):
                        yield rows.slice(first, self._batch_rows)
        except Missing as error:
            raise self._gone(error) from error

    def _may_fit(self, group: RowGroup, footer: Footer) -> bool:
        times = times_of(group, footer)
        return times is None or self._condition.allows_times(*times)

    async def _footer(self, file: TableFile) -> Footer:
        wanted = ByteRange(start_byte=file.size_bytes - file.footer_bytes, size_bytes=file.footer_bytes)
        (data,) = await self._objects.get_ranges(object_key(file.path), [wanted])
        return parse_footer(file, data)

    async def _groups(
        self, file: TableFile, groups: Sequence[RowGroup]
    ) -> AsyncGenerator[tuple[RowGroup, Buffer], None]:
        """Bring the bytes of row groups, one ahead of the one that is worked on."""

        async def read(group: RowGroup) -> Buffer:
            wanted = ByteRange(start_byte=group.start_byte, size_bytes=group.size_bytes)
            (data,) = await self._objects.get_ranges(object_key(file.path), [wanted])
            return data

        ahead: list[asyncio.Task[Buffer]] = []
        try:
            for number, group in enumerate(groups):
                begun = number + len(ahead)
                ahead += [asyncio.create_task(read(each)) for each in groups[begun : number + 1 + GROUPS_AHEAD]]
                yield group, await ahead.pop(0)
        finally:
            for reading in ahead:
                reading.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    def _gone(self, error: Missing) -> Missing:
        return Missing(
            f"partition {self._task.partition} of {self._task.topic}: {error}. The read was planned too long ago, "
            "and what it is to bring was merged or deleted since: load the frame again"
        )


def _runs(parts: Sequence[Part]) -> Iterator[list[WalPart] | TablePart]:
    """Put those parts of the WAL together that lie end to end in the log."""
    run: list[WalPart] = []
    for part in parts:
        if run and (isinstance(part, TablePart) or run[-1].piece.end_offset != part.piece.start_offset):
            yield run
            run = []
        if isinstance(part, TablePart):
            yield part
        else:
            run.append(part)
    if run:
        yield run
