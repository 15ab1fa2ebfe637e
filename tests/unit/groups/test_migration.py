"""What members have under one protocol, said in the other."""

from dataclasses import replace

import pytest

from headrace.errors import Invalid
from headrace.groups.classic import ClassicGroup
from headrace.groups.classic_records import CLASSIC_ASSIGNMENT, CLASSIC_MEMBER
from headrace.groups.consumer import ConsumerGroup
from headrace.groups.consumer_records import (
    CONSUMER_MEMBER,
    TARGET,
    ClassicFacts,
    ConsumerMemberRecord,
    Holding,
    MemberState,
    partition_epochs,
    target_partitions,
)
from headrace.groups.migration import Move, downgraded, in_one_save, upgraded
from headrace.groups.protocol import BeatReply, Effect, Noted, Reply, Save
from headrace.groups.records import GroupHead, GroupKind, Loaded, Phase
from headrace.metadata.port import Key
from headrace.model.subscriptions import (
    Assignment,
    Subscription,
    TopicPartitions,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from tests.unit.groups.consumer_desk import ConsumerDesk, image_of, topic_id
from tests.unit.groups.desk import LIMITS, Desk, join

IMAGE = image_of(orders=6, bills=2)
KEY = Key("k")


def says(
    *topics: str, owned: TopicPartitions = (), generation: int = -1, rack: str | None = None, version: int = 3
) -> tuple[tuple[str, bytes], ...]:
    subscription = Subscription(topics=topics, owned=owned, generation_id=generation, rack=rack)
    return (("range", encode_subscription(subscription, version)),)


def classic(*members: tuple[tuple[str, bytes], ...]) -> tuple[Desk, list[str]]:
    """Return a group whose members have joined and not synced, and their ids."""
    desk = Desk(replace(LIMITS, initial_rebalance_delay_ms=1))
    tokens = [desk.send(join(instance=f"s{number}", protocols=said)) for number, said in enumerate(members)]
    desk.pass_ms(2)
    return desk, [desk.joined(token).member_id for token in tokens]


def sync(desk: Desk, ids: list[str], *assignments: bytes) -> None:
    desk.sync(ids[0], 1, dict(zip(ids, assignments, strict=True)), "s0")
    assert desk.machine.state == "Stable"


def assigned(user_data: bytes | None = None, **partitions: tuple[int, ...]) -> bytes:
    return encode_assignment(Assignment(partitions=tuple(partitions.items()), user_data=user_data), 1)


def group_of(desk: Desk) -> ClassicGroup:
    assert isinstance(desk.machine, ClassicGroup)
    return desk.machine


def records(move: Move) -> dict[str, ConsumerMemberRecord]:
    decoded = [CONSUMER_MEMBER.decode(raw, key) for key, raw in move.loaded.members]
    return {record.member_id: record for record in decoded}


def held(holdings: tuple[Holding, ...]) -> dict[bytes, list[int]]:
    return {topic: sorted(numbers) for topic, numbers in partition_epochs(holdings).items()}


# Up


def test_members_keep_what_they_say_and_what_they_were_assigned() -> None:
    desk, ids = classic(says("orders", "bills", rack="r1"), says("orders", version=0))
    sync(desk, ids, assigned(orders=(0, 2), bills=(1,), gone=(0,)), assigned(orders=(1,)))
    move = upgraded(group_of(desk), IMAGE)
    head = move.loaded.head
    assert head is not None
    assert (head.kind, head.epoch, head.target_epoch, head.empty_since_ms) == (GroupKind.CONSUMER, 1, 1, None)
    first, second = (records(move)[member_id] for member_id in ids)
    assert (first.instance_id, first.rack, first.topics) == ("s0", "r1", ("bills", "orders"))
    assert (first.epoch, first.previous_epoch, first.state) == (1, 1, MemberState.STABLE)
    assert held(first.assigned) == {topic_id("orders"): [0, 2], topic_id("bills"): [1]}
    assert held(second.assigned) == {topic_id("orders"): [1]}
    assert first.classic is not None
    assert first.classic.protocols[0][0] == "range"
    targets = {key: target_partitions(TARGET.decode(raw, key)) for key, raw in move.loaded.assignments}
    assert targets[Key(ids[1])] == {topic_id("orders"): frozenset({1})}


def test_a_partition_that_was_assigned_twice_has_one_owner() -> None:
    desk, ids = classic(says("orders"), says("orders"))
    sync(desk, ids, assigned(orders=(0, 1)), assigned(orders=(1, 2)))
    found = records(upgraded(group_of(desk), IMAGE))
    assert held(found[ids[0]].assigned) == {topic_id("orders"): [0, 1]}
    assert held(found[ids[1]].assigned) == {topic_id("orders"): [2]}


def test_what_members_owned_counts_until_they_have_an_assignment() -> None:
    desk, ids = classic(says("orders", owned=(("orders", (0, 1)),)), says("orders", owned=(("orders", (2,)),)))
    found = records(upgraded(group_of(desk), IMAGE))
    assert held(found[ids[0]].assigned) == {topic_id("orders"): [0, 1]}
    assert held(found[ids[1]].assigned) == {topic_id("orders"): [2]}


def test_of_two_who_say_to_own_the_same_the_later_one_is_right() -> None:
    stale = says("orders", owned=(("orders", (0, 1)),), generation=3)
    fresh = says("orders", owned=(("orders", (1,)),), generation=5)
    desk, ids = classic(stale, fresh)
    found = records(upgraded(group_of(desk), IMAGE))
    assert held(found[ids[0]].assigned) == {topic_id("orders"): [0]}
    assert held(found[ids[1]].assigned) == {topic_id("orders"): [1]}


def test_what_a_member_owned_beyond_its_assignment_is_its_own_until_it_says_otherwise() -> None:
    desk, ids = classic(says("orders", owned=(("orders", (0, 1, 2)),)), says("orders"))
    sync(desk, ids, assigned(orders=(0,)), assigned(orders=(2,)))
    first, second = (records(upgraded(group_of(desk), IMAGE))[member_id] for member_id in ids)
    assert first.state is MemberState.REVOKING
    assert held(first.assigned) == {topic_id("orders"): [0]}
    assert held(first.revoking) == {topic_id("orders"): [1]}, "2 was given to another one already"
    assert second.state is MemberState.STABLE


def test_a_static_member_that_did_not_come_keeps_what_it_had() -> None:
    desk, ids = classic(says("orders"), says("orders"))
    sync(desk, ids, assigned(orders=(0,)), assigned(orders=(1,)))
    desk.send(join(ids[1], instance="s1", protocols=says("orders", "bills"), rebalance_ms=5_000))
    desk.send(join(needs_id=False, protocols=says("orders"), rebalance_ms=5_000))
    for _ in range(60):
        desk.beat(ids[0], 1, "s0")
        desk.pass_ms(1_000)
    assert desk.machine.head.epoch == 2
    desk.restart()
    found = records(upgraded(group_of(desk), IMAGE))
    assert held(found[ids[0]].assigned) == {topic_id("orders"): [0]}
    assert held(found[ids[1]].assigned) == {}


def test_what_an_assignor_of_their_own_notes_down_is_not_lost() -> None:
    desk, ids = classic(says("orders"))
    sync(desk, ids, assigned(b"precious", orders=(0,)))
    with pytest.raises(Invalid, match="assignor"):
        upgraded(group_of(desk), IMAGE)


def test_rows_of_members_that_have_gone_are_deleted() -> None:
    desk, ids = classic(says("orders"), says("orders"))
    sync(desk, ids, assigned(orders=(0,)), assigned(orders=(1,)))
    desk.leave(ids[1], "s1")
    move = upgraded(group_of(desk), IMAGE)
    assert set(move.save.members) == set(move.save.assignments) == set(ids)
    assert move.save.members[ids[1]] is move.save.assignments[ids[1]] is None
    assert [key for key, _ in move.loaded.members] == [Key(ids[0])]


# Down


def consumer_group(*members: ConsumerMemberRecord, epoch: int = 7) -> ConsumerGroup:
    desk = ConsumerDesk(image=IMAGE)
    head = GroupHead(group_id="orders", kind=GroupKind.CONSUMER, epoch=epoch, empty_since_ms=None, target_epoch=epoch)
    rows = [(Key(member.member_id), CONSUMER_MEMBER.encode(member)) for member in members]
    desk.store.head = head
    return ConsumerGroup(
        Loaded(group_id="orders", head=head, members=rows),
        limits=LIMITS,
        rng=desk.rng,
        now=desk.now,
        image=IMAGE,
        config=desk.config,
        pace=desk.group._core._pace,
    )


def record(
    name: str, epoch: int, *protocols: tuple[str, bytes], numbers: tuple[int, ...] = ()
) -> ConsumerMemberRecord:
    return ConsumerMemberRecord(
        member_id=name,
        instance_id=f"i-{name}",
        rack=None,
        client_id="app",
        client_host="/h",
        rebalance_timeout_ms=5_000,
        topics=("orders",),
        regex=None,
        assignor=None,
        epoch=epoch,
        previous_epoch=epoch,
        state=MemberState.STABLE,
        assigned=(Holding(topic_id("orders"), numbers, (epoch,) * len(numbers)),),
        classic=ClassicFacts(session_timeout_ms=9_000, protocols=protocols or says("orders")),
    )


def test_members_go_down_with_what_they_have_in_a_generation_that_nobody_knows() -> None:
    group = consumer_group(record("a", 7, numbers=(0, 1)), record("b", 6, numbers=(2,)))
    move = downgraded(group, IMAGE)
    assert move is not None
    head = move.loaded.head
    assert head is not None
    assert (head.kind, head.phase, head.epoch) == (GroupKind.CLASSIC, Phase.PREPARING, 8)
    assert (head.protocol_type, head.protocol, head.leader) == ("consumer", "range", "a")
    assert move.former_epochs == {"a": 7, "b": 6}
    member = CLASSIC_MEMBER.decode(move.loaded.members[0][1], KEY)
    assert (member.instance_id, member.session_timeout_ms, member.rebalance_timeout_ms) == ("i-a", 9_000, 5_000)
    given = [CLASSIC_ASSIGNMENT.decode(raw, KEY) for _, raw in move.loaded.assignments]
    assert [decode_assignment(one.assignment).partitions for one in given] == [
        (("orders", (0, 1)),),
        (("orders", (2,)),),
    ]


def test_a_generation_never_goes_back() -> None:
    move = downgraded(consumer_group(record("a", 3), epoch=9), IMAGE)
    assert move is not None
    assert move.save.head.epoch == 9


def test_members_without_a_common_protocol_stay_where_they_are() -> None:
    x, y = (("x", says("orders")[0][1]),), (("y", says("orders")[0][1]),)
    assert downgraded(consumer_group(record("a", 7, *x), record("b", 7, *y)), IMAGE) is None


# Both


def test_several_saves_become_one_and_come_first() -> None:
    heads = [GroupHead(group_id="g", kind=GroupKind.CLASSIC, epoch=epoch, empty_since_ms=None) for epoch in (1, 2)]
    reply, noted = Reply(1, BeatReply()), Noted("upgraded", "so")
    effects: list[Effect] = [
        noted,
        Save(head=heads[0], members={"a": b"1", "b": b"1"}, assignments={"a": None}),
        reply,
        Save(head=heads[1], members={"a": None, "c": b"2"}, assignments={"a": b"2"}),
    ]
    whole = Save(head=heads[1], members={"a": None, "b": b"1", "c": b"2"}, assignments={"a": b"2"})
    assert in_one_save(effects) == [whole, noted, reply]
    assert in_one_save(effects[:3]) == effects[:3]
