"""Damage of the log: which bytes are wrong, which offsets they hide, and what can be read around them.

A read that comes upon wrong bytes reads them again, because a store may have answered badly once. If they are still
wrong, what is intact before them is served, and a reader that asks for a hidden offset hears `Damaged`.

Must stay true: nothing is served in place of a hidden offset, and every damage is logged once, not once per fetch.
"""

from collections.abc import Callable, Sequence

import msgspec

from headrace.errors import Corrupt
from headrace.fetch.runs import Run
from headrace.model.ids import StreamId
from headrace.runtime.logs import Log

MAX_KNOWN_DAMAGES = 10_000
"""How many damages are remembered as logged; beyond them all are forgotten, and logged once more."""


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one object that are not what was written, and the offsets that cannot be read because of them."""

    object_key: str
    start_byte: int
    size_bytes: int
    start_offset: int
    end_offset: int
    why: str


class Damaged(Corrupt):
    """The offset that was asked for is hidden by damage; what lies behind `damage.end_offset` may be readable."""

    def __init__(self, stream: StreamId, damage: Damage) -> None:
        super().__init__(
            f"stream {stream}: offsets {damage.start_offset} to {damage.end_offset - 1} are damaged, in the"
            f" {damage.size_bytes} bytes from {damage.start_byte} on of object {damage.object_key}: {damage.why}"
        )
        self.damage = damage


def readable(parts: Sequence[Run | Damage], offset: int) -> list[Run] | Damage:
    """Return the runs from the one that covers `offset` up to the next damage, or the damage that hides `offset`."""
    runs: list[Run] = []
    for part in parts:
        if part.end_offset <= offset:
            continue
        if isinstance(part, Damage):
            return runs or part
        runs.append(part)
    return runs


class DamageBook:
    """Counts damages and logs each of them once."""

    def __init__(
        self, *, log: Log | None = None, partition_of: Callable[[StreamId], tuple[str, int] | None] | None = None
    ) -> None:
        """`partition_of` names the topic and partition of a stream, as far as they are known here."""
        self._log = log
        self._partition_of = partition_of or (lambda _: None)
        self._known: set[tuple[StreamId, str, int, int]] = set()
        self.found = 0
        """How many damages were found, since the start."""

    def note(self, stream: StreamId, damage: Damage) -> None:
        """Take one that a read came upon."""
        key = (stream, damage.object_key, damage.start_byte, damage.start_offset)
        if key in self._known:
            return
        if len(self._known) >= MAX_KNOWN_DAMAGES:
            self._known.clear()
        self._known.add(key)
        self.found += 1
        if self._log is None:
            return
        topic, partition = self._partition_of(stream) or (None, None)
        self._log.error(
            "the log is damaged: restore the object from a copy, or let consumers seek behind the damage",
            topic=topic,
            partition=partition,
            stream=stream,
            start_offset=damage.start_offset,
            end_offset=damage.end_offset,
            object=damage.object_key,
            start_byte=damage.start_byte,
            size_bytes=damage.size_bytes,
            error=damage.why,
        )
