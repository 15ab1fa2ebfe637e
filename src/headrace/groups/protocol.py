"""What a group is told, and what it answers: the values that the state machines and their shell exchange.

Handlers make *events* out of requests. A machine (`classic.py`, `consumer.py`) takes one event with a *token* and
returns *effects*. Whoever sent the event hears the reply that carries its token, at once or much later.

Must stay true: effects are carried out in order, and a reply leaves only when every `Save` that stands before it, in
this call or in an earlier one, is durable. So no member ever hears of a generation or an epoch that a crash could
take back.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from headrace.groups import regexes
from headrace.groups.records import GroupHead
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import TopicId

Partitions: TypeAlias = Mapping[TopicId, frozenset[int]]

NO_EPOCH = -1
"""Generation or epoch of somebody who is no member: a simple consumer, an admin client."""

LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2
"""Epochs by which a KIP-848 member says that it goes: for good, or to come back under its instance id."""

JOINING_EPOCH = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """Now: `monotonic_ms` for deadlines, `wall_ms` for what is written down for people and for retention."""

    monotonic_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Client:
    """Who sends: the client's own name for itself, and where it stands."""

    id: str
    host: str


# Events of the classic protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """JoinGroup. `protocols` are in the member's order of preference."""

    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client: Client
    needs_member_id: bool
    """From v4 on a new dynamic member is given an id and has to come again with it."""
    can_skip_assignment: bool = False
    """From v9 on a leader that joins again can be told to leave the assignment as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """SyncGroup; only the leader's `assignments` count. `None` protocols are not checked (below v5)."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Heartbeat of the classic protocol."""

    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """Somebody who leaves: by member id, or by instance id with an empty member id (an admin client)."""

    member_id: str
    instance_id: str | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """LeaveGroup, for one member or several."""

    leavers: tuple[Leaver, ...]


# Events of KIP-848


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerBeat:
    """ConsumerGroupHeartbeat. `None` means: as I said last time. `rebalance_timeout_ms` is −1 for that."""

    member_id: str
    member_epoch: int
    instance_id: str | None
    rack: str | None
    rebalance_timeout_ms: int
    topics: tuple[str, ...] | None
    regex: str | None
    """`None`: unchanged; empty: no regex any more."""
    assignor: str | None
    owned: Partitions | None
    client: Client
    turn_ms: int | None = None
    """How long the client's connection took from an answer to the next request; `None`: not known."""


# Events of both


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed: act on every deadline that lies not after now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """What a group needs to know of one topic."""

    id: TopicId
    name: str
    partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsImage:
    """All topics as one broker knows them at one moment. `revision` grows with every change of the registry."""

    revision: int
    by_name: Mapping[str, TopicFacts]
    by_id: Mapping[TopicId, TopicFacts]
    matching: Callable[[str, Collection[str]], frozenset[str]] = regexes.matching
    """Which of these names a regular expression stands for: a broker looks up what was found before (`patterns.py`).
    It may know names that are gone. Raises `InvalidPattern`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsChanged:
    """Topics came, went or grew."""

    image: TopicsImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanged:
    """The group's own configuration is another one now."""

    config: "GroupConfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsChanged:
    """The broker allows other things of its groups now; members that are there stay."""

    limits: "GroupLimits"


Event: TypeAlias = Join | Sync | Beat | Leave | ConsumerBeat | Tick | TopicsChanged | ConfigChanged | LimitsChanged


# Replies


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """What JoinGroup hears. Only the leader gets `members`: (member id, instance id, metadata)."""

    error: ErrorCode = ErrorCode.NONE
    generation: int = NO_EPOCH
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    """What SyncGroup hears."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatReply:
    """What Heartbeat hears."""

    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveReply:
    """What LeaveGroup hears: a code per leaver, in order."""

    error: ErrorCode = ErrorCode.NONE
    leavers: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerBeatReply:
    """What ConsumerGroupHeartbeat hears. `assignment` is `None` where nothing has changed for the member."""

    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


AnyReply: TypeAlias = JoinReply | SyncReply | BeatReply | LeaveReply | ConsumerBeatReply


# Effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """What has to be durable: the head, and members and assignments by member id; `None` deletes one."""

    head: GroupHead
    members: Mapping[str, bytes | None] = field(default_factory=dict)
    assignments: Mapping[str, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the event that came with this token."""

    token: int
    reply: AnyReply


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that operators want to count and to read about: `what` is one of `NOTED`, `text` one sentence."""

    what: str
    text: str


NOTED = ("rebalance", "expired", "fenced", "upgraded", "downgraded")
"""A rebalance began or a new target was computed; a member was silent for too long; a duplicate static member was
put out; a group changed from classic to consumer, or back."""

Effect: TypeAlias = Save | Reply | Noted


# What surrounds a machine


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """What a broker allows of every group, from its settings."""

    max_members: int
    min_session_timeout_ms: int
    max_session_timeout_ms: int
    initial_rebalance_delay_ms: int
    max_metadata_bytes: int
    """What the protocols of one member may weigh, all together."""
    max_subscribed_topics: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The configuration of one KIP-848 group: what was set for it, else the broker's settings."""

    session_timeout_ms: int
    heartbeat_interval_ms: int | None
    """`None`: the coordinator chooses by how many members there are (`pace.py`)."""


class Pace(Protocol):
    """How often members should be heard of."""

    def stable_interval_ms(self, member_count: int) -> int:
        """Return the interval for members of a group of this size while nothing changes."""
        ...

    @property
    def busy_interval_ms(self) -> int:
        """Return the interval while a group reconciles."""
        ...


# What others want to know of a group


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """A member as DescribeGroups shows it; `metadata` is that of the protocol that was chosen."""

    member_id: str
    instance_id: str | None
    client: Client
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member as ConsumerGroupDescribe shows it."""

    member_id: str
    instance_id: str | None
    rack: str | None
    member_epoch: int
    client: Client
    topics: tuple[str, ...]
    regex: str | None
    assigned: Partitions
    target: Partitions
    is_classic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as admin clients see it. `state` is Kafka's name for it: `Stable`, `PreparingRebalance` …"""

    head: GroupHead
    state: str
    protocol: str
    """The protocol that was chosen, or the assignor."""
    classic_members: tuple[ClassicMember, ...] = ()
    consumer_members: tuple[ConsumerMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitClaim:
    """Who wants to commit or fetch offsets: a member with its generation or epoch, or nobody (`NO_EPOCH`, no id)."""

    member_id: str
    instance_id: str | None
    epoch: int
    knows_epochs: bool
    """Whether the request's version can carry errors about member epochs: OffsetCommit and OffsetFetch from v9 on."""


class Machine(Protocol):
    """A group's state machine: plain code without await, clock or I/O.

    Must stay true: from the `Loaded` that its saves amount to, a new machine goes on where this one was, but for what
    is memory only (joins that wait, deadlines).
    """

    @property
    def head(self) -> GroupHead: ...

    @property
    def state(self) -> str:
        """Kafka's name for the state."""
        ...

    @property
    def member_count(self) -> int: ...

    @property
    def next_deadline_ms(self) -> int | None:
        """The monotonic moment at which a `Tick` is due; `None`: nothing is waited for."""
        ...

    def handle(self, event: Event, token: int, now: Moment) -> list[Effect]:
        """Take one event."""
        ...

    def check_commit(self, claim: CommitClaim, now: Moment) -> ErrorCode:
        """Say whether somebody may commit now; for a classic member it counts as a sign of life."""
        ...

    def check_fetch(self, claim: CommitClaim) -> ErrorCode:
        """Say whether somebody may fetch committed offsets now."""
        ...

    def subscribed(self) -> frozenset[str] | None:
        """Return the topics that members subscribe to, whose offsets must not be deleted; `None`: cannot tell."""
        ...

    def describe(self) -> GroupDescription:
        """Return what admin clients see."""
        ...
