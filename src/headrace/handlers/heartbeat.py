"""Heartbeat (12), versions 0-4: a classic member is there. v3 has instance ids, v4 is flexible."""

from typing import cast

from headrace.groups.problems import GroupRefused
from headrace.groups.protocol import Beat, BeatReply
from headrace.handlers.call import Call, Refusal
from headrace.handlers.group_calls import beat_code, group_refusal
from headrace.handlers.node import Node
from headrace.wire.messages import HeartbeatRequest, HeartbeatResponse


async def handle(node: Node, call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
    """Pass the sign of life on to the group."""
    refusal = group_refusal(request.group_id)
    if refusal is not None:
        return refused(call, request, refusal)
    event = Beat(member_id=request.member_id, instance_id=request.group_instance_id, generation=request.generation_id)
    try:
        reply = cast(BeatReply, await node.groups.call(request.group_id, event))
    except GroupRefused as error:
        return HeartbeatResponse(error_code=beat_code(error.code))
    return HeartbeatResponse(error_code=reply.error)


def refused(call: Call, request: HeartbeatRequest, refusal: Refusal) -> HeartbeatResponse:
    """Refuse it."""
    return HeartbeatResponse(error_code=beat_code(refusal.code))
