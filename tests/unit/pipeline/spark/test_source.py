"""The source's readers without a JVM: what they take over from filters, and what of them reaches a task."""

import base64
import io
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from pyspark import serializers
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
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
from pyspark.sql.worker import data_source_pushdown_filters as pushing
from pyspark.worker_util import pickleSer

from headrace.errors import Invalid
from headrace.pipeline.scan.conditions import Bound, Condition
from headrace.pipeline.scan.options import ScanOptions
from headrace.pipeline.spark import source
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

WIRE: Any = serializers  # what Spark's processes talk with has no types
PICKLED: Any = pickleSer

PARTITION_IS_3 = {
    "name": "EqualTo",
    "columnPath": ["partition"],
    "value": {
        "value": base64.b64encode(bytes([3 << 2, 3])).decode(),  # a Variant: an integer of one byte
        "metadata": base64.b64encode(bytes([1, 0, 0])).decode(),
    },
    "isNegated": False,
}
"""A filter as Spark's driver sends it."""


def no_plan(_: ScanOptions) -> list[bytes]:
    return []


def pushed(*filters: Filter) -> tuple[list[Filter], Condition]:
    plain = batch_reader(GIVEN, schema_of(GIVEN), plan=no_plan)
    assert isinstance(plain, BatchReader)
    reader = FilteredBatchReader(plain.options, no_plan)
    left = list(reader.pushFilters(list(filters)))
    return left, reader.options.condition


def test_comparisons_of_places_and_times_are_used_and_left_to_spark_all_the_same() -> None:
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    given: tuple[Filter, ...] = (
        IsNotNull(("partition",)),
        EqualTo(("topic",), "orders"),
        In(("partition",), (1, 2)),
        GreaterThan(("offset",), 4),
        LessThan(("offset",), 9),
        GreaterThanOrEqual(("timestamp",), moment),
    )
    left, condition = pushed(*given)
    assert [id(one) for one in left] == [id(one) for one in given], "Spark knows its filters by their identity"
    assert condition == Condition(
        topics=("orders",),
        partition=Bound(values=(1, 2)),
        offset=Bound(low=5, high=8),
        timestamp_us=Bound(low=1_000_000),
    )


def test_everything_else_leaves_nothing_out() -> None:
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


class ConditionSource(DataSource):
    """Our source, but that its one task is the condition that it was planned with."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return batch_reader(GIVEN, schema, plan=lambda options: [msgspec.msgpack.encode(options.condition)])


def planned_by_spark(monkeypatch: pytest.MonkeyPatch, filters: list[dict[str, Any]]) -> tuple[Condition, list[int]]:
    """Have Spark's own function push filters, and return the condition of the plan and which filters Spark drops."""
    for name in ("check_python_version", "setup_spark_files", "setup_broadcasts", "setup_memory_limits"):
        monkeypatch.setattr(pushing, name, lambda _: None)
    told, answered = io.BytesIO(), io.BytesIO()
    PICKLED._write_with_length(ConditionSource(GIVEN), told)
    for text in (schema_of(GIVEN).json(), json.dumps(filters)):
        WIRE.write_with_length(text.encode(), told)
    WIRE.write_int(10_000, told)
    told.write(b"\x01")  # binary as bytes
    WIRE.write_int(WIRE.SpecialLengths.END_OF_STREAM, told)
    told.seek(0)
    pushing.main(told, answered)
    answered.seek(0)
    PICKLED._read_with_length(answered)  # the function that reads
    assert WIRE.read_int(answered) == 1
    task = PICKLED._read_with_length(answered)
    dropped = [WIRE.read_int(answered) for _ in range(WIRE.read_int(answered))]
    return msgspec.msgpack.decode(task.packed, type=Condition), dropped


def test_spark_plans_with_the_filters_and_drops_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    condition, dropped = planned_by_spark(monkeypatch, [PARTITION_IS_3])
    assert (condition, dropped) == (Condition(partition=Bound(values=(3,))), [])


def test_a_spark_whose_call_is_not_recognised_reads_more_and_filters_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PUSHING", "pyspark.sql.worker.somewhere_else")
    assert planned_by_spark(monkeypatch, [PARTITION_IS_3]) == (Condition(), [])


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


def test_only_what_a_record_can_lack_is_nullable() -> None:
    schema = schema_of({**GIVEN, "includeHeaders": "true"})
    assert [field.name for field in schema if field.nullable] == ["key", "value", "headers"]


def test_a_schema_of_ones_own_is_refused() -> None:
    schema = schema_of({**GIVEN, "columns": "offset,key"})
    assert schema.simpleString() == "struct<offset:bigint,key:binary>"
    with pytest.raises(Invalid, match="leave it away"):
        batch_reader(GIVEN, StructType(), plan=no_plan)
