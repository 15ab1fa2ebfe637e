"""Which topics a regular expression of a consumer stands for.

Patterns come from clients, so nothing that one writes may cost the broker much: RE2 matches in time that grows with
the name and never explodes, a pattern has a length, a compiled one has a size, and few are kept. What a client may
write and what it means is what Apache Kafka's brokers take (RE2/J): no look-around, no back-references, and a topic
matches only as a whole, so `orders` does not find `orders-2`.

One name costs about 2 µs, and with the worst pattern that the limits let pass 2 ms. So a broker matches on a thread,
within a budget (`patterns.py`).
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

import re2

from headrace.errors import Invalid
from headrace.runtime.text import one_line

MAX_PATTERN_BYTES = 4096
"""How long a pattern may be. That is room for the full names of a hundred topics."""

MAX_COMPILED_BYTES = 128 * 1024
"""What one compiled pattern may take. It bounds the steps per character too: 5,000 instructions fit in here."""

MAX_COMPILED_PATTERNS = 128
"""How many compiled patterns are kept. The library keeps as many of its own, and they are the same ones."""

MAX_SHOWN_CHARS = 80
"""How much of a pattern that is wrong, and of what the library says of it, an error message repeats."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""What Kafka's brokers keep for themselves. Copied from another cluster it may exist here too, as plain topics, and
a consumer of `.*` does not mean it. Other names that begin with two underscores belong to users."""


class InvalidPattern(Invalid):
    """A regular expression that RE2 does not take, or one that is too large."""


class Regex(Protocol):
    """A compiled pattern. It may be used by several threads at once."""

    def fullmatch(self, text: bytes) -> object | None:
        """Return something true if all of `text` matches."""


@lru_cache(maxsize=MAX_COMPILED_PATTERNS)
def compiled(pattern: str) -> Regex:
    """Compile a pattern, or find it compiled. Raises `InvalidPattern` with a sentence for the client."""
    try:
        size_bytes = len(pattern.encode())
    except UnicodeEncodeError as error:
        raise InvalidPattern(f"regular expression '{shown(pattern)}' is not valid Unicode") from error
    if size_bytes > MAX_PATTERN_BYTES:
        raise InvalidPattern(
            f"regular expression '{shown(pattern)}' has {size_bytes} bytes: {MAX_PATTERN_BYTES} are allowed at most"
        )
    try:
        regex: Regex = re2.compile(pattern, _options())
    except re2.error as error:
        # It says what is wrong in bytes, with a piece of the pattern in it.
        said = b"".join(part for part in error.args if isinstance(part, bytes)).decode(errors="backslashreplace")
        raise InvalidPattern(f"regular expression '{shown(pattern)}' is invalid: {shown(said)}") from error
    return regex


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that the pattern matches as a whole, internal topics left out.

    Raises `InvalidPattern` for a pattern that cannot be compiled.
    """
    fullmatch = compiled(pattern).fullmatch
    # Bytes spare the library from counting characters.
    return frozenset(name for name in names if fullmatch(name.encode()) and name not in INTERNAL_TOPICS)


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = MAX_COMPILED_BYTES
    options.never_capture = True
    # Otherwise every pattern that a client got wrong would be a line on our standard error.
    options.log_errors = False
    return options


def shown(text: str) -> str:
    """Return as much of a pattern as an error message repeats."""
    return one_line(text, max_chars=MAX_SHOWN_CHARS)
