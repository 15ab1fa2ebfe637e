"""What compaction by key takes: one task that scans keys, and one that writes a file anew without what is obsolete.

One partition in one file, objects in memory, as the tasks that Spark runs do it, in one thread: rows per CPU second.
Of `few keys` nine rows in ten are obsolete, of `many keys` every tenth: the map then holds nearly all of them.
"""

import asyncio
import random
import time
from collections.abc import Iterator

from headrace.index.objects import wal_object_id, wal_object_key
from headrace.model.extents import TableFile, WalExtent
from headrace.model.ids import DomainId, StreamId, WriterId
from headrace.objects.memory import MemoryObjects
from headrace.pipeline.key_scanning import scan_keys
from headrace.pipeline.plans import FilePlan, Slice, WalPiece, WriteTask
from headrace.pipeline.rewrites import RewritePlan, RewriteSlice, RewriteTask, TablePiece
from headrace.pipeline.rewriting import rewrite_file
from headrace.pipeline.scans import ScanLimits, ScanRange, ScanTask
from headrace.pipeline.writing import write_file
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.runtime.clock import SystemClock
from headrace.tables.columns import COLUMNS
from headrace.tables.format import Bucket, Partitioning, TableFormat

NAME = "compaction"
HAS_QUICK_FORM = True

ROWS = 1_000_000
QUICK_ROWS = 100_000
ROWS_PER_BATCH = 1_000
VALUE_BYTES = 100
STREAM = StreamId(1)
FORMAT = TableFormat(
    field_ids={column.name: number for number, column in enumerate(COLUMNS, start=1)},
    schema_id=0,
    spec_id=0,
    partitioning=Partitioning(bucket=Bucket.NONE),
)


def run(*, is_quick: bool = False) -> Iterator[tuple[str, float, str, float | None]]:
    """Return rows per CPU second of scan and rewrite, for few and for many keys."""
    rows = QUICK_ROWS if is_quick else ROWS
    for name, keys in (("few keys", rows // 10), ("many keys", rows * 9 // 2)):
        scanned, written, obsolete = asyncio.run(_measure(rows, keys))
        yield f"rows scanned, {name}", round(scanned), "rows/CPU-s", None
        yield f"rows read and written anew, {name}", round(written), "rows/CPU-s", None
        yield f"rows that go, {name}", round(100 * obsolete / rows, 1), "%", None


async def _measure(rows: int, keys: int) -> tuple[float, float, int]:
    objects = MemoryObjects(SystemClock())
    file = await _table_file(objects, rows, keys)
    task = ScanTask(
        saga_id="bench",
        epoch=1,
        data_prefix="tables/bench/data/",
        partition=0,
        stream=STREAM,
        dirty_from=0,
        cleanable_end=rows,
        expired_to=0,
        ranges=(ScanRange(0, rows, file),),
        limits=ScanLimits(max_obsolete=rows + 1),
    )
    began = time.process_time()
    scanned = await scan_keys(task, objects, attempt="scan")
    scan_seconds = time.process_time() - began
    rewrite = RewriteTask(
        saga_id="bench",
        epoch=1,
        data_prefix="tables/bench/data/",
        format=FORMAT,
        file=RewritePlan(0, None, None, (RewriteSlice(0, STREAM, (TablePiece(0, rows, file),)),)),
        dropped={STREAM: scanned.path} if scanned.path else {},
    )
    began = time.process_time()
    written = await rewrite_file(rewrite, objects, attempt="new")
    write_seconds = time.process_time() - began
    assert written.row_count == rows - scanned.obsolete_count, "what is obsolete is left out, and nothing else"
    return rows / scan_seconds, rows / write_seconds, scanned.obsolete_count


async def _table_file(objects: MemoryObjects, rows: int, keys: int) -> TableFile:
    """Write a partition as the pipeline does, and return its file."""
    rng = random.Random(1)
    batches = bytearray()
    for first in range(0, rows, ROWS_PER_BATCH):
        records = [
            Record(
                offset=number,
                timestamp_ms=first + number,
                key=b"key-%012d" % rng.randrange(keys),
                value=rng.randbytes(VALUE_BYTES),
            )
            for number in range(min(ROWS_PER_BATCH, rows - first))
        ]
        batches += BatchEncoder().encode(columns_of(records))
    object_id = wal_object_id(WriterId("ab" * 16), 1)
    await objects.put(wal_object_key(DomainId(0), object_id), [bytes(batches)])
    piece = WalPiece(0, rows, 0, WalExtent(object_id, 0, len(batches)))
    plan = FilePlan(0, None, None, (Slice(0, STREAM, (piece,)),))
    task = WriteTask(saga_id="wal", epoch=1, data_prefix="tables/bench/data/", format=FORMAT, file=plan)
    written = await write_file(task, objects, attempt="first")
    groups = written.slices[0].row_groups
    return TableFile(written.path, written.size_bytes, written.footer_bytes, written.footer_crc, groups)
