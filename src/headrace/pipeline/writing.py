"""A task of the pipeline: read ranges of the WAL, write one Parquet file, return what is known of it.

1. Read the WAL pieces of each slice, window by window, a little ahead.
2. Check every batch, open it, collect its records as columns.
3. When a row group's worth is there: encode it, send it off, forget it.
4. Close the file, and only then does it exist.

Control batches are holes. A batch whose bytes are as they were committed but which cannot be opened is held back: it
stays in the WAL, and the row group ends before it. Bytes that are not as they were committed are damage: the task
fails and nothing is guessed.

Must stay true: whatever the slices hold, a task keeps one row group (or one opened batch) as columns and one as
Parquet, and what `wal_windows` reads ahead. It needs no broker, no metadata store, no catalog.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from functools import partial
from struct import Struct

import pyarrow.compute as pc

from headrace.errors import Corrupt, HeadraceError, Invalid
from headrace.index.objects import wal_object_key
from headrace.model.extents import RowGroup, WalExtent
from headrace.model.ids import DomainId, ObjectKey
from headrace.objects.port import Buffer, ObjectStore, Upload, object_key
from headrace.pipeline.plans import Slice, WalPiece, WriteTask
from headrace.pipeline.wal_windows import Window, read_windows
from headrace.records.arrow import to_arrow
from headrace.records.batch import HEADER_BYTES, LENGTH_END, BatchView
from headrace.records.columns import ColumnBuilder
from headrace.records.problems import InvalidBatch
from headrace.runtime.executor import Executor, InlineExecutor
from headrace.tables.files import HeldBack, WrittenFile, WrittenSlice
from headrace.tables.parquet_writing import ROW_BYTES, EncodedGroup, ParquetFileWriter, cut_rows
from headrace.tables.rows import rows_of

MAX_REASON_CHARACTERS = 200
"""How much of an error's text a held-back batch keeps: it lies in the saga's record."""

_LENGTH = Struct(">8xi")


def table_file_key(task: WriteTask, attempt: str) -> ObjectKey:
    """Return where an attempt of a task writes its file. No two attempts share a key."""
    first = task.file.slices[0]
    range_ = f"{first.stream}-{first.start_offset}-{first.end_offset}"
    name = f"{task.file.number:05d}-{range_}-{task.epoch}-{attempt}.parquet"
    return object_key(f"{task.data_prefix}{task.saga_id}/{name}")


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
    sender = _Sender(objects, key)
    rows = _RowWriter(task)
    try:
        for slice_ in task.file.slices:
            await _write_slice(slice_, task, objects, rows, sender, worker)
        return await _finish(task, key, rows, sender, worker)
    except (Exception, asyncio.CancelledError):
        await sender.abort()
        raise


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
    sender: "_Sender",
    worker: Executor,
) -> None:
    rows.begin(slice_)
    async with aclosing(read_windows(objects, DomainId(task.domain), slice_.pieces)) as reads:
        async for windows in reads:
            await _send_all(rows.take(windows), sender, worker)
    await _send_all(rows.end(), sender, worker)


async def _send_all(groups: Iterator[EncodedGroup], sender: "_Sender", worker: Executor) -> None:
    """Let the groups be made one by one, and send each before the next is begun."""
    while (encoded := await worker.run(partial(next, groups, None))) is not None:
        await sender.send(encoded.data)
        del encoded  # Its memory is the next one's.


async def _finish(
    task: WriteTask, key: ObjectKey, rows: "_RowWriter", sender: "_Sender", worker: Executor
) -> WrittenFile:
    slices = tuple(rows.slices)
    if rows.parquet.row_count == 0:
        return WrittenFile(
            path="",
            size_bytes=0,
            footer_bytes=0,
            footer_crc=0,
            row_count=0,
            slices=slices,
            columns=(),
            split_offsets=(),
            bucket=task.file.bucket,
            partition=task.file.partition,
            spec_id=task.format.spec_id,
        )
    footer = await worker.run(rows.parquet.finish)
    await sender.send(footer.data)
    await sender.complete()
    return WrittenFile(
        path=key,
        size_bytes=footer.size_bytes,
        footer_bytes=footer.footer_bytes,
        footer_crc=footer.footer_crc,
        row_count=footer.row_count,
        slices=slices,
        columns=footer.columns,
        split_offsets=footer.split_offsets,
        bucket=task.file.bucket,
        partition=task.file.partition,
        spec_id=task.format.spec_id,
    )


class _Sender:
    """The file on its way. It is begun with its first bytes, so a file without rows leaves nothing."""

    def __init__(self, objects: ObjectStore, key: ObjectKey) -> None:
        self._objects = objects
        self._key = key
        self._upload: Upload | None = None

    async def send(self, data: Buffer) -> None:
        if self._upload is None:
            self._upload = await self._objects.upload(self._key, if_absent=True)
        await self._upload.write(data)

    async def complete(self) -> None:
        assert self._upload is not None, "there are bytes to complete"
        upload, self._upload = self._upload, None
        await upload.complete()

    async def abort(self) -> None:
        if self._upload is not None:
            with contextlib.suppress(HeadraceError):
                await self._upload.abort()


class _RowWriter:
    """Turns windows on the WAL into row groups. No await, no I/O: the shell reads and sends."""

    def __init__(self, task: WriteTask) -> None:
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
        self._splitter = _Splitter(self._task, slice_.start_offset)
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
        for first, end in cut_rows(columns, self._task.row_group_bytes):
            encoded = self.parquet.add(
                rows.slice(first, end - first),
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
        del columns, records, rows
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


class _Splitter:
    """Finds the batches in the windows of one slice, checks them and gives them their offsets.

    A batch that reaches over the end of a window is put together from its parts; nothing else is copied.
    """

    def __init__(self, task: WriteTask, start_offset: int) -> None:
        self._domain = DomainId(task.domain)
        self.next_offset = start_offset
        self._partial = bytearray()

    def split(self, window: Window) -> Iterator[tuple[int, BatchView]]:
        """Yield each batch with the byte of its object at which it begins; raise `Corrupt` at damage."""
        extent = window.piece.extent
        extent_end_byte = extent.start_byte + extent.size_bytes
        if window.start_byte == extent.start_byte:
            assert self.next_offset == window.piece.start_offset, "the piece before was read to its end"
        data, position = window.data, 0
        while position < len(data):
            at_byte = window.start_byte + position - len(self._partial)
            size_bytes = self._size_of_next(data[position : position + LENGTH_END])
            if size_bytes is not None and not HEADER_BYTES <= size_bytes <= extent_end_byte - at_byte:
                raise self._damage(window, at_byte, f"a batch says it has {size_bytes} bytes")
            wanted_bytes = (LENGTH_END if size_bytes is None else size_bytes) - len(self._partial)
            rest_bytes = len(data) - position
            if self._partial or size_bytes is None or wanted_bytes > rest_bytes:
                taken_bytes = min(wanted_bytes, rest_bytes)
                self._partial += data[position : position + taken_bytes]
                position += taken_bytes
                if size_bytes is None or taken_bytes < wanted_bytes:
                    continue
                whole, self._partial = memoryview(self._partial).toreadonly(), bytearray()
                yield at_byte, self._placed(window, at_byte, whole, 0)
            else:
                yield at_byte, self._placed(window, at_byte, data, position)
                position += wanted_bytes
        if window.is_last and (self._partial or self.next_offset != window.piece.end_offset):
            raise self._damage(
                window,
                extent.start_byte,
                f"its {extent.size_bytes} bytes hold the offsets {window.piece.start_offset} to {self.next_offset}, "
                f"the index says up to {window.piece.end_offset}",
            )

    def _size_of_next(self, data: memoryview) -> int | None:
        """Return what the next batch says of its size, or `None` while too little of it is there."""
        head = self._partial[:LENGTH_END] + data if self._partial else data
        return None if len(head) < LENGTH_END else int(_LENGTH.unpack_from(head)[0]) + LENGTH_END

    def _placed(self, window: Window, at_byte: int, data: memoryview, position: int) -> BatchView:
        """Return the batch with the offset that the commit gave it."""
        try:
            batch = BatchView(data, position)
            batch.check_crc()
        except InvalidBatch as error:
            raise self._damage(window, at_byte, str(error)) from error
        batch.base_offset = self.next_offset
        self.next_offset += batch.last_offset_delta + 1
        if not batch.base_offset < self.next_offset <= window.piece.end_offset:
            raise self._damage(window, at_byte, f"a batch's offsets end at {self.next_offset}")
        return batch

    def _damage(self, window: Window, at_byte: int, what: str) -> Corrupt:
        key = wal_object_key(self._domain, window.piece.extent.object_id)
        return Corrupt(f"object {key} is damaged at byte {at_byte}: {what}")
