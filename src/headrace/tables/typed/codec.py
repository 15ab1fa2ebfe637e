"""What turns one value into fields: made of a schema once, used for every value of a run.

Must stay true: whatever the bytes are, `decode` returns fields that fit the struct or raises `Misfit`; it never takes
more memory than a small multiple of the value.
"""

import datetime
from collections.abc import Callable
from typing import Any, Final, Protocol

from headrace.runtime.text import one_line
from headrace.tables.typed.model import FieldType

MAX_REASON_CHARS: Final = 200
"""How much a dead letter says of why its value does not fit."""

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MIN_DAYS: Final = datetime.date(1, 1, 1).toordinal() - datetime.date(1970, 1, 1).toordinal()
MAX_DAYS: Final = datetime.date(9999, 12, 31).toordinal() - datetime.date(1970, 1, 1).toordinal()
MIN_TIME_US: Final = MIN_DAYS * 86_400_000_000
MAX_TIME_US: Final = (MAX_DAYS + 1) * 86_400_000_000 - 1
"""Times and dates lie in the years 1 to 9999: beyond them engines do not agree on what they read."""

Convert = Callable[[Any], Any]
"""Turns a decoded value into one that Arrow takes for its field, or raises `Misfit`."""


class Misfit(Exception):
    """A value that does not fit its schema; the sentence, bounded, is the reason in its dead letter."""

    def __init__(self, reason: str) -> None:
        super().__init__(one_line(reason, max_chars=MAX_REASON_CHARS))


class Codec(Protocol):
    """One schema, ready for use."""

    @property
    def struct(self) -> FieldType:
        """What its values become."""
        ...

    def decode(self, value: bytes) -> dict[str, Any]:
        """Return a value's fields, as Arrow takes them. Raises `Misfit`."""
        ...


def days(value: int) -> int:
    """Check days since 1970."""
    if not MIN_DAYS <= value <= MAX_DAYS:
        raise Misfit(f"the date {value} days from 1970 lies outside of the years 1 to 9999")
    return value


def micros(value: int) -> int:
    """Check microseconds since 1970."""
    if not MIN_TIME_US <= value <= MAX_TIME_US:
        raise Misfit(f"the time {value} us from 1970 lies outside of the years 1 to 9999")
    return value


def millis(value: int) -> int:
    """Turn milliseconds since 1970 into microseconds."""
    return micros(value * 1000)


def micros_of(time: datetime.datetime) -> int:
    """Return an aware time as microseconds since 1970."""
    since = time - _EPOCH  # Its parts cost a quarter of a division by a microsecond.
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
