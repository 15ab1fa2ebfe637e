"""What a setting's value may be: each kind parses a raw value, says what it expects, and shows a value as text.

A raw value is text (environment, command line) or what TOML makes of it. `parse` raises `ValueError` for
anything else than `expected`; whoever calls it knows the key and the source and makes the sentence.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MAX_TEXT_CHARS = 255
MAX_PATH_CHARS = 4096
MAX_URL_CHARS = 2 * MAX_PATH_CHARS
MAX_PORT = 65_535
MAX_PAIRS = 200
MAX_PAIRS_CHARS = 65_536
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

_WHOLE = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_SWITCH = {"true": True, "false": False}
_ADDRESS = re.compile(
    r"(?:PLAINTEXT://)?(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]*)):(?P<port>[0-9]{1,5})"
)
_USER_INFO = re.compile(r"(?<=://).*@")
_SECRET_NAME = re.compile(r"pass|secret|token|key|credential|authorization", re.IGNORECASE)
_SECRET_PARAMETER = re.compile(r"([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&]*", re.IGNORECASE)


class Kind(Protocol):
    """A kind of value."""

    @property
    def expected(self) -> str:
        """Say what a value must be, so that it completes "expected …"."""
        ...

    def parse(self, raw: object) -> object:
        """Return the value, or raise `ValueError`."""
        ...

    def show(self, value: object) -> str:
        """Return a value, or a raw one that did not parse, as text without secrets in it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A whole number from `minimum` to `maximum`, both inclusive."""

    minimum: int = 0
    maximum: int = MAX_INT64

    @property
    def expected(self) -> str:
        return f"a whole number from {self.minimum} to {self.maximum}"

    def parse(self, raw: object) -> int:
        if isinstance(raw, str) and len(raw) <= MAX_TEXT_CHARS and _WHOLE.fullmatch(raw.strip()):
            raw = int(raw)
        # TOML's `true` is a Python int, and nobody who writes it means 1.
        if not isinstance(raw, int) or isinstance(raw, bool) or not self.minimum <= raw <= self.maximum:
            raise ValueError(raw)
        return raw

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Switch:
    """`true` or `false`."""

    @property
    def expected(self) -> str:
        return "true or false"

    def parse(self, raw: object) -> bool:
        value = _SWITCH.get(raw.strip().lower()) if isinstance(raw, str) else raw
        if not isinstance(value, bool):
            raise ValueError(raw)
        return value

    def show(self, value: object) -> str:
        return str(value).lower()


@dataclass(frozen=True, slots=True)
class OneOf:
    """One word of a few."""

    words: Sequence[str]

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(self.words)

    def parse(self, raw: object) -> str:
        word = raw.strip().lower() if isinstance(raw, str) else None
        if word is None or word not in self.words:
            raise ValueError(raw)
        return word

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class OptionalText:
    """One line of text; empty means that there is none, which is `None`."""

    @property
    def expected(self) -> str:
        return f"one line of at most {MAX_TEXT_CHARS} printable characters, or nothing"

    def parse(self, raw: object) -> str | None:
        if not isinstance(raw, str) or len(raw) > MAX_TEXT_CHARS or not raw.isprintable():
            raise ValueError(raw)
        return raw.strip() or None

    def show(self, value: object) -> str:
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory; `~` is the home of whoever starts the process. It need not exist yet."""

    @property
    def expected(self) -> str:
        return "the path of a directory"

    def parse(self, raw: object) -> Path:
        if not isinstance(raw, str) or not raw or len(raw) > MAX_PATH_CHARS or not raw.isprintable():
            raise ValueError(raw)
        try:
            return Path(raw).expanduser()
        except RuntimeError as error:  # "~nobody"
            raise ValueError(raw) from error

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where something listens; an empty host means every interface, port 0 any free port."""

    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        """Tell whether no other host could connect to this address as it stands."""
        return self.host in ("", "0.0.0.0", "::")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPort:
    """An `Address`; where it may be left out, empty means `None`.

    Kafka's own spelling `PLAINTEXT://host:port` is taken as well: a line of its configuration can be moved over.
    """

    optional: bool = False

    @property
    def expected(self) -> str:
        return "HOST:PORT, with an IPv6 address in brackets" + (", or nothing" if self.optional else "")

    def parse(self, raw: object) -> Address | None:
        if raw == "" and self.optional:
            return None
        found = _ADDRESS.fullmatch(raw.strip()) if isinstance(raw, str) and len(raw) <= MAX_TEXT_CHARS else None
        if found is None or int(found["port"]) > MAX_PORT:
            raise ValueError(raw)
        return Address(host=found["v6"] or found["host"] or "", port=int(found["port"]))

    def show(self, value: object) -> str:
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Url:
    """A URL with one of a few schemes. What it shows hides user, password and everything that looks like a key."""

    schemes: Sequence[str]

    @property
    def expected(self) -> str:
        return "a URL that begins with " + ", ".join(f"{scheme}:" for scheme in self.schemes)

    def parse(self, raw: object) -> str:
        if not isinstance(raw, str) or len(raw) > MAX_URL_CHARS or not raw.isprintable():
            raise ValueError(raw)
        scheme, colon, _ = raw.partition(":")
        if not colon or scheme not in self.schemes:
            raise ValueError(raw)
        return raw

    def show(self, value: object) -> str:
        return _SECRET_PARAMETER.sub(r"\1***", _USER_INFO.sub("***@", str(value)))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and values, `name=value; name=value`, or a TOML list of `"name=value"`.

    What it shows hides the value of every name that sounds like a secret.
    """

    @property
    def expected(self) -> str:
        return f"name=value pairs with semicolons between them, or nothing; at most {MAX_PAIRS}, each name once"

    def parse(self, raw: object) -> tuple[tuple[str, str], ...]:
        parts = raw.split(";") if isinstance(raw, str) else raw
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise ValueError("not pairs")
        if len(parts) > MAX_PAIRS or sum(map(len, parts)) > MAX_PAIRS_CHARS:
            raise ValueError("too many pairs")
        found = [part.strip().partition("=") for part in parts if part.strip()]
        names = [name.strip() for name, _, _ in found]
        texts = [*names, *(value for _, _, value in found)]
        if not all(names) or len(set(names)) < len(names) or not all(equals for _, equals, _ in found):
            raise ValueError("not name=value")
        if not all(text.isprintable() for text in texts):
            raise ValueError("not printable")
        return tuple((name, value.strip()) for name, (_, _, value) in zip(names, found, strict=True))

    def show(self, value: object) -> str:
        if not isinstance(value, tuple):
            return "***"  # It did not parse, so nobody knows which part of it is a secret.
        return "; ".join(f"{name}={'***' if _SECRET_NAME.search(name) else text}" for name, text in value)
