"""ListOffsets (API 2), versions 0–11: where a partition begins, ends, or stands at a time.

- v0 answers with a list of offsets (`max_num_offsets`); v1 with one offset and its timestamp; v2 brings the isolation
  level, v4 leader epochs, v6 is flexible, v10 has a timeout.
- Special timestamps: −1 latest, −2 earliest, −3 the record with the greatest timestamp (v7), −4 earliest local (v8),
  −5 latest tiered (v9), −6 earliest pending upload (v11). There is no second tier: earliest local is earliest, and
  the last two find nothing.

Every answer is validated against the store. Left out on purpose: leader epochs are −1 everywhere and a client's are
ignored; the timeout, because nothing here waits for anybody; in v0 the segments' own offsets, as there are none.
"""

import asyncio
from collections import Counter

from headrace.errors import HeadraceError
from headrace.handlers.call import Call, Refusal, Refused, refusal_of
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.model.ids import StreamId
from headrace.wire.messages import ListOffsetsRequest, ListOffsetsResponse

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

FIRST_VERSIONS = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""Since which version a special timestamp means what it does; other negative ones mean nothing."""

NOTHING = (-1, -1)
"""Offset and timestamp where there is no such record."""

_Partition = ListOffsetsRequest.ListOffsetsPartition
_Answer = ListOffsetsResponse.ListOffsetsPartitionResponse
_TopicAnswer = ListOffsetsResponse.ListOffsetsTopicResponse


async def handle(node: Node, call: Call, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Answer every partition by itself."""
    if any(node.topics.get(topic.name) is None for topic in request.topics):
        await node.topics.refresh()
    asked = Counter((topic.name, one.partition_index) for topic in request.topics for one in topic.partitions)
    answers = await asyncio.gather(
        *(
            _answer(node, call, topic.name, one, is_double=asked[topic.name, one.partition_index] > 1)
            for topic in request.topics
            for one in topic.partitions
        )
    )
    rest = iter(answers)
    return ListOffsetsResponse(
        topics=[
            _TopicAnswer(name=topic.name, partitions=[next(rest) for _ in topic.partitions])
            for topic in request.topics
        ]
    )


def refused(call: Call, request: ListOffsetsRequest, refusal: Refusal) -> ListOffsetsResponse:
    """Refuse every partition that was asked for."""
    return ListOffsetsResponse(
        topics=[
            _TopicAnswer(name=topic.name, partitions=[_refused(one, refusal.code) for one in topic.partitions])
            for topic in request.topics
        ]
    )


async def _answer(node: Node, call: Call, topic: str, one: _Partition, *, is_double: bool) -> _Answer:
    try:
        if is_double:
            raise Refused(ErrorCode.INVALID_REQUEST, f"partition {one.partition_index} is asked for twice")
        if one.timestamp < 0 and call.version < FIRST_VERSIONS.get(one.timestamp, call.version + 1):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {one.timestamp} means nothing in this version")
        stream = _stream(node, topic, one.partition_index)
        if call.version == 0:
            offsets = await _old_style(node, stream, one)
            return _Answer(partition_index=one.partition_index, old_style_offsets=offsets)
        offset, timestamp = await _find(node, stream, one.timestamp)
        return _Answer(partition_index=one.partition_index, offset=offset, timestamp=timestamp)
    except (Refused, HeadraceError) as error:
        return _refused(one, refusal_of(error).code)


def _refused(one: _Partition, code: ErrorCode) -> _Answer:
    return _Answer(partition_index=one.partition_index, error_code=code)


def _stream(node: Node, name: str, partition: int) -> StreamId:
    topic = node.topics.get(name)
    if topic is None or not 0 <= partition < len(topic.streams):
        raise _unknown(name, partition)
    return topic.streams[partition]


def _unknown(name: object, partition: int) -> Refused:
    return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition} of {name!r}")


async def _find(node: Node, stream: StreamId, timestamp: int) -> tuple[int, int]:
    """Return offset and timestamp."""
    head = await node.index.fresh_head(stream)
    if head is None:
        raise _unknown(stream, 0)
    if timestamp == LATEST:
        return head.high_watermark, -1  # also for read_committed, as long as no transaction can be open
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return head.log_start, -1
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING
    if timestamp == MAX_TIMESTAMP:
        found = await node.timestamps.latest(stream)
    else:
        found = await node.timestamps.first_since(stream, timestamp)
    return NOTHING if found is None else (found.offset, found.timestamp_ms)


async def _old_style(node: Node, stream: StreamId, one: _Partition) -> list[int]:
    """Return offsets from which to read everything since a time, the latest first; the log start is always one."""
    offset, _ = await _find(node, stream, one.timestamp)
    if offset < 0:
        offset, _ = await _find(node, stream, LATEST)
    log_start, _ = await _find(node, stream, EARLIEST)
    offsets = [offset, log_start] if offset > log_start else [offset]
    return offsets[: max(one.max_num_offsets, 0)]
