"""Rows as Spark's Kafka source has them, from records of the WAL or from rows of a table.

Vector operations only. What was asked for decides what is made: a column that nobody wants costs nothing here.

Must stay true: a record gives the same row, wherever it lies.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.scan import options as spark
from headrace.pipeline.scan.conditions import Bound, Condition
from headrace.tables import columns as table
from headrace.tables.rows import legal_headers, legal_microseconds, rows_between, timestamp_types

HEADERS_TYPE: Final[Any] = table.SCHEMA.field(table.HEADERS).type

TYPES: Final[Mapping[str, Any]] = {
    spark.KEY: pa.binary(),
    spark.VALUE: pa.binary(),
    spark.TOPIC: pa.string(),
    spark.PARTITION: pa.int32(),
    spark.OFFSET: pa.int64(),
    spark.TIMESTAMP: table.TIME_TYPE,
    spark.TIMESTAMP_TYPE: pa.int32(),
    spark.HEADERS: HEADERS_TYPE,
}

TABLE_COLUMNS: Final[Mapping[str, str]] = {
    spark.KEY: table.KEY,
    spark.VALUE: table.VALUE,
    spark.OFFSET: table.OFFSET,
    spark.TIMESTAMP: table.TIMESTAMP,
    spark.TIMESTAMP_TYPE: table.TIMESTAMP_TYPE,
    spark.HEADERS: table.HEADERS,
}
"""What a column of ours is called in a topic's table, where it is one."""


class RowMaker:
    """Makes the rows of one partition."""

    def __init__(self, *, topic: str, partition: int, columns: tuple[str, ...], condition: Condition) -> None:
        self._columns = columns
        self._condition = condition
        self._constants = {
            spark.TOPIC: _Repeated(pa.scalar(topic, pa.string())),
            spark.PARTITION: _Repeated(pa.scalar(partition, pa.int32())),
        }

    @property
    def table_columns(self) -> list[str]:
        """The columns of a table that are needed: of these rows, and to know which ones are wanted."""
        needed = [table.OFFSET]
        if not _is_open(self._condition.timestamp_us):
            needed.append(table.TIMESTAMP)
        needed += [TABLE_COLUMNS[name] for name in self._columns if name in TABLE_COLUMNS]
        return list(dict.fromkeys(needed))

    def of_records(self, records: Any, start_offset: int, end_offset: int) -> Any:
        """Return the wanted rows of a record batch of `records.arrow.SCHEMA`, from one offset up to another."""
        made: Mapping[str, Callable[[], Any]] = {
            table.OFFSET: lambda: records.column("offset"),
            table.TIMESTAMP: lambda: legal_microseconds(records.column("timestamp_ms")),
            table.TIMESTAMP_TYPE: lambda: timestamp_types(records.column("attributes")),
            table.KEY: lambda: records.column("key"),
            table.VALUE: lambda: records.column("value"),
            table.HEADERS: lambda: legal_headers(records.column("headers")),
        }
        return self._rows({name: made[name]() for name in self.table_columns}, start_offset, end_offset)

    def of_table(self, rows: Any, start_offset: int, end_offset: int) -> Any:
        """Return the wanted rows of a record batch with the `table_columns`, from one offset up to another."""
        return self._rows({name: rows.column(name) for name in self.table_columns}, start_offset, end_offset)

    def _rows(self, found: Mapping[str, Any], start_offset: int, end_offset: int) -> Any:
        offsets = found[table.OFFSET]
        first, end = rows_between(offsets, start_offset, end_offset)
        is_wanted = self._mask(found)
        arrays = []
        for name in self._columns:
            if name in self._constants:
                array = self._constants[name].array(len(offsets))
            else:
                array = found[TABLE_COLUMNS[name]]
                if name == spark.HEADERS:
                    array = _null_where_empty(array)
            arrays.append(array if array.type == TYPES[name] else array.cast(TYPES[name]))
        rows = pa.RecordBatch.from_arrays(arrays, names=list(self._columns))
        rows = rows if end - first == len(offsets) else rows.slice(first, end - first)
        return rows if is_wanted is None else rows.filter(is_wanted.slice(first, end - first))

    def _mask(self, found: Mapping[str, Any]) -> Any:
        """Say of each row whether it fits the condition; `None` if all do, as far as this can tell."""
        offset, timestamp_us = self._condition.offset, self._condition.timestamp_us
        # A range of offsets is what the planner has kept to already; a list of them is not.
        mask = None if offset.values is None else _fits(found[table.OFFSET], offset)
        if not _is_open(timestamp_us):
            fits = _fits(found[table.TIMESTAMP].cast(table.TIME_TYPE).view(pa.int64()), timestamp_us)
            mask = fits if mask is None else pc.and_(mask, fits)
        return mask


class _Repeated:
    """One value, as often as it is asked for; the longest array so far is kept."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._longest = pa.repeat(value, 0)

    def array(self, count: int) -> Any:
        if len(self._longest) < count:
            self._longest = pa.repeat(self._value, count)
        return self._longest.slice(0, count)


def _is_open(bound: Bound) -> bool:
    return bound == Bound()


def _fits(numbers: Any, bound: Bound) -> Any:
    low, high = bound.span
    fits = None
    if low is not None:
        fits = pc.greater_equal(numbers, low)
    if high is not None:
        under = pc.less_equal(numbers, high)
        fits = under if fits is None else pc.and_(fits, under)
    if bound.values is not None:
        listed = pc.is_in(numbers, value_set=pa.array(bound.values, pa.int64()))
        fits = listed if fits is None else pc.and_(fits, listed)
    return fits


def _null_where_empty(headers: Any) -> Any:
    """Return headers as Kafka's source has them: null where a record has none."""
    is_there = pc.greater(pc.list_value_length(headers), 0)
    # Arrow keeps "is valid" as bits, which is what a boolean array consists of.
    buffers = [is_there.buffers()[1], headers.buffers()[1]]
    return pa.Array.from_buffers(headers.type, len(headers), buffers, children=[headers.values])
