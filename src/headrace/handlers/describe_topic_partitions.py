"""DescribeTopicPartitions (75), version 0: topics and their partitions, a bounded number per answer.

Topics come sorted by name. An answer that is full ends with a cursor, the next partition to be told; a request that
carries one goes on from there. An empty list asks for all topics. What changed between two answers of one listing is
seen or not, as it comes: nothing is held open for a cursor. There are no replicas, so none is eligible or lost.
"""

from headrace.cluster.view import NO_NODE
from headrace.cluster.zones import zone_of
from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.node import Node
from headrace.handlers.operations import TOPIC_OPERATIONS
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import Topic
from headrace.topics.names import is_legal
from headrace.wire.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

MAX_PARTITIONS_PER_ANSWER = 2000


async def handle(node: Node, call: Call, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """Answer with the topics from the cursor on, up to the limit."""
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"the cursor's partition is {cursor.partition_index}: it must be 0 or more"
        )
    # Administrators ask this after a change that may have gone through another broker.
    await node.topics.refresh()
    zone = zone_of(call.client_id)
    left = max(1, min(request.response_partition_limit, MAX_PARTITIONS_PER_ANSWER))
    topics = []
    for name in _names(node, request):
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        topic = node.topics.get(name)
        if topic is None:
            topics.append(_refused_topic(name, _unknown(name)))
            continue
        end = min(start + left, len(topic.streams))
        if left > 0:
            topics.append(_described(node, topic, start, end, zone))
            left -= max(0, end - start)
        if end < len(topic.streams):
            following = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=end)
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=following)
    return DescribeTopicPartitionsResponse(topics=topics)


def refused(call: Call, request: DescribeTopicPartitionsRequest, refusal: Refusal) -> DescribeTopicPartitionsResponse:
    """Answer every topic that was asked for with the same error."""
    names = dict.fromkeys(topic.name for topic in request.topics)
    return DescribeTopicPartitionsResponse(topics=[_refused_topic(name, refusal.code) for name in names])


def _names(node: Node, request: DescribeTopicPartitionsRequest) -> list[str]:
    """Return the names to be told, in order, from the cursor on."""
    names = sorted({topic.name for topic in request.topics}) or [topic.name for topic in node.topics.known()]
    if request.cursor is None:
        return names
    return [name for name in names if name >= request.cursor.topic_name]


def _unknown(name: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_legal(name) else ErrorCode.INVALID_TOPIC_EXCEPTION


def _described(
    node: Node, topic: Topic, start: int, end: int, zone: str | None
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index in range(start, end):
        leader = node.cluster.leader_of(topic.streams[index], zone=zone)
        replicas = [leader] if leader != NO_NODE else []
        partitions.append(
            DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.NONE if replicas else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=leader,
                replica_nodes=replicas,
                isr_nodes=replicas,
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
        )
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        name=topic.name, topic_id=topic.id, partitions=partitions, topic_authorized_operations=TOPIC_OPERATIONS
    )


def _refused_topic(
    name: str, code: ErrorCode
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(error_code=code, name=name)
