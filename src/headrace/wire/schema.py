"""A typed view of the table of facts about Kafka's messages.

The table is `messages.json`; tools/extract_messages.py writes it. Version ranges include both ends; a field without
a range is in every version of its message.
"""

import re
from functools import cache
from importlib import resources
from typing import Any

import msgspec

Versions = tuple[int, int]

# What a fixed-size type is to `struct`. A uuid is its 16 bytes, so that it costs no more than a number.
FIXED_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
UUID_BYTES = 16
FIXED_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": UUID_BYTES,
}


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a message or of a struct in it."""

    name: str
    type: str
    versions: Versions | None = None
    nullable: Versions | None = None
    tag: int | None = None
    # UNSET: the type's own zero, empty or null.
    default: Any = msgspec.UNSET
    # Written in the old encoding even in flexible versions (the client id of a request header).
    rigid: bool = False
    # A version without this field may drop its value.
    ignorable: bool = False
    fields: tuple["Field", ...] = ()

    @property
    def attribute(self) -> str:
        """Return the name of this field in Python."""
        return snake_case(self.name)

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")

    @property
    def element(self) -> str:
        """Return the type of one element, or of the field if it is no array."""
        return self.type.removeprefix("[]")

    def is_in(self, version: int) -> bool:
        """Tell whether this version has the field at all."""
        return self.versions is None or self.versions[0] <= version <= self.versions[1]

    def is_nullable_in(self, version: int) -> bool:
        return self.nullable is not None and self.nullable[0] <= version <= self.nullable[1]


class StructFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A struct that several fields of one message share."""

    name: str
    fields: tuple[Field, ...]


class MessageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request or a response, as the table has it."""

    fields: tuple[Field, ...]
    structs: tuple[StructFacts, ...] = ()


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """An API: its key, the versions in the table, and both of its messages."""

    key: int
    name: str
    versions: Versions
    request: MessageFacts
    response: MessageFacts
    # The first version with compact lengths and tagged fields; None: no version has them.
    flexible: int | None = None

    def is_flexible_in(self, version: int) -> bool:
        return self.flexible is not None and version >= self.flexible


class HeaderFacts(MessageFacts, frozen=True, kw_only=True):
    """The header of requests or of responses."""

    name: str
    versions: Versions
    flexible: int


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known."""

    apis: tuple[Api, ...]
    headers: tuple[HeaderFacts, ...]


class MessageSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A message with everything that its reader, its writer and its class are made from."""

    name: str
    versions: Versions
    flexible: int | None
    fields: tuple[Field, ...]
    # Every struct of the message by name, inner ones before those that hold them.
    structs: dict[str, tuple[Field, ...]]
    is_header: bool = False

    def is_flexible_in(self, version: int) -> bool:
        return self.flexible is not None and version >= self.flexible


@cache
def table() -> Table:
    """Return the table, read once."""
    content = resources.files(__package__).joinpath("messages.json").read_bytes()
    return msgspec.json.decode(content, type=Table)


@cache
def apis() -> dict[int, Api]:
    """Return the APIs by key."""
    return {api.key: api for api in table().apis}


@cache
def message_schemas() -> dict[str, MessageSchema]:
    """Return every message by the name that Kafka gives it, like `FetchResponse`."""
    schemas = {}
    for api in table().apis:
        for name, facts in ((f"{api.name}Request", api.request), (f"{api.name}Response", api.response)):
            schemas[name] = MessageSchema(
                name=name,
                versions=api.versions,
                flexible=api.flexible,
                fields=facts.fields,
                structs=_structs(facts),
            )
    for header in table().headers:
        schemas[header.name] = MessageSchema(
            name=header.name,
            versions=header.versions,
            flexible=header.flexible,
            fields=header.fields,
            structs={},
            is_header=True,
        )
    return schemas


def snake_case(name: str) -> str:
    """Turn `ThrottleTimeMs` into `throttle_time_ms`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _structs(facts: MessageFacts) -> dict[str, tuple[Field, ...]]:
    structs: dict[str, tuple[Field, ...]] = {}

    def walk(fields: tuple[Field, ...]) -> None:
        for field in fields:
            if field.fields:
                walk(field.fields)
                assert structs.get(field.element, field.fields) == field.fields, f"two structs are {field.element}"
                structs[field.element] = field.fields

    # A shared struct may hold another one: the order of the table says only that they belong to the message.
    waiting = list(facts.structs)
    while waiting:
        struct = next(s for s in waiting if not {field.element for field in s.fields} & {w.name for w in waiting})
        walk(struct.fields)
        structs[struct.name] = struct.fields
        waiting.remove(struct)
    walk(facts.fields)
    return structs
