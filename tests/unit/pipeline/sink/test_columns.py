"""Columns are judged by name and type before anything runs; rows then become contents of records."""

import pyarrow as pa
import pytest

from headrace.errors import Invalid
from headrace.pipeline.sink.columns import Completion, Rows, check_columns
from headrace.records.arrow import HEADERS_TYPE, SCHEMA, from_arrow

HEADERS = "array<struct<key:string,value:binary>>"


def test_columns_of_the_source_can_be_written_again() -> None:
    columns = [
        ("key", "binary"),
        ("Value", "string"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", HEADERS),
    ]
    found = check_columns(columns, topic=None, includes_headers=None)
    assert found["value"] == "Value" and "offset" not in found and "timestamptype" not in found
    assert "headers" in found
    assert "headers" not in check_columns(columns, topic="t", includes_headers=False)


@pytest.mark.parametrize(
    ("columns", "topic", "has_headers", "why"),
    [
        ([("key", "string")], "t", None, "no column value"),
        ([("value", "bigint")], "t", None, "value takes string or binary: cast it"),
        ([("value", "string"), ("VALUE", "string")], "t", None, "both value"),
        ([("value", "string"), ("amount", "int")], "t", None, r"to_json\(struct"),
        ([("value", "string"), ("headers", "map<string,binary>")], "t", None, "headers takes array"),
        ([("value", "string"), ("timestamp", "timestamp_ntz")], "t", None, "timestamp takes timestamp"),
        ([("value", "string"), ("partition", "bigint")], "t", None, "partition takes int"),
        ([("value", "string")], None, None, "no topic is named"),
        ([("value", "string")], "t", True, "no column headers"),
    ],
)
def test_what_no_record_can_hold_is_refused(
    columns: list[tuple[str, str]], topic: str | None, has_headers: bool | None, why: str
) -> None:
    with pytest.raises(Invalid, match=why):
        check_columns(columns, topic=topic, includes_headers=has_headers)


def test_times_are_cut_downwards_and_missing_ones_are_now() -> None:
    micros = [1_999, 0, -1, -1_000, -1_001, None]
    table = pa.table({"value": ["v"] * 6, "timestamp": pa.array(micros, pa.timestamp("us", "UTC"))})
    rows = Rows(table, {"value": "value", "timestamp": "timestamp"}, now_ms=77)
    assert rows.content.column("timestamp_ms").to_pylist() == [1, 0, -1, -1, -2, 77]


def test_headers_keep_order_and_duplicates_and_no_headers_are_none() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    pairs = [("a", b"1"), ("a", None), ("b", b"")]
    given = [None, [], [{"key": key, "value": value} for key, value in pairs], None]
    table = pa.table({"value": ["v"] * 4, "headers": pa.array(given, kind)}).slice(1)
    rows = Rows(table, {"value": "value", "headers": "headers"}, now_ms=0)
    assert rows.content.column("headers").type == HEADERS_TYPE
    found = [[(one["key"], one["value"]) for one in each] for each in rows.content.column("headers").to_pylist()]
    assert found == [[], [(b"a", b"1"), (b"a", None), (b"b", b"")], []]


@pytest.mark.parametrize("bad", [[None], [{"key": None, "value": b"x"}]])
def test_headers_without_a_key_are_refused(bad: list[object]) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table({"value": ["v"], "headers": pa.array([bad], kind)})
    with pytest.raises(Invalid, match="has no key"):
        Rows(table, {"value": "value", "headers": "headers"}, now_ms=0)


def test_contents_become_whole_records_whatever_types_spark_sends() -> None:
    table = pa.table({"value": pa.array(["x", None, "z"], pa.large_string()), "key": pa.array([b"k", None, b""])})
    rows = Rows(table, {"value": "value", "key": "key"}, now_ms=9)
    completion = Completion(10)
    whole = completion.complete(rows.content.slice(1))
    assert whole.schema == SCHEMA
    columns = from_arrow(whole)
    assert (columns.row_count, columns.start_offset, columns.end_offset) == (2, 0, 2)
    assert whole.column("producer_id").to_pylist() == [-1, -1]
    assert whole.column("value").to_pylist() == [None, b"z"]
