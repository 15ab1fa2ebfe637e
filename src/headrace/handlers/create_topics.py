"""CreateTopics (19), versions 0-7: topics with their partitions and configs, each on its own.

- v0 has no error messages; v1 can ask for validation only; v2 has a throttle time.
- v4 and later may leave partitions and replication factor to the cluster (-1); we take that in every version.
- v5 answers with the partitions, the replication factor and all configs of the topic; v7 with its id.

There are no replicas, the object store keeps the bytes safe: every replication factor from 1 on is accepted and
changes nothing, and so do replicas that are placed by hand, once they were checked. The timeout is not used: a topic
is created in one transaction or not at all.
"""

from collections import Counter
from collections.abc import Collection

from headrace.errors import HeadraceError
from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.node import Node
from headrace.handlers.replica_assignments import partition_count_of
from headrace.handlers.topic_refusals import refusal_of_topic
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import Topic
from headrace.topics.admin import MAX_PARTITIONS_PER_TOPIC, NewTopic
from headrace.topics.configs import effective
from headrace.topics.names import check_name
from headrace.topics.problems import InvalidPartitionCount
from headrace.wire.messages import ZERO_UUID, CreateTopicsRequest, CreateTopicsResponse

DEFAULT = -1
"""What stands for the cluster's default in a request."""

REPLICATION_FACTOR = 1
"""What every topic has: one place where a partition is served from at a time."""

MAX_PARTITIONS_PER_REQUEST = 10_000
"""As in Kafka: what one request creates is bounded, whatever number of topics it names."""


async def handle(node: Node, call: Call, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create what can be created and answer every topic that was named, once."""
    times = Counter(topic.name for topic in request.topics)
    by_name = {topic.name: topic for topic in request.topics}
    living = {broker.node_id for broker in node.cluster.brokers}
    results = []
    left = MAX_PARTITIONS_PER_REQUEST
    for name, topic in by_name.items():
        try:
            new = _checked(topic, living, is_repeated=times[name] > 1)
            count = node.admin.default_partition_count if new.partition_count is None else new.partition_count
            if left < count <= MAX_PARTITIONS_PER_TOPIC:
                raise _too_many(left)
            created = await node.admin.create(new, validate_only=request.validate_only)
        except (HeadraceError, Refused) as error:
            results.append(_refused_topic(name, refusal_of_topic(error)))
        else:
            left -= count
            results.append(_created(node, call, created, validate_only=request.validate_only))
    return CreateTopicsResponse(topics=results)


def refused(call: Call, request: CreateTopicsRequest, refusal: Refusal) -> CreateTopicsResponse:
    """Answer every topic that was named with the same error."""
    names = dict.fromkeys(topic.name for topic in request.topics)
    return CreateTopicsResponse(topics=[_refused_topic(name, refusal) for name in names])


def _checked(topic: CreateTopicsRequest.CreatableTopic, living: Collection[int], *, is_repeated: bool) -> NewTopic:
    """Return what is asked for, or raise what is wrong with it in Kafka's own terms."""
    check_name(topic.name)
    if is_repeated:
        raise Refused(ErrorCode.INVALID_REQUEST, f"the request names topic '{topic.name}' more than once")
    count = _assigned_count(topic, living) if topic.assignments else _given_count(topic)
    return NewTopic(name=topic.name, partition_count=count, configs=_configs(topic))


def _assigned_count(topic: CreateTopicsRequest.CreatableTopic, living: Collection[int]) -> int:
    """Return how many partitions the replicas that were placed by hand are for."""
    if topic.replication_factor != DEFAULT or topic.num_partitions != DEFAULT:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "partitions and replication factor follow from the assignments: both are -1 beside them, or leave "
            "assignments out",
        )
    return partition_count_of([(one.partition_index, one.broker_ids) for one in topic.assignments], living)


def _given_count(topic: CreateTopicsRequest.CreatableTopic) -> int | None:
    """Return how many partitions are asked for; `None` is the cluster's default."""
    factor = topic.replication_factor
    if factor < 1 and factor != DEFAULT:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"the replication factor is 1 or more, or -1, not {factor}"
        )
    if topic.num_partitions == DEFAULT:
        return None
    if topic.num_partitions < 1:
        raise InvalidPartitionCount(
            f"a topic has 1 partition or more, or -1 for the default, not {topic.num_partitions}"
        )
    return topic.num_partitions


def _configs(topic: CreateTopicsRequest.CreatableTopic) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"config '{config.name}' has no value: leave it out instead")
        configs[config.name] = config.value
    return configs


def _too_many(left: int) -> Refused:
    return Refused(
        ErrorCode.POLICY_VIOLATION,
        f"one request creates {MAX_PARTITIONS_PER_REQUEST} partitions at most, {left} are left: ask in parts",
    )


def _created(
    node: Node, call: Call, topic: Topic, *, validate_only: bool
) -> CreateTopicsResponse.CreatableTopicResult:
    if call.version < 5:
        return CreateTopicsResponse.CreatableTopicResult(name=topic.name, error_message=None)
    return CreateTopicsResponse.CreatableTopicResult(
        name=topic.name,
        # A topic that was only tried out has no id that anybody may use.
        topic_id=ZERO_UUID if validate_only else topic.id,
        error_message=None,
        num_partitions=len(topic.streams),
        replication_factor=REPLICATION_FACTOR,
        configs=[
            CreateTopicsResponse.CreatableTopicConfigs(
                name=config.name,
                value=config.value,
                read_only=config.is_read_only,
                config_source=config.source,
                is_sensitive=config.is_sensitive,
            )
            for config in effective(topic.overrides, node.admin.defaults)
        ],
    )


def _refused_topic(name: str, refusal: Refusal) -> CreateTopicsResponse.CreatableTopicResult:
    return CreateTopicsResponse.CreatableTopicResult(
        name=name, error_code=refusal.code, error_message=refusal.message
    )
