"""Readers and writers of one message in one version, compiled at first use and kept.

There are some 600 of them; a process that serves a few kinds of clients needs a few dozen.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, cast

from headrace.wire.errors import WireError
from headrace.wire.messages import Buffer, Message
from headrace.wire.reading import ReaderSource
from headrace.wire.schema import MessageSchema, message_schemas
from headrace.wire.writing import WriterSource

Reader = Callable[..., Any]
Writer = Callable[[Message, list[Buffer], list[int]], None]


@cache
def reader(name: str, version: int) -> Reader:
    """Return `read(view, position=0)`, which reads the message `name` up to the end of the view.

    For a header it returns (header, where the body begins). A request may be given how many elements it may have, as
    a third argument. Whatever the bytes are, it raises `WireError` only.
    """
    source = ReaderSource(_schema(name, version), version)
    return cast(Reader, _compiled(source.render(), source.names, f"<read {name} v{version}>", "read"))


@cache
def writer(name: str, version: int) -> Writer:
    """Return `write(message, out, cuts)`, which appends the message to `out` in pieces.

    `cuts` receives the places of records in `out`: these are to be sent as they are, the rest can be joined. Raises
    `WireError` if a value does not fit its field, or is set and this version has no such field.
    """
    source = WriterSource(_schema(name, version), version)
    return cast(Writer, _compiled(source.render(), source.names, f"<write {name} v{version}>", "write"))


def read_message(name: str, version: int, data: Buffer) -> Any:
    """Read a whole message."""
    return reader(name, version)(memoryview(data))


def write_message(name: str, version: int, message: Message) -> bytes:
    """Write a whole message into one piece; records are copied."""
    out: list[Buffer] = []
    writer(name, version)(message, out, [])
    return b"".join(out)


def _schema(name: str, version: int) -> MessageSchema:
    schema = message_schemas().get(name)
    if schema is None or not schema.versions[0] <= version <= schema.versions[1]:
        raise WireError(f"the table has no {name} v{version}")
    return schema


def _compiled(source: str, names: dict[str, Any], title: str, function: Literal["read", "write"]) -> object:
    namespace = dict(names)
    exec(compile(source, title, "exec"), namespace)
    return namespace[function]
