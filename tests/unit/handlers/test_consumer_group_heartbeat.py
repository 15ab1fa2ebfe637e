"""ConsumerGroupHeartbeat: what makes no sense is refused here, everything else goes to the group."""

from typing import Any

import pytest

from headrace.groups.protocol import Client, ConsumerBeat, ConsumerBeatReply
from headrace.handlers.call import Refusal
from headrace.handlers.consumer_group_heartbeat import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import TopicId
from headrace.wire.messages import ConsumerGroupHeartbeatRequest
from tests.unit.handlers.group_node import LOADING, MOVED, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(2)
NEWEST = 1

ONE, TWO = TopicId(bytes([1] * 16)), TopicId(bytes([2] * 16))

Owned = ConsumerGroupHeartbeatRequest.TopicPartitions


def joining(**values: Any) -> ConsumerGroupHeartbeatRequest:
    given: dict[str, Any] = {
        "group_id": "g",
        "member_id": "m1",
        "member_epoch": 0,
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": ["t", "u"],
        "topic_partitions": [],
    }
    return ConsumerGroupHeartbeatRequest(**given | values)


def at_rest(**values: Any) -> ConsumerGroupHeartbeatRequest:
    given: dict[str, Any] = {
        "group_id": "g",
        "member_id": "m1",
        "member_epoch": 7,
        "subscribed_topic_names": None,
        "topic_partitions": None,
    }
    return ConsumerGroupHeartbeatRequest(**given | values)


def answering(reply: ConsumerBeatReply | None = None) -> GroupNode:
    kit = GroupNode()
    kit.groups.reply = reply or ConsumerBeatReply(member_id="m1", member_epoch=7, heartbeat_interval_ms=500)
    return kit


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_joins_with_all_that_it_can_say(version: int) -> None:
    kit = answering()
    values: dict[str, Any] = {"subscribed_topic_regex": "t.*"} if version >= 1 else {}
    request = joining(instance_id="i1", rack_id="r1", server_assignor="range", **values)
    answer = await ask(handle, kit.node, version, request)
    assert kit.groups.events == [
        (
            "g",
            ConsumerBeat(
                member_id="m1",
                member_epoch=0,
                instance_id="i1",
                rack="r1",
                rebalance_timeout_ms=30_000,
                topics=("t", "u"),
                regex="t.*" if version >= 1 else None,
                assignor="range",
                owned={},
                client=Client("test", "/peer"),
            ),
        )
    ]
    assert (answer.error_code, answer.error_message) == (0, None)
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("m1", 7, 500)
    assert answer.assignment is None


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_not_said_is_as_before(version: int) -> None:
    kit = answering()
    await ask(handle, kit.node, version, at_rest())
    ((_, event),) = kit.groups.events
    assert isinstance(event, ConsumerBeat)
    assert (event.topics, event.regex, event.owned, event.assignor) == (None, None, None, None)
    assert (event.rebalance_timeout_ms, event.member_epoch) == (-1, 7)


async def test_member_says_what_it_owns() -> None:
    kit = answering()
    twice = Owned(topic_id=ONE, partitions=[1])
    owned = [Owned(topic_id=ONE, partitions=[2, 0]), Owned(topic_id=TWO, partitions=[]), twice]
    await ask(handle, kit.node, NEWEST, at_rest(topic_partitions=owned))
    ((_, event),) = kit.groups.events
    assert isinstance(event, ConsumerBeat)
    assert event.owned == {ONE: frozenset({0, 1, 2}), TWO: frozenset()}, "what is named twice is not let go of"


@pytest.mark.parametrize("version", VERSIONS)
async def test_assignment_is_told_by_topic_id_and_in_order(version: int) -> None:
    assignment = {ONE: frozenset({9, 1, 4}), TWO: frozenset({0})}
    kit = answering(ConsumerBeatReply(member_id="m1", member_epoch=8, assignment=assignment))
    answer = await ask(handle, kit.node, version, at_rest())
    assert [(one.topic_id, one.partitions) for one in answer.assignment.topic_partitions] == [
        (ONE, [1, 4, 9]),
        (TWO, [0]),
    ]


async def test_empty_assignment_is_not_the_same_as_none() -> None:
    kit = answering(ConsumerBeatReply(member_id="m1", member_epoch=8, assignment={}))
    answer = await ask(handle, kit.node, NEWEST, at_rest())
    assert answer.assignment.topic_partitions == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNSUPPORTED_ASSIGNOR])
async def test_error_of_the_group_passes_through_and_names_no_member(version: int, code: ErrorCode) -> None:
    kit = answering(ConsumerBeatReply(error=code, error_message="a sentence", member_id="m1", member_epoch=7))
    answer = await ask(handle, kit.node, version, at_rest())
    assert (answer.error_code, answer.error_message) == (code, "a sentence")
    assert (answer.member_id, answer.member_epoch, answer.assignment) == (None, 0, None)


@pytest.mark.parametrize(
    "request_",
    [
        joining(group_id=""),
        joining(group_id="  "),
        joining(member_id=""),
        joining(member_id=" "),
        at_rest(member_id=""),
        joining(instance_id=""),
        joining(rack_id=" "),
        joining(rebalance_timeout_ms=-1),
        joining(subscribed_topic_names=None),
        joining(topic_partitions=None),
        joining(topic_partitions=[Owned(topic_id=ONE, partitions=[0])]),
        joining(topic_partitions=[Owned(topic_id=ONE, partitions=[])]),
        at_rest(member_epoch=-2),
        at_rest(member_epoch=-3, instance_id="i1"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_sentence(request_: ConsumerGroupHeartbeatRequest) -> None:
    kit = answering()
    answer = await ask(handle, kit.node, NEWEST, request_)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message
    assert (answer.member_id, kit.groups.events) == (None, [])


@pytest.mark.parametrize(
    "request_",
    [
        joining(rebalance_timeout_ms=0),
        joining(subscribed_topic_names=[]),
        joining(subscribed_topic_names=None, subscribed_topic_regex="t.*"),
        joining(subscribed_topic_names=None, subscribed_topic_regex=""),
        joining(server_assignor=""),
        at_rest(rebalance_timeout_ms=0),
        at_rest(member_epoch=-1),
        at_rest(member_epoch=-2, instance_id="i1"),
    ],
)
async def test_what_kafka_accepts_goes_to_the_group(request_: ConsumerGroupHeartbeatRequest) -> None:
    kit = answering()
    answer = await ask(handle, kit.node, NEWEST, request_)
    assert (answer.error_code, len(kit.groups.events)) == (0, 1)


async def test_oldest_version_lets_the_group_make_a_new_members_id() -> None:
    kit = answering(ConsumerBeatReply(member_id="made", member_epoch=1))
    answer = await ask(handle, kit.node, 0, joining(member_id=""))
    assert (answer.error_code, answer.member_id) == (0, "made")
    answer = await ask(handle, kit.node, 0, at_rest(member_id=""))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("failure", "code"), [(MOVED, ErrorCode.NOT_COORDINATOR), (LOADING, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
)
async def test_refusals_of_the_coordinator_are_answered_and_not_raised(failure: Exception, code: ErrorCode) -> None:
    kit = answering()
    kit.groups.failure = failure
    answer = await ask(handle, kit.node, NEWEST, at_rest())
    assert (answer.error_code, answer.error_message) == (code, str(failure))


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_is_one_that_members_act_on(version: int) -> None:
    answer = refused(call(version), at_rest(), Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down"))
    told = over_the_wire(answer, version)
    assert (told.error_code, told.error_message) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "down")
