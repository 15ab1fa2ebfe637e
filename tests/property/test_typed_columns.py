"""Values of random schemas come out of typed columns as their own libraries read them; damaged ones break nothing."""

import io
import json
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import json_format, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tables.typed.arrow import data_field, decode_values
from headrace.tables.typed.evolution import evolved
from headrace.tables.typed.proto_files import message_descriptor
from headrace.tables.typed.schemas import SchemaSource, SchemaType, ready_schema
from headrace.testing.fuzz_typed import fuzz_schema, fuzz_value, schema_seeds, value_seeds

MUTATIONS_PER_SEED = 1500
SCHEMA_MUTATIONS_PER_SEED = 60

names = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4, unique=True)
texts = st.text(max_size=8)
longs = st.integers(-(2**63), 2**63 - 1)
reals = st.floats(allow_nan=False, allow_infinity=False)


def _read(source: SchemaSource, values: list[bytes]) -> list[Any]:
    """Return what the column `data` holds of values that fit."""
    schema = ready_schema(source)
    data, misfits = decode_values(pa.array(values, pa.binary()), schema, data_field(schema.struct, None).type)
    assert misfits == {}
    return data.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]


Typed = tuple[Any, st.SearchStrategy[Any]]
"""A schema and the values that fit it."""


def _json_nodes(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def struct(parts: dict[str, Typed]) -> Typed:
        schema = {"type": "object", "properties": {name: schema for name, (schema, _) in parts.items()}}
        return {**schema, "required": list(parts)}, st.fixed_dictionaries({n: v for n, (_, v) in parts.items()})

    return st.one_of(
        inner.map(lambda one: ({"type": "array", "items": one[0]}, st.lists(one[1], max_size=3))),
        inner.map(
            lambda one: (
                {"type": "object", "additionalProperties": one[0]},
                st.dictionaries(texts, one[1], max_size=3),
            )
        ),
        names.flatmap(lambda found: st.fixed_dictionaries(dict.fromkeys(found, inner))).map(struct),
    )


json_leaves: st.SearchStrategy[Typed] = st.sampled_from(
    [
        ({"type": "integer"}, longs),
        ({"type": "number"}, reals),
        ({"type": "boolean"}, st.booleans()),
        ({"type": "string"}, texts),
        ({"type": ["string", "null"]}, st.none() | texts),
        ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, st.none() | longs),
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_json_comes_out_as_it_was_written(data: st.DataObject) -> None:
    nodes = st.recursive(json_leaves, _json_nodes, max_leaves=6)
    fields = data.draw(names.flatmap(lambda found: st.fixed_dictionaries(dict.fromkeys(found, nodes))))
    schema = {"type": "object", "properties": {name: part[0] for name, part in fields.items()}}
    values = data.draw(st.lists(st.fixed_dictionaries({n: v for n, (_, v) in fields.items()}), max_size=4))
    read = _read(SchemaSource(json.dumps(schema)), [json.dumps(value).encode() for value in values])
    assert read == values


avro_leaves: st.SearchStrategy[Typed] = st.sampled_from(
    [
        ("int", st.integers(-(2**31), 2**31 - 1)),
        ("long", longs),
        ("double", reals),
        ("float", st.floats(width=32, allow_nan=False, allow_infinity=False)),
        ("boolean", st.booleans()),
        ("string", texts),
        ("bytes", st.binary(max_size=8)),
        (["null", "string"], st.none() | texts),
        (["long", "null"], st.none() | longs),
    ]
)


def _avro_nodes(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def record(parts: dict[str, Typed], number: int) -> Typed:
        fields = [{"name": name, "type": schema} for name, (schema, _) in parts.items()]
        schema = {"type": "record", "name": f"R{number}", "fields": fields}
        return schema, st.fixed_dictionaries({name: values for name, (_, values) in parts.items()})

    records = names.flatmap(lambda found: st.fixed_dictionaries(dict.fromkeys(found, inner)))
    return st.one_of(
        inner.map(lambda one: ({"type": "array", "items": one[0]}, st.lists(one[1], max_size=3))),
        inner.map(lambda one: ({"type": "map", "values": one[0]}, st.dictionaries(texts, one[1], max_size=3))),
        st.builds(record, records, st.integers(0, 2**60)),
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_avro_comes_out_as_fastavro_wrote_it(data: st.DataObject) -> None:
    nodes = st.recursive(avro_leaves, _avro_nodes, max_leaves=6)
    fields = data.draw(names.flatmap(lambda found: st.fixed_dictionaries(dict.fromkeys(found, nodes))))
    schema = {
        "type": "record",
        "name": "Root",
        "fields": [{"name": name, "type": part[0]} for name, part in fields.items()],
    }
    try:
        parsed = fastavro.parse_schema(schema)
    except fastavro.schema.SchemaParseException:
        return  # Two records were given one name.
    values = data.draw(st.lists(st.fixed_dictionaries({n: v for n, (_, v) in fields.items()}), max_size=4))
    encoded = []
    for value in values:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, parsed, value)
        encoded.append(target.getvalue())
    assert _read(SchemaSource(json.dumps(schema), SchemaType.AVRO), encoded) == values


PROTO = """
syntax = "proto3";
message Root {
  int32 a = 1; int64 b = 2; uint32 c = 3; double d = 4; bool e = 5; string f = 6; bytes g = 7;
  repeated sint64 h = 8; map<string, In> i = 9; optional int32 j = 10; In k = 11; repeated In l = 12;
  message In { string x = 1; repeated bool y = 2; }
}
"""
inner_messages = st.fixed_dictionaries({"x": texts, "y": st.lists(st.booleans(), max_size=2)})
messages = st.fixed_dictionaries(
    {
        "a": st.integers(-(2**31), 2**31 - 1),
        "b": longs,
        "c": st.integers(0, 2**32 - 1),
        "d": reals,
        "e": st.booleans(),
        "f": texts,
        "g": st.binary(max_size=8),
        "h": st.lists(longs, max_size=3),
        "i": st.dictionaries(texts, inner_messages, max_size=2),
        "j": st.none() | st.integers(-5, 5),
        "k": st.none() | inner_messages,
        "l": st.lists(inner_messages, max_size=2),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(messages, max_size=4))
def test_protobuf_comes_out_as_its_runtime_wrote_it(values: list[dict[str, Any]]) -> None:
    root = message_factory.GetMessageClass(message_descriptor(PROTO, "Root"))
    encoded = [root(**{n: v for n, v in value.items() if v is not None}).SerializeToString() for value in values]
    assert _read(SchemaSource(PROTO, SchemaType.PROTOBUF, "Root"), encoded) == values
    for value in encoded:
        json_format.MessageToJson(root.FromString(value))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_a_table_has_become_holds_both_schemas(data: st.DataObject) -> None:
    nodes = st.recursive(json_leaves, _json_nodes, max_leaves=4)
    structs = []
    for prefix in ("x", "y"):
        fields = data.draw(names.flatmap(lambda found: st.fixed_dictionaries(dict.fromkeys(found, nodes))))
        properties = {f"{prefix}{name}": part[0] for name, part in fields.items()}
        structs.append(ready_schema(SchemaSource(json.dumps({"type": "object", "properties": properties}))).struct)
    both = evolved(structs[0], structs[1])
    assert evolved(both, structs[0]) == evolved(both, structs[1]) == both
    assert {field.name for field in both.fields} == {field.name for struct in structs for field in struct.fields}


@pytest.mark.parametrize("number", range(4))
def test_damaged_values_fit_or_have_a_reason(number: int) -> None:
    seed, rng = value_seeds()[number], Random(number)
    for source in range(4):
        fuzz_value(bytes([source]) + seed[1:])
    for _ in range(MUTATIONS_PER_SEED):
        fuzz_value(seed[:1] + _mutated(seed[1:], rng))


@pytest.mark.parametrize("number", range(3))
def test_damaged_schemas_are_taken_or_refused(number: int) -> None:
    seed, rng = schema_seeds()[number], Random(number)
    for _ in range(SCHEMA_MUTATIONS_PER_SEED):
        fuzz_schema(_mutated(seed, rng))


def _mutated(data: bytes, rng: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0:
                changed[at:at] = bytes(rng.choices([0, 1, 0x7F, 0x80, 0xFE, 0xFF, *b'"{}[],:0'], k=rng.randint(1, 4)))
            case 1:
                del changed[at : at + rng.randint(1, 4)]
            case 2:
                del changed[at:]
            case _ if at < len(changed):
                changed[at] = rng.randrange(256)
    return bytes(changed)
