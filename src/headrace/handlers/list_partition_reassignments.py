"""ListPartitionReassignments (46), version 0: there never is one, because no broker owns bytes that could move."""

from headrace.handlers.call import Call, Refusal
from headrace.handlers.node import Node
from headrace.wire.messages import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse


async def handle(
    node: Node, call: Call, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Answer that nothing is being moved."""
    return ListPartitionReassignmentsResponse(error_message=None)


def refused(
    call: Call, request: ListPartitionReassignmentsRequest, refusal: Refusal
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=refusal.code, error_message=refusal.message)
