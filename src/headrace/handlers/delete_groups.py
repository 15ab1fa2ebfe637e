"""DeleteGroups (42), versions 0-2: groups without members go, with all their offsets; v2 is flexible."""

from headrace.errors import HeadraceError
from headrace.groups.problems import GroupRefused
from headrace.handlers.call import Call, Refusal, refusal_of
from headrace.handlers.group_calls import member_code
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse

_Result = DeleteGroupsResponse.DeletableGroupResult


async def handle(node: Node, call: Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete every group that was named, each by itself, and once."""
    names = dict.fromkeys(request.groups_names)
    return DeleteGroupsResponse(
        results=[_Result(group_id=group_id, error_code=await _delete(node, group_id)) for group_id in names]
    )


def refused(call: Call, request: DeleteGroupsRequest, refusal: Refusal) -> DeleteGroupsResponse:
    """Answer every group that was named with the same error."""
    names = dict.fromkeys(request.groups_names)
    return DeleteGroupsResponse(
        results=[_Result(group_id=one, error_code=member_code(refusal.code)) for one in names]
    )


async def _delete(node: Node, group_id: str) -> ErrorCode:
    try:
        return await node.groups.delete(group_id)
    except GroupRefused as error:
        return error.code
    except HeadraceError as error:
        return member_code(refusal_of(error).code)
