"""JoinGroup (11), versions 0-9: become a member of a classic group, and wait for the generation to come about.

- v0 has no rebalance timeout of its own: the session timeout serves for both.
- v4 answers a new member with its id and wants it to come again with it; v5 has instance ids.
- v7 answers with the protocol type, and with null where no protocol was chosen.
- v8 has a reason, for people. v9 can tell a leader that the assignment stays as it is.
"""

from typing import cast

from headrace.groups.problems import GroupRefused
from headrace.groups.protocol import Join, JoinReply
from headrace.handlers.call import Call, Refusal
from headrace.handlers.group_calls import client_of, group_refusal, member_code, refusal_of_group
from headrace.handlers.node import Node
from headrace.wire.messages import JoinGroupRequest, JoinGroupResponse

FIRST_VERSION_WITH_REBALANCE_TIMEOUT = 1
FIRST_VERSION_WITH_REQUIRED_ID = 4
FIRST_VERSION_WITH_PROTOCOL_TYPE = 7
FIRST_VERSION_THAT_SKIPS = 9


async def handle(node: Node, call: Call, request: JoinGroupRequest) -> JoinGroupResponse:
    """Let the group take the member and answer when its generation is known."""
    refusal = group_refusal(request.group_id)
    if refusal is not None:
        return refused(call, request, refusal)
    has_own_timeout = call.version >= FIRST_VERSION_WITH_REBALANCE_TIMEOUT
    event = Join(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocols=tuple((one.name, bytes(one.metadata)) for one in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms if has_own_timeout else request.session_timeout_ms,
        client=client_of(call),
        needs_member_id=call.version >= FIRST_VERSION_WITH_REQUIRED_ID,
        can_skip_assignment=call.version >= FIRST_VERSION_THAT_SKIPS,
    )
    try:
        reply = cast(JoinReply, await node.groups.call(request.group_id, event))
    except GroupRefused as error:
        return refused(call, request, refusal_of_group(error))
    return _response(call, reply)


def refused(call: Call, request: JoinGroupRequest, refusal: Refusal) -> JoinGroupResponse:
    """Refuse to let the member in."""
    return _response(call, JoinReply(error=member_code(refusal.code), member_id=request.member_id))


def _response(call: Call, reply: JoinReply) -> JoinGroupResponse:
    is_new = call.version >= FIRST_VERSION_WITH_PROTOCOL_TYPE
    return JoinGroupResponse(
        error_code=reply.error,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type if is_new else None,
        protocol_name=reply.protocol if is_new else reply.protocol or "",
        leader=reply.leader,
        skip_assignment=reply.skip_assignment and call.version >= FIRST_VERSION_THAT_SKIPS,
        member_id=reply.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member_id, group_instance_id=instance_id, metadata=metadata
            )
            for member_id, instance_id, metadata in reply.members
        ],
    )
