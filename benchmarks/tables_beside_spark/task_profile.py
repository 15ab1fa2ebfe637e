"""Where the time of one task goes: read, CRC, decode, Arrow, Parquet, zstd, upload.

`write_file` runs in this process under the profiler, everything in one thread, so that each part's time is its own.
How much of Parquet is zstd shows a second run without compression.
"""

import asyncio
import cProfile
import pstats
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow.parquet as parquet

from benchmarks.tables_beside_spark.load import Batch
from headrace.index.objects import wal_object_id, wal_object_key
from headrace.model.extents import WalExtent
from headrace.model.ids import DomainId, ObjectId, StreamId, WriterId
from headrace.objects.local import LocalObjects
from headrace.pipeline.plans import FilePlan, Slice, WalPiece, WriteTask
from headrace.pipeline.writing import write_file
from headrace.runtime.executor import InlineExecutor
from headrace.tables import parquet_writing
from headrace.tables.columns import COLUMNS
from headrace.tables.format import Bucket, Partitioning, TableFormat

DOMAIN = DomainId(0)
WRITER = WriterId("0" * 32)
DATA_PREFIX = "tables/profile/data/"

PARTS: Mapping[str, Sequence[tuple[str, str]]] = {
    "read": (("objects/local.py", "get_ranges"),),
    "CRC": (("records/batch.py", "check_crc"),),
    "decode": (("", "append' of 'headrace.records._columns"), ("records/columns.py", "append")),
    "Arrow": (("records/arrow.py", "to_arrow"), ("tables/rows.py", "rows_of")),
    "Parquet": (("tables/parquet_writing.py", "add"), ("tables/parquet_writing.py", "finish")),
    "upload": (("objects/local.py", "_write"), ("objects/local.py", "_complete")),
}
"""Each part by the functions that do it: the end of the file's path, and the name."""

REPEATS = 2
OTHER, ZSTD = "other", "zstd (in Parquet)"


def profile_task(directory: Path, pool: Sequence[Batch], *, size_bytes: int) -> dict[str, float]:
    """Return seconds by part, `OTHER` included, of a task that reads so many bytes."""
    return asyncio.run(_profile(directory, pool, size_bytes))


async def _profile(directory: Path, pool: Sequence[Batch], size_bytes: int) -> dict[str, float]:
    objects = LocalObjects(directory, executor=InlineExecutor())
    try:
        task = await _prepare(objects, pool, size_bytes)
        await write_file(task, objects, attempt="warm")
        profiler = cProfile.Profile()
        began = time.perf_counter()
        profiler.enable()
        await write_file(task, objects, attempt="measured")
        profiler.disable()
        whole = time.perf_counter() - began
        parts = {part: _seconds(profiler, names) for part, names in PARTS.items()}
        plain = [await _parquet_seconds(task, objects, compression="none", attempt=n) for n in range(REPEATS)]
        packed = [await _parquet_seconds(task, objects, compression="zstd", attempt=n) for n in range(REPEATS)]
        return {**parts, OTHER: whole - sum(parts.values()), ZSTD: max(0.0, min(packed) - min(plain))}
    finally:
        await objects.close()


async def _parquet_seconds(task: WriteTask, objects: LocalObjects, *, compression: str, attempt: int) -> float:
    """Return the seconds in Parquet with that codec."""

    def open_writer(*arguments: Any, **options: Any) -> Any:
        level = {"compression_level": options.pop("compression_level")} if compression != "none" else {}
        options.pop("compression_level", None)
        return original(*arguments, **{**options, **level, "compression": compression})

    original = parquet.ParquetWriter
    profiler = cProfile.Profile()
    with mock.patch.object(parquet_writing, "pq", SimpleNamespace(ParquetWriter=open_writer)):
        profiler.enable()
        await write_file(task, objects, attempt=f"{compression}.{attempt}")
        profiler.disable()
    return _seconds(profiler, PARTS["Parquet"])


async def _prepare(objects: LocalObjects, pool: Sequence[Batch], size_bytes: int) -> WriteTask:
    """Put a WAL object of one stream's batches, and return the task that makes a file of it."""
    object_id = wal_object_id(WRITER, 1)
    parts: list[bytes] = []
    pieces: list[WalPiece] = []
    start_byte = offset = 0
    while start_byte < size_bytes:
        batch = pool[len(parts) % len(pool)]
        parts.append(bytes(batch.data))
        pieces.append(_piece(object_id, start_byte, batch, offset))
        start_byte += len(batch.data)
        offset += batch.records
    await objects.put(wal_object_key(DOMAIN, object_id), parts)
    slice_ = Slice(partition=0, stream=StreamId(1), pieces=tuple(pieces))
    return WriteTask(
        saga_id="profile",
        epoch=1,
        data_prefix=DATA_PREFIX,
        format=TableFormat(
            field_ids={column.name: number for number, column in enumerate(COLUMNS, start=1)},
            schema_id=0,
            spec_id=0,
            partitioning=Partitioning(bucket=Bucket.NONE),
        ),
        file=FilePlan(number=0, bucket=None, partition=None, slices=(slice_,)),
    )


def _piece(object_id: ObjectId, start_byte: int, batch: Batch, offset: int) -> WalPiece:
    extent = WalExtent(object_id, start_byte, len(batch.data))
    return WalPiece(start_offset=offset, end_offset=offset + batch.records, append_time_ms=0, extent=extent)


def _seconds(profiler: cProfile.Profile, names: Sequence[tuple[str, str]]) -> float:
    """Return the seconds inside the functions of those names, callees included."""
    stats: Mapping[tuple[str, int, str], Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    return sum(
        float(entry[3])
        for (path, _, function), entry in stats.items()
        if any(path.endswith(end) and (function == name or (not end and name in function)) for end, name in names)
    )
