"""DescribeLogDirs (35), versions 1-5: how many bytes the partitions hold.

- v2 is flexible; v3 has an error code for the whole answer; v4 tells the size of the disk, which an object store has
  none of (-1); v5 can say that a directory takes no new partitions, which never happens here.

There is one directory, a label and no path: partitions share the objects of one store, and no directory is theirs.
Each broker tells of the partitions that it leads, so that the sum over all brokers counts every partition once. What
is asked for and led by another broker, or does not exist, is left out, as by Kafka.

The size is what producers sent, from the index entry on that holds the log start: that one counts whole, as a
segment does in Kafka. Where it lies in the table, its size as produced is not known any more, and it is left out.
"""

from collections.abc import Iterable, Iterator

from headrace.handlers.call import Call, Refusal
from headrace.handlers.fresh_partitions import FreshPartitions
from headrace.handlers.node import Node
from headrace.index.values import StreamHead
from headrace.model.extents import WalExtent
from headrace.model.ids import StreamId
from headrace.model.topics import Topic
from headrace.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse

LOG_DIR = "headrace"

_Partition = DescribeLogDirsResponse.DescribeLogDirsPartition
_TopicResult = DescribeLogDirsResponse.DescribeLogDirsTopic
_Result = DescribeLogDirsResponse.DescribeLogDirsResult


async def handle(node: Node, call: Call, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Tell the size of all partitions, or of those that were named, as far as this broker leads them."""
    await node.topics.refresh()
    fresh = FreshPartitions(node)
    topics = []
    for topic, indexes in _asked(node, request):
        partitions = [
            _Partition(partition_index=index, partition_size=size_bytes)
            for index in indexes
            if (size_bytes := await _size_bytes(node, fresh, topic, index)) is not None
        ]
        if partitions:
            topics.append(_TopicResult(name=topic.name, partitions=partitions))
    return DescribeLogDirsResponse(results=[_Result(log_dir=LOG_DIR, topics=topics)])


def refused(call: Call, request: DescribeLogDirsRequest, refusal: Refusal) -> DescribeLogDirsResponse:
    """Refuse the whole answer, and in versions without a code for that, the directory."""
    return DescribeLogDirsResponse(
        error_code=refusal.code, results=[_Result(error_code=refusal.code, log_dir=LOG_DIR)]
    )


def _asked(node: Node, request: DescribeLogDirsRequest) -> Iterator[tuple[Topic, Iterable[int]]]:
    if request.topics is None:
        for topic in node.topics.known():
            yield topic, range(len(topic.streams))
        return
    for asked in request.topics:
        known = node.topics.get(asked.topic)
        if known is not None:
            yield known, dict.fromkeys(asked.partitions)


async def _size_bytes(node: Node, fresh: FreshPartitions, topic: Topic, index: int) -> int | None:
    """Return a partition's size; `None` if there is no such partition, or another broker leads it."""
    if not 0 <= index < len(topic.streams):
        return None
    stream = topic.streams[index]
    if node.cluster.leader_of(stream) != node.node_id:
        return None
    head = await fresh.head(stream)
    return None if head is None else head.cumulative_bytes - await _trimmed_bytes(node, stream, head)


async def _trimmed_bytes(node: Node, stream: StreamId, head: StreamHead) -> int:
    """Return how many of all bytes ever sent lie before the entry that holds the log start."""
    if head.log_start == 0:
        return 0
    first = await node.index.locate(stream, head.log_start, limit=1)
    if not first:  # nothing is left, or the log start has moved on meanwhile, and much of it is gone
        return head.cumulative_bytes
    extent = first[0].extent
    return first[0].cumulative_bytes - (extent.size_bytes if isinstance(extent, WalExtent) else 0)
