"""DeleteRecords (21), versions 0-2: move the beginning of partitions forward; v2 is flexible.

Offset -1 stands for the end. An offset that lies before the beginning changes nothing and is answered with the
beginning. Where compaction alone decides what goes, it is refused, as by Kafka. Readers see the new beginning at
once; the bytes are removed later, in the background. The timeout is not used: a partition is changed in one
transaction or not at all.
"""

from headrace.errors import HeadraceError, Invalid
from headrace.handlers.call import Call, Refusal, Refused, refusal_of
from headrace.handlers.fresh_partitions import FreshPartitions
from headrace.handlers.node import Node
from headrace.index.streams import advance_log_start
from headrace.model.error_codes import ErrorCode
from headrace.topics.configs import may_delete_records
from headrace.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

TO_THE_END = -1
NO_WATERMARK = -1

_Asked = DeleteRecordsRequest.DeleteRecordsPartition
_Result = DeleteRecordsResponse.DeleteRecordsPartitionResult
_TopicResult = DeleteRecordsResponse.DeleteRecordsTopicResult


async def handle(node: Node, call: Call, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete from every partition that was named, each by itself."""
    partitions = FreshPartitions(node)
    topics = []
    for topic in request.topics:
        results = [await _result(node, partitions, topic.name, asked) for asked in topic.partitions]
        topics.append(_TopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


def refused(call: Call, request: DeleteRecordsRequest, refusal: Refusal) -> DeleteRecordsResponse:
    """Answer every partition that was named with the same error."""
    return DeleteRecordsResponse(
        topics=[
            _TopicResult(name=topic.name, partitions=[_refused_partition(one, refusal) for one in topic.partitions])
            for topic in request.topics
        ]
    )


async def _result(node: Node, partitions: FreshPartitions, name: str, asked: _Asked) -> _Result:
    try:
        log_start = await _delete(node, partitions, name, asked)
    except (HeadraceError, Refused) as error:
        return _refused_partition(asked, refusal_of(error))
    return _Result(partition_index=asked.partition_index, low_watermark=log_start)


async def _delete(node: Node, partitions: FreshPartitions, name: str, asked: _Asked) -> int:
    """Move the beginning and return it."""
    found = await partitions.find(name, asked.partition_index)
    if not may_delete_records(found.topic.configs):
        raise Refused(ErrorCode.POLICY_VIOLATION, "records of a compacted topic are not deleted by offset")
    offset = found.head.high_watermark if asked.offset == TO_THE_END else asked.offset
    if offset < 0:
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} lies before any record")
    try:
        rule = advance_log_start(node.keys, found.stream, offset, now_ms=node.clock.now_ms())
        head = await rule.apply(node.metadata)
    except Invalid as error:
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, str(error)) from error
    # Whoever hears of this answer may fetch from here at once, and must not get what was deleted. A stream that is
    # not known any more was deleted meanwhile, and this head must not bring it back.
    if node.index.view.head(found.stream) is not None:
        node.index.view.note_head(found.stream, head)
    return head.log_start


def _refused_partition(asked: _Asked, refusal: Refusal) -> _Result:
    return _Result(partition_index=asked.partition_index, low_watermark=NO_WATERMARK, error_code=refusal.code)
