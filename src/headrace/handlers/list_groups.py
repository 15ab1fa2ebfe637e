"""ListGroups (16), versions 0-5: the groups that this broker answers for; clients ask all brokers.

- v1 has a throttle time; v4 tells states and can ask for some; v5 tells types and can ask for some.
"""

from headrace.groups.listing import GroupListing
from headrace.groups.problems import GroupRefused
from headrace.groups.records import GroupKind
from headrace.handlers.call import Call, Refusal
from headrace.handlers.group_calls import member_code, refusal_of_group
from headrace.handlers.node import Node
from headrace.wire.messages import ListGroupsRequest, ListGroupsResponse

FIRST_VERSION_WITH_STATES = 4
FIRST_VERSION_WITH_TYPES = 5

TYPES = {GroupKind.CLASSIC: "classic", GroupKind.CONSUMER: "consumer"}


async def handle(node: Node, call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
    """List groups, those in the states and of the types that were asked for."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    try:
        listed = await node.groups.listed()
    except GroupRefused as error:
        return refused(call, request, refusal_of_group(error))
    return ListGroupsResponse(
        groups=[
            _line(call, one)
            for one in listed
            if (not states or one.state.lower() in states) and (not types or TYPES[one.kind] in types)
        ]
    )


def refused(call: Call, request: ListGroupsRequest, refusal: Refusal) -> ListGroupsResponse:
    """Refuse the whole list."""
    return ListGroupsResponse(error_code=member_code(refusal.code))


def _line(call: Call, one: GroupListing) -> ListGroupsResponse.ListedGroup:
    return ListGroupsResponse.ListedGroup(
        group_id=one.group_id,
        protocol_type=one.protocol_type,
        group_state=one.state if call.version >= FIRST_VERSION_WITH_STATES else "",
        group_type=TYPES[one.kind] if call.version >= FIRST_VERSION_WITH_TYPES else "",
    )
