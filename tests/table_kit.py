"""WAL bytes, tasks and files for the tests of the table side."""

from collections.abc import Sequence
from itertools import pairwise

from headrace.index.objects import wal_object_id, wal_object_key
from headrace.model.extents import RowGroup, TableFile, WalExtent
from headrace.model.ids import DomainId, ObjectKey, StreamId, WriterId
from headrace.objects.port import ByteRange, ObjectStore
from headrace.pipeline.plans import FilePlan, Slice, WalPiece, WriteTask
from headrace.records.batch import LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, iter_batches
from headrace.records.columns import Columns
from headrace.records.record import Record, records_of
from headrace.tables.columns import COLUMNS
from headrace.tables.files import WrittenFile, WrittenSlice
from headrace.tables.format import DAY_MS, Bucket, Partitioning, TableFormat
from headrace.tables.parquet_reading import parse_footer, read_row_group

DOMAIN = DomainId(0)
STREAM = StreamId(7)
WRITER = WriterId("ab" * 16)
DAY = 19_700
APPEND_MS = DAY * DAY_MS + 1000
DATA_PREFIX = "tables/01020304-0506-0708-090a-0b0c0d0e0f10/data/"

Told = tuple[Record, int, int, int, bool, bool]
"""A record, producer id, epoch, sequence, whether it is transactional, whether its time is the broker's."""


def table_format(*, bucket: Bucket = Bucket.DAY, by_partition: bool = False) -> TableFormat:
    """Return a table's format with field ids that nobody would guess."""
    return TableFormat(
        field_ids={column.name: 31 + 3 * number for number, column in enumerate(COLUMNS)},
        schema_id=0,
        spec_id=5,
        partitioning=Partitioning(bucket=bucket, by_partition=by_partition),
    )


async def put_piece(
    objects: ObjectStore,
    batches: Sequence[bytes | memoryview],
    *,
    start_offset: int = 0,
    number: int = 1,
    append_time_ms: int = APPEND_MS,
    padding: bytes = b"other streams",
) -> WalPiece:
    """Store batches as a WAL object of their own, between other streams' bytes, and return where they are."""
    object_id = wal_object_id(WRITER, number)
    await objects.put(wal_object_key(DOMAIN, object_id), [padding, *batches, padding])
    data = memoryview(b"".join(batches))
    end_offset = start_offset + sum(view.last_offset_delta + 1 for view in iter_batches(data))
    return WalPiece(start_offset, end_offset, append_time_ms, WalExtent(object_id, len(padding), len(data)))


def task_of(
    *slices: Sequence[WalPiece],
    table: TableFormat | None = None,
    row_group_bytes: int = 8 * 1024 * 1024,
    max_open_bytes: int = 64 * 1024 * 1024,
) -> WriteTask:
    """Return the task that writes slices, one stream and partition each, into one file."""
    plan = FilePlan(
        number=3,
        bucket=DAY,
        partition=None,
        slices=tuple(
            Slice(partition=number, stream=StreamId(STREAM + number), pieces=tuple(pieces))
            for number, pieces in enumerate(slices)
        ),
    )
    return WriteTask(
        saga_id="saga-1",
        epoch=4,
        data_prefix=DATA_PREFIX,
        format=table or table_format(),
        file=plan,
        row_group_bytes=row_group_bytes,
        max_open_bytes=max_open_bytes,
    )


def table_file(written: WrittenFile, slice_: WrittenSlice) -> TableFile:
    """Return how the index would name a slice's part of a file."""
    return TableFile(
        path=written.path,
        size_bytes=written.size_bytes,
        footer_bytes=written.footer_bytes,
        footer_crc=written.footer_crc,
        row_groups=slice_.row_groups,
    )


def footer_range(file: TableFile) -> ByteRange:
    """Return where a file's footer lies."""
    return ByteRange(start_byte=file.size_bytes - file.footer_bytes, size_bytes=file.footer_bytes)


def group_range(group: RowGroup) -> ByteRange:
    """Return where a row group lies."""
    return ByteRange(start_byte=group.start_byte, size_bytes=group.size_bytes)


async def read_columns(objects: ObjectStore, written: WrittenFile, slice_: WrittenSlice) -> list[Columns]:
    """Read a slice back, row group by row group, each up to where the next one begins."""
    if not slice_.row_groups:
        return []
    file = table_file(written, slice_)
    wanted = [footer_range(file), *(group_range(group) for group in file.row_groups)]
    footer_data, *groups = await objects.get_ranges(ObjectKey(file.path), wanted)
    footer = parse_footer(file, footer_data)
    ends = [after.first_offset for _, after in pairwise(file.row_groups)] + [slice_.end_offset]
    return [
        read_row_group(file, group, footer, data, start_offset=group.first_offset, end_offset=end_offset)
        for group, data, end_offset in zip(file.row_groups, groups, ends, strict=True)
    ]


def told(columns: Columns) -> list[Told]:
    """Return all that a consumer can see of the records."""
    return [
        (
            record,
            columns.producer_id[row],
            columns.producer_epoch[row],
            columns.sequence[row],
            bool(columns.attributes[row] & TRANSACTIONAL_BIT),
            bool(columns.attributes[row] & LOG_APPEND_TIME_BIT),
        )
        for row, record in enumerate(records_of(columns))
    ]
