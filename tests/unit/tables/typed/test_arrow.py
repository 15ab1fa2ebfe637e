"""Values become an Arrow struct: one bad row is null and named, and its neighbours are as they were."""

import gc
import json

import pyarrow as pa
import pytest

from headrace.tables.typed.arrow import data_field, decode_values
from headrace.tables.typed.model import walk
from headrace.tables.typed.schemas import SchemaSource, SchemaType, ready_schema

JSON = SchemaSource(
    json.dumps({"type": "object", "properties": {"a": {"type": "integer"}, "l": {"type": "array", "items": {}}}})
)
AVRO = SchemaSource(
    json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}), SchemaType.AVRO
)


def test_field_ids_stand_at_every_level() -> None:
    struct = ready_schema(JSON).struct
    ids = {name: 100 + number for number, (name, _) in enumerate(walk(struct))}
    field = data_field(struct, ids)
    assert field.metadata == {b"PARQUET:field_id": b"100"}
    assert field.type.field("l").type.value_field.metadata == {b"PARQUET:field_id": b"103"}


@pytest.mark.parametrize("bad_rows", [[], [0], [999], [3, 4, 500], list(range(1000))])
def test_rows_that_a_column_cannot_hold_are_found_among_good_ones(bad_rows: list[int]) -> None:
    schema = ready_schema(JSON)
    values = [b'{"a": 99999999999999999999}' if n in bad_rows else b'{"a": %d}' % n for n in range(1000)]
    data, misfits = decode_values(pa.array(values, pa.binary()), schema, data_field(schema.struct, None).type)
    assert sorted(misfits) == bad_rows
    assert data.to_pylist() == [None if n in bad_rows else {"a": n, "l": None} for n in range(1000)]


def test_an_integer_that_is_too_large_for_its_avro_type_is_a_misfit() -> None:
    schema = ready_schema(AVRO)
    values = pa.array([b"\x02", b"\xfe\xff\xff\xff\xff\x01", None], pa.binary())
    data, misfits = decode_values(values, schema, data_field(schema.struct, None).type)
    assert data.to_pylist() == [{"a": 1}, None, None] and list(misfits) == [1]


def test_a_slice_of_values_is_decoded_as_such() -> None:
    schema = ready_schema(AVRO)
    values = pa.array([b"bad", b"\x02", b"\x04"], pa.binary()).slice(1)
    data, misfits = decode_values(values, schema, data_field(schema.struct, None).type)
    assert data.to_pylist() == [{"a": 1}, {"a": 2}] and misfits == {}


def test_the_collector_is_as_it_was_afterwards() -> None:
    schema = ready_schema(AVRO)
    assert gc.isenabled()
    decode_values(pa.array([b"bad"], pa.binary()), schema, data_field(schema.struct, None).type)
    assert gc.isenabled()
