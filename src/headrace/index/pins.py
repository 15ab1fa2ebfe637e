"""Pins: a read under way says so, and what it may have planned from stays until it ends.

A reader that reaches only the object store (a Spark task) cannot plan again when an object is gone. So:

1. The reader puts a pin, and only then reads the index and plans.
2. While the pin is there, nothing is condemned or deleted whose last name went *after* the put.
3. The pin ends: released, or removed by a collector that finds it dead (`gc/pins.py`).

Must stay true: whatever the index names at any moment between the put of a pin and its end can be read until that
end. "After" is judged by revisions, never by clocks: the record of an object was last written when its last entry
went, and the pin was written once, both in one lock unit, whose revisions grow in commit order. A collector therefore
reads the records first and the pins second: a pin that it does not see was put after the record said *unnamed*, so
that its reader cannot find the object any more.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import Exists, Invalid, Retryable
from headrace.index.rule import Rule
from headrace.index.values import PIN_RECORD, PinRecord
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.paging import read_prefix
from headrace.metadata.port import Decision, MetadataStore, Reads, Seen
from headrace.model.ids import PinId

MAX_PINS = 1_000
"""How many reads can be pinned at a time."""

PINS_PER_READ = 500
MAX_OWNER_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A pin as it is stored; `revision` is when it was put, in the order of everything that happens to the log."""

    id: PinId
    revision: int
    record: PinRecord


def put_pin(keys: DomainKeys, pin_id: PinId, record: PinRecord) -> Rule[None]:
    """Return the rule that puts a pin; repeating it changes nothing, not even its revision.

    Raises `Exists` where another read has that id, `Retryable` where there are too many pins.
    """
    if record.expires_at_ms <= record.created_at_ms or len(record.owner) > MAX_OWNER_CHARS:
        raise Invalid(
            f"pin {pin_id} of {record.owner[:MAX_OWNER_CHARS]!r} must expire after it was made, and its owner's name"
            f" must have at most {MAX_OWNER_CHARS} characters"
        )
    key = keys.pin(pin_id)

    def decide(seen: Seen) -> Decision[None]:
        known = PIN_RECORD.seen(seen, key)
        if known == record:
            return Decision(result=None)
        if known is not None:
            raise Exists(f"pin {pin_id} is there already, for {known.owner!r}: take an id that was never used")
        if len(seen.ranges[0]) >= MAX_PINS:
            raise Retryable(f"{MAX_PINS} reads are pinned already: try again when one of them has ended")
        return Decision(result=None, puts={key: PIN_RECORD.encode(record)})

    return Rule(keys.unit, Reads(keys=[key], ranges=[prefix_range(keys.pins_prefix, limit=MAX_PINS)]), decide)


def release_pin(keys: DomainKeys, pin_id: PinId) -> Rule[bool]:
    """Return the rule that ends a pin; its result says whether it was there."""
    key = keys.pin(pin_id)

    def decide(seen: Seen) -> Decision[bool]:
        is_there = seen.get(key) is not None
        return Decision(result=is_there, deletes=[key] if is_there else [])

    return Rule(keys.unit, Reads(keys=[key]), decide)


async def list_pins(store: MetadataStore, keys: DomainKeys) -> list[Pin]:
    """Return all pins."""
    return [
        Pin(
            id=PinId(item.key.removeprefix(keys.pins_prefix)),
            revision=item.version,
            record=PIN_RECORD.decode(item.value, item.key),
        )
        for item in await read_prefix(store, keys.pins_prefix, keys_per_read=PINS_PER_READ)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PinFloor:
    """What is written at or after `revision` may be held by a pin; `None` where there is no pin."""

    revision: int | None = None

    def holds(self, version: int) -> bool:
        """Say whether a record that was last written in a revision must be left alone."""
        return self.revision is not None and version >= self.revision


def floor_of(pins: Iterable[Pin]) -> PinFloor:
    """Return what the oldest of the pins asks for."""
    return PinFloor(revision=min((pin.revision for pin in pins), default=None))


async def read_pin_floor(store: MetadataStore, keys: DomainKeys) -> PinFloor:
    """Return what the pins ask for now. Call it after the records were read that it is held against."""
    return floor_of(await list_pins(store, keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class PinLimits:
    """How long a pin may live. Its times were written by another clock, which may differ by `skew_ms`."""

    max_age_ms: int
    skew_ms: int


def is_over_age(record: PinRecord, *, now_ms: int, limits: PinLimits) -> bool:
    """Say whether a pin is so old that it ends whatever its tasks do: a forgotten one must not hold the disk."""
    return now_ms - record.created_at_ms >= limits.max_age_ms + limits.skew_ms


def is_dead(record: PinRecord, *, done_count: int, last_beat_ms: int | None, now_ms: int, limits: PinLimits) -> bool:
    """Say whether a pin has ended by itself: too old, all tasks done, or expired and silent for its time to live."""
    if is_over_age(record, now_ms=now_ms, limits=limits):
        return True
    if 0 < record.task_count <= done_count:
        return True
    if now_ms < record.expires_at_ms + limits.skew_ms:
        return False
    time_to_live_ms = record.expires_at_ms - record.created_at_ms
    return last_beat_ms is None or now_ms - last_beat_ms >= time_to_live_ms + limits.skew_ms
