"""kafka-python writes the same bytes for the same messages, and sees in ours what we put there.

Its definitions begin at version 0 of nearly everything, so it is the witness for what Apache Kafka 4 has dropped.
"""

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from headrace.runtime.rng import seeded_rng
from headrace.testing.fuzz_wire import random_message
from headrace.wire.compiler import read_message, write_message
from headrace.wire.messages import default_of, message_class
from headrace.wire.schema import Field, MessageSchema, message_schemas

SEEDS = 5


@cache
def their_classes() -> dict[str, Any]:
    base = their_module("api_message").ApiMessage
    for package in ("admin", "consumer", "metadata", "producer"):
        for module in pkgutil.iter_modules(their_module(package).__path__):
            their_module(f"{package}.{module.name}")
    their_module("sasl")
    return {made.__name__: made for made in _below(base) if getattr(made, "_json", None)}


def their_module(name: str) -> Any:
    with warnings.catch_warnings():
        # It reads its definitions in a way that Python means to drop.
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(f"kafka.protocol.{name}")


def _below(base: Any) -> Iterator[Any]:
    for made in base.__subclasses__():
        yield made
        yield from _below(made)


class Twin:
    """Turns our messages into theirs and back, field by field in the order of the definitions."""

    def __init__(self, schema: MessageSchema, version: int) -> None:
        self._schema = schema
        self._version = version
        self._ours = message_class(schema.name)

    def theirs(self, message: Any) -> Any:
        return self._struct(self._schema.fields, message, their_classes()[self._schema.name])

    def _pairs(self, fields: tuple[Field, ...], theirs: Any) -> list[tuple[Field, Any]]:
        ours = [field for field in fields if field.is_in(self._version)]
        their_fields = [field for field in theirs._struct.fields.values() if field.for_version_q(self._version)]
        return list(zip(ours, their_fields, strict=True))

    def _struct(self, fields: tuple[Field, ...], message: Any, made: Any) -> Any:
        values = {}
        for ours, theirs in self._pairs(fields, made):
            value = getattr(message, ours.attribute)
            if ours.tag is None or value != default_of(ours, vars(self._ours)):
                values[theirs.name] = self._value(ours, theirs, value)
        return made(version=self._version, **values)

    def _value(self, ours: Field, theirs: Any, value: Any) -> Any:
        if value is None:
            return None
        if ours.is_array:
            return [self._one(ours, theirs, one) for one in value]
        return self._one(ours, theirs, value)

    def _one(self, ours: Field, theirs: Any, value: Any) -> Any:
        if ours.element in self._schema.structs:
            return self._struct(self._schema.structs[ours.element], value, theirs.data_class)
        if ours.element == "uuid":
            return UUID(bytes=value)
        if is_bit_field(theirs):
            return bits_of(value)
        return bytes(value) if ours.element == "records" else value

    def assert_same(self, fields: tuple[Field, ...], message: Any, other: Any) -> None:
        for ours, theirs in self._pairs(fields, type(other)):
            left, right = getattr(message, ours.attribute), getattr(other, theirs.name)
            if left is None or right is None or not ours.is_array:
                pairs = [(left, right)]
            else:
                pairs = list(zip(left, right, strict=True))
            for one, their_one in pairs:
                if ours.element in self._schema.structs and one is not None and their_one is not None:
                    self.assert_same(self._schema.structs[ours.element], one, their_one)
                elif ours.tag is not None and their_one is None:
                    assert one == default_of(ours, vars(self._ours)), ours.name
                else:
                    plain = number_of(their_one) if is_bit_field(theirs) else their_one
                    assert (plain.bytes if isinstance(plain, UUID) else plain) == one, ours.name


def is_bit_field(theirs: Any) -> bool:
    """Tell whether kafka-python shows a number as the set of its bits."""
    return getattr(getattr(theirs, "_type", None), "__name__", "") == "BitField"


def bits_of(number: int) -> set[int]:
    return {bit for bit in range(32) if number >> bit & 1}


def number_of(bits: set[int] | None) -> int:
    """Return the number that has these bits; None stands for bit 31 alone."""
    number = sum(1 << bit for bit in ({31} if bits is None else bits))
    return number - (1 << 32) if number >> 31 else number


COMMON = [name for name in message_schemas() if name in their_classes()]


@pytest.mark.parametrize("name", COMMON)
def test_kafka_python_writes_the_same_bytes_and_reads_the_same_values(name: str) -> None:
    schema = message_schemas()[name]
    for version in range(schema.versions[0], schema.versions[1] + 1):
        twin = Twin(schema, version)
        for seed in range(SEEDS):
            message = random_message(name, version, seeded_rng(f"{name} {version} {seed}"))
            if name == "ApiVersionsResponse":
                # With an error, kafka-python takes it for version 0.
                message = replace(message, error_code=0)
            written = write_message(name, version, message)
            assert bytes(twin.theirs(message).encode(version=version)) == written, (version, seed)
            twin.assert_same(schema.fields, message, their_classes()[name].decode(written, version=version))
            assert read_message(name, version, written) == message
