"""What a group keeps in the metadata store: its head and its offsets. Members are in the file of their protocol.

Structs are arrays at rest: a field is never moved or removed, a new one goes last and has a default.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.metadata.port import Key
from headrace.metadata.values import ValueCodec


class GroupKind(enum.IntEnum):
    """Which protocol rules a group."""

    CLASSIC = 0
    CONSUMER = 1


class Phase(enum.IntEnum):
    """How far a classic group has come with its generation, as far as that is durable."""

    EMPTY = 0
    COMPLETING = 1
    """The generation is known, its assignment is not."""
    STABLE = 2
    PREPARING = 3
    """Members have what is stored for them, but must come together anew: a group that has just become a classic one.

    In any other group a rebalance that begins is memory only, because its reason comes up again after a restart.
    """


class GroupHead(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What lies at a group's `head`. `epoch` is the generation of a classic group, the group epoch of the other kind.

    `empty_since_ms` is wall time, and `None` while there are members: offsets are kept that long and a while longer.
    """

    group_id: str
    kind: GroupKind
    epoch: int
    empty_since_ms: int | None
    # The classic protocol
    phase: Phase = Phase.EMPTY
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    # KIP-848: the target assignment was computed for `target_epoch`. The hash is of all topics that members subscribe
    # to, with their partition counts, as of `epoch`: with thousands of topics the list itself would be in every save.
    target_epoch: int = 0
    assignor: str = ""
    topics_hash: bytes = b""


class OffsetRecord(msgspec.Struct, frozen=True, array_like=True):
    """What lies at `offsets/<topic id>/<partition>`. `expires_at_ms`: what a very old client asked for."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int | None = None


GROUP_HEAD = ValueCodec(GroupHead)
OFFSET_RECORD = ValueCodec(OffsetRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A group as it was read: `head` is `None` if it does not exist. Values are decoded by the group's machine."""

    group_id: str
    head: GroupHead | None
    members: Sequence[tuple[Key, bytes]] = ()
    assignments: Sequence[tuple[Key, bytes]] = ()
