"""The members of a KIP-848 group in memory: who they are, what they have, and what was changed since the last save.

Must stay true: `holder` knows for every partition in somebody's `assigned` or `revoking` whose that is, and there is
never a second one. Whatever changes a member goes through `Roster`, which sees to both that and the saving.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from headrace.errors import Corrupt
from headrace.groups.consumer_records import (
    CONSUMER_MEMBER,
    ClassicFacts,
    ConsumerMemberRecord,
    MemberState,
    PartitionEpochs,
    holdings,
    partition_epochs,
)
from headrace.groups.consumer_subscriptions import NO_WISH, Subscriptions, Wish
from headrace.groups.protocol import STATIC_LEAVING_EPOCH, Client, ConsumerBeatReply, Partitions
from headrace.groups.reconciliation import Standing, partitions_of
from headrace.metadata.port import Key
from headrace.model.topics import TopicId

NOBODY = Client("", "")

UNTIL_CONFIRMED = 1 << 30
REPEATS_AFTER_LOADING = 10
"""How many answers repeat the assignment of a member at rest whose last answer came from an earlier coordinator. That
answer may have been lost. But librdkafka and Java do not confirm an assignment that they have already, so it ends."""


class Member:
    """One member. Only `Roster` writes to it, but for `rest_reply`, which is the answer it gets while at rest.

    Memory only: `repeats_left`, how many more answers carry the assignment, and `reported`, what the member last said
    that it owns; `None`: it has said nothing to this coordinator. `turn_ms` is how long the member takes at most from
    an answer to its next request; `None`: not known. It is `greeted_ms`, what its connection took when it began,
    unless the member was quicker to confirm what it was first told at `told_at_ms`.
    """

    __slots__ = (
        "assignor",
        "classic",
        "client",
        "greeted_ms",
        "id",
        "instance_id",
        "rack",
        "rebalance_timeout_ms",
        "repeats_left",
        "reported",
        "rest_reply",
        "standing",
        "told_at_ms",
        "turn_ms",
        "wish",
    )

    def __init__(self, member_id: str) -> None:
        self.id = member_id
        self.instance_id: str | None = None
        self.rack: str | None = None
        self.client = NOBODY
        self.rebalance_timeout_ms = 0
        self.wish = NO_WISH
        self.assignor: str | None = None
        self.classic: ClassicFacts | None = None
        self.standing = Standing(assigned={}, revoking={})
        self.rest_reply: ConsumerBeatReply | None = None
        self.repeats_left = 0
        self.reported: Partitions | None = None
        self.greeted_ms: int | None = None
        self.turn_ms: int | None = None
        self.told_at_ms: int | None = None

    @property
    def is_away(self) -> bool:
        """Whether it is a static member that went and may come back."""
        return self.standing.epoch == STATIC_LEAVING_EPOCH

    def record(self) -> ConsumerMemberRecord:
        """Return the member as it is stored."""
        standing = self.standing
        return ConsumerMemberRecord(
            member_id=self.id,
            instance_id=self.instance_id,
            rack=self.rack,
            client_id=self.client.id,
            client_host=self.client.host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topics=self.wish.topics,
            regex=self.wish.regex,
            assignor=self.assignor,
            epoch=standing.epoch,
            previous_epoch=standing.previous_epoch,
            state=standing.state,
            assigned=holdings(standing.assigned),
            revoking=holdings(standing.revoking),
            classic=self.classic,
        )


class Roster:
    """All members of one group."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._members: dict[str, Member] = {}
        self._statics: dict[str, str] = {}
        self._holders: dict[TopicId, dict[int, str]] = {}
        self._classic_protocols: Counter[str] = Counter()
        self._changed: dict[str, Member | None] = {}
        self._stored: set[str] = set()
        self.classic_count = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, member_id: str) -> Member | None:
        """Return a member by its id."""
        return self._members.get(member_id)

    def static(self, instance_id: str) -> Member | None:
        """Return the member that has this instance id."""
        member_id = self._statics.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def holder(self, topic_id: TopicId, partition: int) -> str | None:
        """Return the id of the member that has a partition, or has not let go of it yet."""
        return self._holders.get(topic_id, _NO_HOLDERS).get(partition)

    def taken_from(self, member: Member) -> Callable[[TopicId, int], bool]:
        """Return a function that says whether somebody else than this member has a partition."""
        holders, member_id = self._holders, member.id

        def is_taken(topic_id: TopicId, partition: int) -> bool:
            holder = holders.get(topic_id, _NO_HOLDERS).get(partition)
            return holder is not None and holder != member_id

        return is_taken

    def supports(self, protocols: Iterable[str]) -> bool:
        """Say whether one of these protocols is one that all classic members know."""
        return any(self._classic_protocols[name] == self.classic_count for name in protocols)

    # Changing members

    def add(self, member: Member) -> None:
        """Let a new member in."""
        assert member.id not in self._members, "an id is one member's"
        self._members[member.id] = member
        self._count(member)
        self._take(member, member.standing.assigned, member.standing.revoking)
        self._changed[member.id] = member

    def remove(self, member: Member) -> None:
        """Take a member out; what it had is free."""
        del self._members[member.id]
        self._uncount(member)
        self._let_go(member.standing.assigned, member.standing.revoking)
        self._changed[member.id] = None

    def replace(self, old: Member, new_id: str) -> Member:
        """Let a static member come back under a new id: all that was the old one's is the new one's."""
        self.remove(old)
        new = Member(new_id)
        for name in ("instance_id", "rack", "client", "rebalance_timeout_ms", "wish", "assignor", "classic"):
            setattr(new, name, getattr(old, name))
        new.standing = replace(old.standing, epoch=0, previous_epoch=0)
        self.add(new)
        return new

    def describe(
        self,
        member: Member,
        *,
        client: Client,
        instance_id: str | None,
        rack: str | None,
        rebalance_timeout_ms: int,
        wish: Wish,
        assignor: str | None,
        classic: ClassicFacts | None,
    ) -> bool:
        """Take down what a member says of itself; return whether it wants something else than before."""
        before = (member.client, member.instance_id, member.rack, member.rebalance_timeout_ms, member.wish)
        after = (client, instance_id, rack, rebalance_timeout_ms, wish)
        if before == after and (member.assignor, member.classic) == (assignor, classic):
            return False
        has_new_wishes = wish != member.wish
        self._uncount(member)
        member.client, member.instance_id, member.rack, member.rebalance_timeout_ms, member.wish = after
        member.assignor, member.classic = assignor, classic
        self._count(member)
        self._changed[member.id] = member
        return has_new_wishes

    def move(self, member: Member, standing: Standing) -> None:
        """Let a member stand somewhere else."""
        old = member.standing
        if old.assigned is not standing.assigned or old.revoking is not standing.revoking:
            self._let_go(old.assigned, old.revoking)
            self._take(member, standing.assigned, standing.revoking)
        if old.assigned != standing.assigned:
            member.repeats_left = UNTIL_CONFIRMED
            member.told_at_ms = None
        member.standing = standing
        member.rest_reply = None
        self._changed[member.id] = member

    def hear(self, member: Member, owned: Partitions, now_ms: int) -> None:
        """Take down what a member owns. It has confirmed its assignment if that is what it was told to have."""
        before = member.reported
        member.reported = {topic_id: partitions for topic_id, partitions in owned.items() if partitions}
        is_confirmed = member.reported == partitions_of(member.standing.assigned)
        member.repeats_left = 0 if is_confirmed else UNTIL_CONFIRMED
        # Only a member that has read the answer can do what it said. Any other heartbeat may have been sent before.
        if (
            is_confirmed
            and member.reported != before
            and member.told_at_ms is not None
            and member.turn_ms is not None
        ):
            member.turn_ms = min(member.turn_ms, now_ms - member.told_at_ms)

    def greet(self, member: Member, turn_ms: int | None) -> None:
        """Take down how long a member's connection took when it began.

        Another connection than before is a sign that the last one was given up, because an answer came too late.
        """
        if turn_ms is None or turn_ms == member.greeted_ms:
            return
        member.greeted_ms = turn_ms
        member.turn_ms = turn_ms if member.turn_ms is None else max(turn_ms, 2 * member.turn_ms)

    def told(self, member: Member, now_ms: int) -> None:
        """Take note that an answer with the assignment is on its way. Whether it arrives nobody knows."""
        if 0 < member.repeats_left < UNTIL_CONFIRMED:
            member.repeats_left -= 1
        if member.told_at_ms is None:
            member.told_at_ms = now_ms

    # Saving

    def load(self, rows: Iterable[tuple[Key, bytes]]) -> None:
        """Begin with the members that were stored."""
        for key, raw in rows:
            record = CONSUMER_MEMBER.decode(raw, key)
            member = _member_of(record)
            self._stored.add(member.id)
            self._members[member.id] = member
            self._count(member)
            if member.classic is not None:
                self._drop_taken(member)
            try:
                self._take(member, member.standing.assigned, member.standing.revoking)
            except AssertionError as error:
                raise Corrupt(f"member {member.id} at {key} has a partition of another one: {error}") from error

    def take_changes(self) -> dict[str, bytes | None]:
        """Return what has changed since the last time, as it is to be stored; `None` is to be deleted."""
        changes: dict[str, bytes | None] = {}
        for member_id, member in self._changed.items():
            if member is not None:
                changes[member_id] = CONSUMER_MEMBER.encode(member.record())
                self._stored.add(member_id)
            elif member_id in self._stored:
                changes[member_id] = None
                self._stored.discard(member_id)
        self._changed.clear()
        return changes

    # What is counted

    def _count(self, member: Member) -> None:
        self._subscriptions.add(member.wish)
        if member.instance_id is not None:
            self._statics[member.instance_id] = member.id
        if member.classic is not None:
            self.classic_count += 1
            self._classic_protocols.update({name for name, _ in member.classic.protocols})

    def _uncount(self, member: Member) -> None:
        self._subscriptions.remove(member.wish)
        if member.instance_id is not None and self._statics.get(member.instance_id) == member.id:
            del self._statics[member.instance_id]
        if member.classic is not None:
            self.classic_count -= 1
            self._classic_protocols.subtract({name for name, _ in member.classic.protocols})

    def _take(self, member: Member, *helds: PartitionEpochs) -> None:
        member_id = member.id
        for held in helds:
            for topic_id, partitions in held.items():
                holders = self._holders.setdefault(topic_id, {})
                taken = holders.keys() & partitions.keys()
                assert not taken, f"{sorted(taken)} of topic {topic_id.hex()} are somebody's already"
                holders.update(dict.fromkeys(partitions, member_id))

    def _let_go(self, *helds: PartitionEpochs) -> None:
        for held in helds:
            for topic_id, partitions in held.items():
                holders = self._holders[topic_id]
                for partition in partitions:
                    del holders[partition]
                if not holders:
                    del self._holders[topic_id]

    def _drop_taken(self, member: Member) -> None:
        """Leave out what another member has: assignors of clients may give a partition to two classic members."""
        standing = member.standing
        assigned = {
            topic_id: {
                partition: epoch for partition, epoch in held.items() if self.holder(topic_id, partition) is None
            }
            for topic_id, held in standing.assigned.items()
        }
        if assigned != standing.assigned:
            member.standing = replace(standing, assigned={key: held for key, held in assigned.items() if held})
            self._changed[member.id] = member


_NO_HOLDERS: Mapping[int, str] = {}


def _member_of(record: ConsumerMemberRecord) -> Member:
    member = Member(record.member_id)
    member.instance_id = record.instance_id
    member.rack = record.rack
    member.client = Client(record.client_id, record.client_host)
    member.rebalance_timeout_ms = record.rebalance_timeout_ms
    member.wish = Wish(record.topics, record.regex)
    member.assignor = record.assignor
    member.classic = record.classic
    member.standing = Standing(
        epoch=record.epoch,
        previous_epoch=record.previous_epoch,
        state=MemberState(record.state),
        assigned=partition_epochs(record.assigned),
        revoking=partition_epochs(record.revoking),
    )
    is_at_rest = member.standing.state is MemberState.STABLE
    member.repeats_left = REPEATS_AFTER_LOADING if is_at_rest else UNTIL_CONFIRMED
    return member
