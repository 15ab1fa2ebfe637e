"""Fuzz targets for typed columns: whatever the bytes of a value are, its row fits the columns or has a reason.

A target takes bytes and raises only if our code is wrong. `tools/fuzz.py` drives them guided by coverage, the tests
drive them with seeded mutations. The first byte chooses the schema.
"""

import json
from typing import Final

import pyarrow as pa

from headrace.tables.typed.arrow import data_field, decode_values
from headrace.tables.typed.model import InvalidSchema
from headrace.tables.typed.schemas import Framing, SchemaSource, SchemaType, ready_schema

_INNER: Final = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
_AVRO: Final = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "a", "type": ["null", "int"]},
        {"name": "b", "type": {"type": "array", "items": ["null", _INNER]}},
        {"name": "c", "type": {"type": "map", "values": "bytes"}},
        {"name": "d", "type": ["string", "long", "Inner", {"type": "fixed", "name": "Two", "size": 2}]},
        {"name": "e", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "f", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "g", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
    ],
}
_JSON: Final = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "array", "items": {"type": ["number", "null"]}},
        "c": {"type": "object", "additionalProperties": {"type": "string", "format": "date-time"}},
        "d": {},
        "e": {"type": "object", "properties": {"x.y": {"type": "boolean"}}, "required": ["x.y"]},
        "f": {"type": "string", "format": "date"},
    },
}
_PROTO: Final = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
message Value {
  int32 a = 1; optional string b = 2; repeated Inner c = 3; map<int32, Inner> d = 4; Kind e = 5;
  google.protobuf.Timestamp f = 6; google.protobuf.Struct g = 7; oneof h { bytes i = 8; uint64 j = 9; }
  enum Kind { NONE = 0; SOME = 1; }
}
message Inner { double x = 1; }
"""

SOURCES: Final = (
    SchemaSource(json.dumps(_JSON)),
    SchemaSource(json.dumps(_AVRO), SchemaType.AVRO),
    SchemaSource(_PROTO, SchemaType.PROTOBUF, "Value"),
    SchemaSource(_PROTO, SchemaType.PROTOBUF, "Value", Framing.CONFLUENT),
)


def fuzz_value(data: bytes) -> None:
    """Decode the bytes with one of the schemas, beside a value that is null."""
    if not data:
        return
    schema = ready_schema(SOURCES[data[0] % len(SOURCES)])
    kind = data_field(schema.struct, None).type
    rows, misfits = decode_values(pa.array([data[1:], None], pa.binary()), schema, kind)
    rows.validate(full=True)
    assert len(rows) == 2 and set(misfits) <= {0}, misfits
    assert rows[1].as_py() is None and rows[0].is_valid == (not misfits), misfits


def fuzz_schema(data: bytes) -> None:
    """Take the bytes for the text of a schema, in each of the languages."""
    text = data.decode("utf-8", "replace")
    for kind in SchemaType:
        try:
            schema = ready_schema(SchemaSource(text, kind))
        except InvalidSchema:
            continue
        data_field(schema.struct, None)


def value_seeds() -> list[bytes]:
    """Return values that fit, for a fuzzer to start from."""
    value = {"a": 1, "b": [1.5, None], "c": {"k": "2020-01-01T00:00:00Z"}, "d": [{}], "e": {"x.y": True}}
    as_json = json.dumps({**value, "f": "2020-02-29"}).encode()
    as_avro = b"\x02\x02\x02\x02\x0a\x00\x02\x02k\x04ab\x00\x04\x0e\x04\x00\x7d\x80\x01\x00"
    as_proto = b"\x08\x05\x12\x01s\x1a\x09\x09" + bytes(8) + b'"\x0d\x08\x01\x12\x09\x09' + bytes(8) + b"(\x01H\x07"
    return [b"\x00" + as_json, b"\x01" + as_avro, b"\x02" + as_proto, b"\x03\x00\x00\x00\x00\x01\x00" + as_proto]


def schema_seeds() -> list[bytes]:
    """Return schemas, for a fuzzer to start from."""
    return [source.text.encode() for source in SOURCES[:3]]
