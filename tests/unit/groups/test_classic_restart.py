"""A classic group that is loaded anew: members go on with the generation that was saved."""

from dataclasses import replace

import pytest

from headrace.errors import Corrupt
from headrace.groups.protocol import JoinReply
from headrace.groups.records import Loaded, Phase
from headrace.model.error_codes import ErrorCode
from tests.unit.groups.desk import DELAY_MS, LIMITS, REBALANCE_MS, SESSION_MS, Desk, join


@pytest.fixture
def desk() -> Desk:
    return Desk()


def completing(desk: Desk) -> tuple[str, str]:
    """Bring a group of two to where its generation is known and its assignment is not."""
    ids = [desk.new_id(), desk.new_id()]
    for member_id in ids:
        desk.send(join(member_id))
    desk.pass_ms(2 * DELAY_MS)
    assert desk.machine.state == "CompletingRebalance"
    return ids[0], ids[1]


def test_a_stable_group_goes_on(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    before = desk.machine.describe()
    desk.restart()
    assert desk.machine.describe() == before
    assert desk.machine.head == before.head
    assert desk.beat(leader, 1) is desk.beat(follower, 1) is ErrorCode.NONE
    assert desk.synced(desk.sync(follower, 1)).assignment == f"for {follower}".encode()
    assert desk.ask(join(follower), JoinReply).generation == 1, "it has not changed"
    assert desk.commit(leader, 1) is ErrorCode.NONE


def test_all_protocols_of_a_member_are_kept(desk: Desk) -> None:
    token = desk.send(join(needs_id=False, protocols=(("x", b"1"), ("y", b"2"))))
    desk.pass_ms(DELAY_MS)
    member_id = desk.joined(token).member_id
    desk.sync(member_id, 1)
    desk.restart()
    assert desk.ask(join(protocols=(("y", b""),)), JoinReply).error is ErrorCode.MEMBER_ID_REQUIRED
    assert desk.ask(join(protocols=(("z", b""),)), JoinReply).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_sessions_begin_anew(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    desk.pass_ms(SESSION_MS - 1)
    desk.restart()
    desk.pass_ms(SESSION_MS - 1)
    assert desk.beat(leader, 1) is ErrorCode.NONE
    desk.pass_ms(1)
    assert desk.beat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_generation_without_assignment_is_completed_by_its_leader(desk: Desk) -> None:
    leader, follower = completing(desk)
    desk.sync(follower, 1)
    desk.restart()
    assert desk.machine.state == "CompletingRebalance"
    assert desk.beat(leader, 1) is ErrorCode.NONE
    waiting = desk.sync(follower, 1)
    assert desk.synced(desk.sync(leader, 1, {follower: b"p1"})).error is ErrorCode.NONE
    assert desk.synced(waiting).assignment == b"p1"


def test_a_leader_that_missed_the_answer_hears_it_from_the_next_coordinator(desk: Desk) -> None:
    leader, _ = completing(desk)
    desk.restart()
    reply = desk.ask(join(leader), JoinReply)
    assert (reply.generation, reply.leader, len(reply.members)) == (1, leader, 2)


def test_who_does_not_sync_after_a_restart_is_put_out(desk: Desk) -> None:
    leader, follower = completing(desk)
    desk.restart()
    desk.sync(follower, 1)
    for _ in range(REBALANCE_MS // 5_000):
        desk.beat(leader, 1)
        desk.pass_ms(5_000)
    assert desk.beat(leader, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_left_lingers_no_longer_than_its_session(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    desk.leave(follower)
    desk.restart()
    assert desk.machine.member_count == 2
    for _ in range(4):
        desk.pass_ms(SESSION_MS // 4)
        code = desk.beat(leader, 1)
    assert code is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.ask(join(leader), JoinReply).generation == 2


def test_a_rebalance_that_was_under_way_begins_again(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    desk.send(join(needs_id=False))
    desk.send(join(leader))
    desk.restart()
    assert desk.machine.state == "Stable"
    assert desk.beat(follower, 1) is ErrorCode.NONE
    tokens = [desk.send(join(needs_id=False)), desk.send(join(leader)), desk.send(join(follower))]
    assert {desk.joined(token).generation for token in tokens} == {2}


def test_an_empty_group_goes_on_with_the_next_generation(desk: Desk) -> None:
    (member_id,) = desk.stable("a")
    desk.leave(member_id)
    head = desk.machine.head
    desk.restart()
    assert desk.machine.head == head
    assert desk.machine.state == "Empty"
    assert desk.machine.next_deadline_ms is None
    token = desk.send(join(needs_id=False))
    desk.pass_ms(DELAY_MS)
    assert desk.joined(token).generation == 3


def test_a_static_member_that_came_back_is_found_after_a_restart() -> None:
    desk = Desk(replace(LIMITS, initial_rebalance_delay_ms=0))
    old_id = desk.ask(join(instance="s"), JoinReply).member_id
    desk.sync(old_id, 1, {old_id: b"p0"}, "s")
    new_id = desk.ask(join(instance="s"), JoinReply).member_id
    desk.restart()
    assert desk.beat(old_id, 1, "s") is ErrorCode.FENCED_INSTANCE_ID
    assert desk.synced(desk.sync(new_id, 1, instance="s")).assignment == b"p0"
    assert desk.machine.head.leader == new_id


def test_a_head_that_does_not_fit_its_members_is_not_believed(desk: Desk) -> None:
    desk.stable("a")
    loaded = desk.store.loaded()
    desk.store.members.clear()
    with pytest.raises(Corrupt, match="Stable with 0 members"):
        desk.restart()
    head = desk.store.head
    assert head is not None
    assert head.phase is Phase.STABLE
    assert isinstance(loaded, Loaded)
