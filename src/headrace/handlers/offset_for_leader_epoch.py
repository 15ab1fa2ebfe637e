"""OffsetForLeaderEpoch (23), versions 2-4: where the records of a leader epoch end.

- v3 tells who asks; v4 is flexible.

Consumers ask this to find out whether a new leader has lost records that they have read. Here nothing that was ever
acknowledged is lost when a broker dies, so every epoch ends at the high watermark, and the answer names the epoch
that was asked for. Kafka's word for *unknown*, -1 and -1, would be the wrong answer: the Java consumer
and librdkafka both take it for lost records, and go back to the beginning or fail. Brokers give out epoch -1
everywhere, so a client knows of another one only from its own past, such as an offset that was committed to another
cluster. The high watermark is validated against the store: one that is behind would look like a loss, too.

The current leader epoch of a request is ignored: any broker serves any partition.
"""

from headrace.errors import HeadraceError
from headrace.handlers.call import Call, Refusal, Refused, refusal_of
from headrace.handlers.fresh_partitions import FreshPartitions
from headrace.handlers.node import Node
from headrace.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

OLDEST_EPOCH = 0
"""What the answer names where no epoch was asked for: any number below would mean *unknown*."""

NO_EPOCH = -1
NO_OFFSET = -1

_Asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition
_End = OffsetForLeaderEpochResponse.EpochEndOffset
_TopicResult = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult


async def handle(node: Node, call: Call, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Answer every partition that was named."""
    partitions = FreshPartitions(node)
    topics = []
    for topic in request.topics:
        ends = [await _end(partitions, topic.topic, asked) for asked in topic.partitions]
        topics.append(_TopicResult(topic=topic.topic, partitions=ends))
    return OffsetForLeaderEpochResponse(topics=topics)


def refused(call: Call, request: OffsetForLeaderEpochRequest, refusal: Refusal) -> OffsetForLeaderEpochResponse:
    """Answer every partition that was named with the same error."""
    return OffsetForLeaderEpochResponse(
        topics=[
            _TopicResult(topic=topic.topic, partitions=[_refused_partition(one, refusal) for one in topic.partitions])
            for topic in request.topics
        ]
    )


async def _end(partitions: FreshPartitions, name: str, asked: _Asked) -> _End:
    try:
        found = await partitions.find(name, asked.partition)
    except (HeadraceError, Refused) as error:
        return _refused_partition(asked, refusal_of(error))
    return _End(
        partition=asked.partition,
        leader_epoch=max(OLDEST_EPOCH, asked.leader_epoch),
        end_offset=found.head.high_watermark,
    )


def _refused_partition(asked: _Asked, refusal: Refusal) -> _End:
    return _End(error_code=refusal.code, partition=asked.partition, leader_epoch=NO_EPOCH, end_offset=NO_OFFSET)
