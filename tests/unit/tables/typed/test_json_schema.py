"""JSON Schema: what becomes of each shape, what is refused, and what does not fit."""

import datetime
import json
from typing import Any

import pytest

from headrace.tables.typed.codec import Misfit
from headrace.tables.typed.json_schema import JsonCodec
from headrace.tables.typed.model import InvalidSchema, TypedField, TypeKind, walk


def _codec(schema: dict[str, Any], **more: Any) -> JsonCodec:
    return JsonCodec(json.dumps({"type": "object", "properties": {"f": schema}, **more}))


def _field(schema: dict[str, Any], **more: Any) -> TypedField:
    return _codec(schema, **more).struct.fields[0]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, "long"),
        ({"type": "number"}, "double"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date-time"}, "timestamptz"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"enum": ["a", "b"]}, "string"),
        ({"const": "a"}, "string"),
        ({"type": "array", "items": {"type": "integer"}}, "list"),
        ({"type": "array"}, "string"),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}, "string"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map"),
        ({"type": "object"}, "string"),
        ({"type": "object", "properties": {"x": {"type": "integer"}}}, "struct"),
        ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, "long"),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, "boolean"),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "string"),
        ({"type": ["integer", "string"]}, "string"),
        ({}, "string"),
        ({"$ref": "#/$defs/whole"}, "long"),
    ],
)
def test_every_shape_becomes_a_type(schema: dict[str, Any], kind: str) -> None:
    defs = {"whole": {"type": "integer"}}
    assert _field(schema, **{"$defs": defs}).type.kind == kind


@pytest.mark.parametrize(
    ("schema", "is_required"),
    [
        ({"type": "integer"}, True),
        ({"type": ["integer", "null"]}, False),
        ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, False),
        ({}, False),
    ],
)
def test_what_must_be_there_and_cannot_be_null_is_required(schema: dict[str, Any], is_required: bool) -> None:
    assert _field(schema, required=["f"]).required is is_required
    assert _field(schema).required is False


def test_values_come_out_as_their_types() -> None:
    codec = JsonCodec(
        json.dumps(
            {
                "type": "object",
                "properties": {
                    "whole": {"type": "integer"},
                    "real": {"type": "number"},
                    "at": {"type": "string", "format": "date-time"},
                    "day": {"type": "string", "format": "date"},
                    "any": {},
                    "reals": {"type": "array", "items": {"type": "number"}},
                    "wholes": {"type": "object", "additionalProperties": {"type": "integer"}},
                    "a.b": {"type": "string"},
                    "in": {"type": "object", "properties": {"x": {"type": "number"}}},
                },
            }
        )
    )
    value = {
        "whole": 3.0,
        "real": 2**60 + 1,
        "at": "2020-01-01T01:00:00+01:00",
        "day": "2020-02-29",
        "any": {"b": [1, "ü"], "a": None},
        "reals": [1, 2.5],
        "wholes": {"k": 1e3},
        "a.b": "dotted",
        "in": {"x": 1},
        "unknown": True,
    }
    found = codec.decode(json.dumps(value).encode())
    del found["unknown"]
    assert found == {
        "whole": 3,
        "real": float(2**60 + 1),
        "at": 1_577_836_800_000_000,
        "day": datetime.date(2020, 2, 29),
        "any": '{"b":[1,"ü"],"a":null}',
        "reals": [1.0, 2.5],
        "wholes": {"k": 1000},
        "a_b": "dotted",
        "in": {"x": 1.0},
    }
    assert type(found["whole"]) is int and type(found["reals"][0]) is float


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not JSON"),
        (b"nope", "not JSON"),
        (b'{"f": 1} x', "not JSON"),
        (b'{"f": "\xff"}', "not JSON"),
        (b"[1]", "is not of type"),
        (b'{"f": "1"}', r'f: "1" is not of type "integer"'),
        (b'{"f": 1.5}', "is not of type"),
        (b'{"f": 5}', "is greater than the maximum of 3"),
        (b'{"f": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
        (b'{"f": NaN}', "not JSON"),
    ],
)
def test_what_does_not_fit_has_a_reason(value: bytes, reason: str) -> None:
    codec = _codec({"type": "integer", "maximum": 3})
    with pytest.raises(Misfit, match=reason) as caught:
        codec.decode(value)
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_other_formats_are_for_people_whatever_the_draft() -> None:
    draft = {"$schema": "http://json-schema.org/draft-07/schema#"}
    assert _codec({"type": "string", "format": "email"}, **draft).decode(b'{"f": "nobody"}') == {"f": "nobody"}


@pytest.mark.parametrize("text", ["today", "2020-01-01T00:00:00", "2020-13-01T00:00:00Z", "0000-01-01T00:00:00Z"])
def test_a_time_must_be_one(text: str) -> None:
    codec = _codec({"type": "string", "format": "date-time"})
    with pytest.raises(Misfit, match="date-time"):
        codec.decode(json.dumps({"f": text}).encode())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("message A { }", "schema.type=protobuf"),
        ('{"type": "record", "name": "R", "fields": []}', "schema.type=avro"),
        ('{"type": "string"}', "does not describe an object"),
        ('{"type": "object"}', "does not describe an object"),
        ('{"type": "nonsense"}', "no JSON Schema"),
        ('{"type": "object", "properties": {"a": {"$ref": "http://example.invalid/x"}}}', "another document"),
        ('{"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}', r"no JSON Schema|not in the schema"),
        ('{"type": "object", "properties": {"a": {"$ref": "#"}}}', "holds itself"),
        (
            '{"type": "object", "properties": {"a": {"$ref": "#/$defs/t"}},'
            ' "$defs": {"t": {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}}}}',
            "holds itself",
        ),
        ('{"type": "object", "properties": {"a": {}, "A": {}}}', "ignore case"),
        ('{"type": "object", "properties": {"a.b": {}, "a_b": {}}}', "ignore case"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        JsonCodec(text)


def test_definitions_may_be_used_in_many_places() -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}}}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/p"}, "b": {"$ref": "#/$defs/p"}}}
    codec = JsonCodec(json.dumps({**schema, "$defs": {"p": point}}))
    kinds = dict(walk(codec.struct))
    assert kinds["data.a.x"].kind is kinds["data.b.x"].kind is TypeKind.DOUBLE


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"])
def test_an_offset_does_not_lead_out_of_the_years_that_engines_agree_on(text: str) -> None:
    codec = _codec({"type": "string", "format": "date-time"})
    with pytest.raises(Misfit, match="outside of the years 1 to 9999"):
        codec.decode(json.dumps({"f": text}).encode())


def test_a_property_that_the_schema_does_not_know_never_takes_the_column_of_a_dotted_one() -> None:
    codec = _codec({"type": "object", "properties": {"a.b": {"type": "integer"}}})
    assert codec.decode(b'{"f": {"a_b": "text"}}') == {"f": {"a_b": None}}
    assert codec.decode(b'{"f": {"a_b": "text", "a.b": 5}}') == {"f": {"a_b": 5}}


def test_an_enum_of_strings_and_null_is_a_string_that_may_be_null() -> None:
    codec = _codec({"enum": ["a", None]}, required=["f"])
    assert codec.struct.fields[0].type.kind is TypeKind.STRING
    assert not codec.struct.fields[0].required
    assert [codec.decode(value) for value in (b'{"f": "a"}', b'{"f": null}')] == [{"f": "a"}, {"f": None}]
