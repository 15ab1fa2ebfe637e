"""The machine that a seat holds: which protocol rules a group, and how that changes."""

from dataclasses import replace

import pytest

from headrace.groups.protocol import JoinReply, LimitsChanged, Noted, Reply, Save
from headrace.groups.records import GroupKind, Phase
from headrace.model.error_codes import ErrorCode
from tests.unit.groups.consumer_desk import Consumer, heartbeat, image_of, parts, settle, topic_id
from tests.unit.groups.desk import DELAY_MS, LIMITS, REBALANCE_MS, SESSION_MS, join
from tests.unit.groups.machine_desk import ClassicClient, MachineDesk, assigned

CLASSIC, CONSUMER = GroupKind.CLASSIC, GroupKind.CONSUMER


@pytest.fixture
def desk() -> MachineDesk:
    return MachineDesk()


def mixed(desk: MachineDesk) -> tuple[ClassicClient, ClassicClient, Consumer]:
    """Return a group of two classic members and one that speaks KIP-848, at rest."""
    a, b = desk.classic_pair()
    c = Consumer(desk, "c")
    c.beat()
    for client in (a, b):
        assert client.beat() is ErrorCode.REBALANCE_IN_PROGRESS
        client.rejoin()
        if client.sync_again() != client.owned:
            client.rejoin()
    come_to_rest(desk, [a, b], [c])
    return a, b, c


def come_to_rest(desk: MachineDesk, classic: list[ClassicClient], consumers: list[Consumer]) -> None:
    for _ in range(20):
        if desk.machine.state == "Stable":
            return
        for consumer in consumers:
            consumer.beat()
        for client in classic:
            if client.beat() is ErrorCode.REBALANCE_IN_PROGRESS:
                client.rejoin()
                client.sync_again()
    raise AssertionError(desk.machine.describe())


def owned_by(*clients: ClassicClient | Consumer) -> list[int]:
    """Return all partitions that these have, sorted: with duplicates, if there were any."""
    found: list[int] = []
    for client in clients:
        if isinstance(client, Consumer):
            found += [number for numbers in client.owned.values() for number in numbers]
        else:
            found += [number for _, numbers in client.owned for number in numbers]
    return sorted(found)


# Groups without members


def test_the_first_member_says_which_protocol_a_group_has(desk: MachineDesk) -> None:
    consumer = Consumer(desk, "c")
    settle(desk, consumer)
    assert desk.kind is desk.stored_kind is CONSUMER
    other = MachineDesk()
    other.classic_pair()
    assert other.kind is other.stored_kind is CLASSIC


def test_an_empty_group_changes_its_protocol_and_goes_on_counting(desk: MachineDesk) -> None:
    consumer = Consumer(desk, "c")
    settle(desk, consumer)
    consumer.leave()
    epoch = desk.machine.head.epoch
    token = desk.send(join(needs_id=False))
    desk.pass_ms(DELAY_MS)
    assert desk.joined(token).generation == epoch + 1
    assert desk.stored_kind is CLASSIC
    desk.leave(desk.joined(token).member_id)
    assert desk.stored_kind is CLASSIC
    again = Consumer(desk, "c")
    settle(desk, again)
    assert desk.stored_kind is CONSUMER
    assert again.epoch > epoch + 1
    assert set(desk.store.members) == {"c"}


def test_an_empty_group_that_is_loaded_anew_changes_its_protocol_too(desk: MachineDesk) -> None:
    consumer = Consumer(desk, "c")
    settle(desk, consumer)
    consumer.leave()
    desk.restart()
    assert desk.machine.state == "Empty"
    assert desk.new_id().startswith("app-")
    desk.restart()
    settle(desk, Consumer(desk, "d"))


def test_a_member_that_never_joined_finds_no_group(desk: MachineDesk) -> None:
    for epoch in (5, -1, -2):
        assert desk.heartbeat(heartbeat("c", epoch, owned={})).error is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_refused_member_changes_nothing(desk: MachineDesk) -> None:
    a, _ = desk.classic_pair()
    refused = desk.join_group("c", assignor="unheard of")
    assert refused.error is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert desk.kind is desk.stored_kind is CLASSIC
    assert a.beat() is ErrorCode.NONE
    empty = MachineDesk()
    assert empty.join_group("c", assignor="unheard of").error is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert empty.store.head is None
    assert empty.kind is CLASSIC


# Up


def test_a_classic_group_of_another_type_is_not_found(desk: MachineDesk) -> None:
    desk.send(join(needs_id=False, protocol_type="connect"))
    desk.pass_ms(DELAY_MS)
    reply = desk.join_group("c")
    assert reply.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert "connect" in (reply.error_message or "")


@pytest.mark.parametrize("metadata", [b"", b"\x00\x01\x00", b"\xff\xff"])
def test_a_classic_group_whose_members_cannot_be_understood_is_not_found(desk: MachineDesk, metadata: bytes) -> None:
    desk.send(join(needs_id=False, protocols=(("range", metadata),)))
    desk.pass_ms(DELAY_MS)
    assert desk.join_group("c").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.kind is CLASSIC


def test_a_joining_member_turns_a_classic_group_into_one_of_its_kind(desk: MachineDesk) -> None:
    a, b = desk.classic_pair()
    generation = a.generation
    saves = len(desk.saves)
    reply = desk.join_group("c")
    assert reply.error is ErrorCode.NONE
    assert reply.member_epoch == generation + 1
    assert reply.assignment == {}, "all partitions are in others' hands"
    assert len(desk.saves) == saves + 1, "in one piece"
    assert desk.stored_kind is CONSUMER
    members = desk.machine.describe().consumer_members
    assert {one.member_id: (one.member_epoch, one.is_classic) for one in members} == {
        a.member_id: (generation, True),
        b.member_id: (generation, True),
        "c": (reply.member_epoch, False),
    }
    assert members[0].assigned == parts(orders=[0, 1])
    assert "upgraded" in {noted.what for noted in desk.noted}


def test_classic_members_hand_over_what_others_should_have(desk: MachineDesk) -> None:
    a, b, c = mixed(desk)
    assert owned_by(a, b, c) == [0, 1, 2, 3]
    assert all(len(owned_by(one)) >= 1 for one in (a, b, c))
    assert a.generation == b.generation == c.epoch
    assert desk.commit(a.member_id, a.generation) is ErrorCode.NONE


def test_an_upgrade_answers_whoever_waits(desk: MachineDesk) -> None:
    a, _ = desk.classic_pair()
    joining = desk.send(a.join(topics=("orders", "other")))
    desk.join_group("c")
    assert desk.joined(joining).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.joined(joining).member_id == a.member_id
    other = MachineDesk()
    x, y = other.classic_pair()
    tokens = [other.send(x.join(owned=())), other.send(y.join(owned=()))]
    for client, token in zip((x, y), tokens, strict=True):
        client.hear_join(other.joined(token))
    waiting = other.sync(y.member_id, y.generation)
    other.join_group("c")
    assert other.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert other.synced(other.sync(x.member_id, x.generation)).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert not desk.waiting | other.waiting


def test_what_a_member_owned_before_it_synced_is_not_given_away(desk: MachineDesk) -> None:
    a, b = desk.classic_pair()
    tokens = [desk.send(a.join()), desk.send(b.join(topics=("orders", "other")))]
    for client, token in zip((a, b), tokens, strict=True):
        client.hear_join(desk.joined(token))
    assert desk.machine.state == "CompletingRebalance"
    desk.restart()
    assert desk.join_group("c").assignment == {}
    described = {one.member_id: one.assigned for one in desk.machine.describe().consumer_members}
    assert described[a.member_id] == parts(orders=[0, 1])
    assert described[b.member_id] == parts(orders=[2, 3])


def test_what_a_member_is_about_to_let_go_of_is_not_given_away_before_it_has(desk: MachineDesk) -> None:
    a, b = desk.classic_pair()
    tokens = [desk.send(a.join()), desk.send(b.join(topics=("orders", "other")))]
    for client, token in zip((a, b), tokens, strict=True):
        client.hear_join(desk.joined(token))
    waiting = desk.sync(b.member_id, b.generation)
    token = desk.sync(
        a.member_id, a.generation, {a.member_id: assigned(orders=(0, 1)), b.member_id: assigned(orders=(2,))}
    )
    assert desk.synced(token).error is desk.synced(waiting).error is ErrorCode.NONE
    # Now b has to let go of partition 3. It may be about to commit for it.
    c = Consumer(desk, "c")
    c.beat()
    for _ in range(3):
        c.beat()
        assert owned_by(c) == []
    assert b.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    b.owned = (("orders", (2,)),)
    b.rejoin()
    c.beat()
    assert owned_by(c) == [3]


def test_a_static_classic_member_is_replaced_by_its_successor(desk: MachineDesk) -> None:
    a = ClassicClient(desk, "a", instance="s")
    token = desk.send(a.join())
    desk.pass_ms(DELAY_MS)
    a.hear_join(desk.joined(token))
    a.hear_sync(desk.synced(desk.sync(a.member_id, 1, {a.member_id: assigned(orders=(0, 1, 2, 3))}, "s")))
    c = Consumer(desk, "c", instance="s")
    settle(desk, c)
    assert c.owned == parts(orders=[0, 1, 2, 3])
    assert set(desk.store.members) == set(desk.store.assignments) == {"c"}
    assert a.beat() is ErrorCode.FENCED_INSTANCE_ID


def test_a_classic_member_of_another_type_cannot_join_a_consumer_group(desk: MachineDesk) -> None:
    settle(desk, Consumer(desk, "c"))
    reply = desk.ask(join(protocol_type="connect"), JoinReply)
    assert reply.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_upgraded_group_goes_on_after_a_restart(desk: MachineDesk) -> None:
    a, b = desk.classic_pair()
    c = Consumer(desk, "c")
    c.beat()
    desk.restart()
    assert desk.kind is CONSUMER
    come_to_rest(desk, [a, b], [c])
    assert owned_by(a, b, c) == [0, 1, 2, 3]


def test_what_nobody_has_is_given_to_a_successor_that_wants_no_more_than_its_predecessor(desk: MachineDesk) -> None:
    desk.send(ClassicClient(desk, "a", instance="s").join())
    desk.pass_ms(DELAY_MS)
    c = Consumer(desk, "c", instance="s")
    settle(desk, c)
    assert c.owned == parts(orders=[0, 1, 2, 3])


# Down


def test_the_last_member_of_its_kind_leaves_a_classic_group_behind(desk: MachineDesk) -> None:
    a, b, c = mixed(desk)
    saves = len(desk.saves)
    c.leave()
    assert len(desk.saves) == saves + 1, "in one piece"
    assert desk.kind is desk.stored_kind is CLASSIC
    assert desk.machine.state == "PreparingRebalance"
    assert desk.store.head is not None
    assert desk.store.head.phase is Phase.PREPARING
    assert desk.store.head.epoch > c.epoch
    assert set(desk.store.members) == set(desk.store.assignments) == {a.member_id, b.member_id}
    assert "downgraded" in {noted.what for noted in desk.noted}


def test_members_are_told_to_join_and_may_commit_before_they_do(desk: MachineDesk) -> None:
    a, b, c = mixed(desk)
    c.leave()
    assert a.generation < desk.machine.head.epoch
    assert a.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.commit(a.member_id, a.generation) is ErrorCode.NONE
    assert desk.commit(a.member_id, a.generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert desk.synced(desk.sync(a.member_id, a.generation)).error is ErrorCode.REBALANCE_IN_PROGRESS
    tokens = [desk.send(client.join()) for client in (a, b)]
    old = a.generation
    for client, token in zip((a, b), tokens, strict=True):
        client.hear_join(desk.joined(token))
    assert desk.beat(a.member_id, old) is ErrorCode.ILLEGAL_GENERATION, "the old epoch counts no more"
    assert a.beat() is ErrorCode.NONE
    given = {a.member_id: assigned(orders=(0, 1)), b.member_id: assigned(orders=(2, 3))}
    assert desk.synced(desk.sync(a.member_id, a.generation, given)).error is ErrorCode.NONE
    assert desk.machine.state == "Stable"


def test_a_silent_member_leaves_a_classic_group_behind_as_well(desk: MachineDesk) -> None:
    a, b, _ = mixed(desk)
    for _ in range(desk.config.session_timeout_ms // 5_000):
        desk.pass_ms(5_000)
        for client in (a, b):
            client.beat()
    assert desk.kind is CLASSIC
    assert a.beat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_after_a_crash_members_of_a_downgraded_group_come_together(desk: MachineDesk) -> None:
    a, b, c = mixed(desk)
    c.leave()
    desk.restart()
    assert desk.kind is CLASSIC
    assert desk.machine.state == "PreparingRebalance"
    assert a.beat() is b.beat() is ErrorCode.ILLEGAL_GENERATION
    tokens = [desk.send(client.join(owned=())) for client in (a, b)]
    assert len({desk.joined(token).generation for token in tokens}) == 1


def test_after_a_crash_nobody_waits_longer_than_a_rebalance_for_who_never_comes(desk: MachineDesk) -> None:
    a, b, c = mixed(desk)
    c.leave()
    desk.restart()
    token = desk.send(a.join(owned=()))
    desk.pass_ms(SESSION_MS)
    assert desk.joined(token).error is ErrorCode.NONE
    assert set(desk.store.members) == {a.member_id}
    assert b.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_successor_of_the_last_one_makes_the_group_classic(desk: MachineDesk) -> None:
    a, b = desk.classic_pair()
    c = Consumer(desk, "c", instance="s")
    c.beat()
    come_to_rest(desk, [a, b], [c])
    successor = ClassicClient(desk, "d", instance="s")
    reply = successor.rejoin()
    assert reply.error is ErrorCode.NONE
    assert desk.kind is desk.stored_kind is CLASSIC
    assert set(desk.store.members) == {a.member_id, b.member_id, successor.member_id}
    assert successor.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    tokens = [desk.send(client.join()) for client in (a, b, successor)]
    assert len({desk.joined(token).generation for token in tokens}) == 1


def test_when_all_go_at_once_the_group_is_empty(desk: MachineDesk) -> None:
    mixed(desk)
    desk.pass_ms(max(desk.config.session_timeout_ms, SESSION_MS, REBALANCE_MS))
    desk.pass_ms(REBALANCE_MS)
    assert desk.machine.state == "Empty"
    assert desk.store.members == desk.store.assignments == {}


# Around it


def test_topics_and_configuration_are_remembered_for_the_other_protocol(desk: MachineDesk) -> None:
    desk.classic_pair()
    desk.turn_to(image_of(2, orders=5))
    desk.configure(replace(desk.config, heartbeat_interval_ms=777))
    reply = desk.join_group("c")
    assert reply.heartbeat_interval_ms == 777
    assert reply.assignment == {topic_id("orders"): frozenset({4})}


def test_a_full_group_is_not_upgraded() -> None:
    desk = MachineDesk(replace(LIMITS, max_members=2))
    desk.classic_pair()
    assert desk.join_group("c").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.kind is CLASSIC


def test_saves_come_before_everything_that_is_answered(desk: MachineDesk) -> None:
    a, _ = desk.classic_pair()
    desk.asked.add(-7)
    desk.send(a.join(topics=("orders", "other")))
    effects = desk.machine.handle(heartbeat("c", 0, topics=("orders",), rebalance_ms=1_000, owned={}), -7, desk.now)
    kinds = [type(effect) for effect in effects]
    assert kinds.count(Save) == 1
    assert kinds[0] is Save
    assert kinds.count(Reply) == 2
    assert Noted in kinds


# Limits that change while members are there


def test_other_limits_count_for_those_who_come_and_not_for_those_who_are_there(desk: MachineDesk) -> None:
    desk.classic_pair()
    desk.send(LimitsChanged(limits=replace(LIMITS, max_members=2)))
    assert desk.ask(join(), JoinReply).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.machine.member_count == 2
    desk.send(LimitsChanged(limits=replace(LIMITS, max_session_timeout_ms=SESSION_MS - 1)))
    assert desk.ask(join(), JoinReply).error is ErrorCode.INVALID_SESSION_TIMEOUT


def test_other_limits_count_in_kip_848_groups_and_across_a_change_of_protocol(desk: MachineDesk) -> None:
    desk.join_group("a")
    desk.send(LimitsChanged(limits=replace(LIMITS, max_members=1)))
    assert desk.join_group("b").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    desk.send(LimitsChanged(limits=replace(LIMITS, max_subscribed_topics=1)))
    assert desk.join_group("b", ("orders", "more")).error is ErrorCode.INVALID_REQUEST
    empty = MachineDesk()
    empty.send(LimitsChanged(limits=replace(LIMITS, max_members=1)))
    assert empty.kind is CLASSIC
    empty.join_group("a")
    assert empty.kind is CONSUMER
    assert empty.join_group("b").error is ErrorCode.GROUP_MAX_SIZE_REACHED
