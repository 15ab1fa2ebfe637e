"""Protobuf: what becomes of each type of proto2 and proto3, and what does not fit."""

from typing import Any

import pytest
from google.protobuf import message_factory

from headrace.tables.typed.codec import Misfit
from headrace.tables.typed.model import FieldType, InvalidSchema
from headrace.tables.typed.proto_files import message_descriptor
from headrace.tables.typed.protobuf import ProtobufCodec

IMPORTS = "".join(
    f'import "google/protobuf/{name}.proto";\n'
    for name in ("timestamp", "duration", "wrappers", "struct", "any", "empty", "field_mask")
)
HEAD = f'syntax = "proto3";\npackage shop;\n{IMPORTS}'
OTHERS = "enum Kind { UNKNOWN = 0; GOOD = 1; } message Inner { int32 x = 1; } message Empty {}"


def _text(fields: str) -> str:
    return f"{HEAD}message M {{ {fields} }}\n{OTHERS}"


def _codec(fields: str) -> ProtobufCodec:
    return ProtobufCodec(_text(fields), "M")


def _message(fields: str) -> Any:
    return message_factory.GetMessageClass(message_descriptor(_text(fields), "M"))()


@pytest.mark.parametrize(
    ("declared", "told", "is_required"),
    [
        ("int32", "int", True),
        ("sint32", "int", True),
        ("sfixed32", "int", True),
        ("uint32", "long", True),
        ("fixed32", "long", True),
        ("int64", "long", True),
        ("uint64", "decimal(20, 0)", True),
        ("fixed64", "decimal(20, 0)", True),
        ("float", "float", True),
        ("double", "double", True),
        ("bool", "boolean", True),
        ("string", "string", True),
        ("bytes", "binary", True),
        ("optional int32", "int", False),
        ("repeated int32", "list", True),
        ("map<string, Inner>", "map", True),
        ("Kind", "string", True),
        ("Inner", "struct", False),
        ("shop.Inner", "struct", False),
        (".shop.Inner", "struct", False),
        ("Empty", "string", False),
        ("google.protobuf.Timestamp", "timestamptz", False),
        ("google.protobuf.Duration", "long", False),
        ("google.protobuf.Int64Value", "long", False),
        ("google.protobuf.UInt64Value", "decimal(20, 0)", False),
        ("google.protobuf.StringValue", "string", False),
        ("google.protobuf.Struct", "string", False),
        ("google.protobuf.FieldMask", "string", False),
        ("google.protobuf.Empty", "string", False),
        ("google.protobuf.Any", "struct", False),
    ],
)
def test_every_type_becomes_a_column(declared: str, told: str, is_required: bool) -> None:
    field = _codec(f"{declared} f = 1;").struct.fields[0]
    assert (str(field.type), field.required) == (told, is_required)


def test_values_come_out_as_their_types() -> None:
    fields = """
        int32 a = 1; optional string b = 2; repeated Inner c = 3; map<int32, Inner> d = 4; Kind e = 5; Kind f = 6;
        google.protobuf.Timestamp g = 7; google.protobuf.Duration h = 8; google.protobuf.BoolValue i = 9;
        google.protobuf.Struct j = 10; oneof k { string l = 11; int32 m = 12; } uint64 n = 13; Empty o = 14;
    """
    message = _message(fields)
    message.a, message.e, message.f, message.n, message.m = -1, 1, 7, 2**64 - 1, 0
    message.c.add(x=5)
    message.d[3].x = 6
    message.g.seconds, message.g.nanos = 1, 2999
    message.h.seconds = -1
    message.i.value = False
    message.j.update({"k": [1, None]})
    message.o.SetInParent()
    assert _codec(fields).decode(message.SerializeToString()) == {
        "a": -1,
        "c": [{"x": 5}],
        "d": [(3, {"x": 6})],
        "e": "GOOD",
        "f": "7",
        "g": 1_000_002,
        "h": -1_000_000,
        "i": False,
        "j": '{"k": [1.0, null]}',
        "m": 0,
        "n": 2**64 - 1,
        "o": "{}",
    }


def test_a_message_of_no_bytes_holds_the_defaults() -> None:
    assert _codec("int32 a = 1; optional int32 b = 2; repeated int32 c = 3;").decode(b"") == {"a": 0, "c": []}


def test_fields_of_a_later_schema_are_left_out() -> None:
    message = _message("int32 a = 1; string b = 2;")
    message.a, message.b = 1, "new"
    assert _codec("int32 a = 1;").decode(message.SerializeToString()) == {"a": 1}


def test_proto2_has_presence_and_must_have_what_is_required() -> None:
    text = "message M { required int32 a = 1; optional int32 b = 2; }"
    codec = ProtobufCodec(text, "")
    assert [field.required for field in codec.struct.fields] == [True, False]
    assert codec.decode(b"\x08\x05") == {"a": 5}
    with pytest.raises(Misfit, match="required fields are missing: a"):
        codec.decode(b"\x10\x05")


@pytest.mark.parametrize(
    "value",
    [b"\xff", b"\x08", b"\x12\x05ab", b"\x12\x02\xff\xfe", b"\x1a\xff\xff\xff\xff\x0f", b"\x0b" * 200, b"\x03"],
)
def test_what_is_no_message_does_not_fit(value: bytes) -> None:
    with pytest.raises(Misfit, match="not a message of this schema"):
        _codec("int32 a = 1; string b = 2; Inner c = 3;").decode(value)


def test_a_time_outside_of_the_calendar_does_not_fit() -> None:
    message = _message("google.protobuf.Timestamp t = 1;")
    message.t.seconds = 2**62
    with pytest.raises(Misfit, match="years 1 to 9999"):
        _codec("google.protobuf.Timestamp t = 1;").decode(message.SerializeToString())


@pytest.mark.parametrize("fields", ["M m = 1;", "repeated M m = 1;", "map<string, M> m = 1;", "oneof o { M m = 1; }"])
def test_a_message_that_holds_itself_is_refused(fields: str) -> None:
    with pytest.raises(InvalidSchema, match="holds itself"):
        _codec(fields)


def test_a_message_without_fields_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="no fields"):
        ProtobufCodec(_text("int32 a = 1;"), "Empty")


def test_the_struct_of_a_nested_message_is_whole() -> None:
    found: FieldType = _codec("Inner a = 1; repeated Inner b = 2;").struct
    assert [field.name for field in found.fields] == ["a", "b"]


def test_a_field_that_hides_a_call_of_protobuf_is_refused_and_others_are_fields_like_any() -> None:
    with pytest.raises(InvalidSchema, match="a field called HasField"):
        _codec("optional int32 HasField = 1;")
    assert _codec("int32 Clear = 1; optional int32 from = 2;").decode(b"\x08\x05") == {"Clear": 5}
