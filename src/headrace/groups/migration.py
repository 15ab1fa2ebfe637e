"""A group on its way from one protocol to the other: what members have in the one is what they have in the other.

*Up*: a classic group whose members are consumers becomes a KIP-848 group. They go on speaking the classic protocol
inside of it, each in the epoch that was its generation, with the partitions that it was assigned.
*Down*: when the last member that speaks KIP-848 has gone, the others become a classic group, and rebalance.

Must stay true, whatever crashes on the way:
- A partition is given to somebody only after whoever may still go by an old assignment has come again, or is gone.
- A group is stored under one protocol: one `Save` rewrites all of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.errors import Invalid
from headrace.groups.classic_members import CONSUMER_PROTOCOL_TYPE, Member, Roster
from headrace.groups.classic_phases import Phases
from headrace.groups.classic_records import (
    CLASSIC_ASSIGNMENT,
    CLASSIC_MEMBER,
    ClassicAssignmentRecord,
    ClassicMemberRecord,
)
from headrace.groups.consumer import ConsumerGroup
from headrace.groups.consumer_records import (
    CONSUMER_MEMBER,
    TARGET,
    ClassicFacts,
    ConsumerMemberRecord,
    MemberState,
    holdings,
    partition_epochs,
    target_record,
)
from headrace.groups.consumer_subscriptions import Subscriptions, Wish
from headrace.groups.protocol import Effect, Save, TopicsImage
from headrace.groups.records import GroupHead, GroupKind, Loaded, Phase
from headrace.metadata.port import Key
from headrace.model.subscriptions import (
    Assignment,
    Subscription,
    TopicPartitions,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
)
from headrace.model.topics import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A group under its new protocol: as it is to be loaded, and what makes that durable.

    `former_epochs` are the epochs that members know, where the group has a newer one.
    """

    loaded: Loaded
    save: Save
    former_epochs: Mapping[str, int]


class _Held:
    """Partitions of one member while it is counted who has which."""

    __slots__ = ("assigned", "revoking")

    def __init__(self) -> None:
        self.assigned: dict[TopicId, dict[int, int]] = {}
        self.revoking: dict[TopicId, dict[int, int]] = {}


def upgraded(group: Phases, image: TopicsImage) -> Move:
    """Return a classic group as a KIP-848 group. Raises `Invalid` if its members cannot be understood."""
    head = group.head
    if head.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise Invalid(f"the members of group '{head.group_id}' are of type '{head.protocol_type}', not consumers")
    members = list(group.roster.members.values())
    subscriptions = {member.id: _subscription(member, head.protocol) for member in members}
    held = _held(members, subscriptions, head.epoch, image)
    records = [_consumer_record(member, subscriptions[member.id], held[member.id], head.epoch) for member in members]
    wishes = Subscriptions(image)
    for record in records:
        wishes.add(Wish(record.topics, None))
    new_head = GroupHead(
        group_id=head.group_id,
        kind=GroupKind.CONSUMER,
        epoch=head.epoch,
        empty_since_ms=None,
        target_epoch=head.epoch,
        topics_hash=wishes.topics_hash(),
    )
    targets = {
        record.member_id: {
            topic_id: frozenset(epochs) for topic_id, epochs in held[record.member_id].assigned.items()
        }
        for record in records
    }
    return _move(
        new_head,
        {record.member_id: CONSUMER_MEMBER.encode(record) for record in records},
        {name: TARGET.encode(target_record(name, target)) for name, target in targets.items() if target},
        stored_members=group.stored.member_ids,
        stored_assignments=group.stored.assignment_ids,
    )


def outdated(loaded: Loaded) -> Loaded:
    """Return a KIP-848 group that will not take its target for the newest that there can be."""
    assert loaded.head is not None, "it has just been made"
    return Loaded(
        group_id=loaded.group_id,
        head=msgspec.structs.replace(loaded.head, topics_hash=b""),
        members=loaded.members,
        assignments=loaded.assignments,
    )


def downgraded(group: ConsumerGroup, image: TopicsImage) -> Move | None:
    """Return a KIP-848 group of classic members as a classic group; `None` if they have no protocol in common.

    They rebalance, and that is stored too: a coordinator that is loaded later could not tell that somebody went. The
    generation is newer than all epochs, so that nobody takes what is given out in the next one for what it has.
    """
    records = [record for record in group.member_records() if record.classic is not None]
    members = {record.member_id: _classic_record(record, record.classic) for record in records if record.classic}
    roster = Roster(map(Member, members.values()))
    first = next(iter(members.values()))
    if not any(roster.supports((protocol,)) for protocol in first.protocols):
        return None
    assignments = {record.member_id: _assignment(record, image) for record in records}
    former_epochs = {record.member_id: record.epoch for record in records}
    head = GroupHead(
        group_id=group.head.group_id,
        kind=GroupKind.CLASSIC,
        epoch=max(group.head.epoch, max(former_epochs.values()) + 1),
        empty_since_ms=None,
        phase=Phase.PREPARING,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol=roster.select_protocol(),
        leader=roster.leader_id,
    )
    return _move(
        head,
        {name: CLASSIC_MEMBER.encode(record) for name, record in members.items()},
        {
            name: CLASSIC_ASSIGNMENT.encode(ClassicAssignmentRecord(member_id=name, assignment=assignment))
            for name, assignment in assignments.items()
        },
        former_epochs=former_epochs,
    )


def in_one_save(effects: Sequence[Effect]) -> list[Effect]:
    """Return the same effects with all that is to be saved in one piece, before anything else."""
    saves = [effect for effect in effects if isinstance(effect, Save)]
    if len(saves) < 2:
        return list(effects)
    members: dict[str, bytes | None] = {}
    assignments: dict[str, bytes | None] = {}
    for save in saves:
        members.update(save.members)
        assignments.update(save.assignments)
    whole = Save(head=saves[-1].head, members=members, assignments=assignments)
    return [whole, *(effect for effect in effects if not isinstance(effect, Save))]


def _move(
    head: GroupHead,
    members: Mapping[str, bytes],
    assignments: Mapping[str, bytes],
    *,
    stored_members: Iterable[str] = (),
    stored_assignments: Iterable[str] = (),
    former_epochs: Mapping[str, int] | None = None,
) -> Move:
    loaded = Loaded(
        group_id=head.group_id,
        head=head,
        members=[(Key(name), raw) for name, raw in members.items()],
        assignments=[(Key(name), raw) for name, raw in assignments.items()],
    )
    save = Save(
        head=head,
        members={**dict.fromkeys(stored_members), **members},
        assignments={**dict.fromkeys(stored_assignments), **assignments},
    )
    return Move(loaded=loaded, save=save, former_epochs=former_epochs or {})


# Up


def _subscription(member: Member, protocol: str) -> Subscription:
    """Return what a classic member wants; whoever came since the protocol was chosen may not know that one."""
    metadata = member.record.metadata(protocol)
    return decode_subscription(member.record.protocols[0][1] if metadata is None else metadata)


def _held(
    members: Sequence[Member], subscriptions: Mapping[str, Subscription], epoch: int, image: TopicsImage
) -> dict[str, _Held]:
    """Return what each member has: what it was assigned, and what it says to own beyond that.

    A cooperative member goes on with what it owned until it has synced, and then takes a while to let go of it. So
    nobody else may get that before it has come again: Apache Kafka, which goes by assignments alone, would give it
    away at once. If two say to own the same, whoever has heard of the later generation is right.
    """
    held = {member.id: _Held() for member in members}
    taken: set[tuple[TopicId, int]] = set()

    def take(into: dict[TopicId, dict[int, int]], partitions: TopicPartitions) -> None:
        for place in _by_id(partitions, image):
            if place not in taken:
                taken.add(place)
                into.setdefault(place[0], {})[place[1]] = epoch

    for member in members:
        assignment = decode_assignment(member.assignment)
        if assignment.user_data:
            raise Invalid("an assignor of the members' own writes something into assignments that would be lost")
        take(held[member.id].assigned, assignment.partitions)
    for member in sorted(members, key=lambda one: -subscriptions[one.id].generation_id):
        one = held[member.id]
        take(one.revoking if member.assignment else one.assigned, subscriptions[member.id].owned)
    return held


def _by_id(partitions: TopicPartitions, image: TopicsImage) -> Iterator[tuple[TopicId, int]]:
    for name, numbers in partitions:
        topic = image.by_name.get(name)
        if topic is not None:
            for number in numbers:
                yield topic.id, number


def _consumer_record(member: Member, subscription: Subscription, held: _Held, epoch: int) -> ConsumerMemberRecord:
    record = member.record
    return ConsumerMemberRecord(
        member_id=member.id,
        instance_id=record.instance_id,
        rack=subscription.rack,
        client_id=record.client_id,
        client_host=record.client_host,
        rebalance_timeout_ms=record.rebalance_timeout_ms,
        topics=tuple(sorted(set(subscription.topics))),
        regex=None,
        assignor=None,
        epoch=epoch,
        previous_epoch=epoch,
        state=MemberState.REVOKING if held.revoking else MemberState.STABLE,
        assigned=holdings(held.assigned),
        revoking=holdings(held.revoking),
        classic=ClassicFacts(session_timeout_ms=record.session_timeout_ms, protocols=record.protocols),
    )


# Down


def _classic_record(record: ConsumerMemberRecord, classic: ClassicFacts) -> ClassicMemberRecord:
    return ClassicMemberRecord(
        member_id=record.member_id,
        instance_id=record.instance_id,
        client_id=record.client_id,
        client_host=record.client_host,
        session_timeout_ms=classic.session_timeout_ms,
        rebalance_timeout_ms=record.rebalance_timeout_ms,
        protocols=classic.protocols,
    )


def _assignment(record: ConsumerMemberRecord, image: TopicsImage) -> bytes:
    """Return what a member has, not what it should have: that may still be another's."""
    assert record.classic is not None, "only classic members are left"
    named = sorted(
        (image.by_id[topic_id].name, tuple(sorted(epochs)))
        for topic_id, epochs in partition_epochs(record.assigned).items()
        if topic_id in image.by_id
    )
    return encode_assignment(Assignment(partitions=tuple(named)), decode_version(record.classic.protocols[0][1]))
