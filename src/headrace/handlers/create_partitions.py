"""CreatePartitions (37), versions 0-3: more partitions for topics that exist, while everything goes on.

All versions carry the same fields (v2 is the first flexible one; from v3 on a client understands being throttled).
Partitions that a topic has are not touched. There are no replicas: where they are placed by hand, the lists are
checked as Kafka does and have no effect. The timeout is not used: a topic grows in one transaction or not at all.
"""

from collections import Counter

from headrace.errors import HeadraceError
from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.node import Node
from headrace.handlers.replica_assignments import check_replicas
from headrace.handlers.topic_refusals import refusal_of_topic
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse

_NO_ERROR = Refusal(ErrorCode.NONE)


async def handle(node: Node, call: Call, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Grow what can grow and answer every topic that was named, once."""
    times = Counter(topic.name for topic in request.topics)
    by_name = {topic.name: topic for topic in request.topics}
    results = []
    for name, topic in by_name.items():
        try:
            _check(node, topic, is_repeated=times[name] > 1)
            await node.admin.add_partitions(name, topic.count, validate_only=request.validate_only)
        except (HeadraceError, Refused) as error:
            results.append(_result(name, refusal_of_topic(error)))
        else:
            results.append(_result(name, _NO_ERROR))
    return CreatePartitionsResponse(results=results)


def refused(call: Call, request: CreatePartitionsRequest, refusal: Refusal) -> CreatePartitionsResponse:
    """Answer every topic that was named with the same error."""
    names = dict.fromkeys(topic.name for topic in request.topics)
    return CreatePartitionsResponse(results=[_result(name, refusal) for name in names])


def _check(node: Node, topic: CreatePartitionsRequest.CreatePartitionsTopic, *, is_repeated: bool) -> None:
    if is_repeated:
        raise Refused(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
    known = node.topics.get(topic.name)
    if topic.assignments is None or known is None or topic.count <= len(known.streams):
        return  # what is wrong with the topic or the number is said where it grows
    added = topic.count - len(known.streams)
    if len(topic.assignments) != added:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} partitions would be added, and {len(topic.assignments)} are assigned; assignments may also be "
            "left out",
        )
    check_replicas([one.broker_ids for one in topic.assignments], {one.node_id for one in node.cluster.brokers})


def _result(name: str, refusal: Refusal) -> CreatePartitionsResponse.CreatePartitionsTopicResult:
    return CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=name, error_code=refusal.code, error_message=refusal.message
    )
