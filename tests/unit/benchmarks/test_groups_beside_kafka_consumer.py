"""A KIP-848 member of the load: what it tells and when, and what it does about every answer it may get."""

import pytest

from benchmarks.groups_beside_kafka.actions import Action, Ask, Ended, LookUp, Rest, UnexpectedAnswer
from benchmarks.groups_beside_kafka.consumer_member import ConsumerMember
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

TOPIC_ID = bytes(range(16))
OTHER_ID = bytes(16)

Response = ConsumerGroupHeartbeatResponse


def _member() -> ConsumerMember:
    return ConsumerMember(group_id="group", member_id="me", topic="topic", topic_id=TOPIC_ID)


def _asked(action: Action) -> ConsumerGroupHeartbeatRequest:
    assert isinstance(action, Ask)
    assert isinstance(action.request, ConsumerGroupHeartbeatRequest)
    return action.request


def _answer(epoch: int, partitions: list[int] | None = None, interval_ms: int = 5000) -> Response:
    assignment = None
    if partitions is not None:
        topics = [Response.TopicPartitions(topic_id=TOPIC_ID, partitions=partitions)]
        assignment = Response.Assignment(topic_partitions=topics if partitions else [])
    return Response(member_epoch=epoch, heartbeat_interval_ms=interval_ms, assignment=assignment)


def _stable(now_s: float = 100.0) -> ConsumerMember:
    member = _member()
    member.next_action(now_s)
    member.handle(_answer(1, [0, 1]), now_s)
    member.next_action(now_s)
    member.handle(_answer(1), now_s)
    return member


def test_the_first_heartbeat_tells_everything() -> None:
    request = _asked(_member().next_action(0.0))
    assert (request.member_id, request.member_epoch) == ("me", 0)
    assert request.subscribed_topic_names == ["topic"]
    assert request.rebalance_timeout_ms == 300_000
    assert request.topic_partitions == []


def test_an_assignment_counts_when_it_is_heard_and_is_reported_at_once() -> None:
    member = _member()
    member.next_action(0.0)
    member.handle(_answer(1, [3, 1]), 0.0)
    assert member.owned == frozenset({1, 3})
    request = _asked(member.next_action(0.0))
    assert request.member_epoch == 1
    assert request.subscribed_topic_names is None
    assert request.rebalance_timeout_ms == -1
    assert request.topic_partitions is not None
    assert [(topic.topic_id, topic.partitions) for topic in request.topic_partitions] == [(TOPIC_ID, [1, 3])]


def test_an_empty_assignment_to_one_who_has_nothing_needs_no_report() -> None:
    member = _member()
    member.next_action(0.0)
    member.handle(_answer(1, []), 0.0)
    assert member.next_action(0.0) == Rest(until_s=5.0)


def test_everything_taken_away_is_reported_as_an_empty_list_and_not_as_unchanged() -> None:
    member = _stable()
    member.next_action(105.0)
    member.handle(_answer(2, []), 105.0)
    assert member.owned == frozenset()
    assert _asked(member.next_action(105.0)).topic_partitions == []


def test_partitions_of_other_topics_do_not_count() -> None:
    member = _member()
    member.next_action(0.0)
    topics = [Response.TopicPartitions(topic_id=OTHER_ID, partitions=[5])]
    member.handle(Response(member_epoch=1, assignment=Response.Assignment(topic_partitions=topics)), 0.0)
    assert member.owned == frozenset()


def test_the_coordinator_sets_the_interval_anew_with_every_answer() -> None:
    member = _stable(100.0)
    assert member.next_action(100.0) == Rest(until_s=105.0)
    request = _asked(member.next_action(105.5))
    assert request.topic_partitions is None
    member.handle(_answer(1, interval_ms=300), 105.6)
    assert member.next_action(105.6) == Rest(until_s=105.8)


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_who_is_thrown_out_gives_everything_up_and_joins_with_the_same_id(code: ErrorCode) -> None:
    member = _stable()
    member.next_action(105.0)
    member.handle(Response(error_code=code), 105.0)
    assert (member.owned, member.fenced) == (frozenset(), 1)
    request = _asked(member.next_action(105.0))
    assert (request.member_id, request.member_epoch) == ("me", 0)
    assert request.subscribed_topic_names == ["topic"]
    assert request.topic_partitions == []


def test_a_coordinator_that_loads_is_told_everything_after_a_pause() -> None:
    member = _stable()
    member.next_action(105.0)
    member.handle(Response(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), 105.0)
    assert member.owned == frozenset({0, 1})
    assert member.next_action(105.0) == Rest(until_s=105.1)
    request = _asked(member.next_action(105.2))
    assert request.member_epoch == 1
    assert request.subscribed_topic_names == ["topic"]
    assert request.topic_partitions is not None
    assert request.topic_partitions[0].partitions == [0, 1]


def test_a_coordinator_that_moved_is_looked_up_once() -> None:
    member = _stable()
    member.next_action(105.0)
    member.handle(Response(error_code=ErrorCode.NOT_COORDINATOR), 105.0)
    assert member.next_action(105.0) == LookUp()
    assert _asked(member.next_action(105.2)).subscribed_topic_names == ["topic"]


def test_who_leaves_owns_nothing_from_the_request_on() -> None:
    member = _stable()
    member.leave()
    assert _asked(member.next_action(101.0)).member_epoch == -1
    assert member.owned == frozenset()
    member.handle(Response(member_epoch=-1), 101.0)
    assert member.next_action(101.0) == Ended()


def test_an_answer_that_was_under_way_does_not_stop_the_farewell() -> None:
    member = _stable()
    member.next_action(105.0)
    member.leave()
    member.handle(_answer(2, [0]), 105.0)
    assert _asked(member.next_action(105.0)).member_epoch == -1
    assert member.owned == frozenset()


def test_an_answer_that_nobody_should_get_ends_the_run_with_its_name() -> None:
    member = _stable()
    member.next_action(105.0)
    with pytest.raises(UnexpectedAnswer, match="GROUP_MAX_SIZE_REACHED"):
        member.handle(Response(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED), 105.0)
