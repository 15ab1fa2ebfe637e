"""Schemas and values of all three languages for the tests of typed columns."""

import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro
from google.protobuf import message_factory

from headrace.tables.typed.proto_files import message_descriptor

SCHEMA = "headrace.table.schema"
TYPE = "headrace.table.schema.type"
MESSAGE = "headrace.table.schema.message"
FRAMING = "headrace.table.schema.framing"

ORDER_JSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": ["string", "null"]},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "attributes": {"type": "object", "additionalProperties": {"type": "integer"}},
        "offset": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        "at": {"type": "string", "format": "date-time"},
    },
    "required": ["id"],
}

ORDER_AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "price", "type": ["null", "double"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "attributes", "type": {"type": "map", "values": "long"}},
        {
            "name": "offset",
            "type": ["null", {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "long"}]}],
        },
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}

ORDER_PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";

message Place { int64 x = 1; }

message Order {
  int64 id = 1;
  optional string name = 2;
  optional double price = 3;
  repeated string tags = 4;
  map<string, int64> attributes = 5;
  Place offset = 6;
  google.protobuf.Timestamp at = 7;
}
"""

CONFIGS: Mapping[str, dict[str, str]] = {
    "json": {SCHEMA: json.dumps(ORDER_JSON)},
    "avro": {SCHEMA: json.dumps(ORDER_AVRO), TYPE: "avro"},
    "protobuf": {SCHEMA: ORDER_PROTO, TYPE: "protobuf", MESSAGE: "Order"},
}
"""A topic's configs, by the language of its schema; all three become the same columns but for what must be there."""


def orders(count: int) -> list[dict[str, Any]]:
    """Return orders, each a little different."""
    return [
        {
            "id": n,
            "name": None if n % 3 == 0 else f"order {n}",
            "price": n / 4,
            "tags": [f"tag{k}" for k in range(n % 4)],
            "attributes": {f"a{k}": k * n for k in range(n % 3)},
            "offset": None if n % 5 == 0 else {"x": -n},
            "at": 1_700_000_000_000_000 + n * 1_000_001,
        }
        for n in range(count)
    ]


def encoded(order: Mapping[str, Any], language: str) -> bytes:
    """Return an order as a producer of that language sends it."""
    return {"json": _as_json, "avro": _as_avro, "protobuf": _as_protobuf}[language](order)


def _as_json(order: Mapping[str, Any]) -> bytes:
    seconds, micros = divmod(order["at"], 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    told = {name: value for name, value in order.items() if value is not None}
    assert days == 19_675, "the orders are all of one day"
    hour, minute, second = seconds // 3600, seconds // 60 % 60, seconds % 60
    told["at"] = f"2023-11-14T{hour:02d}:{minute:02d}:{second:02d}.{micros:06d}Z"
    return json.dumps(told).encode()


def _as_avro(order: Mapping[str, Any]) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, _AVRO, dict(order))
    return target.getvalue()


def _as_protobuf(order: Mapping[str, Any]) -> bytes:
    message = _PROTO(id=order["id"], tags=order["tags"], attributes=order["attributes"], price=order["price"])
    if order["name"] is not None:
        message.name = order["name"]
    if order["offset"] is not None:
        message.offset.x = order["offset"]["x"]
    message.at.seconds, micros = divmod(order["at"], 1_000_000)
    message.at.nanos = micros * 1000
    data: bytes = message.SerializeToString()
    return data


_AVRO = fastavro.parse_schema(ORDER_AVRO)
_PROTO = message_factory.GetMessageClass(message_descriptor(ORDER_PROTO, "Order"))
