"""A schema's source: its version, its framing, its limits."""

import json

import pyarrow as pa
import pytest

from headrace.tables.typed.arrow import data_field, decode_values
from headrace.tables.typed.codec import Misfit
from headrace.tables.typed.model import MAX_SCHEMA_CHARS, InvalidSchema
from headrace.tables.typed.schemas import Framing, SchemaSource, SchemaType, ready_schema

JSON = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
PROTO = 'syntax = "proto3"; message A { int32 a = 1; } message B { message C { int32 c = 1; } C c = 1; }'


def test_every_change_is_another_version() -> None:
    sources = [
        SchemaSource(JSON),
        SchemaSource(JSON + " "),
        SchemaSource(JSON, SchemaType.AVRO),
        SchemaSource(JSON, SchemaType.JSON, "M"),
        SchemaSource(JSON, SchemaType.JSON, "", Framing.CONFLUENT),
    ]
    assert len({source.version for source in sources}) == len(sources)
    assert SchemaSource(JSON).version == SchemaSource(JSON).version


def test_a_schema_is_made_ready_once() -> None:
    assert ready_schema(SchemaSource(JSON)) is ready_schema(SchemaSource(JSON))


def test_a_schema_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="32767 are allowed"):
        ready_schema(SchemaSource(JSON + " " * MAX_SCHEMA_CHARS))


def test_a_message_is_for_protobuf_alone() -> None:
    with pytest.raises(InvalidSchema, match="for protobuf: unset it"):
        ready_schema(SchemaSource(JSON, SchemaType.JSON, "M"))


def test_without_framing_a_value_is_the_value_alone() -> None:
    with pytest.raises(Misfit):
        ready_schema(SchemaSource(JSON)).decode(b"\x00\x00\x00\x00\x01" + b'{"a": 1}')


def test_confluent_framing_is_skipped_and_must_be_there() -> None:
    schema = ready_schema(SchemaSource(JSON, SchemaType.JSON, "", Framing.CONFLUENT))
    assert schema.decode(b"\x00\x00\x00\x00\x01" + b'{"a": 1}') == {"a": 1}
    for value in (b'{"a": 1}', b"", b"\x00\x00\x00", b"\x01\x00\x00\x00\x01" + b'{"a": 1}'):
        with pytest.raises(Misfit):
            schema.decode(value)


@pytest.mark.parametrize(
    ("message", "index"),
    [("A", b"\x00"), ("A", b"\x02\x00"), ("B", b"\x02\x02"), ("B.C", b"\x04\x02\x00")],
)
def test_the_place_of_a_message_is_checked(message: str, index: bytes) -> None:
    schema = ready_schema(SchemaSource(PROTO, SchemaType.PROTOBUF, message, Framing.CONFLUENT))
    head = b"\x00\x00\x00\x00\x07"
    schema.decode(head + index)
    for other in (b"\x02\x06", b"\x80", b"\xff" * 10, b"\x03", b"\x7e"):
        with pytest.raises(Misfit):
            schema.decode(head + other)


@pytest.mark.parametrize("kind", [SchemaType.JSON, SchemaType.AVRO])
def test_a_misfit_that_looks_framed_says_which_setting_to_look_at(kind: SchemaType) -> None:
    texts = {
        SchemaType.JSON: '{"type": "object", "properties": {"f": {"type": "integer"}}}',
        SchemaType.AVRO: '{"type": "record", "name": "R", "fields": [{"name": "f", "type": "int"}]}',
    }
    values = pa.array([b"\x00\x00\x00\x00\x07" + b'{"f": 1}', b"\x00", b"x"], pa.binary())
    for framing, is_told in ((Framing.NONE, True), (Framing.CONFLUENT, False)):
        schema = ready_schema(SchemaSource(texts[kind], kind, framing=framing))
        reasons = decode_values(values, schema, data_field(schema.struct, None).type)[1]
        assert ("framing=confluent" in reasons.get(0, "")) == is_told
        assert not any("framing=confluent" in reason for number, reason in reasons.items() if number)
