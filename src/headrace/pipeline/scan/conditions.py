"""Which rows a read is to bring: comparisons of where a record stands and of its time.

A condition is the conjunction of what was asked for, kept as one bound per column. It comes as text (the option
`pushdown`) or term by term (the filters that Spark pushes down). It leaves out whole topics, partitions, offset
ranges and row groups before anything is read; what is left of it is applied to rows.

    timestamp >= '2026-01-01' and timestamp < '2026-02-01T12:00:00+01:00' and partition in (0, 1) and offset > 100

Must stay true: a row group is left out only if none of its rows can fit. So what the log knows of times without
having looked into a batch (a producer's word for its compressed batches, the first record's time for the least one)
leaves nothing out.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from headrace.errors import Invalid

TOPIC: Final = "topic"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
COLUMNS: Final = (TOPIC, PARTITION, OFFSET, TIMESTAMP)

OPERATORS: Final = ("=", "<", "<=", ">", ">=", "in")
MAX_TERMS: Final = 100
MAX_VALUES: Final = 1_000

US_PER_MS: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Value = int | str
"""A topic's name, a number, or a time in microseconds since 1970."""


class Bound(msgspec.Struct, frozen=True, array_like=True):
    """What one column of numbers may be: between two ends, both inclusive, and one of some values."""

    low: int | None = None
    high: int | None = None
    values: tuple[int, ...] | None = None

    def allows(self, number: int) -> bool:
        """Say whether a number fits."""
        return (
            (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.values is None or number in self.values)
        )

    @property
    def span(self) -> tuple[int | None, int | None]:
        """The least and the greatest number that can fit, `None` where there is no end."""
        if self.values is None:
            return self.low, self.high
        fitting = [value for value in self.values if self.allows(value)]
        return (min(fitting), max(fitting)) if fitting else (1, 0)

    def also(self, operator: str, values: tuple[int, ...]) -> "Bound":
        """Return what fits this bound and one more comparison."""
        if operator in ("=", "in"):
            kept = values if self.values is None else tuple(value for value in self.values if value in values)
            return msgspec.structs.replace(self, values=tuple(sorted(set(kept))))
        (value,) = values
        low = {">": value + 1, ">=": value}.get(operator)
        high = {"<": value - 1, "<=": value}.get(operator)
        return msgspec.structs.replace(
            self,
            low=self.low if low is None else max(low, low if self.low is None else self.low),
            high=self.high if high is None else min(high, high if self.high is None else self.high),
        )


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """What every row of a read fits. Times are microseconds, as the column has them."""

    topics: tuple[str, ...] | None = None
    partition: Bound = Bound()
    offset: Bound = Bound()
    timestamp_us: Bound = Bound()

    def allows_partition(self, topic: str, partition: int) -> bool:
        """Say whether a partition can have rows that fit."""
        return (self.topics is None or topic in self.topics) and self.partition.allows(partition)

    def offsets(self, start_offset: int, end_offset: int) -> tuple[int, int]:
        """Return what of an offset range can have rows that fit; where nothing can, the range is empty."""
        low, high = self.offset.span
        return (
            start_offset if low is None else max(start_offset, low),
            end_offset if high is None else min(end_offset, high + 1),
        )

    def allows_times(self, low_us: int | None, high_us: int | None) -> bool:
        """Say whether rows with times between two ends, both inclusive, can fit; `None` means: not known."""
        low, high = self.timestamp_us.span
        if low is not None and high is not None and low > high:
            return False
        return (low is None or high_us is None or high_us >= low) and (
            high is None or low_us is None or low_us <= high
        )

    def also(self, column: str, operator: str, values: tuple[Value, ...]) -> "Condition":
        """Return this condition and one more comparison. Raises `Invalid` if the two do not go together."""
        if column not in COLUMNS:
            raise Invalid(f"a read leaves nothing out by {column}: it can by {', '.join(COLUMNS)}")
        if operator not in OPERATORS:
            raise Invalid(f"{operator!r} compares nothing here: use one of {', '.join(OPERATORS)}")
        if column == TOPIC:
            if operator not in ("=", "in"):
                raise Invalid(f"topics are compared with = and in, not with {operator}")
            names = tuple(str(value) for value in values)
            return msgspec.structs.replace(
                self, topics=names if self.topics is None else tuple(name for name in self.topics if name in names)
            )
        numbers = []
        for value in values:
            if not isinstance(value, int):
                raise Invalid(f"{column} is compared with a number, not with {value!r}")
            numbers.append(value)
        field = "timestamp_us" if column == TIMESTAMP else column
        bound: Bound = getattr(self, field)
        return msgspec.structs.replace(self, **{field: bound.also(operator, tuple(numbers))})


def microseconds_of(moment: datetime) -> int:
    """Return a moment as the column has it; one without a time zone is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def parse_condition(text: str) -> Condition:
    """Read comparisons joined by `and`. Raises `Invalid`, with what it takes."""
    condition = Condition()
    words = list(_words(text))
    terms = 0
    while words:
        if terms:
            _expect(words, "and", text)
        terms += 1
        if terms > MAX_TERMS:
            raise Invalid(f"pushdown takes at most {MAX_TERMS} comparisons")
        condition = _term(condition, words, text)
    return condition


_WORD = re.compile(r"\s*(?:(?P<quoted>'(?:[^']|'')*')|(?P<sign><=|>=|==|=|<|>|\(|\)|,)|(?P<word>[A-Za-z0-9_+-]+))")


def _words(text: str) -> Iterator[str]:
    at = 0
    while text[at:].strip():
        found = _WORD.match(text, at)
        if found is None:
            raise _misread(text, text[at:].strip()[:20])
        at = found.end()
        yield found["quoted"] or found["sign"] or found["word"]


def _term(condition: Condition, words: list[str], text: str) -> Condition:
    column = _next(words, text).lower()
    operator = _next(words, text).lower()
    operator = "=" if operator == "==" else operator
    literals = [_next(words, text)]
    if operator == "in":
        if literals != ["("]:
            raise _misread(text, literals[0])
        literals = [_next(words, text)]
        while (sign := _next(words, text)) == "," and len(literals) < MAX_VALUES:
            literals.append(_next(words, text))
        if sign != ")":
            raise _misread(text, sign)
    return condition.also(column, operator, tuple(_value(column, literal, text) for literal in literals))


def _value(column: str, literal: str, text: str) -> Value:
    is_quoted = literal.startswith("'")
    plain = literal[1:-1].replace("''", "'") if is_quoted else literal
    if column == TOPIC:
        if not is_quoted:
            raise Invalid(f"pushdown: write the topic as '{plain}', between quotes")
        return plain
    try:
        if not is_quoted:
            return int(plain) * (US_PER_MS if column == TIMESTAMP else 1)
        if column == TIMESTAMP:
            return microseconds_of(datetime.fromisoformat(plain))
    except ValueError:
        pass
    if column == TIMESTAMP:
        raise Invalid(f"pushdown: {literal} is no time: write '2026-01-31T12:00:00', or milliseconds since 1970")
    raise _misread(text, literal)


def _next(words: list[str], text: str) -> str:
    if not words:
        raise _misread(text, "the end")
    return words.pop(0)


def _expect(words: list[str], wanted: str, text: str) -> None:
    found = _next(words, text)
    if found.lower() != wanted:
        raise _misread(text, found)


def _misread(text: str, found: str) -> Invalid:
    return Invalid(
        f"pushdown {text!r} is not understood at {found!r}: it takes comparisons of {', '.join(COLUMNS)} with "
        f"{', '.join(OPERATORS)}, joined by and, as in: timestamp >= '2026-01-31' and partition in (0, 1)"
    )


def all_of(conditions: Iterable[Condition]) -> Condition:
    """Return what fits every one of some conditions."""
    whole = Condition()
    for one in conditions:
        if one.topics is not None:
            whole = whole.also(TOPIC, "in", one.topics)
        for column, bound in ((PARTITION, one.partition), (OFFSET, one.offset), (TIMESTAMP, one.timestamp_us)):
            if bound.low is not None:
                whole = whole.also(column, ">=", (bound.low,))
            if bound.high is not None:
                whole = whole.also(column, "<=", (bound.high,))
            if bound.values is not None:
                whole = whole.also(column, "in", bound.values)
    return whole
