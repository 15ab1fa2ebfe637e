"""Move a topic into Parquet files beside a running broker, as a pipeline does: by another process, on its stores."""

import asyncio
import io
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.broker.storage import DOMAIN, Storage, assemble_runtime, opened_storage, topic_defaults
from headrace.index.fold import fold_records, plan_fold
from headrace.index.rule import StalePlan
from headrace.index.swap import Swap, replacement_for, swap_entries
from headrace.index.values import INDEX_ENTRY, IndexEntry
from headrace.metadata.keys import DomainKeys
from headrace.metadata.keys import lease as lease_key
from headrace.metadata.leases import take
from headrace.model.extents import TableExtent, WalExtent
from headrace.model.ids import StreamId
from headrace.pipeline.plans import FilePlan, Slice, WalPiece, WriteTask
from headrace.pipeline.swapping import Swapper
from headrace.pipeline.writing import write_file
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import NoCrashes
from headrace.settings import load_settings
from headrace.tables.columns import COLUMNS
from headrace.tables.format import Bucket, Partitioning, TableFormat
from headrace.topics.directory import TopicDirectory

FORMAT = TableFormat(
    field_ids={column.name: number for number, column in enumerate(COLUMNS, start=1)},
    schema_id=0,
    spec_id=0,
    partitioning=Partitioning(bucket=Bucket.NONE),
)
KEYS = DomainKeys(DOMAIN)
MAX_ENTRIES = 10_000
SESSION_MS = 600_000

_saga_numbers = itertools.count(1)


def move_to_table(
    data_dir: Path, topic: str, *, row_group_bytes: int = 8 * 1024 * 1024, entries_per_step: int = 300
) -> int:
    """Write all that the WAL has of a topic to one file per partition, swap the index; return how many rows moved."""
    return asyncio.run(_move(data_dir, topic, row_group_bytes, entries_per_step))


async def _move(data_dir: Path, topic: str, row_group_bytes: int, entries_per_step: int) -> int:
    async with _opened(data_dir, topic) as (storage, clock, streams):
        row_count = 0
        for partition, stream in enumerate(streams):
            row_count += await _move_stream(storage, clock, partition, stream, row_group_bytes, entries_per_step)
        return row_count


@asynccontextmanager
async def _opened(data_dir: Path, topic: str) -> AsyncIterator[tuple[Storage, Clock, Sequence[StreamId]]]:
    """Open the stores of a broker, fold everything, and find a topic."""
    settings = load_settings(pairs=[f"data.dir={data_dir}"]).tree
    runtime = assemble_runtime(settings, environment={}, log_to=io.StringIO())
    async with opened_storage(settings, runtime) as storage:
        topics = TopicDirectory(storage.metadata, defaults=topic_defaults(settings), clock=runtime.clock)
        await topics.refresh()
        found = topics.get(topic)
        assert found is not None, f"no topic {topic}"
        await _fold_all(storage)
        yield storage, runtime.clock, found.streams


async def _fold_all(storage: Storage) -> None:
    while records := await plan_fold(storage.metadata, KEYS, max_records=100, lag_records=0):
        try:
            await fold_records(KEYS, records, now_ms=0).apply(storage.metadata)
        except StalePlan:  # the broker folds, too
            continue


async def _entries(storage: Storage, stream: StreamId) -> list[IndexEntry]:
    items = await storage.metadata.range(KEYS.entries(stream, after_offset=0, limit=MAX_ENTRIES))
    return [INDEX_ENTRY.decode(item.value, item.key) for item in items]


def make_holes(data_dir: Path, topic: str, numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Turn some of the index entries of a topic's first partition into holes; return the offsets that are left."""
    return asyncio.run(_make_holes(data_dir, topic, numbers))


async def _make_holes(data_dir: Path, topic: str, numbers: Sequence[int]) -> list[tuple[int, int]]:
    async with _opened(data_dir, topic) as (storage, _, (stream, *_)):
        entries = await _entries(storage, stream)
        for number in numbers:
            planned = [entries[number]]
            swap = Swap(stream=stream, planned=planned, replacements=[replacement_for(planned, TableExtent(()))])
            await swap_entries(KEYS, swap, now_ms=0).apply(storage.metadata)
        holes = {number % len(entries) for number in numbers}
        return [(entry.start_offset, entry.end_offset) for n, entry in enumerate(entries) if n not in holes]


async def _move_stream(
    storage: Storage, clock: Clock, partition: int, stream: StreamId, row_group_bytes: int, entries_per_step: int
) -> int:
    pieces = [_piece(entry) for entry in await _entries(storage, stream)]
    slice_ = Slice(partition, stream, tuple(piece for piece in pieces if piece is not None))
    if not slice_.pieces:
        return 0
    task = WriteTask(
        saga_id=f"5a6a-{next(_saga_numbers)}",
        epoch=1,
        data_prefix="tables/00000000-0000-0000-0000-000000000001/data/",
        format=FORMAT,
        file=FilePlan(partition, None, None, (slice_,)),
        row_group_bytes=row_group_bytes,
    )
    file = await write_file(task, storage.objects, attempt="0")
    swapper = Swapper(
        store=storage.metadata, keys=KEYS, clock=clock, crash_points=NoCrashes(), max_entries=entries_per_step
    )
    session = await storage.metadata.open_session(timeout_ms=SESSION_MS)
    lease = await take(storage.metadata, lease_key("moving"), session)
    await swapper.swap(lease, file, file.slices[0])
    await storage.metadata.end_session(session)
    return file.row_count


def _piece(entry: IndexEntry) -> WalPiece | None:
    if not isinstance(entry.extent, WalExtent):
        return None
    return WalPiece(entry.start_offset, entry.end_offset, entry.append_time_ms, entry.extent)
