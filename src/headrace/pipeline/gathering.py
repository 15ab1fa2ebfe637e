"""A task of the pipeline: make one Parquet file of several that only `main` names.

The index named them once and knows nothing of them any more, so their row groups are found in their footers.

1. Read the footers of all files, a few at a time.
2. Line the row groups up by partition and offset.
3. Copy their rows (`rewriting.py`).

Must stay true: the new file has exactly the rows of the others; each file is found to hold as many as its manifest
says. There is no checksum to compare with: these bytes are read as any engine reads them, and what does not look like
a row group of ours is refused.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from crc32c import crc32c

from headrace.errors import Corrupt
from headrace.model.extents import RowGroup, TableFile
from headrace.model.ids import StreamId
from headrace.objects.port import ByteRange, ObjectStore, object_key
from headrace.pipeline.rewrites import GatheredFile, GatherTask, RewritePlan, RewriteSlice, RewriteTask, TablePiece
from headrace.pipeline.rewriting import GroupReader, Read, copy_rows
from headrace.runtime.executor import Executor
from headrace.tables.columns import OFFSET, PARTITION, TIMESTAMP
from headrace.tables.files import WrittenFile
from headrace.tables.parquet_reading import Footer, parse_footer

FOOTERS_AT_ONCE = 16

CLOSING_BYTES = 8
"""What ends a Parquet file: the length of the footer before it, and the magic."""

MAGIC = b"PAR1"


async def gather_files(
    task: GatherTask, objects: ObjectStore, *, attempt: str, executor: Executor | None = None
) -> WrittenFile:
    """Write the task's file and return what is known of it; the file is durable then.

    Raises `Missing` if a file is gone (the plan is old), `Corrupt` if one is not what its manifest says, and what the
    store raises.
    """
    slots = asyncio.Semaphore(FOOTERS_AT_ONCE)

    async def found(file: GatheredFile) -> list[tuple[int, TablePiece]]:
        async with slots:
            return pieces_of(file, *await _read_footer(objects, file))

    pieces = [piece for some in await asyncio.gather(*map(found, task.file.files)) for piece in some]
    rewrite = RewriteTask(
        saga_id=task.saga_id,
        epoch=task.epoch,
        data_prefix=task.data_prefix,
        format=task.format,
        file=RewritePlan(task.file.number, task.file.bucket, task.file.partition, slices_of(pieces, task.streams)),
        row_group_bytes=task.row_group_bytes,
        compression_level=task.compression_level,
    )
    return await copy_rows(rewrite, objects, _UncheckedReader(objects), attempt=attempt, executor=executor)


def slices_of(pieces: Sequence[tuple[int, TablePiece]], streams: Sequence[StreamId]) -> tuple[RewriteSlice, ...]:
    """Return row groups of any files and partitions as slices, in the order of their offsets.

    A piece reaches to where the next one begins: what lies between them is in other files, or nowhere, and nobody
    looks for it here. A row group that was made so may reach over others: they lie in another slice of the partition.
    """
    lines: dict[int, list[list[TablePiece]]] = {}
    for partition, piece in sorted(pieces, key=lambda one: (one[0], one[1].start_offset)):
        known = lines.setdefault(partition, [])
        line = next((one for one in known if one[-1].end_offset <= piece.start_offset), None)
        if line is None:
            known.append([piece])
            continue
        line[-1] = msgspec.structs.replace(line[-1], end_offset=piece.start_offset)
        line.append(piece)
    if strange := [partition for partition in lines if not 0 <= partition < len(streams)]:
        raise Corrupt(f"files of main hold rows of partition {strange[0]}, the topic has {len(streams)}")
    return tuple(
        RewriteSlice(partition, streams[partition], tuple(line))
        for partition, known in lines.items()
        for line in known
    )


def pieces_of(file: GatheredFile, named: TableFile, footer: Footer) -> list[tuple[int, TablePiece]]:
    """Return the row groups of a file, each as a piece by itself, with its partition. Raises `Corrupt`."""
    metadata = footer.metadata
    if metadata.num_rows != file.row_count:
        raise Corrupt(f"file {file.path} has {metadata.num_rows} rows, its manifest says {file.row_count}")
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    starts = [_start_byte(group) for group in groups]
    ends = [*starts[1:], named.size_bytes - named.footer_bytes]
    found: list[tuple[int, TablePiece]] = []
    for number, (group, start, end) in enumerate(zip(groups, starts, ends, strict=True)):
        if group.num_rows == 0:
            continue
        (partition, last_partition), (first, last), (_, newest_us) = (
            _bounds(file, group, number, name) for name in (PARTITION, OFFSET, TIMESTAMP)
        )
        if partition != last_partition or start >= end:
            raise Corrupt(
                f"file {file.path}, row group {number}: it is none of a topic's: {partition}, {start}–{end}"
            )
        row_group = RowGroup(number, first, start, end - start, group.num_rows, newest_us // 1000, 0)
        whole = msgspec.structs.replace(named, row_groups=(row_group,))
        found.append((partition, TablePiece(first, last + 1, whole)))
    return found


async def _read_footer(objects: ObjectStore, file: GatheredFile) -> tuple[TableFile, Footer]:
    """Return a file as the index would name it, and what is in its footer."""
    closing = await _read_end(objects, file, CLOSING_BYTES)
    footer_bytes = int.from_bytes(closing[:4], "little") + CLOSING_BYTES
    if closing[4:] != MAGIC or footer_bytes > file.size_bytes:
        raise Corrupt(f"file {file.path} does not end as a Parquet file of {file.size_bytes} bytes does")
    data = await _read_end(objects, file, footer_bytes)
    named = TableFile(file.path, file.size_bytes, footer_bytes, crc32c(data), ())
    return named, parse_footer(named, data)


async def _read_end(objects: ObjectStore, file: GatheredFile, size_bytes: int) -> bytes:
    place = ByteRange(start_byte=file.size_bytes - size_bytes, size_bytes=size_bytes)
    (data,) = await objects.get_ranges(object_key(file.path), [place])
    return bytes(data)


def _start_byte(group: Any) -> int:
    """Return where a row group begins: with the dictionary or the first page of its first column."""
    column = group.column(0)
    places: list[int] = [place for place in (column.dictionary_page_offset, column.data_page_offset) if place]
    return min(places)


def _bounds(file: GatheredFile, group: Any, number: int, name: str) -> tuple[int, int]:
    """Return the least and the greatest value of a group's column, which our files always tell."""
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == name and column.is_stats_set and column.statistics.has_min_max:
            return column.statistics.min_raw, column.statistics.max_raw
    raise Corrupt(f"file {file.path}, row group {number}: it has no bounds of {name}, so it is none of a topic's")


class _UncheckedReader(GroupReader):
    """Brings row groups whose checksums nobody knows: each is given that of its bytes as they came."""

    async def one(self, piece: TablePiece, group: RowGroup | None) -> Read:
        piece, group, footer, data = await super().one(piece, group)
        assert group is not None and data is not None, "every piece has a row group"
        return piece, msgspec.structs.replace(group, crc=crc32c(data)), footer, data
