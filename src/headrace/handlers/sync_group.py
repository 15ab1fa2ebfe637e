"""SyncGroup (14), versions 0-5: the leader brings the assignment, everybody takes his part of it.

- v3 has instance ids; v4 is flexible; v5 names protocol type and protocol, which must be those of the generation.
"""

from typing import cast

from headrace.groups.problems import GroupRefused
from headrace.groups.protocol import Sync, SyncReply
from headrace.handlers.call import Call, Refusal
from headrace.handlers.group_calls import beat_code, group_refusal, refusal_of_group
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import SyncGroupRequest, SyncGroupResponse

FIRST_VERSION_WITH_PROTOCOL = 5

_NO_PROTOCOL = Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "a member names protocol type and protocol")


async def handle(node: Node, call: Call, request: SyncGroupRequest) -> SyncGroupResponse:
    """Pass assignments on, and wait for the member's own."""
    refusal = group_refusal(request.group_id)
    names_protocol = call.version >= FIRST_VERSION_WITH_PROTOCOL
    if refusal is None and names_protocol and (request.protocol_type is None or request.protocol_name is None):
        refusal = _NO_PROTOCOL
    if refusal is not None:
        return refused(call, request, refusal)
    event = Sync(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type if names_protocol else None,
        protocol=request.protocol_name if names_protocol else None,
        assignments=tuple((one.member_id, bytes(one.assignment)) for one in request.assignments),
    )
    try:
        reply = cast(SyncReply, await node.groups.call(request.group_id, event))
    except GroupRefused as error:
        return refused(call, request, refusal_of_group(error))
    return SyncGroupResponse(
        error_code=reply.error,
        protocol_type=reply.protocol_type if names_protocol else None,
        protocol_name=reply.protocol if names_protocol else None,
        assignment=reply.assignment,
    )


def refused(call: Call, request: SyncGroupRequest, refusal: Refusal) -> SyncGroupResponse:
    """Refuse it, with an empty assignment."""
    return SyncGroupResponse(error_code=beat_code(refusal.code))
