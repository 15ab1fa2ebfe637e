"""Targets for a fuzzer: arbitrary bytes into every reader of Kafka's messages; and random messages to start from.

Each target takes any bytes and returns; it raises only when it has found a bug. A `WireError` is an answer, every
other exception is not, and neither is a message that does not survive being written and read again.
"""

from functools import cache
from typing import Any

from headrace.runtime.rng import Rng, seeded_rng
from headrace.wire.compiler import read_message, reader, write_message
from headrace.wire.errors import WireError
from headrace.wire.headers import encode_request, parse_request
from headrace.wire.messages import Message, default_of, message_class
from headrace.wire.schema import FIXED_FORMATS, Field, MessageSchema, apis, message_schemas

SIZE_BYTES = 4
MAX_ELEMENTS = 4
LONG_STRING = "ü" * 150
_INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16, "uint32": 32}


def fuzz_request(data: bytes) -> None:
    """Read bytes as a request with its header, as they would come from a socket."""
    try:
        header, request = parse_request(memoryview(data))
    except WireError:
        return
    name = f"{apis()[header.request_api_key].name}Request"
    check_stable(name, header.request_api_version, request)


def fuzz_message(data: bytes) -> None:
    """Read bytes as the message that their first two bytes choose."""
    choices = all_messages()
    name, version = choices[int.from_bytes(data[:2]) % len(choices)]
    try:
        message = reader(name, version)(memoryview(data)[2:])
    except WireError:
        return
    check_stable(name, version, message)


def check_stable(name: str, version: int, message: Any) -> None:
    """Check that a message that was read can be written, and reads the same again."""
    written = write_message(name, version, message)
    again = read_message(name, version, written)
    # NaN differs from itself; bytes do not.
    assert write_message(name, version, again) == written, f"{name} v{version} changes when it is read again"


@cache
def all_messages() -> list[tuple[str, int]]:
    """Return the name and version of every request and response."""
    return [
        (name, version)
        for name, schema in message_schemas().items()
        if not schema.is_header
        for version in range(schema.versions[0], schema.versions[1] + 1)
    ]


def request_seeds() -> list[bytes]:
    """Return one random request per API and version, for `fuzz_request` to start from."""
    seeds = []
    for api in apis().values():
        for version in range(api.versions[0], api.versions[1] + 1):
            request = random_message(f"{api.name}Request", version, seeded_rng(version))
            seeds.append(encode_request(api.key, version, 7, "client", request)[SIZE_BYTES:])
    return seeds


def message_seeds() -> list[bytes]:
    """Return one random message of every kind and version, for `fuzz_message` to start from."""
    seeds = []
    for number, (name, version) in enumerate(all_messages()):
        message = random_message(name, version, seeded_rng(number))
        seeds.append(number.to_bytes(2) + write_message(name, version, message))
    return seeds


def random_message(name: str, version: int, rng: Rng, *, max_number: int | None = None) -> Message:
    """Return a message in which every field that this version has is a random one.

    Numbers use the whole range of their type and its ends, or lie between 0 and `max_number`.
    """
    schema = message_schemas()[name]
    return _Maker(schema, version, rng, max_number).struct(schema.fields, message_class(name))


class _Maker:
    def __init__(self, schema: MessageSchema, version: int, rng: Rng, max_number: int | None) -> None:
        self._max_number = max_number
        self._schema = schema
        self._version = version
        self._rng = rng
        self._message = message_class(schema.name)

    def struct(self, fields: tuple[Field, ...], made: type[Message]) -> Message:
        return made(**{field.attribute: self._field(field) for field in fields if field.is_in(self._version)})

    def _field(self, field: Field) -> Any:
        if field.is_nullable_in(self._version) and self._below(4) == 0:
            return None
        if field.tag is not None and self._below(2) == 0:
            return default_of(field, vars(self._message))
        if field.is_array:
            return [self._value(field.element) for _ in range(self._below(MAX_ELEMENTS))]
        return self._value(field.type)

    def _value(self, kind: str) -> Any:
        if kind in _INTEGER_BITS:
            return self._integer(kind)
        if kind == "bool":
            return self._below(2) == 1
        if kind == "float64":
            return self._rng.uniform(-1e9, 1e9)
        if kind == "uuid":
            return self._bytes(16)
        if kind == "string":
            return ("", "topic", "a-group.é", LONG_STRING)[self._below(4)]
        if kind == "bytes":
            return self._bytes(self._below(200))
        if kind == "records":
            return memoryview(self._bytes(self._below(300)))
        assert kind not in FIXED_FORMATS, kind
        return self.struct(self._schema.structs[kind], getattr(self._message, kind))

    def _integer(self, kind: str) -> int:
        if self._max_number is not None:
            return self._below(self._max_number + 1)
        bits = _INTEGER_BITS[kind]
        low = 0 if kind.startswith("u") else -(1 << bits - 1)
        choices = (0, 1, low, low + (1 << bits) - 1, low + self._rng.getrandbits(bits))
        return choices[self._below(len(choices))]

    def _bytes(self, count: int) -> bytes:
        return self._rng.getrandbits(8 * count).to_bytes(count) if count else b""

    def _below(self, end: int) -> int:
        return self._rng.randrange(0, end)
