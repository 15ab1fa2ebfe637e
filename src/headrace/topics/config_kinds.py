"""What the value of a topic config may be: each kind parses text as Kafka does, and shows it as Kafka would.

`parse` raises `ValueError` for anything else than `expected`; whoever calls it knows the config's name and makes the
sentence. `show` is the one spelling of a value that is stored as somebody typed it: ` TRUE ` is shown as `true`.
"""

import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
MIN_INT64 = -(2**63)

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_REAL = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")
_REPLICA = re.compile(r"[0-9]+:[0-9]+")
_FLAGS = {"true": True, "false": False}


class ConfigType(enum.IntEnum):
    """Kafka's numbers for the types of configs, as DescribeConfigs tells them."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigKind(Protocol):
    """A kind of value."""

    @property
    def type(self) -> ConfigType: ...

    @property
    def expected(self) -> str:
        """Say what a value must be, so that it completes "expected …"."""
        ...

    def parse(self, text: str) -> object:
        """Return the value, or raise `ValueError`."""
        ...

    def show(self, text: str) -> str:
        """Return a text that parses in its one spelling; raise `ValueError` if it does not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A whole number from `minimum` to `maximum`, both inclusive, or the one number outside that means *default*."""

    type: ConfigType
    minimum: int
    maximum: int
    or_else: int | None = None

    @property
    def expected(self) -> str:
        also = "" if self.or_else is None else f", or {self.or_else}"
        return f"a whole number from {self.minimum} to {self.maximum}{also}"

    def parse(self, text: str) -> int:
        stripped = text.strip()
        if not _WHOLE.fullmatch(stripped):
            raise ValueError(text)
        number = int(stripped)
        if number != self.or_else and not self.minimum <= number <= self.maximum:
            raise ValueError(text)
        return number

    def show(self, text: str) -> str:
        return str(self.parse(text))


def int32(minimum: int, maximum: int = MAX_INT32, *, or_else: int | None = None) -> Whole:
    """Return what Kafka calls an INT."""
    return Whole(type=ConfigType.INT, minimum=minimum, maximum=maximum, or_else=or_else)


def int64(minimum: int = MIN_INT64, maximum: int = MAX_INT64) -> Whole:
    """Return what Kafka calls a LONG."""
    return Whole(type=ConfigType.LONG, minimum=minimum, maximum=maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """A decimal number from `minimum` to `maximum`, both inclusive."""

    minimum: float
    maximum: float

    @property
    def type(self) -> ConfigType:
        return ConfigType.DOUBLE

    @property
    def expected(self) -> str:
        return f"a number from {self.minimum:g} to {self.maximum:g}"

    def parse(self, text: str) -> float:
        stripped = text.strip()
        if not _REAL.fullmatch(stripped) or not self.minimum <= float(stripped) <= self.maximum:
            raise ValueError(text)
        return float(stripped)

    def show(self, text: str) -> str:
        return str(self.parse(text))


@dataclass(frozen=True, slots=True)
class Flag:
    """`true` or `false`, in any case."""

    @property
    def type(self) -> ConfigType:
        return ConfigType.BOOLEAN

    @property
    def expected(self) -> str:
        return "true or false"

    def parse(self, text: str) -> bool:
        value = _FLAGS.get(text.strip().lower())
        if value is None:
            raise ValueError(text)
        return value

    def show(self, text: str) -> str:
        return str(self.parse(text)).lower()


@dataclass(frozen=True, slots=True)
class Word:
    """One of a few words; case counts, as in Kafka."""

    words: Sequence[str]

    @property
    def type(self) -> ConfigType:
        return ConfigType.STRING

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(self.words)

    def parse(self, text: str) -> str:
        word = text.strip()
        if word not in self.words:
            raise ValueError(text)
        return word

    def show(self, text: str) -> str:
        return self.parse(text)


@dataclass(frozen=True, slots=True)
class Text:
    """Any text, as it was typed; what it means is judged together with other configs."""

    expected: str

    @property
    def type(self) -> ConfigType:
        return ConfigType.STRING

    def parse(self, text: str) -> str:
        return text

    def show(self, text: str) -> str:
        return text


@dataclass(frozen=True, slots=True)
class Listed:
    """A list, separated by commas; it may be empty. What stands there twice counts once.

    `is_legal` judges a whole list, because `*` may stand for all replicas but not beside any.
    """

    expected: str
    is_legal: Callable[[Sequence[str]], bool]

    @property
    def type(self) -> ConfigType:
        return ConfigType.LIST

    def parse(self, text: str) -> tuple[str, ...]:
        elements = elements_of(text)
        if not self.is_legal(elements):
            raise ValueError(text)
        return elements

    def show(self, text: str) -> str:
        return ",".join(self.parse(text))


def elements_of(text: str) -> tuple[str, ...]:
    """Return the elements of a list, each once, in order, whether they are legal or not."""
    stripped = text.strip()
    return tuple(dict.fromkeys(element.strip() for element in stripped.split(","))) if stripped else ()


def words_listed(words: Sequence[str]) -> Listed:
    """Return a list of a few words."""
    return Listed(
        "a list of " + " and ".join(words) + ", or nothing",
        lambda elements: all(element in words for element in elements),
    )


REPLICAS_LISTED = Listed(
    "a list of PARTITION:BROKER, or *, or nothing",
    lambda elements: elements == ("*",) or all(_REPLICA.fullmatch(element) for element in elements),
)
