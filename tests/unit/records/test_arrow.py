"""pyarrow sees the columns without a copy, and gives them back."""

import pyarrow as pa
import pytest

from headrace.records.arrow import SCHEMA, from_arrow, to_arrow
from headrace.records.batch import BatchView
from headrace.records.columns import ColumnBuilder
from headrace.records.encoder import BatchEncoder
from headrace.records.kernel import Part
from headrace.records.problems import InvalidBatch, Problem
from headrace.records.record import Record, columns_of, records_of

from .making import Batch, record

RECORDS = [
    Record(
        offset=100 + 2 * row,
        timestamp_ms=1000 - row,
        key=None if row % 3 else b"k%d" % row,
        value=None if row % 5 == 0 else b"v" * row,
        headers=tuple((b"\xff%d" % number, None if number % 2 else b"x") for number in range(row % 4)),
    )
    for row in range(40)
]


def test_record_batch_shows_every_column() -> None:
    batch = to_arrow(columns_of(RECORDS, attributes=0x10, producer_id=7, producer_epoch=1, base_sequence=5))
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    rows = batch.to_pylist()
    assert [row["offset"] for row in rows] == [record.offset for record in RECORDS]
    assert [row["timestamp_ms"] for row in rows] == [record.timestamp_ms for record in RECORDS]
    assert [row["key"] for row in rows] == [record.key for record in RECORDS]
    assert [row["value"] for row in rows] == [record.value for record in RECORDS]
    assert [tuple((pair["key"], pair["value"]) for pair in row["headers"]) for row in rows] == [
        record.headers for record in RECORDS
    ]
    assert rows[3] | {"key": 0, "value": 0, "headers": 0} == {
        "offset": 106,
        "timestamp_ms": 997,
        "attributes": 0x10,
        "producer_id": 7,
        "producer_epoch": 1,
        "sequence": 11,
        "key": 0,
        "value": 0,
        "headers": 0,
    }


def test_wrapping_copies_nothing() -> None:
    columns = columns_of(RECORDS)
    data = to_arrow(columns).column("value").buffers()[2]
    assert data.address == pa.py_buffer(columns.buffers[Part.VALUE_DATA]).address


@pytest.mark.parametrize(("start", "length"), [(0, 40), (3, 20), (8, 8), (39, 1), (5, 0)])
def test_slices_come_back_as_the_same_records(start: int, length: int) -> None:
    part = to_arrow(columns_of(RECORDS)).slice(start, length)
    columns = from_arrow(part)
    assert list(records_of(columns)) == RECORDS[start : start + length]


def test_batches_written_from_arrow_equal_those_written_from_columns() -> None:
    columns = columns_of(RECORDS, producer_id=7, producer_epoch=1, base_sequence=5)
    direct = bytes(BatchEncoder().encode(columns))
    assert BatchEncoder().encode(from_arrow(to_arrow(columns))) == direct


def test_empty_record_batch_comes_and_goes() -> None:
    batch = to_arrow(columns_of([]))
    assert batch.num_rows == 0
    columns = from_arrow(SCHEMA.empty_table().to_batches()[0] if SCHEMA.empty_table().to_batches() else batch)
    assert list(records_of(columns)) == []


def test_wider_types_are_cast() -> None:
    batch = to_arrow(columns_of(RECORDS))
    index = batch.schema.get_field_index("value")
    wide = batch.set_column(index, "value", batch.column("value").cast(pa.large_binary()))
    assert list(records_of(from_arrow(wide))) == RECORDS


@pytest.mark.parametrize("name", ["offset", "headers"])
def test_nulls_where_there_can_be_none_are_refused(name: str) -> None:
    batch = to_arrow(columns_of(RECORDS))
    index = batch.schema.get_field_index(name)
    nulls = pa.nulls(batch.num_rows, batch.schema.field(name).type)
    with pytest.raises(InvalidBatch) as caught:
        from_arrow(batch.set_column(index, name, nulls))
    assert caught.value.problem is Problem.COLUMNS


@pytest.mark.parametrize("change", ["missing", "wrong type"])
def test_record_batch_of_another_schema_is_refused(change: str) -> None:
    batch = to_arrow(columns_of(RECORDS))
    index = batch.schema.get_field_index("producer_epoch")
    other = batch.remove_column(index)
    if change == "wrong type":
        other = batch.set_column(index, "producer_epoch", pa.array([70_000] * batch.num_rows, pa.int64()))
    with pytest.raises(InvalidBatch) as caught:
        from_arrow(other)
    assert caught.value.problem is Problem.COLUMNS


def test_record_batch_survives_the_builders_next_use() -> None:
    builder = ColumnBuilder()
    builder.append(BatchView(Batch(body=record(value=b"first")).build()))
    held = to_arrow(builder.columns())
    builder.clear()
    builder.append(BatchView(Batch(body=record(value=b"other")).build()))
    assert held.column("value").to_pylist() == [b"first"]
    assert to_arrow(builder.columns()).column("value").to_pylist() == [b"other"]
