"""Hand columns to pyarrow and take them back, without copying what has the right shape already.

This is the one module of the package that needs pyarrow (the `arrow` extra). Keys, values and header keys are
`binary`: nobody promises UTF-8. A record batch made here keeps the builder's buffers alive, so `ColumnBuilder.clear`
sees it and leaves those buffers alone.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.columns import Columns
from headrace.records.kernel import Part
from headrace.records.problems import InvalidBatch, Problem

HEADER_TYPE = pa.struct([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("item", HEADER_TYPE, nullable=False))
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("attributes", pa.int16(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("producer_epoch", pa.int16(), nullable=False),
        pa.field("sequence", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
    ]
)
_FIXED_PARTS = {
    "offset": Part.OFFSET,
    "timestamp_ms": Part.TIMESTAMP_MS,
    "attributes": Part.ATTRIBUTES,
    "producer_id": Part.PRODUCER_ID,
    "producer_epoch": Part.PRODUCER_EPOCH,
    "sequence": Part.SEQUENCE,
}


def to_arrow(columns: Columns) -> Any:
    """Return the columns as a `pyarrow.RecordBatch` over the same memory."""
    rows = columns.row_count
    arrays = [
        pa.Array.from_buffers(SCHEMA.field(name).type, rows, [None, pa.py_buffer(columns.buffers[part])])
        for name, part in _FIXED_PARTS.items()
    ]
    arrays.append(_binary_array(columns, Part.KEY_OFFSETS, rows, columns.null_key_count))
    arrays.append(_binary_array(columns, Part.VALUE_OFFSETS, rows, columns.null_value_count))
    arrays.append(_header_array(columns))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _binary_array(columns: Columns, offsets: Part, count: int, null_count: int) -> Any:
    """Wrap three neighbouring parts: offsets, data, validity."""
    data, validity = columns.buffers[offsets + 1], columns.buffers[offsets + 2]
    buffers = [
        pa.py_buffer(validity) if null_count else None,
        pa.py_buffer(columns.buffers[offsets]),
        pa.py_buffer(data),
    ]
    return pa.Array.from_buffers(pa.binary(), count, buffers, null_count)


def _header_array(columns: Columns) -> Any:
    count = columns.header_count
    key_buffers = [
        None,
        *(pa.py_buffer(columns.buffers[part]) for part in (Part.HEADER_KEY_OFFSETS, Part.HEADER_KEY_DATA)),
    ]
    keys = pa.Array.from_buffers(pa.binary(), count, key_buffers, 0)
    values = _binary_array(columns, Part.HEADER_VALUE_OFFSETS, count, columns.null_header_value_count)
    pairs = pa.Array.from_buffers(HEADER_TYPE, count, [None], 0, children=[keys, values])
    list_buffers = [None, pa.py_buffer(columns.buffers[Part.HEADER_OFFSETS])]
    return pa.Array.from_buffers(HEADERS_TYPE, columns.row_count, list_buffers, 0, children=[pairs])


def from_arrow(batch: Any, *, start_offset: int | None = None, end_offset: int | None = None) -> Columns:
    """Take a `pyarrow.RecordBatch` of our schema, sliced or not, with string or large types cast where needed.

    The offsets it covers are those of its rows unless the caller knows more. Raise `InvalidBatch` when it does not
    fit the schema.
    """
    try:
        columns = [_cast(batch.column(field.name), field) for field in SCHEMA]
    except (KeyError, pa.ArrowException) as error:
        raise InvalidBatch(Problem.COLUMNS, f"the record batch does not fit the schema: {error}") from None
    fixed = [_fixed_buffer(column) for column in columns[: len(_FIXED_PARTS)]]
    keys, values, headers = columns[len(_FIXED_PARTS) :]
    pairs = headers.values
    header_keys, header_values = pairs.field(0), pairs.field(1)
    if header_keys.null_count or pairs.null_count:
        raise InvalidBatch(Problem.COLUMNS, "a header is null or has no key")
    offsets = columns[0]
    return Columns(
        row_count=len(batch),
        header_count=len(pairs),
        null_key_count=keys.null_count,
        null_value_count=values.null_count,
        null_header_value_count=header_values.null_count,
        start_offset=_first(offsets) if start_offset is None else start_offset,
        end_offset=_last(offsets) + 1 if end_offset is None else end_offset,
        buffers=(
            *fixed,
            *_binary_buffers(keys),
            *_binary_buffers(values),
            _offset_buffer(headers),
            *_binary_buffers(header_keys)[:2],
            *_binary_buffers(header_values),
        ),
    )


def _cast(column: Any, field: Any) -> Any:
    column = column if column.type == field.type else column.cast(field.type)
    if column.null_count and not field.nullable:
        raise InvalidBatch(Problem.COLUMNS, f"column {field.name} has {column.null_count} nulls")
    return column


def _first(offsets: Any) -> int:
    return int(offsets[0].as_py()) if len(offsets) else 0


def _last(offsets: Any) -> int:
    return int(offsets[-1].as_py()) if len(offsets) else -1


def _fixed_buffer(array: Any) -> memoryview:
    width = array.type.bit_width // 8
    return _bytes(array.buffers()[1])[width * array.offset : width * (array.offset + len(array))]


def _offset_buffer(array: Any) -> memoryview:
    """Return the rows' offsets; they stay relative to the whole data, which is passed on uncut."""
    buffer = _bytes(array.buffers()[1])
    # An empty array may come without the single zero that the layout asks for.
    return buffer[4 * array.offset : 4 * (array.offset + len(array) + 1)] or memoryview(bytes(4))


def _binary_buffers(array: Any) -> tuple[memoryview, memoryview, memoryview]:
    # A slice's bits need not begin at a byte: `is_valid` writes them anew.
    validity = _bytes(pc.is_valid(array).buffers()[1]) if array.null_count else memoryview(b"")
    return _offset_buffer(array), _bytes(array.buffers()[2]), validity


def _bytes(buffer: Any) -> memoryview:
    return memoryview(b"") if buffer is None else memoryview(buffer).cast("B")
