"""LeaveGroup (13), versions 0-5: members go, their partitions are free at once.

- v0-2 name one member; v3 several, by member id or by instance id, and answer for each; v5 has reasons, for people.
"""

from typing import cast

from headrace.groups.problems import GroupRefused
from headrace.groups.protocol import Leave, Leaver, LeaveReply
from headrace.handlers.call import Call, Refusal
from headrace.handlers.group_calls import beat_code, group_refusal, refusal_of_group
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import LeaveGroupRequest, LeaveGroupResponse

FIRST_VERSION_WITH_MEMBERS = 3


async def handle(node: Node, call: Call, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Let every member that was named leave, each on its own."""
    refusal = group_refusal(request.group_id)
    if refusal is not None:
        return refused(call, request, refusal)
    leavers = _leavers(call, request)
    try:
        reply = cast(LeaveReply, await node.groups.call(request.group_id, Leave(leavers=leavers)))
    except GroupRefused as error:
        return refused(call, request, refusal_of_group(error))
    if call.version < FIRST_VERSION_WITH_MEMBERS:
        own = reply.leavers[0] if reply.leavers else ErrorCode.NONE
        return LeaveGroupResponse(error_code=reply.error or own)
    return LeaveGroupResponse(
        error_code=reply.error,
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=one.member_id, group_instance_id=one.instance_id, error_code=code
            )
            for one, code in zip(leavers, reply.leavers, strict=False)
        ],
    )


def refused(call: Call, request: LeaveGroupRequest, refusal: Refusal) -> LeaveGroupResponse:
    """Refuse the whole request, as Kafka does: no member is named in the answer."""
    return LeaveGroupResponse(error_code=beat_code(refusal.code))


def _leavers(call: Call, request: LeaveGroupRequest) -> tuple[Leaver, ...]:
    if call.version < FIRST_VERSION_WITH_MEMBERS:
        return (Leaver(member_id=request.member_id, instance_id=None),)
    return tuple(
        Leaver(member_id=one.member_id, instance_id=one.group_instance_id, reason=one.reason)
        for one in request.members
    )
