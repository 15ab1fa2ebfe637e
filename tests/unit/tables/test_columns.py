"""The columns' names, kinds and ids."""

import pyarrow as pa
import pytest

from headrace.errors import Invalid
from headrace.tables.columns import COLUMNS, SCHEMA, arrow_schema
from headrace.tables.typed.arrow import FIELD_ID
from tests.table_kit import table_format


def test_schema_is_the_row_of_the_design() -> None:
    time = pa.timestamp("us", tz="UTC")
    assert [(field.name, field.type, field.nullable) for field in SCHEMA if field.name != "headers"] == [
        ("partition", pa.int32(), False),
        ("offset", pa.int64(), False),
        ("timestamp", time, False),
        ("append_time", time, False),
        ("timestamp_type", pa.int32(), False),
        ("key", pa.binary(), True),
        ("value", pa.binary(), True),
        ("producer_id", pa.int64(), False),
        ("producer_epoch", pa.int32(), False),
        ("sequence", pa.int32(), False),
        ("attributes", pa.int32(), False),
        ("raw", pa.binary(), True),
    ]
    headers = SCHEMA.field("headers")
    assert not headers.nullable and not headers.type.value_field.nullable
    pair = headers.type.value_type
    assert [(pair.field(n).name, pair.field(n).type, pair.field(n).nullable) for n in (0, 1)] == [
        ("key", pa.string(), False),
        ("value", pa.binary(), True),
    ]


def test_every_field_bears_the_id_of_the_table_nested_ones_too() -> None:
    form = table_format()
    schema = arrow_schema(form)
    assert schema.equals(SCHEMA)
    headers = schema.field("headers")
    pair = headers.type.value_field
    fields = {field.name: field for field in schema}
    fields |= {"headers.element": pair, "headers.element.key": pair.type.field(0)}
    fields["headers.element.value"] = pair.type.field(1)
    assert {name: int(field.metadata[FIELD_ID]) for name, field in fields.items()} == form.field_ids


def test_a_table_without_one_of_our_fields_is_refused_by_name() -> None:
    form = table_format()
    del form.field_ids["headers.element.key"]
    with pytest.raises(Invalid, match=r"no field headers\.element\.key"):
        arrow_schema(form)


def test_a_nested_column_follows_the_one_it_lies_in() -> None:
    names = [column.name for column in COLUMNS]
    for number, name in enumerate(names):
        parent = name.rpartition(".")[0]
        assert not parent or parent in names[:number]
