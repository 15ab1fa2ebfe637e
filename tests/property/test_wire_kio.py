"""kio, made from the same definitions by other people, sees in our bytes what we put there, and writes the same.

kio's values are narrower than the wire's (enumerated error codes, dates), so numbers stay small here; the other tests
take them to their limits.
"""

import dataclasses
import datetime
import io
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_payload_module
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from headrace.runtime.rng import seeded_rng
from headrace.testing.fuzz_wire import random_message
from headrace.wire.compiler import read_message, write_message
from headrace.wire.messages import ZERO_UUID
from headrace.wire.schema import Api, Field, MessageSchema, apis, message_schemas

SEEDS = 5
MAX_NUMBER = 100

# kio knows no versions that Apache Kafka 4 has dropped; test_wire_kafka_python.py looks at these.
FIRST_IN_KIO = {0: 3, 1: 4, 2: 1, 8: 2, 19: 2, 20: 1}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)


def kio_class(kind: str, api: Api, version: int) -> Any:
    if kind == "Request":
        return getattr(load_payload_module(api.key, version, EntityType.request), f"{api.name}Request")
    return getattr(load_payload_module(api.key, version, EntityType.response), f"{api.name}Response")


def as_ours(value: Any, ours: Any) -> Any:
    """Turn a plain value of kio's into what our reader gives; `ours` tells which of kio's Nones it is."""
    if value is None:
        return ZERO_UUID if isinstance(ours, bytes) and ours == ZERO_UUID else None if ours is None else -1
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    return value


def assert_same(schema: MessageSchema, version: int, fields: tuple[Field, ...], ours: Any, theirs: Any) -> None:
    here = [field for field in fields if field.is_in(version)]
    # kio names some fields in its own way, but keeps their order.
    for field, their_field in zip(here, dataclasses.fields(theirs), strict=True):
        left, right = getattr(ours, field.attribute), getattr(theirs, their_field.name)
        inner = schema.structs.get(field.element)
        if left is None or right is None or not field.is_array:
            pairs = [(left, right)]
        else:
            assert len(left) == len(right)
            pairs = list(zip(left, right, strict=True))
        for one, other in pairs:
            if inner is not None and one is not None:
                assert_same(schema, version, inner, one, other)
            else:
                assert as_ours(other, one) == one, field.name


def test_the_last_version_of_every_api_is_kafkas_last_stable_one() -> None:
    last_in_kio = {key: max(schema_name_map[name]) for key, name in api_key_map.items()}
    last = {api.key: api.versions[1] for api in apis().values()}
    # InitProducerId 6 is marked as unstable.
    assert {key: (version, last_in_kio[key]) for key, version in last.items() if version != last_in_kio[key]} == {
        22: (5, 6)
    }


@pytest.mark.parametrize("kind", ["Request", "Response"])
@pytest.mark.parametrize("api", apis().values(), ids=lambda api: api.name)
def test_kio_reads_what_we_write_and_writes_the_same_bytes(kind: str, api: Api) -> None:
    name = f"{api.name}{kind}"
    schema = message_schemas()[name]
    for version in range(FIRST_IN_KIO.get(api.key, api.versions[0]), api.versions[1] + 1):
        theirs = kio_class(kind, api, version)
        for seed in range(SEEDS):
            message = random_message(name, version, seeded_rng(f"{name} {version} {seed}"), max_number=MAX_NUMBER)
            written = write_message(name, version, message)
            parsed, size = entity_reader(theirs)(written, 0)
            assert size == len(written)
            assert_same(schema, version, schema.fields, message, parsed)
            target = io.BytesIO()
            entity_writer(theirs)(target, parsed)
            assert target.getvalue() == written
            assert read_message(name, version, target.getvalue()) == message
