"""Static members, and the roster's promise that a partition is in one hand."""

import pytest

from headrace.errors import Corrupt
from headrace.groups.consumer_members import Member, Roster
from headrace.groups.consumer_records import (
    CONSUMER_MEMBER,
    ClassicFacts,
    ConsumerMemberRecord,
    MemberState,
    holdings,
)
from headrace.groups.consumer_subscriptions import Subscriptions
from headrace.groups.protocol import LEAVING_EPOCH, STATIC_LEAVING_EPOCH
from headrace.groups.reconciliation import Standing
from headrace.metadata.port import Key
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import TopicId
from tests.unit.groups.consumer_desk import SESSION_MS, Consumer, ConsumerDesk, heartbeat, image_of, settle

T = TopicId(b"t" * 16)


def roster_of(*members: Member) -> Roster:
    roster = Roster(Subscriptions(image_of()))
    for member in members:
        roster.add(member)
    return roster


def standing(*partitions: int) -> Standing:
    return Standing(epoch=1, assigned={T: dict.fromkeys(partitions, 1)}, revoking={})


def row(member_id: str, *partitions: int, is_classic: bool = False) -> tuple[Key, bytes]:
    record = ConsumerMemberRecord(
        member_id=member_id,
        instance_id=None,
        rack=None,
        client_id="",
        client_host="",
        rebalance_timeout_ms=1,
        topics=("t",),
        regex=None,
        assignor=None,
        epoch=1,
        previous_epoch=0,
        state=MemberState.STABLE,
        assigned=holdings(standing(*partitions).assigned),
        classic=ClassicFacts(session_timeout_ms=1, protocols=(("range", b""),)) if is_classic else None,
    )
    return Key(f"/m/{member_id}"), CONSUMER_MEMBER.encode(record)


def test_partition_is_never_given_to_a_second_member() -> None:
    a, b = Member("a"), Member("b")
    roster = roster_of(a, b)
    roster.move(a, standing(0, 1))
    with pytest.raises(AssertionError, match="somebody's already"):
        roster.move(b, standing(1))
    assert roster.holder(T, 1) == "a"
    assert roster.taken_from(b)(T, 0)
    assert not roster.taken_from(a)(T, 0)
    roster.remove(a)
    assert roster.holder(T, 1) is None


def test_stored_members_that_share_a_partition_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="member b at /m/b"):
        roster_of().load([row("a", 0), row("b", 0)])


def test_classic_members_may_have_shared_a_partition_and_only_one_keeps_it() -> None:
    roster = roster_of()
    roster.load([row("a", 0, is_classic=True), row("b", 0, 1, is_classic=True)])
    assert (roster.holder(T, 0), roster.holder(T, 1)) == ("a", "b")
    assert list(roster.take_changes()) == ["b"]


def test_member_that_came_and_went_before_a_save_is_not_deleted() -> None:
    a = Member("a")
    roster = roster_of(a)
    roster.remove(a)
    assert roster.take_changes() == {}


# Static members


def static_pair(desk: ConsumerDesk) -> tuple[Consumer, Consumer]:
    a, b = Consumer(desk, "a", instance="i"), Consumer(desk, "b")
    settle(desk, a, b)
    return a, b


def test_static_member_that_comes_back_has_what_it_had() -> None:
    desk = ConsumerDesk()
    a, b = static_pair(desk)
    owned, epoch = a.owned, desk.machine.head.epoch
    assert a.leave(STATIC_LEAVING_EPOCH).member_epoch == STATIC_LEAVING_EPOCH
    assert desk.machine.state == "Reconciling"
    # Nobody can help it, so nobody hurries.
    assert b.beat().heartbeat_interval_ms == 1_002
    back = Consumer(desk, "a2", instance="i")
    reply = back.beat()
    assert (reply.member_epoch, reply.assignment) == (epoch, owned)
    assert desk.machine.head.epoch == epoch
    assert set(desk.store.members) == {"a2", "b"}
    assert set(desk.store.assignments) == {"a2", "b"}
    assert desk.machine.state == "Stable"


def test_static_member_that_was_revoking_has_let_go_when_it_leaves() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a", instance="i")
    a.beat()
    b = Consumer(desk, "b")
    b.beat()
    a.beat()
    a.leave(STATIC_LEAVING_EPOCH)
    b.beat()
    assert b.count() == 2
    desk.restart()
    back = Consumer(desk, "a2", instance="i")
    settle(desk, back, b)
    assert (back.count(), b.count()) == (2, 2)


def test_static_member_that_does_not_come_back_is_put_out() -> None:
    desk = ConsumerDesk()
    a, b = static_pair(desk)
    a.leave(STATIC_LEAVING_EPOCH)
    desk.pass_ms(SESSION_MS - 1)
    b.beat()
    assert desk.machine.member_count == 2
    desk.pass_ms(1)
    settle(desk, b)
    assert b.count() == 4


def test_static_member_that_leaves_for_good_is_gone() -> None:
    desk = ConsumerDesk()
    a, b = static_pair(desk)
    a.leave(LEAVING_EPOCH)
    settle(desk, b)
    assert b.count() == 4


def test_instance_id_that_is_in_use_is_not_given_away() -> None:
    desk = ConsumerDesk()
    a, _ = static_pair(desk)
    assert desk.join_group("a2", instance="i").error is ErrorCode.UNRELEASED_INSTANCE_ID
    again = desk.join_group("a", instance="i")
    assert (again.error, again.member_epoch, again.assignment) == (ErrorCode.NONE, a.epoch, a.owned)


def test_predecessor_of_a_static_member_is_fenced() -> None:
    desk = ConsumerDesk()
    a, _ = static_pair(desk)
    epoch = a.epoch
    a.leave(STATIC_LEAVING_EPOCH)
    # A heartbeat that was on its way does not bring it back.
    assert desk.heartbeat(heartbeat("a", epoch, instance="i")).error is ErrorCode.FENCED_MEMBER_EPOCH
    desk.join_group("a2", instance="i")
    for late in (epoch, LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
        assert desk.heartbeat(heartbeat("a", late, instance="i")).error is ErrorCode.FENCED_INSTANCE_ID
    assert desk.heartbeat(heartbeat("a", epoch)).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.heartbeat(heartbeat("a", epoch, instance="j")).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_member_cannot_take_the_id_of_another_member() -> None:
    desk = ConsumerDesk()
    a, _ = static_pair(desk)
    a.leave(STATIC_LEAVING_EPOCH)
    assert desk.join_group("b", instance="i").error is ErrorCode.INVALID_REQUEST


def test_static_member_comes_back_to_a_full_group() -> None:
    desk = ConsumerDesk()
    a, _ = static_pair(desk)
    for number in range(desk.limits.max_members - 2):
        desk.join_group(f"c{number}")
    a.leave(STATIC_LEAVING_EPOCH)
    assert desk.join_group("d").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.join_group("a2", instance="i").error is ErrorCode.NONE


def test_static_member_may_come_back_with_other_wishes() -> None:
    desk = ConsumerDesk(image=image_of(orders=4, other=2))
    a, b = static_pair(desk)
    a.leave(STATIC_LEAVING_EPOCH)
    back = Consumer(desk, "a2", instance="i", topics=("other",))
    settle(desk, back, b)
    assert (back.count(), b.count()) == (2, 4)
