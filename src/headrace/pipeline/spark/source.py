"""The source as Spark sees it: readers of its Python Data Source API, in batches and in streams.

What Spark 4.1 does, as far as it matters here:
- A reader is made in one Python process and pickled into others, the tasks; these need nothing but their message.
- The reader of a stream lives in a process of its own for as long as the query; `stop` is not always called.
- A reader that has `pushFilters` fails unless `spark.sql.python.filterPushdown.enabled` is set. Where it is set,
  Spark makes the reader inside of `data_source_pushdown_filters.main`, and only there.

Must stay true: pushed filters only save work. All of them are handed back, so Spark applies them to every row that
comes. Whichever reader it then plans with, and whether we recognise that it pushes at all, rows are the same.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import FrameType
from typing import Any, Final, Protocol

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.errors import Invalid
from headrace.pipeline.scan import options as names
from headrace.pipeline.scan.conditions import COLUMNS as COMPARED
from headrace.pipeline.scan.conditions import Value, microseconds_of
from headrace.pipeline.scan.offsets import JsonVector
from headrace.pipeline.scan.options import ScanOptions, parse_options
from headrace.pipeline.spark.workers import spare_next_task

PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"

HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TYPES: Final[Mapping[str, DataType]] = {
    names.KEY: BinaryType(),
    names.VALUE: BinaryType(),
    names.TOPIC: StringType(),
    names.PARTITION: IntegerType(),
    names.OFFSET: LongType(),
    names.TIMESTAMP: TimestampType(),
    names.TIMESTAMP_TYPE: IntegerType(),
    names.HEADERS: ArrayType(HEADER),
}

NULLABLE: Final = frozenset({names.KEY, names.VALUE, names.HEADERS})
"""Columns that may be null. Spark asks every row of every other column, too, unless it is told of them."""

OPERATORS: Final[Mapping[type[Filter], str]] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
}


class StreamPlanner(Protocol):
    """What plans the batches of a stream."""

    def initial(self) -> JsonVector: ...
    def latest(self) -> JsonVector: ...
    def plan(self, start: JsonVector, end: JsonVector) -> list[bytes]: ...
    def committed(self, end: JsonVector) -> None: ...
    def close(self) -> None: ...


class TaskPartition(InputPartition):
    """One task, packed."""

    def __init__(self, packed: bytes) -> None:
        super().__init__(None)
        self.packed = packed

    def __repr__(self) -> str:
        return f"TaskPartition({len(self.packed)} bytes)"


def schema_of(given: Mapping[str, str]) -> StructType:
    """Return the columns that a read with these options brings. Raises `Invalid`."""
    return StructType([StructField(name, TYPES[name], name in NULLABLE) for name in names.columns_of(given)])


def batch_reader(
    given: Mapping[str, str], schema: StructType, *, plan: Callable[[ScanOptions], list[bytes]]
) -> DataSourceReader:
    """Return the reader of a batch; it takes filters where Spark hands some over."""
    options = parse_options(given, is_stream=False)
    _require_own(given, schema)
    return FilteredBatchReader(options, plan) if _is_pushing() else BatchReader(options, plan)


def stream_reader(
    given: Mapping[str, str], schema: StructType, *, opens: Callable[[ScanOptions], StreamPlanner]
) -> DataSourceStreamReader:
    """Return the reader of a stream; nothing is opened before it is asked for something."""
    options = parse_options(given, is_stream=True)
    _require_own(given, schema)
    return StreamReader(options, opens)


class BatchReader(DataSourceReader):
    """Reads everything between two positions."""

    def __init__(self, options: ScanOptions, plan: Callable[[ScanOptions], list[bytes]]) -> None:
        self.options = options
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        parts = [TaskPartition(packed) for packed in self._plan(self.options)]
        spare_next_task()
        return parts

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return _read(partition)

    def __getstate__(self) -> dict[str, Any]:
        return {}


class FilteredBatchReader(BatchReader):
    """A batch reader that takes filters."""

    def pushFilters(self, filters: "list[Filter]") -> Iterable[Filter]:  # noqa: N802
        """Note the comparisons that leave something out before it is read, and hand all filters back to Spark."""
        condition = self.options.condition
        for one in filters:
            column = _column(one)
            if column is not None:
                condition = condition.also(column, OPERATORS[type(one)], _values(one))
        self.options = replace(self.options, condition=condition)
        return filters


class StreamReader(DataSourceStreamReader):
    """Reads a stream, batch by batch."""

    def __init__(self, options: ScanOptions, opens: Callable[[ScanOptions], StreamPlanner]) -> None:
        self._options = options
        self._opens = opens
        self._opened: StreamPlanner | None = None

    def initialOffset(self) -> JsonVector:  # noqa: N802
        return self._planner.initial()

    def latestOffset(self) -> JsonVector:  # noqa: N802
        return self._planner.latest()

    def partitions(self, start: JsonVector, end: JsonVector) -> Sequence[InputPartition]:
        return [TaskPartition(packed) for packed in self._planner.plan(start, end)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return _read(partition)

    def commit(self, end: JsonVector) -> None:
        self._planner.committed(end)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _planner(self) -> StreamPlanner:
        if self._opened is None:
            self._opened = self._opens(self._options)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {}


def _read(partition: InputPartition | None) -> Iterator[Any]:
    # Imported late: planning needs none of it.
    from headrace.pipeline.spark.scanning import read_rows

    if partition is None:  # Spark makes one task of a read that has none.
        return iter(())
    assert isinstance(partition, TaskPartition), f"{partition!r} is no task of ours"
    return read_rows(partition.packed)


def _require_own(given: Mapping[str, str], schema: StructType) -> None:
    own = schema_of(given)
    if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in own]:
        raise Invalid(
            f"the rows have the columns {own.simpleString()}, whatever schema is given: leave it away, choose among "
            "them with columns, and take values apart afterwards"
        )


def _is_pushing() -> bool:
    """Whether Spark makes this reader to hand filters over to it; where that is not recognised, more is read."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == PUSHING:
            return True
        frame = frame.f_back
    return False


def _column(one: Filter) -> str | None:
    """Return the column that a filter compares, if it is one that we can leave rows out by."""
    if type(one) not in OPERATORS:
        return None
    path: tuple[str, ...] = one.attribute  # type: ignore[attr-defined]
    if len(path) != 1 or path[0] not in COMPARED:
        return None
    column = path[0]
    is_plain = isinstance(one, EqualTo | In) or column != names.TOPIC
    kinds = {names.TOPIC: str, names.TIMESTAMP: datetime}.get(column, int)
    values = one.value if isinstance(one, In) else (one.value,)  # type: ignore[attr-defined]
    return column if is_plain and all(isinstance(value, kinds) for value in values) else None


def _values(one: Filter) -> tuple[Value, ...]:
    values = one.value if isinstance(one, In) else (one.value,)  # type: ignore[attr-defined]
    return tuple(microseconds_of(value) if isinstance(value, datetime) else value for value in values)
