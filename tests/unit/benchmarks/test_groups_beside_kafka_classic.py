"""A classic member of the load: what it asks, and what it does about every answer it may get."""

from typing import Any

import pytest

from benchmarks.groups_beside_kafka.actions import Action, Ask, Ended, LookUp, Rest, UnexpectedAnswer
from benchmarks.groups_beside_kafka.classic_member import ClassicMember
from benchmarks.groups_beside_kafka.consumer_protocol import decode_assignment, encode_assignment
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

ONE = "member-1"
TWO = "member-2"


def _member() -> ClassicMember:
    return ClassicMember(group_id="group", topic="topic", partitions=4, heartbeat_seconds=3.0)


def _asked(action: Action) -> Any:
    assert isinstance(action, Ask)
    return action.request


def _joined(leader: str = ONE) -> JoinGroupResponse:
    members = [JoinGroupResponse.JoinGroupResponseMember(member_id=member_id) for member_id in (TWO, ONE)]
    return JoinGroupResponse(generation_id=7, leader=leader, member_id=ONE, members=members if leader == ONE else [])


def _stable(now_s: float = 100.0) -> ClassicMember:
    member = _member()
    member.next_action(now_s)
    member.handle(_joined(), now_s)
    member.next_action(now_s)
    member.handle(SyncGroupResponse(assignment=encode_assignment("topic", [0, 1])), now_s)
    return member


def test_a_member_joins_with_the_id_it_is_given() -> None:
    member = _member()
    first = _asked(member.next_action(0.0))
    assert isinstance(first, JoinGroupRequest)
    assert first.member_id == ""
    member.handle(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=ONE), 0.0)
    assert _asked(member.next_action(0.0)).member_id == ONE
    assert member.owned == frozenset()


def test_the_leader_gives_everybody_a_range() -> None:
    member = _member()
    member.next_action(0.0)
    member.handle(_joined(), 0.0)
    sync = _asked(member.next_action(0.0))
    assert isinstance(sync, SyncGroupRequest)
    assert (sync.generation_id, sync.member_id) == (7, ONE)
    shares = {one.member_id: decode_assignment(bytes(one.assignment)) for one in sync.assignments}
    assert shares == {ONE: {"topic": [0, 1]}, TWO: {"topic": [2, 3]}}


def test_others_leave_the_assignment_to_the_leader() -> None:
    member = _member()
    member.next_action(0.0)
    member.handle(_joined(leader=TWO), 0.0)
    assert _asked(member.next_action(0.0)).assignments == []


def test_heartbeats_follow_each_other_by_the_interval_from_sending_to_sending() -> None:
    member = _stable(100.0)
    assert member.owned == frozenset({0, 1})
    assert member.epoch == 7
    assert member.next_action(100.0) == Rest(until_s=103.0)
    heartbeat = _asked(member.next_action(103.5))
    assert isinstance(heartbeat, HeartbeatRequest)
    member.handle(HeartbeatResponse(), 104.0)
    assert member.next_action(104.0) == Rest(until_s=106.5)


@pytest.mark.parametrize("code", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION])
def test_a_rebalance_takes_everything_and_the_member_joins_again_with_its_id(code: ErrorCode) -> None:
    member = _stable()
    member.next_action(200.0)
    member.handle(HeartbeatResponse(error_code=code), 200.0)
    assert member.owned == frozenset()
    assert _asked(member.next_action(200.0)).member_id == ONE
    assert member.fenced == 0


def test_a_sync_that_meets_the_next_rebalance_joins_again() -> None:
    member = _member()
    member.next_action(0.0)
    member.handle(_joined(), 0.0)
    member.next_action(0.0)
    member.handle(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0.0)
    assert isinstance(_asked(member.next_action(0.0)), JoinGroupRequest)


def test_a_member_that_is_not_known_any_more_starts_over_without_an_id() -> None:
    member = _stable()
    member.next_action(200.0)
    member.handle(HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), 200.0)
    assert (member.owned, member.member_id, member.fenced) == (frozenset(), "", 1)
    assert _asked(member.next_action(200.0)).member_id == ""
    member.handle(JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), 200.0)
    assert member.fenced == 2


def test_a_coordinator_that_loads_is_asked_again_after_a_pause_and_nothing_is_given_up() -> None:
    member = _stable()
    member.next_action(200.0)
    member.handle(HeartbeatResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), 200.0)
    assert member.owned == frozenset({0, 1})
    assert member.next_action(200.0) == Rest(until_s=200.1)
    assert isinstance(_asked(member.next_action(200.2)), HeartbeatRequest)


def test_a_coordinator_that_moved_is_looked_up_once() -> None:
    member = _stable()
    member.next_action(200.0)
    member.handle(HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR), 200.0)
    assert member.next_action(200.0) == LookUp()
    assert isinstance(_asked(member.next_action(200.2)), HeartbeatRequest)
    assert member.owned == frozenset({0, 1})


def test_who_leaves_owns_nothing_from_the_request_on() -> None:
    member = _stable()
    member.leave()
    farewell = _asked(member.next_action(100.5))
    assert isinstance(farewell, LeaveGroupRequest)
    assert [one.member_id for one in farewell.members] == [ONE]
    assert member.owned == frozenset()
    member.handle(LeaveGroupResponse(), 100.5)
    assert member.next_action(100.5) == Ended()


def test_a_farewell_that_nobody_could_take_is_said_again() -> None:
    member = _stable()
    member.leave()
    member.next_action(100.5)
    member.handle(LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), 100.5)
    assert isinstance(_asked(member.next_action(101.0)), LeaveGroupRequest)


def test_an_answer_that_nobody_should_get_ends_the_run_with_its_name() -> None:
    member = _stable()
    member.next_action(200.0)
    with pytest.raises(UnexpectedAnswer, match="GROUP_AUTHORIZATION_FAILED"):
        member.handle(HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED), 200.0)
