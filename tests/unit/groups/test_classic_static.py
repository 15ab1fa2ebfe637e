"""Static members: one place per instance id, whoever holds it now."""

from dataclasses import replace

import pytest

from headrace.groups.protocol import JoinReply
from headrace.groups.records import Phase
from headrace.model.error_codes import ErrorCode
from tests.unit.groups.desk import DELAY_MS, LIMITS, REBALANCE_MS, SESSION_MS, Desk, join, wants


@pytest.fixture
def desk() -> Desk:
    return Desk()


def stable(desk: Desk, *instances: str, metadata: bytes = b"meta", rebalance_ms: int = REBALANCE_MS) -> list[str]:
    """Bring a group of static members to its first stable generation; return their ids. The first one leads."""
    protocols = (("range", metadata),)
    tokens = [desk.send(join(instance=name, protocols=protocols, rebalance_ms=rebalance_ms)) for name in instances]
    desk.pass_ms(2 * DELAY_MS)
    ids = [desk.joined(token).member_id for token in tokens]
    assert desk.joined(tokens[0]).leader == ids[0]
    for member_id, instance in list(zip(ids, instances, strict=True))[::-1]:
        given = {name: f"for {place}".encode() for name, place in zip(ids, instances, strict=True)}
        desk.sync(member_id, 1, given, instance=instance)
    assert desk.machine.state == "Stable"
    return ids


def test_a_static_member_needs_no_id_first(desk: Desk) -> None:
    token = desk.send(join(instance="s"))
    desk.pass_ms(DELAY_MS)
    assert desk.joined(token).member_id.startswith("s-")
    assert desk.joined(token).members == ((desk.joined(token).member_id, "s", b"meta"),)


def test_a_static_member_that_comes_back_keeps_its_place_without_a_rebalance(desk: Desk) -> None:
    leader, follower = stable(desk, "s", "t")
    saves = len(desk.saves)
    reply = desk.ask(join(instance="t", client="other"), JoinReply)
    assert reply.error is ErrorCode.NONE
    assert reply.member_id not in (leader, follower)
    assert (reply.generation, reply.leader, reply.skip_assignment) == (1, leader, False)
    assert desk.machine.state == "Stable"
    # It is written down before it is answered.
    assert len(desk.saves) == saves + 1
    assert set(desk.store.members) == {leader, reply.member_id}
    assert set(desk.store.assignments) == {leader, reply.member_id}
    assert desk.synced(desk.sync(reply.member_id, 1, instance="t")).assignment == b"for t"
    assert desk.beat(leader, 1, "s") is ErrorCode.NONE
    assert [member.client.id for member in desk.machine.describe().classic_members] == ["app", "other"]


def test_a_static_leader_that_comes_back_leads_but_leaves_the_assignment_as_it_is(desk: Desk) -> None:
    leader, follower = stable(desk, "s", "t")
    reply = desk.ask(join(instance="s"), JoinReply)
    assert reply.skip_assignment
    assert reply.leader == reply.member_id != leader
    assert {member_id for member_id, _, _ in reply.members} == {reply.member_id, follower}
    assert desk.store.head is not None
    assert desk.store.head.leader == reply.member_id


def test_an_older_client_does_not_learn_that_it_leads_again(desk: Desk) -> None:
    leader, _ = stable(desk, "s", "t")
    reply = desk.ask(join(instance="s", can_skip=False), JoinReply)
    assert (reply.leader, reply.members, reply.skip_assignment) == (leader, (), False)
    assert desk.synced(desk.sync(reply.member_id, 1, instance="s")).assignment == b"for s"
    # It leads all the same, as its next join shows.
    token = desk.send(join(reply.member_id, instance="s"))
    assert desk.machine.state == "PreparingRebalance"
    assert token in desk.waiting


def test_whoever_has_the_old_id_is_fenced(desk: Desk) -> None:
    _, follower = stable(desk, "s", "t")
    new_id = desk.ask(join(instance="t"), JoinReply).member_id
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert desk.beat(follower, 1, "t") is fenced
    assert desk.beat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.synced(desk.sync(follower, 1, instance="t")).error is fenced
    assert desk.ask(join(follower, instance="t"), JoinReply).error is fenced
    assert desk.commit(follower, 1, "t") is fenced
    assert desk.leave(follower, "t") is fenced
    assert desk.beat(new_id, 1, "t") is ErrorCode.NONE
    assert "fenced" in {noted.what for noted in desk.noted}


def test_a_join_that_waits_under_the_old_id_is_fenced(desk: Desk) -> None:
    leader, follower = stable(desk, "s", "t")
    old = desk.send(join(leader, instance="s"))
    new = desk.send(join(instance="s"))
    assert desk.joined(old).error is ErrorCode.FENCED_INSTANCE_ID
    assert desk.joined(old).member_id == leader
    assert new in desk.waiting
    desk.send(join(follower, instance="t"))
    assert desk.joined(new).generation == 2
    assert desk.joined(new).leader == desk.joined(new).member_id


def test_a_sync_that_waits_under_the_old_id_is_fenced_and_all_join_again(desk: Desk) -> None:
    tokens = [desk.send(join(instance=name)) for name in "st"]
    desk.pass_ms(2 * DELAY_MS)
    leader, follower = (desk.joined(token).member_id for token in tokens)
    old = desk.sync(follower, 1, instance="t")
    new = desk.send(join(instance="t"))
    assert desk.synced(old).error is ErrorCode.FENCED_INSTANCE_ID
    # The leader may be assigning to the old id this very moment.
    assert desk.synced(desk.sync(leader, 1, {follower: b"p"}, "s")).error is ErrorCode.REBALANCE_IN_PROGRESS
    desk.send(join(leader, instance="s"))
    assert desk.joined(new).generation == 2


def test_a_static_member_that_comes_back_with_other_topics_starts_a_rebalance(desk: Desk) -> None:
    stable(desk, "s", "t", metadata=wants("a"))
    same = desk.ask(join(instance="t", protocols=(("range", wants("a", user_data=b"new each time")),)), JoinReply)
    assert same.generation == 1
    desk.send(join(instance="t", protocols=(("range", wants("a", "b")),)))
    assert desk.machine.state == "PreparingRebalance"


def test_a_static_member_that_comes_back_with_another_protocol_starts_a_rebalance(desk: Desk) -> None:
    tokens = [desk.send(join(instance=name, protocols=(("x", b""), ("y", b"")))) for name in "st"]
    desk.pass_ms(2 * DELAY_MS)
    ids = [desk.joined(token).member_id for token in tokens]
    desk.sync(ids[1], 1, instance="t")
    desk.sync(ids[0], 1, instance="s")
    assert desk.machine.describe().protocol == "x"
    desk.send(join(instance="t", protocols=(("y", b""),)))
    assert desk.machine.state == "PreparingRebalance"
    assert desk.ask(join(instance="u", protocols=(("x", b""),)), JoinReply).error is (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )


def test_static_members_stay_though_they_do_not_join_again(desk: Desk) -> None:
    leader, follower = stable(desk, "s", "t")
    dynamic = desk.send(join(needs_id=False))
    token = desk.send(join(follower, instance="t"))
    for _ in range(REBALANCE_MS // 5_000):
        desk.beat(leader, 1, "s")
        desk.pass_ms(5_000)
    # The leader stays, but somebody leads who is there.
    reply = desk.joined(token)
    assert reply.generation == 2
    assert reply.leader == follower
    everybody = {member_id for member_id, _, _ in reply.members}
    assert everybody == {leader, follower, desk.joined(dynamic).member_id}
    assert desk.beat(leader, 2, "s") is ErrorCode.NONE


def test_a_static_member_goes_when_its_session_ends(desk: Desk) -> None:
    _, follower = stable(desk, "s", "t")
    desk.pass_ms(SESSION_MS - 1)
    desk.beat(follower, 1, "t")
    desk.pass_ms(1)
    assert desk.machine.member_count == 1
    assert desk.ask(join(follower, instance="t"), JoinReply).leader == follower


@pytest.mark.parametrize("rebalance_ms", [20_000, 0, -1])
def test_a_rebalance_to_which_nobody_comes_waits_until_sessions_end(rebalance_ms: int) -> None:
    desk = Desk(replace(LIMITS, initial_rebalance_delay_ms=0))
    tokens = [desk.send(join(instance=name, rebalance_ms=rebalance_ms, session_ms=30_000)) for name in "st"]
    first = desk.joined(tokens[0]).member_id
    second = desk.ask(join(first, instance="s", rebalance_ms=rebalance_ms, session_ms=30_000), JoinReply)
    assert second.generation == 2
    follower = desk.joined(tokens[1]).member_id
    desk.sync(follower, 2, instance="t")
    desk.sync(first, 2, instance="s")
    desk.send(join(needs_id=False))
    dynamic = [member.member_id for member in desk.machine.describe().classic_members if not member.instance_id]
    assert desk.leave(dynamic[0]) is ErrorCode.NONE
    desk.pass_ms(29_999)
    assert desk.machine.state == "PreparingRebalance"
    assert desk.machine.member_count == 2
    desk.pass_ms(1)
    assert desk.machine.state == "Empty"


def test_static_members_leave_by_member_id_instance_id_or_both(desk: Desk) -> None:
    ids = stable(desk, "s", "t", "u")
    assert desk.leave("", "nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.leave("", "s") is ErrorCode.NONE
    assert desk.leave(ids[1], "t") is ErrorCode.NONE
    assert desk.leave(ids[2]) is ErrorCode.NONE
    assert desk.machine.state == "Empty"


def test_a_member_that_comes_back_before_it_synced_still_has_to(desk: Desk) -> None:
    tokens = [desk.send(join(instance=name)) for name in "st"]
    desk.pass_ms(2 * DELAY_MS)
    ids = [desk.joined(token).member_id for token in tokens]
    desk.sync(ids[0], 1, {ids[1]: b"p1"}, "s")
    assert desk.machine.state == "Stable"
    new_id = desk.ask(join(instance="t"), JoinReply).member_id
    assert desk.synced(desk.sync(new_id, 1, instance="t")).assignment == b"p1"
    for _ in range(2 * REBALANCE_MS // 5_000):
        assert desk.beat(ids[0], 1, "s") is ErrorCode.NONE
        assert desk.beat(new_id, 1, "t") is ErrorCode.NONE
        desk.pass_ms(5_000)


def test_an_id_that_was_given_to_a_dynamic_member_is_none_for_a_static_one(desk: Desk) -> None:
    member_id = desk.new_id()
    assert desk.ask(join(member_id, instance="s"), JoinReply).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_comes_back_has_its_place_in_a_full_group() -> None:
    desk = Desk(replace(LIMITS, max_members=1))
    stable(desk, "s")
    assert desk.ask(join(instance="s"), JoinReply).generation == 1
    assert desk.ask(join(instance="t"), JoinReply).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_place_that_is_taken_back_is_saved_with_its_generation_unchanged(desk: Desk) -> None:
    stable(desk, "s")
    desk.ask(join(instance="s"), JoinReply)
    assert desk.store.head is not None
    assert (desk.store.head.epoch, desk.store.head.phase) == (1, Phase.STABLE)
    assert len(desk.store.members) == len(desk.store.assignments) == 1
