"""What a topic's table is called in a catalog.

    exact      the topic's own name; engines take it in quotes: topics.`eu.orders-v2`
    escaped    lower-case letters, digits and `_` only, for catalogs that take nothing else (S3 Tables):
               `_` → `__`, `.` → `_d`, `-` → `_h`, `A` → `_ua`; a name that began with `_` gets `topic_e` in front

Must stay true: two topics never share a name, and the topic can be told from the name. No escape is the beginning of
another one, and `_e` stands for no character, so the way back is unambiguous.
"""

from enum import StrEnum

from headrace.errors import Invalid

NAMESPACE = "topics"
"""The namespace in which all tables lie."""

MAX_ESCAPED_CHARS = 255
RETIRED_ID_CHARS = 8

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_ESCAPES = {"_": "__", ".": "_d", "-": "_h"} | {
    letter.upper(): f"_u{letter}" for letter in _PLAIN if letter.isalpha()
}
_CHARACTERS = {escape: character for character, escape in _ESCAPES.items()}
_FRONT = "topic_e"


class NameStyle(StrEnum):
    """How a topic's name becomes a table's. Changing it later makes every topic begin a new table."""

    EXACT = "exact"
    ESCAPED = "escaped"


def table_name(topic: str, style: NameStyle) -> str:
    """Return the name of a topic's table. Raises `Invalid` if there is none that the style allows."""
    if style is NameStyle.EXACT:
        return topic
    unfit = sorted({character for character in topic if character not in _PLAIN and character not in _ESCAPES})
    if unfit or not topic:
        raise Invalid(
            f"the topic {topic!r} has no escaped table name: {''.join(unfit)!r} cannot stand in a topic's name"
        )
    escaped = "".join(_ESCAPES.get(character, character) for character in topic)
    name = _FRONT + escaped if escaped.startswith("_") else escaped
    if len(name) > MAX_ESCAPED_CHARS:
        raise Invalid(
            f"the topic {topic} has no table: its escaped name has {len(name)} characters, more than"
            f" {MAX_ESCAPED_CHARS}; use a shorter name with fewer capitals, or catalog.table.names=exact"
        )
    return name


def topic_name(table: str, style: NameStyle) -> str | None:
    """Return the topic whose table has this name, or `None` for a name that we never give."""
    if style is NameStyle.EXACT:
        return table
    found: list[str] = []
    position = len(_FRONT) if table.startswith(_FRONT) else 0
    while position < len(table):
        length = 1 if table[position] in _PLAIN else 3 if table[position : position + 2] == "_u" else 2
        piece = table[position : position + length]
        character = piece if piece in _PLAIN else _CHARACTERS.get(piece)
        if character is None:
            return None
        found.append(character)
        position += length
    topic = "".join(found)
    # There is one name per topic: anything else that reads the same was not made here.
    return topic if topic and _is_name_of(table, topic) else None


def retired_names(name: str, topic_uuid: str) -> tuple[str, str]:
    """Return what the table of an earlier topic is renamed to, and what else if that name is taken."""
    digits = topic_uuid.replace("-", "")
    return f"{name}__{digits[:RETIRED_ID_CHARS]}", f"{name}__{digits}"


def _is_name_of(table: str, topic: str) -> bool:
    try:
        return table_name(topic, NameStyle.ESCAPED) == table
    except Invalid:
        return False
