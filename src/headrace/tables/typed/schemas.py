"""The schema of a topic's values: its text, its language, and how values are framed; made ready for use once.

    json       a JSON Schema; values are JSON texts
    avro       an Avro schema; values are single datums in Avro's binary form
    protobuf   a .proto file; values are messages

    framing none        a value is that and nothing else
    framing confluent   in front of it stand a zero byte and the four bytes of a registry's schema id, and in front of
                        a protobuf message its place in its file: they are skipped, the topic's own schema decides

Must stay true: the same source makes the same struct everywhere, on the broker that checks it and on the executor
that decodes with it. The libraries are loaded with the first schema of a language, not before.
"""

import hashlib
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import msgspec

from headrace.tables.typed.codec import Codec, Misfit
from headrace.tables.typed.model import MAX_SCHEMA_CHARS, FieldType, InvalidSchema, nullable

REMEMBERED_SCHEMAS: Final = 64
"""How many schemas stay ready for use in one process."""

VERSION_CHARS: Final = 16
CONFLUENT_HEAD_BYTES: Final = 5
MAX_INDEX_STEPS: Final = 32
REGISTRY_HINT: Final = (
    "it begins with a zero byte: if producers use a schema registry, set headrace.table.schema.framing=confluent"
)


class SchemaType(StrEnum):
    """The language of a schema."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Framing(StrEnum):
    """What stands in front of each value."""

    NONE = "none"
    CONFLUENT = "confluent"


class SchemaSource(msgspec.Struct, frozen=True):
    """A schema as it was given. `message` names one of a .proto file's messages."""

    text: str
    type: SchemaType = SchemaType.JSON
    message: str = ""
    framing: Framing = Framing.NONE

    @property
    def version(self) -> str:
        """A short name that changes with every change of the schema: dead letters say by it what they did not fit."""
        described = "\0".join((self.type, self.framing, self.message, self.text))
        return hashlib.sha256(described.encode("utf-8", "surrogatepass")).hexdigest()[:VERSION_CHARS]


class ReadySchema:
    """A schema that values are decoded with."""

    def __init__(self, codec: Codec, framing: Framing, index: list[int] | None) -> None:
        # A row that does not fit has none of its fields. Iceberg allows required fields in a struct that is null, but
        # PyIceberg 0.12 cannot put files with and without such a struct together: so nothing is required in a table.
        self.struct: FieldType = nullable(codec.struct)
        self._framing = framing
        self._index = index
        self.decode: Callable[[bytes], dict[str, Any]] = codec.decode
        """Returns a value's fields; raises `Misfit`."""
        if framing is Framing.CONFLUENT:
            self.decode = lambda value: codec.decode(self._unframed(value))

    def reason(self, value: bytes, misfit: Misfit) -> str:
        """Return why a value does not fit, with what to do if it looks as a registry's serialisers write it."""
        if self._framing is Framing.NONE and len(value) > CONFLUENT_HEAD_BYTES and value[0] == 0:
            return str(Misfit(f"{REGISTRY_HINT}; {misfit}"))
        return str(misfit)

    def _unframed(self, value: bytes) -> bytes:
        if len(value) < CONFLUENT_HEAD_BYTES or value[0] != 0:
            raise Misfit("it does not begin with a zero byte and a schema id, as headrace.table.schema.framing says")
        if self._index is None:
            return value[CONFLUENT_HEAD_BYTES:]
        found, at_byte = _message_index(value)
        if found != self._index:
            raise Misfit(f"it is message {found} of its file, and the topic's is {self._index}")
        return value[at_byte:]


def ready_schema(source: SchemaSource) -> ReadySchema:
    """Make a schema ready for use. Raises `InvalidSchema`, which says what is wrong and where."""
    if len(source.text) > MAX_SCHEMA_CHARS:
        raise InvalidSchema(f"it has {len(source.text)} characters: {MAX_SCHEMA_CHARS} are allowed at most")
    return _made(source)


@lru_cache(maxsize=REMEMBERED_SCHEMAS)
def _made(source: SchemaSource) -> ReadySchema:
    # Imported late: most brokers and most topics never see one of these languages.
    if source.message and source.type is not SchemaType.PROTOBUF:
        raise InvalidSchema("headrace.table.schema.message is for protobuf: unset it")
    if source.type is SchemaType.JSON:
        from headrace.tables.typed.json_schema import JsonCodec

        return ReadySchema(JsonCodec(source.text), source.framing, None)
    if source.type is SchemaType.AVRO:
        from headrace.tables.typed.avro import AvroCodec

        return ReadySchema(AvroCodec(source.text), source.framing, None)
    from headrace.tables.typed.protobuf import ProtobufCodec

    codec = ProtobufCodec(source.text, source.message)
    return ReadySchema(codec, source.framing, codec.index)


def _message_index(value: bytes) -> tuple[list[int], int]:
    """Read a message's place in its file, and where the message begins; a single zero stands for the first one."""
    count, at_byte = _zigzag(value, CONFLUENT_HEAD_BYTES)
    if count == 0:
        return [0], at_byte
    if not 0 < count <= MAX_INDEX_STEPS:
        raise Misfit(f"it names its message in {count} steps")
    steps = []
    for _ in range(count):
        step, at_byte = _zigzag(value, at_byte)
        steps.append(step)
    return steps, at_byte


def _zigzag(value: bytes, at_byte: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if at_byte >= len(value):
            break
        byte = value[at_byte]
        at_byte += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at_byte
    raise Misfit("it ends inside of the place of its message")
