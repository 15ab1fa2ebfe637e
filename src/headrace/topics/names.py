"""Which names topics may have: Kafka's rules, so that every client and every tool agrees.

Kafka's metric names turn `.` into `_`, so two topics whose names differ only there would be counted as one by whoever
watches them. Kafka refuses the second of the two, and so do we.
"""

import re

from headrace.runtime.text import one_line
from headrace.topics.problems import InvalidTopicName

MAX_NAME_CHARS = 249

MAX_SHOWN_CHARS = 80
"""How much of a name that is wrong an error message repeats."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_RESERVED = frozenset({".", ".."})


def check_name(name: str) -> None:
    """Raise `InvalidTopicName` unless a topic may have this name."""
    shown = one_line(name, max_chars=MAX_SHOWN_CHARS)
    if not name:
        raise InvalidTopicName("a topic's name cannot be empty")
    if len(name) > MAX_NAME_CHARS:
        raise InvalidTopicName(
            f"topic name '{shown}' has {len(name)} characters: {MAX_NAME_CHARS} are allowed at most"
        )
    if name in _RESERVED:
        raise InvalidTopicName(f"a topic cannot be named '{name}': choose another name")
    if _LEGAL.fullmatch(name) is None:
        raise InvalidTopicName(
            f"topic name '{shown}' is illegal: only ASCII letters, digits, '.', '_' and '-' may stand in it"
        )


def is_legal(name: str) -> bool:
    """Say whether a topic may have this name."""
    try:
        check_name(name)
    except InvalidTopicName:
        return False
    return True


def alike(name: str) -> str:
    """Return what all names that would collide with this one have in common."""
    return name.replace(".", "_")
