"""Bytes of records between the shell and the log: delimiters, keys, and kcat's format strings.

Everything here is bytes: a value that is not UTF-8 passes through unchanged. Text comes from the command line only.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from headrace.cli.records import Incoming, Outgoing
from headrace.errors import Invalid

Formatter: TypeAlias = Callable[[Incoming], bytes]

NULL = b"NULL"
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)?", re.DOTALL)
_ESCAPED: Mapping[bytes, bytes] = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}


def unescape(text: str) -> bytes:
    r"""Turn what a person typed into bytes: `\n`, `\r`, `\t`, `\0`, `\\` and `\xHH` are known."""
    return _ESCAPE.sub(_unescaped, raw_bytes(text))


def raw_bytes(text: str) -> bytes:
    """Return the bytes of an argument as the shell passed them, UTF-8 or not."""
    return text.encode("utf-8", "surrogateescape")


def _unescaped(found: "re.Match[bytes]") -> bytes:
    name = found[1] or b""
    if len(name) == 3:
        return bytes([int(name[1:], 16)])
    if name not in _ESCAPED:
        typed = found[0].decode(errors="replace")
        raise Invalid(rf"{typed!r} is no escape; known are \n, \r, \t, \0, \\ and \xHH")
    return _ESCAPED[name]


def split(chunks: Iterable[bytes], delimiter: bytes) -> Iterator[bytes]:
    """Cut a stream of bytes at the delimiter; each piece comes as soon as its delimiter has been seen.

    The last piece may lack its delimiter. Empty pieces are passed over, as kcat does.
    """
    rest = bytearray()
    for chunk in chunks:
        searched = max(0, len(rest) - len(delimiter) + 1)
        rest += chunk
        if rest.find(delimiter, searched) < 0:
            continue
        *pieces, rest = rest.split(delimiter)
        yield from (bytes(piece) for piece in pieces if piece)
    if rest:
        yield bytes(rest)


def parse_line(line: bytes, *, key_separator: bytes | None, empty_is_null: bool) -> Outgoing:
    """Make a record of a line; what precedes the first separator is its key. Without one there is no key."""
    key: bytes | None = None
    value: bytes | None = line
    if key_separator is not None and key_separator in line:
        key, _, value = line.partition(key_separator)
    if empty_is_null:
        key, value = key or None, value or None
    return Outgoing(key=key, value=value)


def plain_format(*, key_separator: bytes | None, delimiter: bytes, show_null: bool) -> Formatter:
    """Return what prints a value and a delimiter, and ahead of it the key where a separator is given."""
    null = NULL if show_null else b""

    def value_only(record: Incoming) -> bytes:
        return (null if record.value is None else record.value) + delimiter

    if key_separator is None:
        return value_only
    return lambda record: (null if record.key is None else record.key) + key_separator + value_only(record)


def compile_format(text: str, *, show_null: bool) -> Formatter:
    """Compile one of kcat's format strings. Raises `Invalid` for what it does not know."""
    null = NULL if show_null else b""
    parts: list[Formatter] = []
    for literal, token in _tokens(text):
        if literal:
            parts.append(lambda _, literal=literal: literal)  # type: ignore[misc]
        if token:
            parts.append(_tokens_known(null)[token])
    return lambda record: b"".join(part(record) for part in parts)


def _tokens(text: str) -> Iterator[tuple[bytes, str]]:
    """Cut a format string into literal bytes and the letter of the token behind them, "" at the end."""
    known = _tokens_known(b"")
    literal = ""
    letters = iter(text)
    for letter in letters:
        if letter != "%":
            literal += letter
            continue
        token = next(letters, "")
        if token == "%":
            literal += "%"
        elif token in known:
            yield unescape(literal), token
            literal = ""
        else:
            raise Invalid(f"%{token} in the format means nothing; known are %% and {_list_of(known)}")
    yield unescape(literal), ""


def _list_of(known: Mapping[str, Formatter]) -> str:
    return ", ".join(f"%{token}" for token in sorted(known))


def _tokens_known(null: bytes) -> Mapping[str, Formatter]:
    return {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "k": lambda record: null if record.key is None else record.key,
        "K": lambda record: b"%d" % _size(record.key),
        "s": lambda record: null if record.value is None else record.value,
        "S": lambda record: b"%d" % _size(record.value),
        "R": lambda record: _size(record.value).to_bytes(4, "big", signed=True),
        "T": lambda record: b"%d" % (-1 if record.timestamp_ms is None else record.timestamp_ms),
        "h": lambda record: b",".join(
            b"%b=%b" % (name.encode(), NULL if value is None else value) for name, value in record.headers
        ),
    }


def _size(value: bytes | None) -> int:
    """Return the length; null has -1, as in kcat, so that it is told apart from empty."""
    return -1 if value is None else len(value)
