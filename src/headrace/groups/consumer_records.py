"""What a KIP-848 group keeps of each member: who it is, what it wants, what it has, and what it should have.

A member may speak the classic protocol while its group is moved online from one protocol to the other: then `classic`
says what only that protocol knows. The same struct serves both, so that a group can be written by one machine and
read by the other.

Structs are arrays at rest: a field is never moved or removed, a new one goes last and has a default.

Must stay true: a partition stands in `assigned` or `revoking` of at most one member of a group.
"""

import enum
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from headrace.groups.protocol import Partitions
from headrace.groups.records import GroupKind, Loaded
from headrace.metadata.values import ValueCodec
from headrace.model.topics import TopicId


class MemberState(enum.IntEnum):
    """How far a member has come on its way to its target."""

    STABLE = 0
    """It has what the target of its epoch gives it. A newer target may exist that it has not heard of."""
    REVOKING = 1
    """It was told to let go of what is in `revoking`, and has not confirmed it. Its epoch waits."""
    WAITING = 2
    """It is in the target's epoch, but others have not let go of all that it will get."""


PartitionEpochs: TypeAlias = Mapping[TopicId, Mapping[int, int]]
"""Partitions by topic, each with the member epoch at which it was given to its member (KIP-1251)."""


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """Partitions of one topic, and for each of them the epoch at which the member got it, in two tuples abreast."""

    topic_id: bytes
    partitions: tuple[int, ...]
    epochs: tuple[int, ...]


class ClassicFacts(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What the classic protocol knows of a member: its own session timeout, and its protocols by preference."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMemberRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What lies at `members/<member id>` of a KIP-848 group.

    `epoch` is the member epoch, which a classic member knows as its generation. It is `STATIC_LEAVING_EPOCH` for a
    static member that went and may come back. `previous_epoch` is what a member that lost an answer may still send.
    `classic` is `None` for a member that speaks KIP-848.
    """

    member_id: str
    instance_id: str | None
    rack: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    """Subscribed names, sorted, each once."""
    regex: str | None
    assignor: str | None
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: tuple[Holding, ...] = ()
    revoking: tuple[Holding, ...] = ()
    classic: ClassicFacts | None = None


class TargetRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What lies at `assignments/<member id>` of a KIP-848 group: what the member should have. Absent is nothing."""

    member_id: str
    partitions: tuple[tuple[bytes, tuple[int, ...]], ...] = ()


CONSUMER_MEMBER = ValueCodec(ConsumerMemberRecord)
TARGET = ValueCodec(TargetRecord)


def regexes_of(loaded: Loaded) -> list[str]:
    """Return the regular expressions that members of a group that was read subscribe with."""
    if loaded.head is None or loaded.head.kind is not GroupKind.CONSUMER:
        return []
    members = [CONSUMER_MEMBER.decode(raw, key) for key, raw in loaded.members]
    return [member.regex for member in members if member.regex is not None]


def holdings(held: PartitionEpochs) -> tuple[Holding, ...]:
    """Return partitions with their epochs as they are stored."""
    return tuple(
        Holding(topic_id, tuple(epochs), tuple(epochs.values())) for topic_id, epochs in held.items() if epochs
    )


def partition_epochs(stored: tuple[Holding, ...]) -> dict[TopicId, dict[int, int]]:
    """Return stored partitions with their epochs by topic."""
    return {
        TopicId(holding.topic_id): dict(zip(holding.partitions, holding.epochs, strict=True)) for holding in stored
    }


def target_record(member_id: str, target: Partitions) -> TargetRecord:
    """Return a target as it is stored."""
    return TargetRecord(
        member_id=member_id,
        partitions=tuple((topic_id, tuple(sorted(partitions))) for topic_id, partitions in target.items()),
    )


def target_partitions(record: TargetRecord) -> dict[TopicId, frozenset[int]]:
    """Return a stored target."""
    return {TopicId(topic_id): frozenset(partitions) for topic_id, partitions in record.partitions}
