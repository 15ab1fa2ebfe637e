"""DescribeProducers (61), version 0: the producers that partitions remember.

A partition remembers an idempotent producer until it has been silent for `producer.id.expiration.ms`. The last
timestamp is when its last batch was taken in. There is no coordinator epoch (-1).
"""

from headrace.errors import HeadraceError
from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.fresh_partitions import FreshPartitions
from headrace.handlers.node import Node
from headrace.handlers.topic_refusals import refusal_of_topic
from headrace.index.producers import next_sequence
from headrace.index.values import PRODUCER_STATE, ProducerState
from headrace.metadata.keys import prefix_range
from headrace.metadata.port import Key, Versioned
from headrace.model.ids import StreamId
from headrace.topics.names import check_name
from headrace.wire.messages import DescribeProducersRequest, DescribeProducersResponse

MAX_PRODUCERS = 10_000
"""How many producers of one partition are told, those with the lowest ids first: the answer must stay bounded."""

PRODUCERS_PER_READ = 1000
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_EPOCH = -1

_Producer = DescribeProducersResponse.ProducerState
_Partition = DescribeProducersResponse.PartitionResponse
_TopicResult = DescribeProducersResponse.TopicResponse


async def handle(node: Node, call: Call, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """Describe the producers of every partition that was named."""
    partitions = FreshPartitions(node)
    topics = []
    for topic in request.topics:
        results = [await _described(node, partitions, topic.name, index) for index in topic.partition_indexes]
        topics.append(_TopicResult(name=topic.name, partitions=results))
    return DescribeProducersResponse(topics=topics)


def refused(call: Call, request: DescribeProducersRequest, refusal: Refusal) -> DescribeProducersResponse:
    """Answer every partition that was named with the same error."""
    return DescribeProducersResponse(
        topics=[
            _TopicResult(
                name=topic.name,
                partitions=[_refused_partition(index, refusal) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


async def _described(node: Node, partitions: FreshPartitions, name: str, index: int) -> _Partition:
    try:
        check_name(name)
        found = await partitions.find(name, index)
        producers = await _producers(node, found.stream)
    except (HeadraceError, Refused) as error:
        return _refused_partition(index, refusal_of_topic(error))
    return _Partition(partition_index=index, active_producers=producers)


async def _producers(node: Node, stream: StreamId) -> list[_Producer]:
    prefix = node.keys.producers_prefix(stream)
    found: list[_Producer] = []
    after: Key | None = None
    while len(found) < MAX_PRODUCERS:
        page = await node.metadata.range(prefix_range(prefix, limit=PRODUCERS_PER_READ, after=after))
        found += [_producer(prefix, item) for item in page]
        if len(page) < PRODUCERS_PER_READ:
            break
        after = page[-1].key
    return found


def _producer(prefix: str, item: Versioned) -> _Producer:
    state = PRODUCER_STATE.decode(item.value, item.key)
    return _Producer(
        producer_id=int(item.key[len(prefix) :]),
        producer_epoch=state.epoch,
        last_sequence=_last_sequence(state),
        last_timestamp=state.last_append_ms,
        coordinator_epoch=NO_EPOCH,
        current_txn_start_offset=(
            NO_OFFSET if state.transaction_start_offset is None else state.transaction_start_offset
        ),
    )


def _last_sequence(state: ProducerState) -> int:
    if not state.batches:
        return NO_SEQUENCE
    last = state.batches[-1]
    return next_sequence(last.base_sequence, last.record_count - 1)


def _refused_partition(index: int, refusal: Refusal) -> _Partition:
    return _Partition(partition_index=index, error_code=refusal.code, error_message=refusal.message)
