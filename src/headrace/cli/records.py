"""Records as commands see them, and as a line of JSON.

What `consume --json` prints, `produce --json` takes: piping one into the other copies a topic. Bytes that are UTF-8
are written as text, others as base64, and then the field's neighbour `..._encoding` says so.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from headrace.errors import Invalid

BASE64 = "base64"
MAX_PARTITION = 2**31 - 1
MAX_TIMESTAMP_MS = 2**63 - 1
MAX_SHOWN_CHARS = 100

FIELDS_TAKEN = ("key", "value", "key_encoding", "value_encoding", "headers", "partition", "timestamp")
FIELDS_IGNORED = ("topic", "offset", "timestamp_type")
"""What `consume` adds: where a record was says nothing about where it goes."""

Header: TypeAlias = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A record to be produced. Without a partition the client chooses one; without a timestamp it is now."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A record that was consumed. `timestamp_ms` is None where the log has none."""

    topic: str
    partition: int
    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
    timestamp_type: str | None = None


def to_json(record: Incoming) -> bytes:
    """Write a record as one line of JSON, without the line break."""
    data: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestamp_type": record.timestamp_type,
        "headers": [{"key": name, **_as_fields("value", value)} for name, value in record.headers],
        **_as_fields("key", record.key),
        **_as_fields("value", record.value),
    }
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def from_json(line: bytes) -> Outgoing:
    """Read a record from one line of JSON. Raises `Invalid` and says what is wrong with it."""
    try:
        data = json.loads(line.decode())
    except ValueError as error:
        raise Invalid(f"not JSON: {error}") from error
    fields = _fields(data, "a record", FIELDS_TAKEN + FIELDS_IGNORED)
    if "value" not in fields:
        raise Invalid('a record has no "value"; null makes it a tombstone')
    return Outgoing(
        value=_as_bytes(fields, "value"),
        key=_as_bytes(fields, "key"),
        headers=_headers(fields.get("headers")),
        partition=_whole_number(fields, "partition", MAX_PARTITION),
        timestamp_ms=_whole_number(fields, "timestamp", MAX_TIMESTAMP_MS),
    )


def _as_fields(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(value).decode(), f"{name}_encoding": BASE64}


def _fields(data: object, what: str, known: tuple[str, ...]) -> Mapping[str, object]:
    if not isinstance(data, dict):
        raise Invalid(f"{what} is {_shown(data)}, not a JSON object")
    for name in data:
        if name not in known:
            raise Invalid(f"{what} has no field {_shown(name)}; it takes {', '.join(known)}")
    return data


def _as_bytes(fields: Mapping[str, object], name: str) -> bytes | None:
    value = fields.get(name)
    encoding = fields.get(f"{name}_encoding")
    if encoding not in (None, BASE64):
        raise Invalid(f'"{name}_encoding" is {_shown(encoding)}; only "{BASE64}" is known')
    if value is None:
        return None
    if encoding == BASE64:
        return _from_base64(name, value)
    # A value that is itself JSON is sent as its text: that is what readers of a JSON topic expect.
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f'"{name}" holds half of a surrogate pair, which is no character; send it as base64') from error


def _from_base64(name: str, value: object) -> bytes:
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise Invalid(f'"{name}" is {_shown(value)}, which is not base64')


def _headers(data: object) -> tuple[Header, ...]:
    """Read headers: an object, or a list of `{"key", "value"}`, which keeps the order and doubles."""
    if data is None:
        return ()
    if isinstance(data, dict):
        return tuple((_header_name(name), _as_bytes({"value": value}, "value")) for name, value in data.items())
    if not isinstance(data, list):
        raise Invalid(f'"headers" is {_shown(data)}; it takes an object, or a list of {{"key", "value"}}')
    return tuple(_header(item) for item in data)


def _header(data: object) -> Header:
    fields = _fields(data, "a header", ("key", "value", "value_encoding"))
    return _header_name(fields.get("key")), _as_bytes(fields, "value")


def _header_name(name: object) -> str:
    # librdkafka takes the name as a C string: what follows a zero would be lost without a word.
    if not isinstance(name, str) or "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise Invalid(f"{_shown(name)} cannot name a header: it takes text without zero bytes and half surrogates")
    return name


def _whole_number(fields: Mapping[str, object], name: str, highest: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= highest:
        raise Invalid(f'"{name}" is {_shown(value)}, not a whole number from 0 to {highest}')
    return value


def _shown(data: object) -> str:
    text = json.dumps(data)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
