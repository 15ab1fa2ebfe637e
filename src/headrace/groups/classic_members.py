"""The members of a classic group: who they are, which of them wait, what they can agree on, and who leads.

Must stay true: there is a leader exactly while there are members; an instance id belongs to one member; and at least
one protocol is known to all members, because nobody is let in otherwise (`supports`).
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from headrace.errors import Invalid
from headrace.groups.classic_records import ClassicMemberRecord
from headrace.groups.protocol import ClassicMember, Client, Join
from headrace.model.error_codes import ErrorCode
from headrace.model.subscriptions import decode_subscription

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of consumers, whose metadata are subscriptions that we can read."""


class Member:
    """One member. `join_token` and `sync_token` are the requests that wait for an answer."""

    __slots__ = ("assignment", "id", "is_new", "join_token", "record", "session_timeout_ms", "sync_token")

    def __init__(self, record: ClassicMemberRecord, *, assignment: bytes = b"", is_new: bool = False) -> None:
        self.id = record.member_id
        self.record = record
        self.session_timeout_ms = record.session_timeout_ms
        self.assignment = assignment
        self.is_new = is_new
        """Whether it has not been in any generation yet. The session timeout is not for those: below version 4 of
        JoinGroup they do not know their id before they are answered."""
        self.join_token: int | None = None
        self.sync_token: int | None = None

    @property
    def instance_id(self) -> str | None:
        return self.record.instance_id

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an answer, which is as good as a heartbeat, unless it is new."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)


class Roster:
    """All members of a group, in the order in which they came."""

    __slots__ = ("_static_ids", "_supporters", "joined_count", "leader_id", "members")

    def __init__(self, members: Iterable[Member] = (), leader_id: str = "") -> None:
        self.members: dict[str, Member] = {}
        self.leader_id = ""
        self.joined_count = 0
        """How many members wait for the next generation."""
        self._static_ids: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()
        for member in members:
            self.add(member)
        if leader_id in self.members:
            self.leader_id = leader_id

    def __len__(self) -> int:
        return len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long members may take to come again: as long as the slowest one asks for."""
        return max((member.record.rebalance_timeout_ms for member in self.members.values()), default=0)

    def static_id(self, instance_id: str | None) -> str | None:
        """Return the member id that an instance id has now."""
        return None if instance_id is None else self._static_ids.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Say whether this is a member, under the instance id that it names."""
        if instance_id is not None:
            known_id = self._static_ids.get(instance_id)
            if known_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def add(self, member: Member) -> None:
        """Take a member in. The first one leads."""
        assert member.id not in self.members, f"{member.id} is a member already"
        self.members[member.id] = member
        self._count(member.record, 1)
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.id
        if not self.leader_id:
            self.leader_id = member.id

    def remove(self, member_id: str) -> Member:
        """Let a member go that waits for nothing. If it led, the one that is longest here does from now on."""
        member = self.members.pop(member_id)
        assert member.join_token is None and member.sync_token is None, f"{member_id} waits for an answer"
        self._count(member.record, -1)
        if member.instance_id is not None:
            del self._static_ids[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), "")
        return member

    def update(self, member: Member, record: ClassicMemberRecord) -> None:
        """Let a member be what it says now; its ids stay."""
        self._count(member.record, -1)
        self._count(record, 1)
        member.record = record
        member.session_timeout_ms = record.session_timeout_ms

    def rename(self, old_id: str, new_id: str) -> Member:
        """Give a static member another member id. It keeps its place at the head of the group and its assignment."""
        old = self.members.pop(old_id)
        assert old.instance_id is not None, "only a static member comes back under another id"
        assert old.join_token is None and old.sync_token is None, f"{old_id} waits for an answer"
        new = Member(msgspec.structs.replace(old.record, member_id=new_id), assignment=old.assignment)
        self.members[new_id] = new
        self._static_ids[old.instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        return new

    def park_join(self, member: Member, token: int) -> None:
        """Let a member wait for the next generation."""
        assert member.join_token is None, f"{member.id} waits already"
        member.join_token = token
        self.joined_count += 1

    def take_join(self, member: Member) -> int | None:
        """Return the request by which a member waits for the next generation: it is to be answered now."""
        token, member.join_token = member.join_token, None
        if token is not None:
            self.joined_count -= 1
        return token

    def elect(self) -> bool:
        """Let somebody lead who has joined; say whether there is anybody."""
        leader = self.members.get(self.leader_id)
        if leader is not None and leader.join_token is not None:
            return True
        for member in self.members.values():
            if member.join_token is not None:
                self.leader_id = member.id
                return True
        return False

    def supports(self, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Say whether one of these protocols is known to all members."""
        return any(self._supporters[name] == len(self.members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """Return the protocol with most votes. Each member votes for the first of its own that all members know."""
        everybody = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.record.protocols if self._supporters[name] == everybody)] += 1
        # Among equals it is the one whose first vote came first, so that the outcome does not depend on hashes.
        return max(votes, key=votes.__getitem__)

    def _count(self, record: ClassicMemberRecord, by: int) -> None:
        for name, _ in record.protocols:
            self._supporters[name] += by
            if not self._supporters[name]:
                del self._supporters[name]


def record_of(event: Join, member_id: str) -> ClassicMemberRecord:
    """Return what a member says of itself. A protocol that it names twice counts once, as it stands first."""
    protocols: dict[str, bytes] = {}
    for name, metadata in event.protocols:
        protocols.setdefault(name, metadata)
    return ClassicMemberRecord(
        member_id=member_id,
        instance_id=event.instance_id,
        client_id=event.client.id,
        client_host=event.client.host,
        session_timeout_ms=event.session_timeout_ms,
        rebalance_timeout_ms=max(0, event.rebalance_timeout_ms),
        protocols=tuple(protocols.items()),
    )


def described(member: Member, protocol: str) -> ClassicMember:
    """Return a member as admin clients see it, under the protocol that was chosen; empty: none was."""
    return ClassicMember(
        member_id=member.id,
        instance_id=member.instance_id,
        client=Client(member.record.client_id, member.record.client_host),
        metadata=(member.record.metadata(protocol) if protocol else None) or b"",
        assignment=member.assignment,
    )


def wanted_topics(record: ClassicMemberRecord, protocol: str) -> frozenset[str] | None:
    """Return the topics that a consumer subscribes to; `None`: its metadata cannot be read.

    Who came since the last generation may not know the protocol that was chosen for it.
    """
    metadata = record.metadata(protocol)
    try:
        return frozenset(decode_subscription(record.protocols[0][1] if metadata is None else metadata).topics)
    except Invalid:
        return None
