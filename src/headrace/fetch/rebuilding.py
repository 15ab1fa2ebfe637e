"""Turn the rows of a row group back into the batches that a consumer expects. Plain work on bytes, for a thread.

The rows go through the batch encoder, as the topic's configuration wants them now, and come out as runs of about a
mebibyte. Each run has memory of its own: a reader in the middle of a group keeps what is left of it, not all of it.

Must stay true: the runs cover every offset from the start of the window to its end, with empty batches where no batch
with records can reach; and no batch is larger than the topic allows, but for a record that alone is.
"""

from dataclasses import dataclass
from struct import Struct

from headrace.errors import Corrupt
from headrace.fetch.runs import Run
from headrace.model.topics import TopicRules
from headrace.records.batch import LENGTH_END, MAX_INT32, Codec
from headrace.records.columns import Columns
from headrace.records.encoder import BatchEncoder
from headrace.records.kernel import Part

KIB = 1024
MIB = 1024 * 1024

BATCH_BYTES = 256 * KIB
"""How large a rebuilt batch becomes before compression, where the topic allows that much: a reader that wants less
than this gets at least one, and one that wants a mebibyte gets nearly that."""

RUN_BYTES = MIB
"""How many bytes share one piece of memory, about."""

MAX_HOLE_BATCHES = 1024
"""How many empty batches a hole may take; one covers 2^31 offsets, and no log loses a trillion records in a row."""

ROW_OVERHEAD_BYTES = 16
HEADER_OVERHEAD_BYTES = 4
BATCH_OVERHEAD_BYTES = 96
"""What records cost beside their bytes, generously: a buffer that is too small is grown, one too large is no harm."""

_BATCH = Struct(">qi11xi")
"""Base offset, length, last offset delta."""

_NO_ROWS = Columns(row_count=0, header_count=0, start_offset=0, end_offset=0, buffers=())

QUICK_LEVELS = {Codec.GZIP: 1, Codec.ZSTD: 1}
"""Levels where the topic names none. A reader waits, and zstd's usual level 3 takes twice the time for a few percent
(15 ms against 8 ms for a row group of 8 MB)."""

CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """How a topic wants its batches.

    `codec` is `None` where each row keeps the one it was produced with, `level` where the topic does not choose one.
    """

    codec: Codec | None = None
    level: int | None = None
    max_batch_bytes: int = BATCH_BYTES


def shape_of(rules: TopicRules | None) -> BatchShape:
    """Return how the batches of a topic are rebuilt; of one that is not known, as they were produced."""
    if rules is None:
        return BatchShape()
    return BatchShape(
        codec=None if rules.compression is None else CODECS[rules.compression],
        level=rules.compression_level,
        max_batch_bytes=min(rules.max_message_bytes, BATCH_BYTES),
    )


def rebuild(columns: Columns | None, start_offset: int, end_offset: int, shape: BatchShape) -> list[Run]:
    """Return rows as runs that cover `start_offset` to `end_offset`; without rows they are empty batches.

    Raises `InvalidBatch` where the rows do not fit together, and `Corrupt` for a hole that no log can have.
    """
    if columns is None or columns.row_count == 0:
        return _split(memoryview(b""), start_offset, end_offset)
    encoder = BatchEncoder(
        codec=shape.codec,
        levels=QUICK_LEVELS if shape.codec is None or shape.level is None else {shape.codec: shape.level},
        max_batch_bytes=shape.max_batch_bytes,
        first_buffer_bytes=_room_for(columns, shape),
    )
    return _split(encoder.encode(columns, start_offset=start_offset, end_offset=end_offset), start_offset, end_offset)


def _room_for(columns: Columns, shape: BatchShape) -> int:
    data_parts = (Part.KEY_DATA, Part.VALUE_DATA, Part.HEADER_KEY_DATA, Part.HEADER_VALUE_DATA)
    size_bytes = sum(len(columns.buffers[part]) for part in data_parts)
    size_bytes += ROW_OVERHEAD_BYTES * columns.row_count + HEADER_OVERHEAD_BYTES * columns.header_count
    return size_bytes + BATCH_OVERHEAD_BYTES * (2 + size_bytes // shape.max_batch_bytes)


def _split(data: memoryview, start_offset: int, end_offset: int) -> list[Run]:
    """Copy batches out as runs, and put empty batches where they leave offsets out."""
    runs: list[Run] = []
    pieces: list[bytes | memoryview] = []
    run_start = next_offset = start_offset
    first_byte = next_byte = 0

    def end_run() -> None:
        nonlocal run_start, first_byte, pieces
        pieces.append(data[first_byte:next_byte])
        memory = memoryview(b"".join(pieces))
        if memory:
            runs.append(Run(start_offset=run_start, end_offset=next_offset, data=memory))
        run_start, first_byte, pieces = next_offset, next_byte, []

    while next_byte < len(data):
        base_offset, length, last_offset_delta = _BATCH.unpack_from(data, next_byte)
        if base_offset > next_offset:
            pieces += [data[first_byte:next_byte], _empty_batches(next_offset, base_offset)]
            first_byte = next_byte
        next_byte += length + LENGTH_END
        next_offset = base_offset + last_offset_delta + 1
        if next_byte - first_byte >= RUN_BYTES:
            end_run()
    if next_offset < end_offset:
        pieces += [data[first_byte:next_byte], _empty_batches(next_offset, end_offset)]
        first_byte, next_offset = next_byte, end_offset
    end_run()
    return runs


def _empty_batches(start_offset: int, end_offset: int) -> bytes:
    count = -(-(end_offset - start_offset) // (MAX_INT32 + 1))
    if count > MAX_HOLE_BATCHES:
        raise Corrupt(
            f"no rows between the offsets {start_offset} and {end_offset}: that is more than a log can lose"
        )
    encoder = BatchEncoder()
    starts = range(start_offset, end_offset, MAX_INT32 + 1)
    ends = [*starts[1:], end_offset]
    return b"".join(
        bytes(encoder.encode(_NO_ROWS, start_offset=start, end_offset=end))
        for start, end in zip(starts, ends, strict=True)
    )
