"""The source's readers without a JVM: what they take over from filters, and what of them reaches a task."""

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from headrace.errors import Invalid
from headrace.pipeline.scan.conditions import Bound, Condition
from headrace.pipeline.scan.options import ScanOptions
from headrace.pipeline.spark.source import (
    BatchReader,
    FilteredBatchReader,
    StreamReader,
    TaskPartition,
    batch_reader,
    schema_of,
    stream_reader,
)

GIVEN = {"subscribe": "orders"}


def no_plan(_: ScanOptions) -> list[bytes]:
    return []


def pushed(*filters: Filter) -> tuple[list[Filter], Condition]:
    plain = batch_reader(GIVEN, schema_of(GIVEN), plan=no_plan)
    assert isinstance(plain, BatchReader)
    reader = FilteredBatchReader(plain.options, no_plan)
    left = list(reader.pushFilters(list(filters)))
    return left, reader.options.condition


def test_comparisons_of_places_and_times_are_taken_over() -> None:
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    left, condition = pushed(
        IsNotNull(("partition",)),
        EqualTo(("topic",), "orders"),
        In(("partition",), (1, 2)),
        GreaterThan(("offset",), 4),
        LessThan(("offset",), 9),
        GreaterThanOrEqual(("timestamp",), moment),
    )
    assert left == []
    assert condition == Condition(
        topics=("orders",),
        partition=Bound(values=(1, 2)),
        offset=Bound(low=5, high=8),
        timestamp_us=Bound(low=1_000_000),
    )


def test_everything_else_stays_with_spark() -> None:
    others: list[Filter] = [
        EqualTo(("value",), b"x"),
        IsNotNull(("key",)),
        Not(EqualTo(("partition",), 1)),
        StringStartsWith(("topic",), "or"),
        GreaterThan(("topic",), "a"),
        EqualTo(("offset",), None),
        EqualTo(("headers", "key"), "x"),
    ]
    assert pushed(*others) == (others, Condition())


def test_a_reader_has_filters_only_where_spark_hands_some_over() -> None:
    # Spark refuses a reader that has `pushFilters` unless its session enables them.
    assert type(batch_reader(GIVEN, schema_of(GIVEN), plan=no_plan)) is BatchReader
    calls: dict[str, Any] = {"__name__": "pyspark.sql.worker.data_source_pushdown_filters"}
    exec("def main(make):\n    return make()", calls)  # stands for Spark's own function
    made = calls["main"](lambda: batch_reader(GIVEN, schema_of(GIVEN), plan=no_plan))
    assert type(made) is FilteredBatchReader


def test_tasks_get_nothing_of_a_reader_but_its_kind() -> None:
    def opens(_: ScanOptions) -> StreamReader:
        raise AssertionError("nothing is opened before it is needed")

    for reader in (
        batch_reader({**GIVEN, "headrace.metadata.url": "secret"}, schema_of(GIVEN), plan=no_plan),
        stream_reader(GIVEN, schema_of(GIVEN), opens=opens),  # type: ignore[arg-type]
    ):
        packed = pickle.dumps(reader)
        assert b"secret" not in packed
        assert list(pickle.loads(packed).read(None)) == []
    partition = pickle.loads(pickle.dumps(TaskPartition(b"task")))
    assert partition.packed == b"task"


def test_a_schema_of_ones_own_is_refused() -> None:
    schema = schema_of({**GIVEN, "columns": "offset,key"})
    assert schema.simpleString() == "struct<offset:bigint,key:binary>"
    with pytest.raises(Invalid, match="leave it away"):
        batch_reader(GIVEN, StructType(), plan=no_plan)
