"""Avro: what becomes of each type, what is refused, and what does not fit."""

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from headrace.tables.typed.avro import AvroCodec
from headrace.tables.typed.codec import Misfit
from headrace.tables.typed.model import InvalidSchema, TypedField

ENUM = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
FIXED = {"type": "fixed", "name": "Two", "size": 2}


def _schema(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}


def _codec(kind: Any) -> AvroCodec:
    return AvroCodec(json.dumps(_schema(kind)))


def _field(kind: Any) -> TypedField:
    return _codec(kind).struct.fields[0]


def _logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def _encoded(kind: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(_schema(kind)), {"f": value})
    return target.getvalue()


@pytest.mark.parametrize(
    ("kind", "told", "is_required"),
    [
        ("null", "string", False),
        ("boolean", "boolean", True),
        ("int", "int", True),
        ("long", "long", True),
        ("float", "float", True),
        ("double", "double", True),
        ("bytes", "binary", True),
        ("string", "string", True),
        (ENUM, "string", True),
        (INNER, "struct", True),
        (FIXED, "fixed[2]", True),
        ({"type": "array", "items": "int"}, "list", True),
        ({"type": "map", "values": "int"}, "map", True),
        (["null", "int"], "int", False),
        (["int", "null"], "int", False),
        (["null"], "string", False),
        (["int"], "int", True),
        (["int", "long"], "long", True),
        (["null", "float", "double"], "double", False),
        (["string", "int"], "struct", True),
        (_logical("int", "date"), "date", True),
        (_logical("int", "time-millis"), "long", True),
        (_logical("long", "timestamp-millis"), "timestamptz", True),
        (_logical("long", "timestamp-micros"), "timestamptz", True),
        (_logical("long", "local-timestamp-micros"), "timestamp", True),
        (_logical("bytes", "decimal", precision=9, scale=2), "decimal(9, 2)", True),
        (_logical("bytes", "decimal", precision=50), "binary", True),
        (_logical("string", "uuid"), "string", True),
        (_logical("long", "something-new"), "long", True),
        ({**FIXED, "logicalType": "decimal", "precision": 4}, "decimal(4, 0)", True),
        ({"type": "record", "name": "Empty", "fields": []}, "string", True),
    ],
)
def test_every_type_becomes_a_column(kind: Any, told: str, is_required: bool) -> None:
    field = _field(kind)
    assert (str(field.type), field.required) == (told, is_required)


@pytest.mark.parametrize(
    ("kind", "value", "then"),
    [
        (["null", "int"], None, None),
        (["null", ENUM], "BLUE", "BLUE"),
        (["null", INNER], {"x": 1}, {"x": 1}),
        (["string", "long", INNER, FIXED], "s", {"member0": "s"}),
        (["string", "long", INNER, FIXED], 7, {"member1": 7}),
        (["string", "long", INNER, FIXED], {"x": 7}, {"member2": {"x": 7}}),
        (["string", "long", INNER, FIXED], b"ab", {"member3": b"ab"}),
        (["null", "string", {"type": "array", "items": "int"}], [1], {"member1": [1]}),
        (_logical("int", "date"), datetime.date(1969, 12, 31), -1),
        (_logical("int", "time-millis"), datetime.time(0, 0, 1), 1_000_000),
        (
            _logical("long", "timestamp-millis"),
            datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC),
            1_000_000,
        ),
        (_logical("bytes", "decimal", precision=9, scale=2), Decimal("-1.25"), Decimal("-1.25")),
        ({"type": "array", "items": ["null", _logical("int", "date")]}, [None, datetime.date(1970, 1, 2)], [None, 1]),
        ({"type": "map", "values": ["null", INNER]}, {"k": {"x": 1}, "n": None}, {"k": {"x": 1}, "n": None}),
        ({"type": "record", "name": "Empty", "fields": []}, {}, "{}"),
    ],
)
def test_values_come_out_as_their_types(kind: Any, value: Any, then: Any) -> None:
    assert _codec(kind).decode(_encoded(kind, value)) == {"f": then}


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("string", b"", "not of this schema"),
        ("string", b"\x08ab", "not of this schema"),
        ("string", b"\x02\xff", "not of this schema"),
        ("long", b"\x02\x02", "1 bytes follow"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x" * 10, "not of this schema"),
        (ENUM, b"\x06", "not of this schema"),
        (["null", "int"], b"\x08\x02", "not of this schema"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x7f\x02", "not of this schema"),
        (_logical("int", "date"), b"\xfe\xff\xff\xff\x0f", "years 1 to 9999"),
        (_logical("long", "timestamp-millis"), b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "years 1 to 9999"),
        (_logical("int", "time-millis"), b"\x01", "no time of a day"),
        (_logical("bytes", "decimal", precision=2), b"\x04\x7f\xff", "cannot hold"),
    ],
)
def test_what_does_not_fit_has_a_reason(kind: Any, value: bytes, reason: str) -> None:
    with pytest.raises(Misfit, match=reason):
        _codec(kind).decode(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ('"string"', "not one record"),
        ('["null", "string"]', "not one record"),
        ('{"type": "record", "name": "R"}', "no fields"),
        ('{"type": "record", "name": "R", "fields": []}', "no fields"),
        (json.dumps(_schema("nonsense")), "no Avro schema"),
        (json.dumps(_schema("R")), "holds itself"),
        (json.dumps(_schema(["null", {"type": "array", "items": "R"}])), "holds itself"),
        (json.dumps(_schema({"type": "array", "items": "null"})), "take no bytes"),
        (
            json.dumps(_schema({"type": "array", "items": {"type": "record", "name": "E", "fields": []}})),
            "take no bytes",
        ),
        (json.dumps(_schema(["int", "long", "string"])), "two sizes of one number"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        AvroCodec(text)


def test_a_named_type_may_be_used_in_many_places() -> None:
    fields = [{"name": "a", "type": INNER}, {"name": "b", "type": ["null", "Inner"]}]
    schema = {"type": "record", "name": "R", "namespace": "shop", "fields": fields}
    codec = AvroCodec(json.dumps(schema))
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), {"a": {"x": 1}, "b": {"x": 2}})
    assert codec.decode(target.getvalue()) == {"a": {"x": 1}, "b": {"x": 2}}
