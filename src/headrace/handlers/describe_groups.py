"""DescribeGroups (15), versions 0-6: classic groups with their members.

- v1 has a throttle time; v3 can ask for what is allowed; v4 has instance ids; v5 is flexible.
- v6 answers GROUP_ID_NOT_FOUND with a sentence for a group that does not exist; before that it is `Dead`.

Groups of the newer protocol are described by ConsumerGroupDescribe; here they do not exist, as in Kafka.
"""

from headrace.groups.problems import GroupRefused
from headrace.groups.protocol import GroupDescription
from headrace.groups.records import GroupKind
from headrace.handlers.call import Call, Refusal
from headrace.handlers.group_calls import member_code, refusal_of_group
from headrace.handlers.node import Node
from headrace.handlers.operations import GROUP_OPERATIONS, NOT_ASKED
from headrace.model.error_codes import ErrorCode
from headrace.runtime.text import one_line
from headrace.wire.messages import DescribeGroupsRequest, DescribeGroupsResponse

FIRST_VERSION_WITH_OPERATIONS = 3
FIRST_VERSION_WITH_ERRORS = 6
MAX_SHOWN_CHARS = 80
DEAD = "Dead"

_Group = DescribeGroupsResponse.DescribedGroup
_Member = DescribeGroupsResponse.DescribedGroupMember


async def handle(node: Node, call: Call, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe every group that was named, each by itself."""
    return DescribeGroupsResponse(groups=[await _group(node, call, request, one) for one in request.groups])


def refused(call: Call, request: DescribeGroupsRequest, refusal: Refusal) -> DescribeGroupsResponse:
    """Refuse every group that was named."""
    return DescribeGroupsResponse(groups=[_refused(call, group_id, refusal) for group_id in request.groups])


async def _group(node: Node, call: Call, request: DescribeGroupsRequest, group_id: str) -> _Group:
    try:
        found = await node.groups.describe(group_id)
    except GroupRefused as error:
        return _refused(call, group_id, refusal_of_group(error))
    if found is None or found.head.kind is not GroupKind.CLASSIC:
        return _unknown(call, request, group_id, exists=found is not None)
    return _described(call, request, found)


def _described(call: Call, request: DescribeGroupsRequest, found: GroupDescription) -> _Group:
    return _Group(
        group_id=found.head.group_id,
        error_message=None,
        group_state=found.state,
        protocol_type=found.head.protocol_type,
        protocol_data=found.protocol,
        members=[
            _Member(
                member_id=one.member_id,
                group_instance_id=one.instance_id,
                client_id=one.client.id,
                client_host=one.client.host,
                member_metadata=one.metadata,
                member_assignment=one.assignment,
            )
            for one in found.classic_members
        ],
        authorized_operations=_operations(call, request),
    )


def _operations(call: Call, request: DescribeGroupsRequest) -> int:
    is_asked = request.include_authorized_operations and call.version >= FIRST_VERSION_WITH_OPERATIONS
    return GROUP_OPERATIONS if is_asked else NOT_ASKED


def _unknown(call: Call, request: DescribeGroupsRequest, group_id: str, *, exists: bool) -> _Group:
    if call.version < FIRST_VERSION_WITH_ERRORS:
        # No error, so the client hears what it may do with a group of this name.
        operations = _operations(call, request)
        return _Group(error_message=None, group_id=group_id, group_state=DEAD, authorized_operations=operations)
    shown = one_line(group_id, max_chars=MAX_SHOWN_CHARS)
    why = f"group '{shown}' is not a classic group" if exists else f"there is no group '{shown}'"
    return _refused(call, group_id, Refusal(ErrorCode.GROUP_ID_NOT_FOUND, why), state=DEAD)


def _refused(call: Call, group_id: str, refusal: Refusal, *, state: str = "") -> _Group:
    return _Group(
        error_code=member_code(refusal.code),
        error_message=refusal.message if call.version >= FIRST_VERSION_WITH_ERRORS else None,
        group_id=group_id,
        group_state=state,
        authorized_operations=NOT_ASKED,
    )
