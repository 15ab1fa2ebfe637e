"""What clients of a simulation were told, as they remember it. The checkers compare it with what is stored."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.model.ids import StreamId


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class History:
    """Everything that was acknowledged or read, over all incarnations of all processes."""

    acknowledged: dict[tuple[StreamId, int], bytes] = field(default_factory=dict)
    """Which value was acknowledged at which offset."""
    idempotent_values: set[bytes] = field(default_factory=set)
    """Values that must not be stored twice."""
    seen: dict[tuple[StreamId, int], bytes] = field(default_factory=dict)
    """Which value any reader has ever seen at which offset."""
    log_starts: dict[StreamId, int] = field(default_factory=dict)
    """The furthest log start that a client has asked for, whether it was told of success or not."""
    retained: dict[StreamId, int] = field(default_factory=dict)
    """The furthest log start that retention was right to move to."""
    timestamps: dict[bytes, int] = field(default_factory=dict)
    """Which time each value was sent with."""
    read_count: int = 0
    retained_count: int = 0
    """How many offsets retention has taken."""
    pinned_count: int = 0
    """How many entries were read under a pin."""

    def rightful_log_start(self, stream: StreamId) -> int:
        """Return how far a log start may be at most."""
        return max(self.log_starts.get(stream, 0), self.retained.get(stream, 0))

    def acknowledge(self, stream: StreamId, base_offset: int, values: list[bytes]) -> None:
        """Remember an acknowledgement; two for one offset must agree."""
        for offset, value in enumerate(values, base_offset):
            known = self.acknowledged.setdefault((stream, offset), value)
            if known != value:
                raise Violation(f"offset {offset} of stream {stream} was given to {known!r} and to {value!r}")

    def see(self, stream: StreamId, offset: int, value: bytes) -> None:
        """Remember a record that a reader got; every reader must get the same, for ever."""
        self.read_count += 1
        known = self.seen.setdefault((stream, offset), value)
        if known != value:
            raise Violation(f"offset {offset} of stream {stream} was read as {known!r} and as {value!r}")

    def claims(self) -> Iterator[tuple[StreamId, int, bytes, str]]:
        """Go through everything that clients know, and how they know it."""
        for (stream, offset), value in self.acknowledged.items():
            yield stream, offset, value, "acknowledged"
        for (stream, offset), value in self.seen.items():
            yield stream, offset, value, "read"
