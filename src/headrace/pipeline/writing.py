"""A task of the pipeline: read ranges of the WAL, write one Parquet file, return what is known of it.

1. Read the WAL pieces of each slice, window by window, a little ahead.
2. Check every batch, open it, collect its records as columns.
3. When a row group's worth is there: decode its values, where the topic has a schema, encode it, send it off, forget
   it. Rows whose values do not fit go out as well, copied into a file of dead letters.
4. Close the file, and only then does it exist.

Control batches are holes. A batch whose bytes are as they were committed but which cannot be opened is held back: it
stays in the WAL, and the row group ends before it. Bytes that are not as they were committed are damage: the task
fails and nothing is guessed.

Must stay true: whatever the slices hold, a task keeps one row group (or one opened batch) as columns and one as
Parquet, and what `wal_windows` reads ahead. It needs no broker, no metadata store, no catalog.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import aclosing

import msgspec
import pyarrow.compute as pc

from headrace.errors import Invalid
from headrace.model.extents import RowGroup, WalExtent
from headrace.model.ids import DomainId, ObjectKey
from headrace.objects.port import ObjectStore, object_key
from headrace.pipeline.file_sending import FileSender, finish_file, send_all, table_file_key
from headrace.pipeline.plans import Slice, WalPiece, WriteTask
from headrace.pipeline.typing_rows import LetterSender, RowTyper
from headrace.pipeline.wal_batches import BatchSplitter
from headrace.pipeline.wal_windows import Window, read_windows
from headrace.records.arrow import to_arrow
from headrace.records.batch import BatchView
from headrace.records.columns import ColumnBuilder
from headrace.records.problems import InvalidBatch
from headrace.runtime.executor import Executor, InlineExecutor
from headrace.tables.files import HeldBack, WrittenFile, WrittenSlice
from headrace.tables.parquet_writing import ROW_BYTES, EncodedGroup, ParquetFileWriter, cut_rows
from headrace.tables.rows import rows_of

MAX_REASON_CHARACTERS = 200
"""How much of an error's text a held-back batch keeps: it lies in the saga's record."""


async def write_file(
    task: WriteTask, objects: ObjectStore, *, attempt: str, executor: Executor | None = None
) -> WrittenFile:
    """Write the task's file and return what is known of it; the file is durable then.

    Raises `Missing` if a WAL object is gone (the plan is old), `Corrupt` if stored bytes are not what was committed,
    `Invalid` if the plan puts rows of two partition values into the file, and what the store raises. With an
    executor, decoding and encoding go on beside reading and sending.
    """
    check_plan(task)
    key = table_file_key(task, attempt)
    worker = executor or InlineExecutor()
    sender = FileSender(objects, key)
    typer = None if task.format.data is None else RowTyper(task.saga_id, task.format.data, task.typing)
    letters = LetterSender(typer, FileSender(objects, _dead_letter_key(task, key)))
    rows = _RowWriter(task, typer)
    try:
        for slice_ in task.file.slices:
            await _write_slice(slice_, task, objects, rows, sender, letters, worker)
        # Before the file itself: once that is told of, its dead letters are there, too.
        dead_letters = await letters.finish()
        written = await finish_file(task, key, rows.parquet, tuple(rows.slices), sender, worker)
        return msgspec.structs.replace(written, dead_letters=dead_letters)
    except (Exception, asyncio.CancelledError):
        await sender.abort()
        await letters.abort()
        raise


def _dead_letter_key(task: WriteTask, key: ObjectKey) -> ObjectKey:
    """Return where the copies of a file's misfits go: to the same name, in their own table."""
    if task.typing is None:
        return key
    return object_key(task.typing.dead_letters.data_prefix + key.removeprefix(task.data_prefix))


def check_plan(task: WriteTask) -> None:
    """Raise `Invalid` unless every slice is contiguous and lies in the file's one partition value."""
    partitioning, file = task.format.partitioning, task.file
    if not file.slices or not all(slice_.pieces for slice_ in file.slices):
        raise Invalid(f"file {file.number} of saga {task.saga_id} is planned without anything in it")
    for slice_ in file.slices:
        if file.partition != (slice_.partition if partitioning.by_partition else None):
            raise Invalid(f"partition {slice_.partition} is planned into a file of partition {file.partition}")
        next_offset = slice_.start_offset
        for piece in slice_.pieces:
            where = f"stream {slice_.stream}, offsets {piece.start_offset} to {piece.end_offset}"
            if piece.end_offset <= piece.start_offset or piece.extent.size_bytes <= 0:
                raise Invalid(f"{where}: the piece is empty, {piece.extent.size_bytes} bytes long")
            if piece.start_offset != next_offset:
                raise Invalid(f"{where}: the piece before ends at {next_offset}, so the slice has a gap")
            bucket = partitioning.bucket.of(piece.append_time_ms)
            if bucket != file.bucket:
                raise Invalid(f"{where}: their append time is in {bucket}, the file's is in {file.bucket}")
            next_offset = piece.end_offset


async def _write_slice(
    slice_: Slice,
    task: WriteTask,
    objects: ObjectStore,
    rows: "_RowWriter",
    sender: FileSender,
    letters: LetterSender,
    worker: Executor,
) -> None:
    rows.begin(slice_)
    async with aclosing(read_windows(objects, DomainId(task.domain), slice_.pieces)) as reads:
        async for windows in reads:
            await send_all(rows.take(windows), sender, worker)
            await letters.send()
    await send_all(rows.end(), sender, worker)
    await letters.send()


class _RowWriter:
    """Turns windows on the WAL into row groups. No await, no I/O: the shell reads and sends."""

    def __init__(self, task: WriteTask, typer: RowTyper | None) -> None:
        self._typer = typer
        self.parquet = ParquetFileWriter(
            task.format,
            bucket=task.file.bucket,
            partition=task.file.partition,
            compression_level=task.compression_level,
        )
        self.slices: list[WrittenSlice] = []
        self._task = task
        self._builder = ColumnBuilder(max_open_bytes=task.max_open_bytes)
        self._append_times: list[tuple[int, int]] = []  # (rows, ms), of what is in the builder

    def begin(self, slice_: Slice) -> None:
        """Begin the next stream."""
        self._slice = slice_
        self._splitter = BatchSplitter(DomainId(self._task.domain), slice_.start_offset)
        self._groups: list[RowGroup] = []
        self._held_back: list[HeldBack] = []
        # What the next group covers begins here.
        self._covered_to = slice_.start_offset

    def take(self, windows: Iterable[Window]) -> Iterator[EncodedGroup]:
        """Go through the batches of windows; yield a group whenever one is full."""
        for window in windows:
            yield from self._take(window)

    def _take(self, window: Window) -> Iterator[EncodedGroup]:
        for at_byte, batch in self._splitter.split(window):
            if batch.is_control or batch.record_count == 0:
                continue
            if self._buffered_bytes + batch.size_bytes > 2 * self._task.row_group_bytes:
                yield from self._flush(batch.base_offset)
            rows_before = self._builder.row_count
            try:
                self._builder.append(batch)
            except InvalidBatch as error:
                yield from self._flush(batch.base_offset)
                self._hold_back(window.piece, at_byte, batch, error)
                continue
            self._note_append_time(self._builder.row_count - rows_before, window.piece.append_time_ms)
            if self._buffered_bytes >= self._task.row_group_bytes:
                yield from self._flush(batch.end_offset)

    def end(self) -> Iterator[EncodedGroup]:
        """End the stream: what is left becomes its last group."""
        assert self._splitter.next_offset == self._slice.end_offset, "every piece was read to its end"
        yield from self._flush(self._slice.end_offset)
        self.slices.append(
            WrittenSlice(
                partition=self._slice.partition,
                stream=self._slice.stream,
                start_offset=self._slice.start_offset,
                end_offset=self._slice.end_offset,
                row_count=sum(group.row_count for group in self._groups),
                row_groups=tuple(self._groups),
                held_back=tuple(self._held_back),
            )
        )

    @property
    def _buffered_bytes(self) -> int:
        return self._builder.data_bytes + ROW_BYTES * self._builder.row_count

    def _note_append_time(self, row_count: int, append_time_ms: int) -> None:
        """Remember the append time of the rows that were added last; small batches share theirs with many."""
        if self._append_times and self._append_times[-1][1] == append_time_ms:
            row_count += self._append_times.pop()[0]
        self._append_times.append((row_count, append_time_ms))

    def _flush(self, end_offset: int) -> Iterator[EncodedGroup]:
        """Encode what was collected; together the groups cover everything up to `end_offset`."""
        if self._builder.row_count == 0:
            return
        columns = self._builder.columns()
        records = to_arrow(columns)
        rows = rows_of(records, partition=self._slice.partition, append_times=self._append_times)
        group = None
        for first, end in cut_rows(columns, self._task.row_group_bytes):
            group = rows.slice(first, end - first)
            encoded = self.parquet.add(
                group if self._typer is None else self._typer.typed(group),
                first_offset=self._covered_to,
                max_timestamp_ms=pc.max(records.column("timestamp_ms").slice(first, end - first)).as_py(),
            )
            self._groups.append(encoded.group)
            self._covered_to = columns.offset[end - 1] + 1
            yield encoded
            del encoded
        self._covered_to = end_offset
        self._append_times.clear()
        # Whoever still looked at the buffers would keep the builder from using them again.
        del columns, records, rows, group
        self._builder.clear()

    def _hold_back(self, piece: WalPiece, at_byte: int, batch: BatchView, error: InvalidBatch) -> None:
        extent = WalExtent(piece.extent.object_id, at_byte, batch.size_bytes)
        self._held_back.append(
            HeldBack(
                start_offset=batch.base_offset,
                end_offset=batch.end_offset,
                extent=extent,
                min_timestamp_ms=batch.base_timestamp_ms,
                max_timestamp_ms=batch.max_timestamp_ms,
                reason=f"{error.problem}: {error}"[:MAX_REASON_CHARACTERS],
            )
        )
        self._covered_to = batch.end_offset
