"""Move parts of a test's log into Parquet files, as the pipeline does, and compare what comes out of it."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.index.fold import plan_fold
from headrace.index.swap import swap_entries
from headrace.index.values import INDEX_ENTRY, IndexEntry
from headrace.model.extents import TableExtent, WalExtent
from headrace.model.ids import StreamId
from headrace.pipeline.plans import FilePlan, Slice, WalPiece, WriteTask
from headrace.pipeline.swapping import next_step
from headrace.pipeline.writing import write_file
from headrace.records.batch import LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, iter_batches
from headrace.records.columns import ColumnBuilder
from headrace.records.record import Record, records_of
from headrace.tables.columns import COLUMNS
from headrace.tables.files import WrittenFile
from headrace.tables.format import Bucket, Partitioning, TableFormat
from tests.unit.gc.folded import fold_all
from tests.unit.produce.scripted import WriterKit

FORMAT = TableFormat(
    field_ids={column.name: number for number, column in enumerate(COLUMNS, start=1)},
    schema_id=0,
    spec_id=0,
    partitioning=Partitioning(bucket=Bucket.NONE),
)
DATA_PREFIX = "tables/00000000-0000-0000-0000-000000000001/data/"
ALL_ENTRIES = 1000
ROW_GROUP_BYTES = 400
"""So small that a few records fill one."""


class Row(NamedTuple):
    """Everything that a consumer can see of a record."""

    record: Record
    kind: int
    producer_id: int
    producer_epoch: int
    sequence: int


def rows_in(data: memoryview) -> list[Row]:
    """Return the rows of batches back to back, control records left out; every batch is checked."""
    rows: list[Row] = []
    for view in iter_batches(data):
        view.check()
        if view.is_control:
            continue
        builder = ColumnBuilder()
        builder.append(view)
        columns = builder.columns()
        kind = view.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT)
        for record, sequence in zip(records_of(columns), columns.sequence, strict=True):
            rows.append(Row(record, kind, view.producer_id, view.producer_epoch, sequence))
    return rows


async def entries_of(kit: WriterKit, stream: StreamId) -> list[IndexEntry]:
    found = await kit.metadata.range(kit.keys.entries(stream, after_offset=0, limit=ALL_ENTRIES))
    return [INDEX_ENTRY.decode(item.value, item.key) for item in found]


async def write_table(
    kit: WriterKit,
    stream: StreamId,
    *,
    entry_count: int = ALL_ENTRIES,
    row_group_bytes: int = ROW_GROUP_BYTES,
    number: int = 0,
) -> WrittenFile | None:
    """Fold, and write the stream's first WAL entries that follow each other to one file; `None` if there are none."""
    slice_ = await _slice(kit, stream, entry_count)
    return await _write(kit, [slice_], row_group_bytes, number) if slice_ is not None else None


async def write_streams(kit: WriterKit, streams: Sequence[StreamId]) -> WrittenFile:
    """Write all of several streams to one file."""
    slices = [await _slice(kit, stream, ALL_ENTRIES) for stream in streams]
    return await _write(kit, [slice_ for slice_ in slices if slice_ is not None], ROW_GROUP_BYTES, 0)


async def _slice(kit: WriterKit, stream: StreamId, entry_count: int) -> Slice | None:
    if await plan_fold(kit.metadata, kit.keys, max_records=1, lag_records=0):
        await fold_all(kit)
    pieces: list[WalPiece] = []
    for entry in await entries_of(kit, stream):
        if isinstance(entry.extent, TableExtent):
            if pieces:
                break
        elif len(pieces) < entry_count:
            pieces.append(WalPiece(entry.start_offset, entry.end_offset, entry.append_time_ms, entry.extent))
    return Slice(0, stream, tuple(pieces)) if pieces else None


async def _write(kit: WriterKit, slices: Sequence[Slice], row_group_bytes: int, number: int) -> WrittenFile:
    task = WriteTask(
        saga_id="5a6a",
        epoch=1,
        data_prefix=DATA_PREFIX,
        format=FORMAT,
        file=FilePlan(number, None, None, tuple(slices)),
        row_group_bytes=row_group_bytes,
    )
    return await write_file(task, kit.objects, attempt="0")


async def swap_step(kit: WriterKit, file: WrittenFile, *, max_entries: int = 2) -> bool:
    """Make the next step of a swap; say whether there was one."""
    for part in file.slices:
        step = next_step(await entries_of(kit, part.stream), file, part, max_entries=max_entries)
        if step is not None:
            await swap_entries(kit.keys, step, now_ms=kit.clock.now_ms()).apply(kit.metadata)
            await kit.cache.refresh()
            return True
    return False


async def to_table(
    kit: WriterKit, stream: StreamId, *, entry_count: int = ALL_ENTRIES, row_group_bytes: int = ROW_GROUP_BYTES
) -> WrittenFile:
    """Write the stream's first WAL entries to a file, and swap them all."""
    file = await write_table(kit, stream, entry_count=entry_count, row_group_bytes=row_group_bytes)
    assert file is not None, "there is nothing to write"
    while await swap_step(kit, file, max_entries=ALL_ENTRIES):
        pass
    return file


def table_extents(entries: list[IndexEntry]) -> list[TableExtent]:
    return [entry.extent for entry in entries if isinstance(entry.extent, TableExtent)]


def is_in_wal(entry: IndexEntry) -> bool:
    return isinstance(entry.extent, WalExtent)
