"""A task of the pipeline: read row groups of Parquet files of a topic, write them as one new file.

1. Read the row groups of each slice one by one, the next one while this one is at work, and check every byte.
2. Leave out the rows that are listed as dropped; all others are copied as they are, with every column of the table.
3. When a row group's worth is there: encode it, send it off, forget it. What was one group stays in one.
4. Close the file, and only then does it exist.

Must stay true: without a list of dropped offsets the new file has exactly the rows of its pieces, and this is
counted. A row group covers offsets from one end to the next one's beginning, holes included, and never reaches over a
gap between two pieces. Whatever the slices hold, a task keeps a few row groups in memory.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import pyarrow as pa

from headrace.errors import Corrupt, Invalid
from headrace.model.extents import RowGroup, TableFile
from headrace.objects.port import Buffer, ByteRange, ObjectStore, object_key
from headrace.pipeline.dropped_offsets import unpack_offsets, without
from headrace.pipeline.file_sending import FileSender, finish_file, send_all, table_file_key
from headrace.pipeline.rewrites import RewriteSlice, RewriteTask, TablePiece
from headrace.records.problems import InvalidBatch
from headrace.runtime.executor import Executor, InlineExecutor
from headrace.tables.columns import OFFSET, PARTITION, arrow_schema
from headrace.tables.files import WrittenFile, WrittenSlice
from headrace.tables.parquet_reading import Footer, parse_footer, read_rows
from headrace.tables.parquet_writing import EncodedGroup, ParquetFileWriter
from headrace.tables.rows import columns_of
from headrace.tables.typed.conforming import conformed_field
from headrace.tables.typed.model import DATA

MAX_FOOTERS = 64
"""How many files' footers a task remembers: several streams of a file are read one after the other."""


async def rewrite_file(
    task: RewriteTask, objects: ObjectStore, *, attempt: str, executor: Executor | None = None
) -> WrittenFile:
    """Write the task's file and return what is known of it; the file is durable then.

    Raises `Missing` if a file is gone (the plan is old), `Corrupt` if stored bytes are not what was written,
    `Invalid` if the plan puts rows of two partition values into the file, and what the store raises.
    """
    return await copy_rows(task, objects, GroupReader(objects), attempt=attempt, executor=executor)


async def copy_rows(
    task: RewriteTask,
    objects: ObjectStore,
    reader: "GroupReader",
    *,
    attempt: str,
    executor: Executor | None = None,
) -> WrittenFile:
    """Do a rewrite with the row groups that a reader brings; see `rewrite_file`."""
    check_rewrite(task)
    key = table_file_key(task, attempt)
    worker = executor or InlineExecutor()
    sender = FileSender(objects, key)
    rows = _RowCopier(task)
    try:
        for slice_ in task.file.slices:
            listed = task.dropped.get(slice_.stream)
            dropped = None if listed is None else unpack_offsets(await objects.get(object_key(listed)), listed)
            rows.begin(slice_, dropped)
            async with aclosing(reader.read(slice_)) as groups:
                async for piece, group, footer, data in groups:
                    await send_all(rows.take(piece, group, footer, data), sender, worker)
            await send_all(rows.end(), sender, worker)
        return await finish_file(task, key, rows.parquet, tuple(rows.slices), sender, worker)
    except (Exception, asyncio.CancelledError):
        await sender.abort()
        raise


def check_rewrite(task: RewriteTask) -> None:
    """Raise `Invalid` unless every slice ascends and lies in the file's one partition value."""
    partitioning, file = task.format.partitioning, task.file
    if not file.slices or not all(slice_.pieces for slice_ in file.slices):
        raise Invalid(f"file {file.number} of saga {task.saga_id} is planned without anything in it")
    for slice_ in file.slices:
        if file.partition != (slice_.partition if partitioning.by_partition else None):
            raise Invalid(f"partition {slice_.partition} is planned into a file of partition {file.partition}")
        reached = slice_.start_offset
        for piece in slice_.pieces:
            where = f"stream {slice_.stream}, offsets {piece.start_offset} to {piece.end_offset}"
            if piece.end_offset <= piece.start_offset:
                raise Invalid(f"{where}: the piece is empty")
            if piece.start_offset < reached:
                raise Invalid(f"{where}: the piece before reaches to {reached}")
            if piece.file is not None and piece.file.row_groups[0].first_offset < piece.start_offset:
                raise Invalid(f"{where}: its first row group begins at {piece.file.row_groups[0].first_offset}")
            reached = piece.end_offset


Read = tuple[TablePiece, RowGroup | None, Footer | None, Buffer | None]


class GroupReader:
    """Brings row groups one by one, each while the one before is at work."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._footers: OrderedDict[str, Footer] = OrderedDict()

    async def read(self, slice_: RewriteSlice) -> AsyncGenerator[Read, None]:
        """Go through the groups of a slice; a piece without a file comes without a group."""
        wanted = [
            (piece, group)
            for piece in slice_.pieces
            for group in ((None,) if piece.file is None else piece.file.row_groups)
        ]
        ahead: asyncio.Task[Read] | None = None
        try:
            for number, (piece, group) in enumerate(wanted):
                read = await (self.one(piece, group) if ahead is None else ahead)
                ahead = None
                if number + 1 < len(wanted):
                    ahead = asyncio.create_task(self.one(*wanted[number + 1]))
                yield read
        finally:
            if ahead is not None:
                ahead.cancel()
                with contextlib.suppress(BaseException):
                    await ahead

    async def one(self, piece: TablePiece, group: RowGroup | None) -> Read:
        """Bring one group of a piece, and the footer of its file."""
        if piece.file is None or group is None:
            return piece, None, None, None
        file = piece.file
        ranges = [ByteRange(start_byte=group.start_byte, size_bytes=group.size_bytes)]
        footer = self._footers.get(file.path)
        if footer is None:
            footer_start = file.size_bytes - file.footer_bytes
            ranges.append(ByteRange(start_byte=footer_start, size_bytes=file.footer_bytes))
        buffers = await self._objects.get_ranges(object_key(file.path), ranges)
        if footer is None:
            footer = parse_footer(file, buffers[1])
            self._footers[file.path] = footer
            while len(self._footers) > MAX_FOOTERS:
                self._footers.popitem(last=False)
        return piece, group, footer, buffers[0]


class _RowCopier:
    """Turns row groups into row groups. No await, no I/O: the shell reads and sends."""

    def __init__(self, task: RewriteTask) -> None:
        self.parquet = ParquetFileWriter(
            task.format,
            bucket=task.file.bucket,
            partition=task.file.partition,
            compression_level=task.compression_level,
        )
        self.slices: list[WrittenSlice] = []
        self._schema = arrow_schema(task.format)
        self._group_bytes = task.row_group_bytes
        self._batches: list[Any] = []
        self._batch_bytes = 0
        self._newest_ms: list[int] = []

    def begin(self, slice_: RewriteSlice, dropped: Any | None) -> None:
        """Begin the next stream."""
        self._slice = slice_
        self._dropped = dropped
        self._groups: list[RowGroup] = []
        # What the next group covers begins here, and what was read so far ends there.
        self._covered_to = self._read_to = slice_.start_offset

    def take(
        self, piece: TablePiece, group: RowGroup | None, footer: Footer | None, data: Buffer | None
    ) -> Iterator[EncodedGroup]:
        """Take the next row group of a piece; yield one whenever it is full."""
        if piece.start_offset > self._read_to:  # a batch was held back in between
            yield from self._flush()
            self._covered_to = piece.start_offset
        self._read_to = piece.end_offset
        if piece.file is None or group is None or footer is None or data is None:
            return
        rows = self._rows(piece, piece.file, group, footer, data)
        if rows.num_rows == 0:
            return
        if self._batches and self._batch_bytes + rows.nbytes > self._group_bytes * 5 // 4:
            yield from self._flush()
        newest_ms = group.max_timestamp_ms
        if rows.num_rows != group.row_count:
            newest_ms = _newest_ms(piece.file, rows)
        self._batches.append(rows)
        self._batch_bytes += rows.nbytes
        self._newest_ms.append(newest_ms)
        if self._batch_bytes >= self._group_bytes:
            yield from self._flush()

    def end(self) -> Iterator[EncodedGroup]:
        """End the stream: what is left becomes its last group."""
        assert self._read_to == self._slice.end_offset, "every piece was read"
        yield from self._flush()
        slice_ = self._slice
        row_count = sum(group.row_count for group in self._groups)
        planned = [group for piece in slice_.pieces if piece.file for group in piece.file.row_groups]
        if self._dropped is None and row_count != sum(group.row_count for group in planned):
            raise Corrupt(
                f"stream {slice_.stream}, offsets {slice_.start_offset} to {slice_.end_offset}: {row_count} rows were"
                f" copied of {sum(group.row_count for group in planned)}"
            )
        self.slices.append(
            WrittenSlice(
                partition=slice_.partition,
                stream=slice_.stream,
                start_offset=slice_.start_offset,
                end_offset=slice_.end_offset,
                row_count=row_count,
                row_groups=tuple(self._groups),
            )
        )

    def _rows(self, piece: TablePiece, file: TableFile, group: RowGroup, footer: Footer, data: Buffer) -> Any:
        """Return the rows that stay of a group, in the table's columns."""
        rows = conformed(read_rows(file, group, footer, data), self._schema)
        offsets = rows.column(OFFSET)
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        partitions = set(rows.column(PARTITION).unique().to_pylist())
        if first < piece.start_offset or last >= piece.end_offset or partitions != {self._slice.partition}:
            raise Corrupt(
                f"file {file.path}, row group {group.number} holds the offsets {first} to {last} of {partitions}, the"
                f" index says {piece.start_offset} to {piece.end_offset} of partition {self._slice.partition}"
            )
        return rows if self._dropped is None else without(rows, self._dropped, offset_column=OFFSET)

    def _flush(self) -> Iterator[EncodedGroup]:
        """Encode what was collected as one group."""
        if not self._batches:
            return
        rows = self._batches[0]
        if len(self._batches) > 1:
            (rows,) = pa.Table.from_batches(self._batches).combine_chunks().to_batches()
        encoded = self.parquet.add(rows, first_offset=self._covered_to, max_timestamp_ms=max(self._newest_ms))
        self._covered_to = rows.column(OFFSET)[-1].as_py() + 1
        self._groups.append(encoded.group)
        self._batches, self._batch_bytes, self._newest_ms = [], 0, []
        del rows
        yield encoded


def conformed(rows: Any, schema: Any) -> Any:
    """Return rows in the columns of a schema: what a file does not have is null, what it has besides is left out.

    The columns of the log are known by their names, whatever a person did to the table's: readers of the log rely on
    them. Typed columns are known by their ids.
    """
    arrays = []
    for field in schema:
        position = rows.schema.get_field_index(field.name)
        if position < 0:
            arrays.append(pa.nulls(rows.num_rows, field.type))
        elif field.name == DATA:
            arrays.append(conformed_field(rows.column(position), rows.schema.field(position), field))
        else:
            found = rows.column(position)
            arrays.append(found if found.type.equals(field.type) else found.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _newest_ms(file: TableFile, rows: Any) -> int:
    """Return the greatest timestamp of rows, the true one where a column could not hold it."""
    offsets = rows.column(OFFSET)
    try:
        columns = columns_of(rows, start_offset=offsets[0].as_py(), end_offset=offsets[-1].as_py() + 1)
    except InvalidBatch as error:
        raise Corrupt(f"file {file.path} holds rows that are none of a topic's: {error}") from error
    return max(columns.timestamp_ms)
