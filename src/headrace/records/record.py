"""Records as plain Python values: for the edges and the tests, where there are few of them.

Nothing here is for a hot path: a value costs a microsecond, a column entry some nanoseconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import pack, unpack_from

from headrace.records.batch import MAX_INT32
from headrace.records.columns import Columns
from headrace.records.kernel import Part

Header = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record. Header keys are bytes: clients may send what is not UTF-8, and get it back."""

    offset: int
    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()


def columns_of(
    records: Sequence[Record],
    *,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> Columns:
    """Build columns from records in offset order that share a producer; the sequence counts from the first offset."""
    count = len(records)
    base_offset = records[0].offset if records else 0
    if base_sequence >= 0:
        sequences = [(base_sequence + record.offset - base_offset) & MAX_INT32 for record in records]
    else:
        sequences = [base_sequence] * count
    headers = [header for record in records for header in record.headers]
    buffers = (
        pack(f"={count}q", *(record.offset for record in records)),
        pack(f"={count}q", *(record.timestamp_ms for record in records)),
        pack(f"={count}h", *[attributes] * count),
        pack(f"={count}q", *[producer_id] * count),
        pack(f"={count}h", *[producer_epoch] * count),
        pack(f"={count}i", *sequences),
        *_binary([record.key for record in records]),
        *_binary([record.value for record in records]),
        _ends([len(record.headers) for record in records]),
        *_binary([key for key, _ in headers])[:2],
        *_binary([value for _, value in headers]),
    )
    return Columns(
        row_count=count,
        header_count=len(headers),
        null_key_count=sum(record.key is None for record in records),
        null_value_count=sum(record.value is None for record in records),
        null_header_value_count=sum(value is None for _, value in headers),
        start_offset=base_offset,
        end_offset=records[-1].offset + 1 if records else 0,
        buffers=tuple(memoryview(buffer) for buffer in buffers),
    )


def records_of(columns: Columns) -> Iterator[Record]:
    """Yield the rows of columns as records."""
    offsets, timestamps = columns.offset, columns.timestamp_ms
    parts = columns.buffers
    for row in range(columns.row_count):
        first, end = unpack_from("=2i", parts[Part.HEADER_OFFSETS], 4 * row)
        yield Record(
            offset=offsets[row],
            timestamp_ms=timestamps[row],
            key=_value(parts[Part.KEY_OFFSETS : Part.KEY_VALIDITY + 1], row),
            value=_value(parts[Part.VALUE_OFFSETS : Part.VALUE_VALIDITY + 1], row),
            headers=tuple(
                (
                    _value((*parts[Part.HEADER_KEY_OFFSETS : Part.HEADER_KEY_DATA + 1], memoryview(b"")), index)
                    or b"",
                    _value(parts[Part.HEADER_VALUE_OFFSETS : Part.HEADER_VALUE_VALIDITY + 1], index),
                )
                for index in range(first, end)
            ),
        )


def _binary(values: Sequence[bytes | None]) -> tuple[bytes, bytes, bytes]:
    """Return offsets, data and validity of a binary column."""
    bits = bytearray((len(values) + 7) // 8 if None in values else 0)
    for index, value in enumerate(values):
        if bits and value is not None:
            bits[index >> 3] |= 1 << (index & 7)
    return _ends([len(value or b"") for value in values]), b"".join(value or b"" for value in values), bytes(bits)


def _ends(sizes: Sequence[int]) -> bytes:
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return pack(f"={len(ends)}i", *ends)


def _value(column: tuple[memoryview, ...], index: int) -> bytes | None:
    offsets, data, validity = column
    if len(validity) and not validity[index >> 3] >> (index & 7) & 1:
        return None
    start, end = unpack_from("=2i", offsets, 4 * index)
    return bytes(data[start:end])
