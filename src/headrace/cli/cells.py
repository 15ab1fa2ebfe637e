"""Values from tables as people and programs read them: bytes as text where they are text, else as hexadecimals."""

import datetime
import decimal
from collections.abc import Mapping

HEX = "0x"

_CONTROLS = frozenset(map(chr, [*range(32), 127])) - frozenset("\t\n\r\x1b")
"""No text has these; an escape sequence is text, and harmless by the time it is printed."""


def plain(value: object) -> object:
    """Return a value as JSON can hold it: bytes and times become text, lists and structs keep their shape."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return as_text(bytes(value))
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    as_dict = getattr(value, "asDict", None)  # A struct of Spark is a tuple that knows its names.
    if as_dict is not None:
        value = as_dict()
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return str(value)


def as_text(value: bytes) -> str:
    """Return bytes as text if they are UTF-8 without control characters, else as hexadecimals after `0x`."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return HEX + value.hex()
    return HEX + value.hex() if _CONTROLS & set(text) else text


def cell(value: object) -> str:
    """Return a value for a table that people read; null is empty, headers read `name=value`."""
    value = plain(value)
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(_header(inner) or cell(inner) for inner in value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {cell(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _header(value: object) -> str:
    if isinstance(value, dict) and set(value) == {"key", "value"}:
        return f"{cell(value['key'])}={cell(value['value'])}"
    return ""
