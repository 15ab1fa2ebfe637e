"""ConsumerGroupHeartbeat (68), versions 0-1: the one request of KIP-848: join, stay, take and give partitions, leave.

- v0 lets the coordinator make a new member's id; v1 wants the client to make it, and has regular expressions.

What is null in a request is as it was before; an assignment that is null in an answer is so, too.
"""

from collections.abc import Sequence
from typing import cast

from headrace.groups.problems import GroupRefused
from headrace.groups.protocol import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerBeat,
    ConsumerBeatReply,
    Partitions,
)
from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.group_calls import client_of, member_code, refusal_of_group
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import TopicId
from headrace.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

FIRST_VERSION_WITH_OWN_IDS = 1

_Assignment = ConsumerGroupHeartbeatResponse.Assignment
_TopicPartitions = ConsumerGroupHeartbeatResponse.TopicPartitions


async def handle(node: Node, call: Call, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    """Pass the heartbeat on to the group."""
    try:
        _check(call, request)
        reply = cast(ConsumerBeatReply, await node.groups.call(request.group_id, _event(call, request)))
    except Refused as error:
        return refused(call, request, error.refusal)
    except GroupRefused as error:
        return refused(call, request, refusal_of_group(error))
    if reply.error:
        return ConsumerGroupHeartbeatResponse(error_code=reply.error, error_message=reply.error_message)
    return ConsumerGroupHeartbeatResponse(
        error_message=None,
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=None if reply.assignment is None else _assignment(reply.assignment),
    )


def refused(call: Call, request: ConsumerGroupHeartbeatRequest, refusal: Refusal) -> ConsumerGroupHeartbeatResponse:
    """Refuse it."""
    return ConsumerGroupHeartbeatResponse(error_code=member_code(refusal.code), error_message=refusal.message)


def _check(call: Call, request: ConsumerGroupHeartbeatRequest) -> None:
    """Raise `Refused` for what makes no sense in any group."""
    if not request.group_id.strip():
        raise _invalid("a group has a name that is not blank")
    if not request.member_id.strip() and (
        call.version >= FIRST_VERSION_WITH_OWN_IDS or request.member_epoch != JOINING_EPOCH
    ):
        raise _invalid("a member has an id that is not blank")
    if request.instance_id is not None and not request.instance_id.strip():
        raise _invalid("a member's instance id is null or not blank")
    if request.rack_id is not None and not request.rack_id.strip():
        raise _invalid("a member's rack id is null or not blank")
    if request.member_epoch == JOINING_EPOCH:
        _check_joining(request)
    elif request.member_epoch < STATIC_LEAVING_EPOCH:
        raise _invalid(f"there is no member epoch {request.member_epoch}")
    elif request.member_epoch == STATIC_LEAVING_EPOCH and request.instance_id is None:
        raise _invalid(f"epoch {STATIC_LEAVING_EPOCH} is for members with an instance id, {LEAVING_EPOCH} for others")


def _check_joining(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms < 0:
        raise _invalid("a member that joins tells its rebalance timeout")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("a member that joins owns no partitions, and says so by an empty list")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid("a member that joins subscribes to topics, by name or by a regular expression")


def _invalid(why: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, why)


def _event(call: Call, request: ConsumerGroupHeartbeatRequest) -> ConsumerBeat:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return ConsumerBeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if names is None else tuple(names),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else _owned(owned),
        client=client_of(call),
        turn_ms=call.turn_ms,
    )


def _owned(reported: Sequence[ConsumerGroupHeartbeatRequest.TopicPartitions]) -> Partitions:
    """Return what a member owns. A topic that is named twice counts twice: what it owns must not seem let go of."""
    owned: dict[TopicId, frozenset[int]] = {}
    for one in reported:
        topic_id = TopicId(bytes(one.topic_id))
        owned[topic_id] = owned.get(topic_id, frozenset()) | frozenset(one.partitions)
    return owned


def _assignment(partitions: Partitions) -> _Assignment:
    return _Assignment(
        topic_partitions=[
            _TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in partitions.items()
        ]
    )
