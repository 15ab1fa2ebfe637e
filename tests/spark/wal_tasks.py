"""WAL objects and the tasks that make Parquet of them, for tests of Spark without a broker."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from headrace.index.objects import wal_object_key
from headrace.model.extents import WalExtent
from headrace.model.ids import DomainId, ObjectId, StreamId
from headrace.objects.local import LocalObjects
from headrace.pipeline.plans import FilePlan, Slice, WalPiece, WriteTask
from headrace.runtime.executor import InlineExecutor
from headrace.tables.columns import COLUMNS
from headrace.tables.files import WrittenFile
from headrace.tables.format import DAY_MS, Partitioning, TableFormat
from headrace.testing.batches import make_batch

NOON_MS = 20_000 * DAY_MS + DAY_MS // 2
FORMAT = TableFormat(
    field_ids={column.name: number + 1 for number, column in enumerate(COLUMNS)},
    schema_id=0,
    spec_id=0,
    partitioning=Partitioning(),
)


def local_objects(directory: Path) -> LocalObjects:
    """Return a store on this disk that needs no threads."""
    return LocalObjects(directory, executor=InlineExecutor())


def put_wal(directory: Path, number: int, values: Sequence[bytes]) -> WalPiece:
    """Write one WAL object with one batch, whose offsets begin at 0, and return the entry for it."""
    object_id = ObjectId(f"{number:032x}-00000001")
    batch = make_batch(values, at_ms=NOON_MS)
    asyncio.run(local_objects(directory).put(wal_object_key(DomainId(0), object_id), [batch]))
    return WalPiece(0, len(values), NOON_MS, WalExtent(object_id, 0, len(batch)))


def task_of(number: int, piece: WalPiece, *, saga_id: str = "saga") -> WriteTask:
    """Return the task that makes file `number` of one piece; it is partition and stream `number` as well."""
    slice_ = Slice(partition=number, stream=StreamId(100 + number), pieces=(piece,))
    file = FilePlan(number=number, bucket=piece.append_time_ms // DAY_MS, partition=None, slices=(slice_,))
    return WriteTask(saga_id=saga_id, epoch=1, data_prefix="tables/t/data/", format=FORMAT, file=file)


def values_in(directory: Path, file: WrittenFile) -> list[bytes]:
    """Return the values of a file's rows, in order."""
    return [value.as_py() for value in pq.read_table(directory / file.path).column("value")]
