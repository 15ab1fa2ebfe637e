"""What a soak consists of: topics that live in different ways, keepers that hurry, and who is killed how often.

Ages and sizes are those of a year in small: retention of seconds, files of a few megabytes, checks every second. What
a record holds follows from its number alone, so whoever reads one knows what it must be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random

KIB = 1024
MIB = 1024 * KIB

NUMBER_HEADER = "n"
KEYS = 200
"""How many keys the records of a compacted topic share."""

TOMBSTONE_EVERY = 13
"""Every so many records of a compacted topic delete their key."""


class Life(Enum):
    """How a topic lives: what goes from it, and when."""

    AGED = "aged"
    """By age, and its table follows."""
    KEPT = "kept"
    """Nothing goes: its table grows, and is merged."""
    SIZED = "sized"
    """By size, without a table: the broker repacks it."""
    COMPACTED = "compacted"
    """All but the latest record of each key goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakTopic:
    """A topic and how it is written to."""

    name: str
    life: Life
    partitions: int
    value_bytes: int
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_table(self) -> bool:
        return self.config.get("headrace.table.enable") != "false"

    def key_of(self, number: int) -> bytes | None:
        """Return the key of the topic's n-th record."""
        return b"key-%d" % (number * 7919 % KEYS) if self.life is Life.COMPACTED else None

    def value_of(self, number: int) -> bytes | None:
        """Return the value of the topic's n-th record: bytes that no codec makes smaller, or a tombstone."""
        if self.life is Life.COMPACTED and number % TOMBSTONE_EVERY == TOMBSTONE_EVERY - 1:
            return None
        return Random(number).randbytes(self.value_bytes)

    def partition_of(self, number: int) -> int:
        """Return where the topic's n-th record goes: all records of a key to one partition."""
        spread = number * 7919 % KEYS if self.life is Life.COMPACTED else number
        return spread % self.partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakPlan:
    """One soak."""

    seconds: float
    records_per_second: int
    """Of all topics together."""
    kill_every_seconds: tuple[float, float]
    """Between two kills, at least and at most."""
    settle_seconds: float
    """How long the keepers may take at the end, when nobody writes any more."""
    topics: Sequence[SoakTopic]
    brokers: int = 2
    settings: Mapping[str, str] = field(default_factory=dict)
    seed: int = 1

    @property
    def has_pipeline(self) -> bool:
        """Whether there is anything to do for one."""
        return any(topic.has_table for topic in self.topics)


def topics(*, retention_ms: int, retention_bytes: int) -> list[SoakTopic]:
    """Return the topics of a soak."""
    soon = {"headrace.table.target.lag.ms": "5000"}
    return [
        SoakTopic(
            name="aged",
            life=Life.AGED,
            partitions=2,
            value_bytes=600,
            config={**soon, "retention.ms": str(retention_ms), "headrace.table.retention": "follow"},
        ),
        SoakTopic(name="kept", life=Life.KEPT, partitions=2, value_bytes=300, config={**soon, "retention.ms": "-1"}),
        SoakTopic(
            name="sized",
            life=Life.SIZED,
            partitions=2,
            value_bytes=600,
            config={"headrace.table.enable": "false", "retention.bytes": str(retention_bytes)},
        ),
        SoakTopic(
            name="compacted",
            life=Life.COMPACTED,
            partitions=2,
            value_bytes=200,
            config={
                **soon,
                "cleanup.policy": "compact",
                "delete.retention.ms": str(retention_ms),
                "min.cleanable.dirty.ratio": "0.3",
                "headrace.table.compaction": "latest",
            },
        ),
    ]


HURRY: Mapping[str, str] = {
    "broker.session.timeout.ms": "3000",
    "log.retention.check.interval.ms": "1000",
    "wal.segment.max.bytes": str(2 * MIB),
    "wal.frame.max.bytes": str(MIB),
    "wal.segment.max.age.ms": "5000",
    "wal.sealed.grace.ms": "2000",
    "wal.staged.max.age.ms": "60000",
    "wal.repack.min.age.ms": "10000",
    "pipeline.file.target.bytes": str(4 * MIB),
    "pipeline.row.group.bytes": str(256 * KIB),
    "pipeline.attempt.age.floor.ms": "60000",
    "table.snapshots.max.count": "5",
    "table.snapshots.max.age.ms": "60000",
    "table.files.grace.ms": "2000",
}
"""What makes the keepers do in minutes what they do in weeks otherwise."""


def full_plan() -> SoakPlan:
    """Return ten minutes with everything on."""
    return SoakPlan(
        seconds=600.0,
        records_per_second=1_000,
        kill_every_seconds=(8.0, 25.0),
        settle_seconds=240.0,
        topics=topics(retention_ms=60_000, retention_bytes=4 * MIB),
        settings=HURRY,
    )


def quick_plan() -> SoakPlan:
    """Return the same in about two minutes."""
    return SoakPlan(
        seconds=60.0,
        records_per_second=500,
        kill_every_seconds=(8.0, 15.0),
        settle_seconds=180.0,
        topics=topics(retention_ms=20_000, retention_bytes=MIB),
        settings=HURRY,
    )
