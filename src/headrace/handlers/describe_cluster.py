"""DescribeCluster (60), versions 0 to 2: the cluster's id, its brokers and its controller.

- 1: the request names what it wants described, brokers (1) or controllers (2); the answer says what it describes.
- 2: brokers may be marked as fenced, and are left out unless asked for.

Left out on purpose: controllers. A broker describes brokers; a client that asks it for controllers is told that it
has the wrong kind of endpoint, as Kafka's brokers do. A fenced broker has no place in this cluster: none is listed.
"""

from headrace.handlers.call import Call, Refusal
from headrace.handlers.node import Node
from headrace.handlers.operations import CLUSTER_OPERATIONS, NOT_ASKED
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import DescribeClusterRequest, DescribeClusterResponse

BROKERS = 1
CONTROLLERS = 2


async def handle(node: Node, call: Call, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Answer with the living brokers as this one knows them."""
    if request.endpoint_type != BROKERS:
        return refused(call, request, _wrong_endpoint(request.endpoint_type))
    cluster = node.cluster
    return DescribeClusterResponse(
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in cluster.brokers
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def refused(call: Call, request: DescribeClusterRequest, refusal: Refusal) -> DescribeClusterResponse:
    """Answer with an error and no brokers."""
    return DescribeClusterResponse(
        error_code=refusal.code, error_message=refusal.message, controller_id=-1, brokers=[]
    )


def _wrong_endpoint(endpoint_type: int) -> Refusal:
    if endpoint_type == CONTROLLERS:
        return Refusal(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "this is a broker's endpoint, and there are no controllers: bootstrap from brokers",
        )
    return Refusal(
        ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"unknown endpoint type {endpoint_type}: use 1, which means brokers"
    )
