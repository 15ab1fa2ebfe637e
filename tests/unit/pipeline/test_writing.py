"""A task writes what the WAL holds, holds back what it cannot open, and stops at damage."""

import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import Corrupt, Exists, Invalid, Missing, Retryable
from headrace.index.objects import wal_object_id, wal_object_key
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectKey, StreamId
from headrace.objects.memory import MemoryObjects
from headrace.objects.port import Buffer, ByteRange, ObjectStore
from headrace.pipeline import wal_windows
from headrace.pipeline.file_sending import table_file_key
from headrace.pipeline.plans import WalPiece, WriteTask
from headrace.pipeline.writing import write_file
from headrace.records.batch import CONTROL_BIT, Codec
from headrace.records.record import Record, records_of
from headrace.runtime.executor import ThreadExecutor
from headrace.tables.files import WrittenFile
from headrace.tables.format import DAY_MS, Bucket
from headrace.testing.batches import make_batch
from headrace.testing.clock import ManualClock
from tests.table_kit import APPEND_MS, DATA_PREFIX, DOMAIN, WRITER, put_piece, read_columns, table_format, task_of
from tests.unit.records.making import Batch, marker, record

KEY = ObjectKey(f"{DATA_PREFIX}saga-1/00003-7-100-130-4-a1.parquet")


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(ManualClock())


def batch(first: int, count: int = 10) -> bytes:
    return make_batch([b"%d" % n for n in range(first, first + count)], at_ms=1000 + first)


def unopenable(count: int = 10) -> bytes:
    """Return a batch whose CRC is right and whose body is no zstd."""
    return bytes(Batch(body=b"", attributes=Codec.ZSTD, last_offset_delta=count - 1, record_count=count).build())


def control() -> bytes:
    return bytes(Batch(body=marker(commit=True), attributes=CONTROL_BIT).build())


async def read_back(objects: ObjectStore, written: WrittenFile) -> list[list[Record]]:
    return [
        [row for columns in await read_columns(objects, written, slice_) for row in records_of(columns)]
        for slice_ in written.slices
    ]


async def keys_of(objects: ObjectStore) -> list[str]:
    return [info.key async for info in objects.list("tables/")]


async def test_records_are_in_the_file_with_the_offsets_of_the_commit(objects: MemoryObjects) -> None:
    piece = await put_piece(objects, [batch(0), batch(10), batch(20)], start_offset=100)
    written = await write_file(task_of([piece]), objects, attempt="a1")
    assert written.path == KEY
    assert written.size_bytes == (await objects.head(KEY)).size_bytes
    [found] = await read_back(objects, written)
    assert [(row.offset, row.value) for row in found] == [(100 + n, b"%d" % n) for n in range(30)]
    [slice_] = written.slices
    assert (slice_.partition, slice_.stream, slice_.start_offset, slice_.end_offset) == (0, 7, 100, 130)
    assert (written.row_count, slice_.row_count, slice_.held_back) == (30, 30, ())
    assert slice_.row_groups[0].max_timestamp_ms == 1029
    assert (written.bucket, written.partition, written.spec_id) == (APPEND_MS // DAY_MS, None, 5)


async def test_groups_are_cut_by_bytes_and_cover_everything(objects: MemoryObjects) -> None:
    piece = await put_piece(objects, [batch(10 * n) for n in range(40)], start_offset=100)
    written = await write_file(task_of([piece], row_group_bytes=3000), objects, attempt="a1")
    groups = written.slices[0].row_groups
    assert len(groups) > 5
    assert groups[0].first_offset == 100
    assert all(before.first_offset + before.row_count == after.first_offset for before, after in pairwise(groups))
    assert written.split_offsets == tuple(group.start_byte for group in groups)
    assert [row.offset for row in (await read_back(objects, written))[0]] == list(range(100, 500))


async def test_one_batch_that_opens_to_many_groups_is_cut(objects: MemoryObjects) -> None:
    body = b"".join(record(offset_delta=n, value=bytes(1000)) for n in range(200))
    large = Batch(body=body, attributes=Codec.ZSTD, last_offset_delta=199, record_count=200).build()
    piece = await put_piece(objects, [batch(0), large], start_offset=0)
    written = await write_file(task_of([piece], row_group_bytes=20_000), objects, attempt="a1")
    groups = written.slices[0].row_groups
    assert 9 <= len(groups) <= 12
    assert [row.offset for row in (await read_back(objects, written))[0]] == list(range(210))


async def test_streams_of_a_topic_share_a_file_but_no_row_group(objects: MemoryObjects) -> None:
    one = await put_piece(objects, [batch(0)], start_offset=50, number=1)
    two = await put_piece(objects, [batch(1000)], start_offset=7, number=2)
    written = await write_file(task_of([one], [two]), objects, attempt="a1")
    assert [slice_.stream for slice_ in written.slices] == [StreamId(7), StreamId(8)]
    assert [[group.number for group in slice_.row_groups] for slice_ in written.slices] == [[0], [1]]
    first, second = await read_back(objects, written)
    assert [row.offset for row in first] == list(range(50, 60))
    assert [row.value for row in second] == [b"%d" % n for n in range(1000, 1010)]


async def test_pieces_keep_their_append_times(objects: MemoryObjects) -> None:
    one = await put_piece(objects, [batch(0)], start_offset=0, number=1, append_time_ms=APPEND_MS)
    two = await put_piece(objects, [batch(10)], start_offset=10, number=2, append_time_ms=APPEND_MS + 5)
    written = await write_file(task_of([one, two]), objects, attempt="a1")
    table = pq.read_table(pa.BufferReader(await objects.get(ObjectKey(written.path))))
    assert (
        table.column("append_time").cast(pa.int64()).to_pylist()
        == [APPEND_MS * 1000] * 10 + [(APPEND_MS + 5) * 1000] * 10
    )


async def test_control_batches_are_holes(objects: MemoryObjects) -> None:
    piece = await put_piece(objects, [control(), batch(0), control(), batch(10), control()], start_offset=0)
    written = await write_file(task_of([piece]), objects, attempt="a1")
    [found] = await read_back(objects, written)
    assert [row.offset for row in found] == [*range(1, 11), *range(12, 22)]
    assert [group.first_offset for group in written.slices[0].row_groups] == [0]
    assert written.slices[0].end_offset == 23


async def test_a_batch_that_cannot_be_opened_is_held_back_and_ends_the_group(objects: MemoryObjects) -> None:
    broken = unopenable(5)
    piece = await put_piece(objects, [batch(0), broken, broken, batch(10)], start_offset=100)
    written = await write_file(task_of([piece]), objects, attempt="a1")
    [slice_] = written.slices
    assert [(held.start_offset, held.end_offset) for held in slice_.held_back] == [(110, 115), (115, 120)]
    first = slice_.held_back[0]
    assert first.extent == WalExtent(piece.extent.object_id, piece.extent.start_byte + len(batch(0)), len(broken))
    assert (first.min_timestamp_ms, first.max_timestamp_ms) == (1000, 1000)
    assert first.reason.startswith("compression: ")
    assert [(group.first_offset, group.row_count) for group in slice_.row_groups] == [(100, 10), (120, 10)]
    assert written.row_count == 20
    data = (await objects.get_ranges(wal_object_key(DOMAIN, first.extent.object_id), [_range(first.extent)]))[0]
    assert data == broken


def _range(extent: WalExtent) -> ByteRange:
    return ByteRange(start_byte=extent.start_byte, size_bytes=extent.size_bytes)


async def test_a_bomb_and_broken_records_are_held_back(objects: MemoryObjects) -> None:
    bomb = Batch(body=record(value=bytes(100_000)), attributes=Codec.GZIP).build()
    broken = Batch(body=b"\xff" * 20, attributes=Codec.ZSTD).build()
    no_codec = Batch(attributes=7).build()
    piece = await put_piece(objects, [bomb, broken, batch(0), no_codec])
    written = await write_file(task_of([piece], max_open_bytes=50_000), objects, attempt="a1")
    reasons = [held.reason.split(":")[0] for held in written.slices[0].held_back]
    assert reasons == ["too_large", "record", "codec"]
    assert written.row_count == 10


async def test_a_file_without_rows_is_not_written(objects: MemoryObjects) -> None:
    piece = await put_piece(objects, [control(), unopenable(), control()], start_offset=5)
    written = await write_file(task_of([piece]), objects, attempt="a1")
    assert (written.path, written.size_bytes, written.row_count, written.columns) == ("", 0, 0, ())
    [slice_] = written.slices
    assert (slice_.start_offset, slice_.end_offset, slice_.row_groups) == (5, 17, ())
    assert [(held.start_offset, held.end_offset) for held in slice_.held_back] == [(6, 16)]
    assert await keys_of(objects) == []


@pytest.mark.parametrize("read_bytes", [7, 64, 100, 999])
async def test_batches_that_reach_over_windows_are_put_together(
    objects: MemoryObjects, read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_windows, "READ_BYTES", read_bytes)
    one = await put_piece(objects, [batch(0), unopenable(), batch(10)], start_offset=0, number=1)
    two = await put_piece(objects, [batch(20)], start_offset=30, number=2)
    written = await write_file(task_of([one, two]), objects, attempt="a1")
    [found] = await read_back(objects, written)
    assert [row.offset for row in found] == [*range(10), *range(20, 40)]
    at_byte = one.extent.start_byte + len(batch(0))
    assert written.slices[0].held_back[0].extent.start_byte == at_byte


async def test_damage_in_the_wal_fails_the_task_and_leaves_nothing(objects: MemoryObjects) -> None:
    piece = await put_piece(objects, [batch(0), batch(10)], padding=b"")
    key = wal_object_key(DOMAIN, piece.extent.object_id)
    sound = bytes(await objects.get(key))
    # Base offset and leader epoch lie outside of the CRC and mean nothing in the WAL.
    meaningless = {
        at for first in (0, len(batch(0))) for at in (*range(first, first + 8), *range(first + 12, first + 16))
    }
    for at_byte in sorted(set(range(len(sound))) - meaningless):
        damaged = bytearray(sound)
        damaged[at_byte] ^= 0x10
        await objects.put(key, [damaged])
        with pytest.raises(Corrupt, match=f"object {key} is damaged at byte"):
            await write_file(task_of([piece], row_group_bytes=100), objects, attempt="a1")
    assert await keys_of(objects) == []


@pytest.mark.parametrize("end_offset", [5, 19, 21])
async def test_offsets_that_do_not_add_up_are_damage(objects: MemoryObjects, end_offset: int) -> None:
    piece = await put_piece(objects, [batch(0), batch(10)])
    with pytest.raises(Corrupt, match="offsets"):
        await write_file(task_of([msgspec.structs.replace(piece, end_offset=end_offset)]), objects, attempt="a1")


async def test_a_missing_object_means_that_the_plan_is_old(objects: MemoryObjects) -> None:
    piece = await put_piece(objects, [batch(0)])
    await objects.delete([wal_object_key(DOMAIN, piece.extent.object_id)])
    with pytest.raises(Missing):
        await write_file(task_of([piece]), objects, attempt="a1")


async def test_attempts_have_files_of_their_own_and_never_replace_one(objects: MemoryObjects) -> None:
    piece = await put_piece(objects, [batch(0), batch(10), batch(20)], start_offset=100)
    task = task_of([piece])
    for attempt in ("a1", "a2"):
        await write_file(task, objects, attempt=attempt)
    assert await keys_of(objects) == [table_file_key(task, "a1"), table_file_key(task, "a2")]
    with pytest.raises(Exists):
        await write_file(task, objects, attempt="a1")


async def test_a_plan_with_a_gap_or_of_two_days_is_refused(objects: MemoryObjects) -> None:
    one = await put_piece(objects, [batch(0)], start_offset=0, number=1)
    gap = await put_piece(objects, [batch(0)], start_offset=11, number=2)
    with pytest.raises(Invalid, match="gap"):
        await write_file(task_of([one, gap]), objects, attempt="a1")
    empty = msgspec.structs.replace(gap, start_offset=10, extent=_extent(2, 0))
    with pytest.raises(Invalid, match="the piece is empty"):
        await write_file(task_of([one, empty]), objects, attempt="a1")
    late = msgspec.structs.replace(one, start_offset=10, end_offset=20, append_time_ms=APPEND_MS + DAY_MS)
    with pytest.raises(Invalid, match="append time"):
        await write_file(task_of([one, late]), objects, attempt="a1")
    with pytest.raises(Invalid, match="of partition None"):
        task = task_of([one], table=table_format(bucket=Bucket.DAY, by_partition=True))
        await write_file(task, objects, attempt="a1")
    with pytest.raises(Invalid, match="without anything"):
        await write_file(task_of([]), objects, attempt="a1")


async def test_work_goes_to_an_executor_where_there_is_one(objects: MemoryObjects) -> None:
    piece = await put_piece(objects, [batch(10 * n) for n in range(40)])
    executor = ThreadExecutor("pipeline", threads=1)
    try:
        task = task_of([piece], row_group_bytes=3000)
        beside = await write_file(task, objects, attempt="a1", executor=executor)
    finally:
        executor.close()
    inline = await write_file(task, objects, attempt="a2")
    assert msgspec.structs.replace(beside, path=inline.path) == inline


class _FailingUploads(MemoryObjects):
    """Takes one piece of an upload, refuses the second."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.aborted = 0

    async def upload(self, key: ObjectKey, *, if_absent: bool = False) -> "_FailingUpload":  # type: ignore[override]
        return _FailingUpload(self)


class _FailingUpload:
    def __init__(self, store: _FailingUploads) -> None:
        self._store = store
        self._pieces = 0

    async def write(self, data: Buffer) -> None:
        self._pieces += 1
        if self._pieces > 1:
            raise Retryable("the store is away")

    async def complete(self) -> None:
        raise AssertionError("a failed upload is not completed")

    async def abort(self) -> None:
        self._store.aborted += 1


async def test_an_upload_that_fails_is_given_up() -> None:
    objects = _FailingUploads()
    piece = await put_piece(objects, [batch(10 * n) for n in range(40)])
    with pytest.raises(Retryable, match="away"):
        await write_file(task_of([piece], row_group_bytes=3000), objects, attempt="a1")
    assert objects.aborted == 1


class _EndlessBacklog(MemoryObjects):
    """Serves the same bytes for every object, keeps nothing of what is uploaded, and watches Arrow's memory."""

    def __init__(self, data: bytes) -> None:
        super().__init__(ManualClock())
        self._data = data
        self.most_arrow_bytes = 0
        self.uploaded_bytes = 0

    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return [self._data[wanted.start_byte : wanted.end_byte] for wanted in ranges]

    async def upload(self, key: ObjectKey, *, if_absent: bool = False) -> "_EndlessBacklog":  # type: ignore[override]
        return self

    async def write(self, data: Buffer) -> None:
        self.uploaded_bytes += len(data)
        self.most_arrow_bytes = max(self.most_arrow_bytes, pa.total_allocated_bytes())

    async def complete(self) -> None: ...

    async def abort(self) -> None: ...


async def test_a_backlog_of_any_size_takes_the_memory_of_two_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_windows, "READ_BYTES", 256 * 1024)
    monkeypatch.setattr(wal_windows, "READ_AHEAD_BYTES", 512 * 1024)
    group_bytes = 1024 * 1024
    data = make_batch([n.to_bytes(4, "big") * 256 for n in range(500)])
    objects = _EndlessBacklog(data)
    pieces = [WalPiece(500 * n, 500 * n + 500, APPEND_MS, _extent(n, len(data))) for n in range(64)]
    task: WriteTask = task_of(pieces, row_group_bytes=group_bytes)
    arrow_before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        written = await write_file(task, objects, attempt="a1")
        _, most_python_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert written.row_count == 32_000 and len(data) * 64 > 30 * group_bytes
    # The builder may double its buffers and grow into new ones; the windows are 0.75 MiB.
    assert most_python_bytes + objects.most_arrow_bytes - arrow_before < 6 * group_bytes


def _extent(number: int, size_bytes: int) -> WalExtent:
    return WalExtent(wal_object_id(WRITER, number), 0, size_bytes)
