"""Records become rows of the table, and rows become the same records again.

Both ways most columns are passed on as they are. What a column cannot hold goes to `raw` as well, and the column
holds the nearest legal value: a header key that is not UTF-8 has its bad bytes replaced, a time outside of what
microseconds can say is moved to the end of the range.

    raw = version u8 (1) | what is in it u8 (1: the timestamp, 2: the header keys)
          | timestamp i64, in milliseconds | per header, in order: length u32, the key's bytes

Integers are big-endian. Header values, the record's key and its value always fit into their columns.

Must stay true: `columns_of(rows_of(x))` is x, whatever the producer sent; and where no row needs `raw`, nothing here
costs anything per row but vector operations.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct, pack
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.records import arrow
from headrace.records.batch import LOG_APPEND_TIME_BIT
from headrace.records.columns import Columns
from headrace.records.problems import InvalidBatch, Problem
from headrace.tables.columns import (
    ATTRIBUTES,
    HEADERS,
    KEY,
    OFFSET,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RAW,
    SCHEMA,
    SEQUENCE,
    TIME_TYPE,
    TIMESTAMP,
    VALUE,
)

MIN_TIME_MS: Final = -9_223_372_022_400_000
"""The earliest time a row has: microseconds could say 4 hours more, but DuckDB refuses them."""
MAX_TIME_MS: Final = (2**63 - 1) // 1000

RECORD_COLUMNS: Final = (
    OFFSET,
    TIMESTAMP,
    ATTRIBUTES,
    PRODUCER_ID,
    PRODUCER_EPOCH,
    SEQUENCE,
    KEY,
    VALUE,
    HEADERS,
    RAW,
)
"""The columns that `columns_of` reads: the record is in these, whatever the others say."""

RAW_VERSION: Final = 1
RAW_TIMESTAMP: Final = 1
RAW_HEADER_KEYS: Final = 2
_RAW_HEAD = Struct(">BB")
_RAW_TIME = Struct(">q")
_RAW_LENGTH = Struct(">I")

_US_PER_MS: Final = 1000
_HEADERS_TYPE: Final[Any] = SCHEMA.field(HEADERS).type
_HEADER_TYPE: Final[Any] = _HEADERS_TYPE.value_type


def rows_of(records: Any, *, partition: int, append_times: Sequence[tuple[int, int]]) -> Any:
    """Return the table's rows for a record batch of `records.arrow.SCHEMA`, as a record batch of `columns.SCHEMA`.

    `append_times` are runs, (how many rows, append time in ms), that together are as long as the batch.
    """
    count = records.num_rows
    assert sum(rows for rows, _ in append_times) == count, "every row has an append time"
    time_ms = records.column("timestamp_ms")
    attributes = records.column("attributes")
    legal_ms = _legal_times(time_ms)
    headers, bad_keys = _legal_headers(records.column("headers"))
    arrays = [
        _repeated(pack("=i", partition) * count, pa.int32(), count),
        records.column("offset"),
        _microseconds(legal_ms),
        _repeated(b"".join(pack("=q", time * _US_PER_MS) * rows for rows, time in append_times), TIME_TYPE, count),
        timestamp_types(attributes),
        records.column("key"),
        records.column("value"),
        headers,
        records.column("producer_id"),
        records.column("producer_epoch").cast(pa.int32()),
        records.column("sequence"),
        attributes.cast(pa.int32()),
        _raw_column(count, time_ms, legal_ms, bad_keys),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def columns_of(rows: Any, *, start_offset: int, end_offset: int) -> Columns:
    """Return the records of rows from `start_offset` up to `end_offset`; the columns cover it, holes included.

    `rows` is a record batch that has the `RECORD_COLUMNS`, in ascending offset order. Raises `InvalidBatch` if it
    does not hold what `rows_of` makes.
    """
    try:
        records = _records_of(rows)
    except (KeyError, struct.error, pa.ArrowException, AttributeError) as problem:
        raise InvalidBatch(Problem.COLUMNS, f"the rows are not those of a topic's table: {problem}") from problem
    first, end = rows_between(rows.column(OFFSET), start_offset, end_offset)
    return arrow.from_arrow(
        records.slice(first, end - first), start_offset=start_offset, end_offset=max(start_offset, end_offset)
    )


def clamped_ms(time_ms: int) -> int:
    """Return a time, or the nearest one that a row can have."""
    return max(MIN_TIME_MS, min(MAX_TIME_MS, time_ms))


def legal_microseconds(time_ms: Any) -> Any:
    """Return times of records as rows have them, without those that microseconds cannot say."""
    return _microseconds(_legal_times(time_ms))


def legal_headers(headers: Any) -> Any:
    """Return headers of records as rows have them, with keys of UTF-8. They are not a slice of others."""
    return _legal_headers(headers)[0]


def timestamp_types(attributes: Any) -> Any:
    """Return whose the times of records are, by their batches' attributes: 0 the producer's, 1 the broker's."""
    # pyarrow shifts by an array or a scalar of the very type.
    return pc.shift_right(pc.bit_wise_and(attributes, LOG_APPEND_TIME_BIT), pa.scalar(3, pa.int16())).cast(pa.int32())


def rows_between(offsets: Any, start_offset: int, end_offset: int) -> tuple[int, int]:
    """Return the first row at or behind the start, and the first at or behind the end; offsets ascend."""
    first = int(pc.sum(pc.less(offsets, start_offset)).as_py() or 0)
    end = int(pc.sum(pc.less(offsets, end_offset)).as_py() or 0)
    return first, max(first, end)


def _repeated(values: bytes, kind: Any, count: int) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)], 0)


def _microseconds(time_ms: Any) -> Any:
    return pc.multiply(time_ms, _US_PER_MS).view(TIME_TYPE)


def _legal_times(time_ms: Any) -> Any:
    """Return the times, or the nearest ones that microseconds can say."""
    bounds = pc.min_max(time_ms).as_py()
    if bounds["min"] is None or (bounds["min"] >= MIN_TIME_MS and bounds["max"] <= MAX_TIME_MS):
        return time_ms
    return pc.max_element_wise(pc.min_element_wise(time_ms, MAX_TIME_MS), MIN_TIME_MS)


def _legal_headers(headers: Any) -> tuple[Any, Mapping[int, list[bytes]]]:
    """Return the headers with keys of UTF-8, and by row all keys of those that had another."""
    assert headers.offset == 0, "the batch is not a slice of another"
    pairs = headers.values
    keys, values = pairs.field(0), pairs.field(1)
    bad_rows: Mapping[int, list[bytes]] = {}
    try:
        text = keys.cast(pa.string())
    except pa.ArrowInvalid:
        spoken = [key.decode("utf-8", "replace") for key in keys.to_pylist()]
        text = pa.array(spoken, pa.string())
        bad_rows = _rows_with_other_keys(headers, keys, text.cast(pa.binary()))
    legal_pairs = pa.Array.from_buffers(_HEADER_TYPE, len(pairs), [None], 0, children=[text, values])
    legal = pa.Array.from_buffers(
        _HEADERS_TYPE, len(headers), [None, headers.buffers()[1]], 0, children=[legal_pairs]
    )
    return legal, bad_rows


def _rows_with_other_keys(headers: Any, keys: Any, text: Any) -> dict[int, list[bytes]]:
    changed = pc.indices_nonzero(pc.not_equal(keys, text)).to_pylist()
    offsets = memoryview(headers.buffers()[1]).cast("B").cast("i")
    parents = pc.list_parent_indices(headers)
    rows = {parents[index].as_py() for index in changed}
    return {row: keys[offsets[row] : offsets[row + 1]].to_pylist() for row in rows}


def _raw_column(count: int, time_ms: Any, legal_ms: Any, bad_keys: Mapping[int, list[bytes]]) -> Any:
    bad_times = _bad_times(time_ms, legal_ms)
    if not bad_times and not bad_keys:
        return pa.nulls(count, pa.binary())
    raw: list[bytes | None] = [None] * count
    for row in bad_times.keys() | bad_keys.keys():
        raw[row] = _pack_raw(bad_times.get(row), bad_keys.get(row))
    return pa.array(raw, pa.binary())


def _bad_times(time_ms: Any, legal_ms: Any) -> dict[int, int]:
    if legal_ms is time_ms:
        return {}
    changed = pc.indices_nonzero(pc.not_equal(time_ms, legal_ms))
    return dict(zip(changed.to_pylist(), time_ms.take(changed).to_pylist(), strict=True))


def _pack_raw(time_ms: int | None, keys: Sequence[bytes] | None) -> bytes:
    flags = (RAW_TIMESTAMP if time_ms is not None else 0) | (RAW_HEADER_KEYS if keys is not None else 0)
    parts = [_RAW_HEAD.pack(RAW_VERSION, flags)]
    if time_ms is not None:
        parts.append(_RAW_TIME.pack(time_ms))
    for key in keys or ():
        parts += (_RAW_LENGTH.pack(len(key)), key)
    return b"".join(parts)


def _unpack_raw(raw: bytes, header_count: int) -> tuple[int | None, list[bytes] | None]:
    """Return the timestamp and the header keys that a row's `raw` holds, `None` where its columns do."""
    version, flags = _RAW_HEAD.unpack_from(raw)
    if version != RAW_VERSION or flags & ~(RAW_TIMESTAMP | RAW_HEADER_KEYS):
        raise InvalidBatch(Problem.COLUMNS, f"raw of version {version}, flags {flags}: this release knows 1, 1 to 3")
    at_byte = _RAW_HEAD.size
    time_ms: int | None = None
    keys: list[bytes] | None = None
    if flags & RAW_TIMESTAMP:
        (time_ms,) = _RAW_TIME.unpack_from(raw, at_byte)
        at_byte += _RAW_TIME.size
    if flags & RAW_HEADER_KEYS:
        keys = []
        for _ in range(header_count):
            (size_bytes,) = _RAW_LENGTH.unpack_from(raw, at_byte)
            at_byte += _RAW_LENGTH.size + size_bytes
            keys.append(raw[at_byte - size_bytes : at_byte])
    if at_byte != len(raw):
        raise InvalidBatch(Problem.COLUMNS, f"raw of {len(raw)} bytes tells of {at_byte}")
    return time_ms, keys


def _records_of(rows: Any) -> Any:
    """Return rows as a record batch of `records.arrow.SCHEMA`."""
    time_ms = pc.divide(rows.column(TIMESTAMP).cast(TIME_TYPE).view(pa.int64()), _US_PER_MS)
    headers = rows.column(HEADERS)
    if headers.offset or headers.null_count or headers.values.offset:
        raise InvalidBatch(Problem.COLUMNS, "the headers are a slice of others, or null")
    pairs = headers.values
    keys, values = pairs.field(0).cast(pa.binary()), pairs.field(1)
    raw = rows.column(RAW)
    if raw.null_count != len(raw):
        time_ms, keys = _restored(time_ms, headers, keys, raw)
    plain_pairs = pa.Array.from_buffers(arrow.HEADER_TYPE, len(pairs), [None], 0, children=[keys, values])
    list_buffers = [None, headers.buffers()[1]]
    arrays = {
        "offset": rows.column(OFFSET),
        "timestamp_ms": time_ms,
        "attributes": rows.column(ATTRIBUTES).cast(pa.int16()),
        "producer_id": rows.column(PRODUCER_ID),
        "producer_epoch": rows.column(PRODUCER_EPOCH).cast(pa.int16()),
        "sequence": rows.column(SEQUENCE),
        "key": rows.column(KEY),
        "value": rows.column(VALUE),
        "headers": pa.Array.from_buffers(arrow.HEADERS_TYPE, len(headers), list_buffers, 0, children=[plain_pairs]),
    }
    return pa.RecordBatch.from_arrays([arrays[field.name] for field in arrow.SCHEMA], schema=arrow.SCHEMA)


def _restored(time_ms: Any, headers: Any, keys: Any, raw: Any) -> tuple[Any, Any]:
    """Put back what `raw` holds."""
    times: dict[int, int] = {}
    header_keys: dict[int, bytes] = {}
    for row, first_header, header_count, row_raw in _raw_rows(headers, raw):
        row_time_ms, row_keys = _unpack_raw(row_raw, header_count)
        if row_time_ms is not None:
            times[row] = row_time_ms
        if row_keys is not None:
            header_keys.update(enumerate(row_keys, first_header))
    return _replaced(time_ms, times), _replaced(keys, header_keys)


def _raw_rows(headers: Any, raw: Any) -> Iterator[tuple[int, int, int, bytes]]:
    """Go through the rows that have a `raw`: row, its first header, how many it has, the bytes."""
    present = pc.indices_nonzero(pc.is_valid(raw))
    columns = (present, headers.offsets.take(present), headers.value_lengths().take(present), raw.take(present))
    yield from zip(*(column.to_pylist() for column in columns), strict=True)


def _replaced(column: Any, changes: Mapping[int, Any]) -> Any:
    if not changes:
        return column
    mask = bytearray(len(column))
    for index in changes:
        mask[index] = 1
    is_changed = pa.Array.from_buffers(pa.uint8(), len(column), [None, pa.py_buffer(mask)], 0).cast(pa.bool_())
    values = pa.array([changes[index] for index in sorted(changes)], column.type)
    return pc.replace_with_mask(column, is_changed, values)
