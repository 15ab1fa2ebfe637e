"""Where a read begins and ends: what the options say, as offsets of every partition.

Vectors of offsets have the shape of Spark's own Kafka source, topic → partition → offset, also in a checkpoint; there
the ids of the topics go with them, under a name that no topic can have. In options −2 stands for the earliest and −1
for the latest offset.

Must stay true: what is asked for and is not there is never passed over in silence. It is a loss, and a loss either
fails the read or is told. An offset is never looked up in another log than the one that it was taken from: a topic
that was deleted and created again under its name is another one.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from headrace.errors import Invalid, Missing

EARLIEST = -2
LATEST = -1

Offsets: TypeAlias = Mapping[str, Mapping[int, int]]
"""Topic → partition → offset."""

Place: TypeAlias = tuple[str, int]
"""A topic and a partition of it."""


JsonVector: TypeAlias = dict[str, dict[Any, Any]]
"""A vector as JSON has it: offsets by topic and partition, and beside the topics their ids."""

TOPIC_IDS: Final = "#topic-ids"
"""Where a vector has the ids of its topics; one without them is as Kafka's source writes it, and is believed."""


@dataclass(frozen=True, slots=True)
class Vector:
    """Where a stream stands: an offset of every partition, and the id of each topic that they were taken from."""

    offsets: dict[Place, int]
    topic_ids: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> JsonVector:
        """Return it for a checkpoint, in an order that does not depend on how it came about."""
        ids = dict(sorted(self.topic_ids.items()))
        return {**nested(self.offsets), **({TOPIC_IDS: ids} if ids else {})}

    def replaced(self, topic_ids: Mapping[str, str]) -> set[str]:
        """Return those of its topics that are others by now; what is not there any more is no other."""
        return {topic for topic, id_ in self.topic_ids.items() if topic_ids.get(topic, id_) != id_}


def made_vector(offsets: Mapping[Place, int], topic_ids: Mapping[str, str]) -> Vector:
    """Return a vector with those of the ids that belong to its topics."""
    return Vector(dict(offsets), {topic: topic_ids[topic] for topic, _ in offsets})


def vector_of(told: JsonVector) -> Vector:
    """Read what `as_json` has made of a vector; partitions may be text."""
    offsets = flat({topic: parts for topic, parts in told.items() if topic != TOPIC_IDS})
    return Vector(offsets, {topic: str(id_) for topic, id_ in told.get(TOPIC_IDS, {}).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One end of a read. Of `timestamp_ms`, `timestamps` and `offsets` the first that is given counts, else `edge`.

    `latest_without_time` says what a time means that no record has reached: the end of the log, or a refusal.
    """

    edge: int
    offsets: Offsets | None = None
    timestamps: Offsets | None = None
    timestamp_ms: int | None = None
    latest_without_time: bool = False

    def time_of(self, place: Place) -> int | None:
        """Return the time that says where a partition's part begins or ends; `None` if no time does."""
        if self.timestamp_ms is not None:
            return self.timestamp_ms
        if self.timestamps is not None:
            return _named(self.timestamps, place)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """What a partition holds at the moment: offsets from `log_start` up to `high_watermark`."""

    log_start: int
    high_watermark: int


@dataclass(slots=True)
class Losses:
    """What was asked for and is gone, in sentences."""

    told: list[str] = field(default_factory=list)

    def note(self, sentence: str) -> None:
        """Add one."""
        self.told.append(sentence)

    def judge(self, *, fails: bool) -> list[str]:
        """Return the sentences, or raise `Missing` with all of them where a loss is to fail the read."""
        if self.told and fails:
            raise Missing(
                "; ".join(self.told)
                + ": what was asked for is not in the log (any more). Say failOnDataLoss=false to read what is left"
            )
        return self.told


def resolve(
    position: Position,
    bounds: Mapping[Place, LogBounds],
    found: Mapping[Place, int | None],
) -> dict[Place, int]:
    """Return the offset that a position means in every partition.

    `found` is the first offset at or after the position's time, for the places that have one; `None` where no record
    is as late. Raises `Invalid` where a position names some partitions and not others, as Kafka's source does.
    """
    resolved: dict[Place, int] = {}
    for place, log in bounds.items():
        topic, partition = place
        if (time_ms := position.time_of(place)) is not None:
            offset = found[place]
            if offset is None and not position.latest_without_time:
                raise Invalid(
                    f"partition {partition} of {topic} has no record at or after {time_ms} ms: give an earlier time, "
                    "or say startingOffsetsByTimestampStrategy=latest to begin at its end"
                )
            resolved[place] = log.high_watermark if offset is None else offset
            continue
        offset = position.edge if position.offsets is None else _named(position.offsets, place)
        resolved[place] = {EARLIEST: log.log_start, LATEST: log.high_watermark}.get(offset, offset)
    _refuse_unknown(position, bounds)
    return resolved


def places_at_the_end(
    position: Position, places: Iterable[Place], found: Mapping[Place, int | None]
) -> frozenset[Place]:
    """Return where a position means the end of the log, wherever that is when it is asked for."""

    def is_at_the_end(place: Place) -> bool:
        if position.time_of(place) is not None:
            return found[place] is None
        return (position.edge if position.offsets is None else _named(position.offsets, place)) == LATEST

    return frozenset(place for place in places if is_at_the_end(place))


def ranges_between(
    starts: Mapping[Place, int], ends: Mapping[Place, int], bounds: Mapping[Place, LogBounds], losses: Losses
) -> dict[Place, tuple[int, int]]:
    """Return what is to be read of each partition, and note what is lost of it."""
    ranges: dict[Place, tuple[int, int]] = {}
    for place, end in ends.items():
        topic, partition = place
        where = f"partition {partition} of {topic}"
        log = bounds.get(place)
        start = starts[place]
        if log is None:
            if start < end:
                losses.note(f"{where} is gone, with its offsets {start} to {end - 1}")
            continue
        if start < end and start < log.log_start:
            losses.note(
                f"{where} begins at {log.log_start}: offsets {start} to {min(end, log.log_start) - 1} are lost"
            )
        if max(start, end) > log.high_watermark:
            losses.note(f"{where} ends at {log.high_watermark}, and offsets up to {max(start, end)} are asked for")
        elif start > end:
            losses.note(f"{where} is to be read from {start} to {end}: it is shorter than it was")
        first, last = max(start, log.log_start), min(end, log.high_watermark)
        if first < last:
            ranges[place] = (first, last)
    return ranges


def starts_of(
    reached: Vector, ends: Mapping[Place, int], topic_ids: Mapping[str, str], losses: Losses
) -> dict[Place, int]:
    """Return where a batch begins that goes on from where a stream stands, and note what is gone of that.

    A partition that was not there before begins with its first offset, and so does one of a topic that was deleted
    and created again: the offset that was reached means nothing in the new log.
    """
    replaced = reached.replaced(topic_ids)
    for topic in sorted(replaced):
        losses.note(f"topic {topic} was deleted and created again, and what was not read yet of the old one is gone")
    for topic, partition in sorted(set(reached.offsets) - set(ends)):
        if topic not in replaced:
            losses.note(f"partition {partition} of {topic} is gone")
    return {place: 0 if place[0] in replaced else reached.offsets.get(place, 0) for place in ends}


def limited(starts: Mapping[Place, int], ends: Mapping[Place, int], max_offsets: int) -> dict[Place, int]:
    """Return ends that together lie at most so many offsets behind the starts; each partition gets its share.

    Every partition that has grown moves on by one offset at least, as with Kafka's source: with more of them than
    offsets are allowed, each moves on by just one.
    """
    sizes = {place: end - starts[place] for place, end in ends.items() if end > starts[place]}
    total = sum(sizes.values())
    if total <= max_offsets:
        return dict(ends)
    spare = max(0, max_offsets - len(sizes))
    taken = {place: 1 + (size - 1) * spare // max(1, total - len(sizes)) for place, size in sizes.items()}
    left = max(0, max_offsets - sum(taken.values()))
    for place in sorted(sizes, key=lambda place: (taken[place] - sizes[place], place))[:left]:
        taken[place] += 1
    return {place: starts[place] + taken[place] if place in taken else ends[place] for place in ends}


def nested(offsets: Mapping[Place, int]) -> dict[str, dict[int, int]]:
    """Return a vector by topic, in an order that does not depend on how it came about."""
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[partition] = offset
    return by_topic


def flat(offsets: Mapping[str, Mapping[str, int]] | Offsets) -> dict[Place, int]:
    """Return a vector by place; partitions may be text, as JSON has them."""
    return {
        (topic, int(partition)): offset for topic, parts in offsets.items() for partition, offset in parts.items()
    }


def parse_offsets(text: str, option: str, *, least: int = EARLIEST) -> Offsets:
    """Read `{"topic": {"0": 23, "1": -2}}`. Raises `Invalid`."""
    try:
        told = json.loads(text)
        parsed = {
            str(topic): {_partition(partition): int(number) for partition, number in parts.items()}
            for topic, parts in told.items()
        }
        if all(type(number) is int for parts in told.values() for number in parts.values()) and parsed:
            for topic, parts in parsed.items():
                for partition, number in parts.items():
                    if number < least:
                        raise Invalid(f"{option}: {number} is no offset for partition {partition} of {topic}")
            return parsed
    except (ValueError, AttributeError, TypeError):
        pass
    raise Invalid(f'{option} takes JSON such as {{"orders": {{"0": 23, "1": -2}}}}, not {text[:200]!r}')


def parse_assignment(text: str) -> Mapping[str, tuple[int, ...]]:
    """Read `{"topic": [0, 1]}`. Raises `Invalid`."""
    try:
        told = json.loads(text)
        if told and all(type(number) is int and number >= 0 for parts in told.values() for number in parts):
            return {str(topic): tuple(sorted(set(parts))) for topic, parts in told.items()}
    except (ValueError, AttributeError, TypeError):
        pass
    raise Invalid(f'assign takes JSON such as {{"orders": [0, 1]}}, not {text[:200]!r}')


def _partition(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _named(offsets: Offsets, place: Place) -> int:
    topic, partition = place
    number = offsets.get(topic, {}).get(partition)
    if number is None:
        raise Invalid(
            f"partition {partition} of {topic} is not named: offsets and times are given for every partition that is "
            f"read, or for none. Named are {_listed(offsets)}"
        )
    return number


def _refuse_unknown(position: Position, bounds: Mapping[Place, LogBounds]) -> None:
    for given in (position.offsets, position.timestamps):
        unknown = sorted(set(flat(given or {})) - set(bounds))
        if unknown:
            topic, partition = unknown[0]
            raise Invalid(f"partition {partition} of {topic} has a place given and is not among those that are read")


def _listed(offsets: Offsets) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, parts in offsets.items() for partition in parts)
