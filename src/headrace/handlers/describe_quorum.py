"""DescribeQuorum (55), versions 0-2: there is no quorum, and tools hear that instead of a closed connection.

- v1 has times of the replicas; v2 error messages and the nodes.

Facts lie in the metadata store. Whether that is one process or a cluster of its own is not for brokers to say.
"""

from headrace.handlers.call import Call, Refusal
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import DescribeQuorumRequest, DescribeQuorumResponse

_NO_QUORUM = Refusal(
    ErrorCode.UNSUPPORTED_VERSION, "there is no Raft quorum here: brokers keep their facts in a metadata store"
)


async def handle(node: Node, call: Call, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Say that there is none."""
    return refused(call, request, _NO_QUORUM)


def refused(call: Call, request: DescribeQuorumRequest, refusal: Refusal) -> DescribeQuorumResponse:
    """Refuse the whole request."""
    return DescribeQuorumResponse(error_code=refusal.code, error_message=refusal.message)
