"""AlterPartitionReassignments (45), versions 0-1: accepted where nothing has to move, which is always.

- v1 says whether the number of replicas may change.

Bytes lie in the object store and brokers own none: replicas that name living brokers are taken and have no effect, so
plans of Apache Kafka's tool go through. Unknown brokers and uneven lists are refused as by Kafka. A reassignment is
over at once, so there is never one to cancel.
"""

from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.named_topics import NamedTopics, look_up
from headrace.handlers.node import Node
from headrace.handlers.replica_assignments import check_replicas
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse

_Asked = AlterPartitionReassignmentsRequest.ReassignablePartition
_Topic = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_Partition = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


async def handle(
    node: Node, call: Call, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Check what was asked for, and answer every partition that was named."""
    found = await look_up(
        node, [(one.name, [each.partition_index for each in one.partitions]) for one in request.topics]
    )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            _Topic(name=one.name, partitions=[_partition(node, found, one.name, each) for each in one.partitions])
            for one in request.topics
        ],
    )


def refused(
    call: Call, request: AlterPartitionReassignmentsRequest, refusal: Refusal
) -> AlterPartitionReassignmentsResponse:
    """Refuse the whole request, and every partition with it."""
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=refusal.code,
        error_message=refusal.message,
        responses=[
            _Topic(name=one.name, partitions=[_shaped(each.partition_index, refusal) for each in one.partitions])
            for one in request.topics
        ],
    )


def _partition(node: Node, found: NamedTopics, topic: str, asked: _Asked) -> _Partition:
    code = found.code_of(topic, asked.partition_index)
    if code is not ErrorCode.NONE:
        return _shaped(asked.partition_index, Refusal(code, "there is no such partition"))
    if asked.replicas is None:
        nothing = Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no partition is being moved, here or ever")
        return _shaped(asked.partition_index, nothing)
    try:
        check_replicas([asked.replicas], {broker.node_id for broker in node.cluster.brokers})
    except Refused as error:
        return _shaped(asked.partition_index, error.refusal)
    return _shaped(asked.partition_index, Refusal(ErrorCode.NONE))


def _shaped(index: int, refusal: Refusal) -> _Partition:
    return _Partition(partition_index=index, error_code=refusal.code, error_message=refusal.message)
