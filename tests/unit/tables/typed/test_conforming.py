"""Typed columns of older files come into the table's shape by field ids, row by row as they were."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.tables.typed.arrow import FIELD_ID
from headrace.tables.typed.conforming import conformed_field


def field(name: str, kind: Any, number: int) -> Any:
    return pa.field(name, kind, metadata={FIELD_ID: str(number).encode()})


def nested(inner: Any) -> Any:
    return field(
        "data",
        pa.struct(
            [
                field("list", pa.list_(field("element", inner, 3)), 2),
                field("map", pa.map_(pa.field("key", pa.string(), nullable=False), field("value", inner, 5)), 4),
            ]
        ),
        1,
    )


OLD = nested(pa.struct([field("n", pa.int32(), 7), field("gone", pa.int32(), 8)]))
NEW = nested(pa.struct([field("new", pa.string(), 9), field("renamed", pa.int64(), 7)]))
ROWS: list[dict[str, Any] | None] = [
    {"list": [{"n": 1, "gone": 2}, None, {"n": None, "gone": 3}], "map": [("a", {"n": 4, "gone": 5}), ("b", None)]},
    None,
    {"list": None, "map": []},
    {"list": [], "map": None},
    {"list": [{"n": 6, "gone": 7}], "map": [("c", {"n": 8, "gone": 9})]},
]


def stored(rows: list[Any], found: Any) -> tuple[Any, Any]:
    """Return rows and their field as they are read from a file."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([pa.array(rows, found.type)], schema=pa.schema([found])), sink, store_schema=False)
    table = pq.read_table(pa.BufferReader(sink.getvalue()))
    return table.column(0).chunk(0), table.schema.field(0)


def expected(row: dict[str, Any] | None) -> dict[str, Any] | None:
    def inner(value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else {"new": None, "renamed": value["n"]}

    if row is None:
        return None
    return {
        "list": None if row["list"] is None else [inner(one) for one in row["list"]],
        "map": None if row["map"] is None else [(key, inner(one)) for key, one in row["map"]],
    }


@pytest.mark.parametrize(("start", "length"), [(0, 5), (1, 3), (4, 1), (2, 0)])
def test_fields_are_found_by_id_at_every_depth(start: int, length: int) -> None:
    rows, found = stored(ROWS, OLD)
    made = conformed_field(rows.slice(start, length), found, NEW)
    made.validate(full=True)
    assert made.type.equals(NEW.type, check_metadata=True)
    assert made.to_pylist() == [expected(row) for row in ROWS[start : start + length]]


def test_another_column_of_the_same_name_has_none_of_its_values() -> None:
    other = NEW.with_metadata({FIELD_ID: b"99"})
    assert conformed_field(*stored(ROWS, OLD), other).to_pylist() == [None] * len(ROWS)


def test_what_fits_is_taken_as_it_is() -> None:
    rows, found = stored(ROWS, OLD)
    assert conformed_field(rows, found, found) is rows


def test_a_file_without_ids_is_read_by_names() -> None:
    old = pa.field("data", pa.struct([pa.field("n", pa.int32()), pa.field("m", pa.int32())]))
    new = field("data", pa.struct([field("m", pa.int64(), 4), field("n", pa.int64(), 5)]), 1)
    assert conformed_field(pa.array([{"n": 1, "m": 2}], old.type), old, new).to_pylist() == [{"m": 2, "n": 1}]
