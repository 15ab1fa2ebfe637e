"""The classes of the messages, one per message and one per struct inside, shared by all versions.

`messages.FetchResponse` is made from the table at first use; its structs hang on it: `FetchResponse.PartitionData`.
Construct them by keyword: what is left out has Kafka's default. A uuid is its 16 bytes; records are a memoryview when
read, and any buffer of bytes or a list of such when written. `messages.pyi` tells type checkers all of this.

The classes are outside the garbage collector's view: a message never refers back to what holds it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.wire.schema import Field, message_schemas

Buffer = bytes | bytearray | memoryview
Records = Buffer | list[Buffer]

ZERO_UUID = bytes(16)
_ZEROS: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "uuid": ZERO_UUID,
    "bool": False,
    "float64": 0.0,
    "records": None,
}

_DEFAULT_STRUCTS: dict[type, Any] = {}


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message or a struct inside one."""


def message_class(name: str) -> type[Message]:
    """Return the class of a message by Kafka's name for it; raises AttributeError if the table has none."""
    found: type[Message] | None = globals().get(name)
    if found is None:
        found = globals()[name] = _make(name)
    return found


def __getattr__(name: str) -> type[Message]:
    return message_class(name)


def _make(name: str) -> type[Message]:
    schema = message_schemas().get(name)
    if schema is None:
        raise AttributeError(f"the table has no message {name}")
    structs: dict[str, Any] = {}
    for struct, fields in schema.structs.items():
        structs[struct] = _define(struct, fields, structs, {})
    return _define(name, schema.fields, structs, structs)


def _define(
    name: str, fields: tuple[Field, ...], structs: dict[str, Any], namespace: dict[str, Any]
) -> type[Message]:
    described = [(field.attribute, Any, default_of(field, structs)) for field in fields]
    made: type[Message] = msgspec.defstruct(
        name, described, bases=(Message,), module=__name__, namespace=dict(namespace), frozen=True, gc=False
    )
    return made


def default_of(field: Field, structs: Mapping[str, Any]) -> Any:
    """Return the value of a field that nobody set."""
    if field.default is not msgspec.UNSET:
        return field.default
    if field.is_array:
        return []
    if field.type in structs:
        # One default for all, so that writers know most of them by identity.
        return _DEFAULT_STRUCTS.setdefault(structs[field.type], structs[field.type]())
    return _ZEROS.get(field.type, 0)
