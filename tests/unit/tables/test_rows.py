"""Rows hold what the columns can say, `raw` the rest, and both together give the record back."""

from struct import pack
from typing import Any

import pyarrow as pa
import pytest

from headrace.records.arrow import to_arrow
from headrace.records.problems import InvalidBatch
from headrace.records.record import Record, columns_of, records_of
from headrace.tables import rows as table_rows
from headrace.tables.columns import SCHEMA
from headrace.tables.rows import MAX_TIME_MS, MIN_TIME_MS, rows_of


def one(**fields: Any) -> Record:
    plain: dict[str, Any] = {"offset": 5, "timestamp_ms": 1_700_000_000_000, "value": b"v"}
    return Record(**(plain | fields))


def made(records: list[Record], **producer: int) -> Any:
    rows = rows_of(to_arrow(columns_of(records, **producer)), partition=3, append_times=[(len(records), 1234)])
    rows.validate(full=True)
    assert rows.schema == SCHEMA
    return rows


def back(rows: Any, start_offset: int = 0, end_offset: int = 1000) -> list[Record]:
    return list(records_of(table_rows.columns_of(rows, start_offset=start_offset, end_offset=end_offset)))


def test_a_plain_record_needs_no_raw() -> None:
    rows = made([one(key=b"k", headers=(("é".encode(), None), (b"a", b"1"), (b"a", b"2")))], producer_id=9)
    row = rows.to_pylist()[0]
    assert row["raw"] is None
    assert (row["partition"], row["offset"], row["timestamp_type"], row["producer_id"]) == (3, 5, 0, 9)
    assert (row["key"], row["value"]) == (b"k", b"v")
    assert row["headers"] == [{"key": "é", "value": None}, {"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_000_000]
    assert rows.column("append_time").cast(pa.int64()).to_pylist() == [1_234_000]


def test_what_nobody_said_stays_minus_one() -> None:
    row = made([one(timestamp_ms=-1)])
    assert row.column("timestamp").cast(pa.int64()).to_pylist() == [-1000]
    told = row.select(["producer_id", "producer_epoch", "sequence"]).to_pylist()[0]
    assert set(told.values()) == {-1}


def test_append_times_follow_their_runs() -> None:
    records = [one(offset=n) for n in range(5)]
    rows = rows_of(to_arrow(columns_of(records)), partition=0, append_times=[(2, 10), (0, 99), (3, 20)])
    assert rows.column("append_time").cast(pa.int64()).to_pylist() == [10_000, 10_000, 20_000, 20_000, 20_000]


def test_attributes_say_whose_time_it_is() -> None:
    rows = made([one()], attributes=0x18 | 4)
    assert rows.column("timestamp_type").to_pylist() == [1]
    assert rows.column("attributes").to_pylist() == [0x1C]
    assert list(table_rows.columns_of(rows, start_offset=0, end_offset=9).attributes) == [0x1C]


def test_a_header_key_that_is_not_utf8_is_mended_and_kept_in_raw() -> None:
    records = [one(headers=((b"ok", b"1"), (b"\xff", None))), one(offset=6, headers=((b"fine", b""),))]
    rows = made(records)
    assert [pair["key"] for pair in rows.to_pylist()[0]["headers"]] == ["ok", "�"]
    assert rows.column("raw").to_pylist() == [b"\x01\x02" + pack(">I2sI1s", 2, b"ok", 1, b"\xff"), None]
    assert back(rows) == records


@pytest.mark.parametrize(
    ("time_ms", "nearest_ms"),
    [
        (2**63 - 1, MAX_TIME_MS),
        (MAX_TIME_MS + 1, MAX_TIME_MS),
        (MIN_TIME_MS - 1, MIN_TIME_MS),
        (-(2**63), MIN_TIME_MS),
    ],
)
def test_a_time_outside_of_microseconds_is_moved_and_kept_in_raw(time_ms: int, nearest_ms: int) -> None:
    records = [one(offset=4), one(timestamp_ms=time_ms)]
    rows = made(records)
    assert rows.column("timestamp").cast(pa.int64()).to_pylist()[1] == nearest_ms * 1000
    assert rows.column("raw").to_pylist() == [None, b"\x01\x01" + pack(">q", time_ms)]
    assert back(rows) == records


@pytest.mark.parametrize("time_ms", [MIN_TIME_MS, -1, 0, MAX_TIME_MS])
def test_the_ends_of_the_range_need_no_raw(time_ms: int) -> None:
    records = [one(timestamp_ms=time_ms)]
    rows = made(records)
    assert rows.column("raw").null_count == 1
    assert back(rows) == records


def test_offsets_outside_of_the_range_are_left_out() -> None:
    records = [one(offset=offset, headers=((b"\xff%d" % offset, b""),)) for offset in (3, 5, 6, 9)]
    rows = made(records)
    assert back(rows, 4, 9) == records[1:3]
    assert back(rows, 0, 4) == records[:1]
    assert back(rows, 7, 8) == []
    columns = table_rows.columns_of(rows, start_offset=4, end_offset=9)
    assert (columns.start_offset, columns.end_offset) == (4, 9)


def test_no_rows_are_no_records() -> None:
    rows = made([])
    assert back(rows) == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x01",
        b"\x02\x01" + bytes(8),
        b"\x01\x04",
        b"\x01\x01" + bytes(7),
        b"\x01\x01" + bytes(9),
        b"\x01\x02",
        b"\x01\x02\x00\x00\x00\x02a",
        b"\x01\x02\xff\xff\xff\xffa",
        b"\x01\x02\x00\x00\x00\x01abc",
    ],
)
def test_raw_that_does_not_fit_is_refused(raw: bytes) -> None:
    rows = made([one(headers=((b"a", b""),))])
    index = rows.schema.get_field_index("raw")
    with pytest.raises(InvalidBatch):
        back(rows.set_column(index, "raw", pa.array([raw], pa.binary())))


@pytest.mark.parametrize("name", ["offset", "headers", "raw"])
def test_rows_without_a_column_are_refused(name: str) -> None:
    rows = made([one()])
    with pytest.raises(InvalidBatch):
        back(rows.drop_columns([name]))


def test_attributes_that_no_batch_can_have_are_refused() -> None:
    rows = made([one()])
    index = rows.schema.get_field_index("attributes")
    with pytest.raises(InvalidBatch):
        back(rows.set_column(index, "attributes", pa.array([70_000], pa.int32())))
