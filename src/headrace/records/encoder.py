"""Turn columns back into record batches.

Rows become batches in their order. A new batch begins where the size limit says so and where rows cannot share one:
another producer, a sequence that does not go on, another kind of batch, another append time, and, where rows keep
their codecs, another codec. Offsets are kept, so a hole stays a hole: each batch reaches up to the next one's first
row, the last one up to `end_offset`, and columns without rows become one empty batch. A consumer therefore always
learns where to go on.

Must stay true: the records that come out are the records that went in, byte for byte where they were written in the
shortest form, as every client does. What no reader sees is not kept: delete horizons, the unused attribute byte of
single records, and the timestamps of records that LogAppendTime has overruled.
"""

from collections.abc import Mapping
from itertools import pairwise
from struct import Struct
from types import MappingProxyType
from typing import Final

from headrace.records.batch import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    MAX_INT32,
    Codec,
)
from headrace.records.codecs import compress
from headrace.records.columns import Columns, is_seen
from headrace.records.kernel import KERNEL, Fault, Kernel, Part, explain
from headrace.records.problems import InvalidBatch, Problem
from headrace.records.stamping import NO_LEADER_EPOCH, stamp_crc

MAX_BATCH_BYTES: Final = 1024 * 1024
"""How large a batch becomes, unless the caller says otherwise; one record alone may pass it."""

FIRST_BUFFER_BYTES: Final = 64 * 1024

_INT64 = Struct("=q")
_INT32 = Struct("=i")
_INT16 = Struct("=h")


class BatchEncoder:
    """Writes columns as batches, into a buffer that is used again once nobody looks at the last result."""

    __slots__ = ("_codec", "_kernel", "_levels", "_max_batch_bytes", "_out")

    def __init__(
        self,
        *,
        codec: Codec | None = Codec.NONE,
        levels: Mapping[Codec, int] = MappingProxyType({}),
        max_batch_bytes: int = MAX_BATCH_BYTES,
        first_buffer_bytes: int = FIRST_BUFFER_BYTES,
        kernel: Kernel = KERNEL,
    ) -> None:
        """Without a codec (`None`) every row keeps the one that its attributes name.

        `levels` are the codecs' own, where not their default. `first_buffer_bytes` spares whoever knows how much is
        coming the growing.
        """
        self._codec = codec
        self._levels = levels
        self._max_batch_bytes = max_batch_bytes
        self._kernel = kernel
        self._out = bytearray(max(first_buffer_bytes, HEADER_BYTES))

    def encode(
        self, columns: Columns, *, start_offset: int | None = None, end_offset: int | None = None
    ) -> memoryview:
        """Return the batches back to back, covering `start_offset` to `end_offset` (by default the columns' own).

        Raise `InvalidBatch` when the columns do not fit together. A hole of more than 2^31 offsets is left uncovered,
        because no batch can reach over it.
        """
        start_offset = columns.start_offset if start_offset is None else start_offset
        end_offset = columns.end_offset if end_offset is None else end_offset
        if is_seen(self._out):
            self._out = bytearray(len(self._out))
        if columns.row_count == 0:
            end_byte = self._write_empty(start_offset, end_offset)
        else:
            end_byte = self._write_rows(columns, start_offset, end_offset)
        return memoryview(self._out)[:end_byte]

    def _write_rows(self, columns: Columns, start_offset: int, end_offset: int) -> int:
        if len(columns.buffers[Part.OFFSET]) < 8 * columns.row_count:
            raise explain(Fault.COLUMN_SIZE, columns.row_count - 1, "the columns")
        first_offset, last_offset = _row_offset(columns, 0), _row_offset(columns, columns.row_count - 1)
        if not 0 <= start_offset <= first_offset or end_offset <= last_offset:
            raise InvalidBatch(Problem.COLUMNS, f"rows lie outside the offsets {start_offset} to {end_offset}")
        row = end_byte = 0
        same_codec_ends = iter([columns.row_count] if self._codec is not None else _same_codec_ends(columns))
        end_row = next(same_codec_ends)
        while row < columns.row_count:
            if row == end_row:
                end_row = next(same_codec_ends)
            base_offset = _row_offset(columns, row)
            if row == 0 and base_offset - start_offset <= MAX_INT32:
                base_offset = start_offset
            first_row, start_byte = row, end_byte
            row, end_byte, max_timestamp_ms = self._write_records(
                columns, first_row, end_row, base_offset, start_byte
            )
            covered_to = end_offset if row == columns.row_count else _row_offset(columns, row)
            if covered_to <= _row_offset(columns, row - 1):
                raise explain(Fault.ROW_ORDER, row, "the columns")
            end_byte = self._finish_batch(
                columns,
                first_row=first_row,
                record_count=row - first_row,
                base_offset=base_offset,
                last_offset_delta=min(covered_to - 1 - base_offset, MAX_INT32),
                max_timestamp_ms=max_timestamp_ms,
                start_byte=start_byte,
                end_byte=end_byte,
            )
        return end_byte

    def _write_records(
        self, columns: Columns, first_row: int, end_row: int, base_offset: int, start_byte: int
    ) -> tuple[int, int, int]:
        while True:
            code, row, end_byte, max_timestamp_ms = self._kernel.encode_records(
                columns.buffers,
                first_row,
                end_row,
                base_offset,
                self._out,
                start_byte + HEADER_BYTES,
                self._max_batch_bytes - HEADER_BYTES,
            )
            if code == Fault.NO_ROOM:
                self._grow(start_byte)
            elif code:
                raise explain(code, row, "the columns")
            else:
                return row, end_byte, max_timestamp_ms

    def _grow(self, used_bytes: int) -> None:
        grown = bytearray(2 * len(self._out))
        grown[:used_bytes] = memoryview(self._out)[:used_bytes]
        self._out = grown

    def _finish_batch(
        self,
        columns: Columns,
        *,
        first_row: int,
        record_count: int,
        base_offset: int,
        last_offset_delta: int,
        max_timestamp_ms: int,
        start_byte: int,
        end_byte: int,
    ) -> int:
        """Compress the records, put the header before them, and return where the batch ends."""
        (attributes,) = _INT16.unpack_from(columns.buffers[Part.ATTRIBUTES], 2 * first_row)
        codec, end_byte = self._compress(attributes, start_byte + HEADER_BYTES, end_byte)
        (sequence,) = _INT32.unpack_from(columns.buffers[Part.SEQUENCE], 4 * first_row)
        if sequence >= 0:
            # The batch may begin in a hole before its first row; Kafka's sequences wrap at 2^31.
            sequence = (sequence - (_row_offset(columns, first_row) - base_offset)) & MAX_INT32
        HEADER.pack_into(
            self._out,
            start_byte,
            base_offset,
            end_byte - start_byte - LENGTH_END,
            NO_LEADER_EPOCH,
            MAGIC,
            0,
            attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT) | codec,
            last_offset_delta,
            _INT64.unpack_from(columns.buffers[Part.TIMESTAMP_MS], 8 * first_row)[0],
            max_timestamp_ms,
            _INT64.unpack_from(columns.buffers[Part.PRODUCER_ID], 8 * first_row)[0],
            _INT16.unpack_from(columns.buffers[Part.PRODUCER_EPOCH], 2 * first_row)[0],
            sequence,
            record_count,
        )
        stamp_crc(memoryview(self._out)[start_byte:end_byte])
        return end_byte

    def _compress(self, attributes: int, start_byte: int, end_byte: int) -> tuple[Codec, int]:
        """Compress in place. What would not shrink stays as it is: so the size limit holds for every codec."""
        codec = _codec_of(attributes) if self._codec is None else self._codec
        if codec is Codec.NONE:
            return Codec.NONE, end_byte
        packed = compress(codec, memoryview(self._out)[start_byte:end_byte], level=self._levels.get(codec))
        if len(packed) >= end_byte - start_byte:
            return Codec.NONE, end_byte
        self._out[start_byte : start_byte + len(packed)] = packed
        return codec, start_byte + len(packed)

    def _write_empty(self, start_offset: int, end_offset: int) -> int:
        if end_offset <= start_offset:
            return 0
        last_offset_delta = min(end_offset - 1 - start_offset, MAX_INT32)
        length = HEADER_BYTES - LENGTH_END
        fields = (start_offset, length, NO_LEADER_EPOCH, MAGIC, 0, 0, last_offset_delta, -1, -1, -1, -1, -1, 0)
        HEADER.pack_into(self._out, 0, *fields)
        stamp_crc(memoryview(self._out)[:HEADER_BYTES])
        return HEADER_BYTES


def _same_codec_ends(columns: Columns) -> list[int]:
    """Return where runs of rows with the same codec end. Nearly always all rows have the same attributes."""
    raw = bytes(columns.buffers[Part.ATTRIBUTES][: 2 * columns.row_count])
    if len(raw) < 2 * columns.row_count:
        raise explain(Fault.COLUMN_SIZE, columns.row_count - 1, "the columns")
    if raw == raw[:2] * columns.row_count:
        return [columns.row_count]
    codecs = [attributes & CODEC_MASK for attributes in columns.attributes[: columns.row_count]]
    ends = [row for row, (before, codec) in enumerate(pairwise(codecs), start=1) if before != codec]
    return [*ends, columns.row_count]


def _codec_of(attributes: int) -> Codec:
    try:
        return Codec(attributes & CODEC_MASK)
    except ValueError:
        raise InvalidBatch(Problem.COLUMNS, f"attributes {attributes} name a codec that does not exist") from None


def _row_offset(columns: Columns, row: int) -> int:
    offset: int = _INT64.unpack_from(columns.buffers[Part.OFFSET], 8 * row)[0]
    return offset
