"""What the commands know about a consumer group, whichever client told them.

Lag is what a group has still to read of a partition: the partition's latest offset minus the one that was committed.
It is unknown, not zero, where nothing was committed or nobody leads the partition.
"""

import enum
from dataclasses import dataclass
from typing import TypeAlias

Place: TypeAlias = tuple[str, int]
"""A partition: its topic's name and its number."""


class GroupType(enum.StrEnum):
    """How the members of a group agree on who reads what."""

    CLASSIC = "classic"
    """They join and sync, and one of them assigns; also a group that only keeps offsets."""
    CONSUMER = "consumer"
    """The coordinator assigns (KIP-848)."""
    OTHER = "other"
    """No consumer group: a share group, a streams group, Kafka Connect. librdkafka knows it by name alone."""


class GroupState(enum.StrEnum):
    """What a group is doing."""

    STABLE = "stable"
    EMPTY = "empty"
    """It has no members; its offsets stay."""
    PREPARING_REBALANCE = "preparing-rebalance"
    COMPLETING_REBALANCE = "completing-rebalance"
    REBALANCING = "rebalancing"
    """What Kafka calls assigning and reconciling in a KIP-848 group; librdkafka has no name for the two."""
    DEAD = "dead"
    """It is not there."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group as a list shows it."""

    name: str
    type: GroupType
    state: GroupState


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDetails:
    """A member. `instance_id` is None unless its membership is static.

    `target` is what the coordinator wants it to have, None where a group does not tell that apart from `assigned`.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: tuple[Place, ...]
    target: tuple[Place, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a group is in a partition.

    `committed_offset` is None where nothing was committed, `latest_offset` where the cluster does not tell it,
    `owner` (a member's id) where nobody reads.
    """

    topic: str
    partition: int
    committed_offset: int | None
    latest_offset: int | None
    owner: str | None

    @property
    def lag(self) -> int | None:
        """How many offsets are still to be read; None if that is unknown."""
        if self.committed_offset is None or self.latest_offset is None:
            return None
        # A topic that was created anew may end before an old commit: nothing is to be read there.
        return max(0, self.latest_offset - self.committed_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """A group, its members, and every partition that it has an offset for or that a member owns.

    `assignor` is None where none was chosen yet, the coordinator where none is known.
    """

    name: str
    type: GroupType
    state: GroupState
    assignor: str | None
    coordinator: int | None
    coordinator_address: str | None
    members: tuple[MemberDetails, ...]
    partitions: tuple[PartitionLag, ...]

    @property
    def total_lag(self) -> int:
        """The sum of all lags that are known."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def unknown_lags(self) -> int:
        """In how many partitions the lag is unknown."""
        return sum(partition.lag is None for partition in self.partitions)
