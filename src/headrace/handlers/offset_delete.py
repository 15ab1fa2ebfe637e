"""OffsetDelete (47), version 0: forget offsets of partitions that no member of the group reads."""

from headrace.groups.problems import GroupRefused
from headrace.handlers.call import Call, Refusal
from headrace.handlers.group_calls import group_refusal, member_code, refusal_of_group
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import Topic
from headrace.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse

_TopicAnswer = OffsetDeleteResponse.OffsetDeleteResponseTopic
_Answer = OffsetDeleteResponse.OffsetDeleteResponsePartition


async def handle(node: Node, call: Call, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete what can be deleted, and answer for every partition."""
    refusal = group_refusal(request.group_id)
    if refusal is not None:
        return refused(call, request, refusal)
    named = _named(node, request)
    if any(
        (topic := named[asked.name]) is None or one.partition_index >= len(topic.streams)
        for asked in request.topics
        for one in asked.partitions
    ):
        await node.topics.refresh()
        named = _named(node, request)
    known = [
        (topic.id, one.partition_index)
        for asked in request.topics
        for one in asked.partitions
        if (topic := named[asked.name]) is not None and 0 <= one.partition_index < len(topic.streams)
    ]
    try:
        outcomes = await node.groups.delete_offsets(request.group_id, known)
    except GroupRefused as error:
        return refused(call, request, refusal_of_group(error))

    def code_of(name: str, partition: int) -> ErrorCode:
        topic = named[name]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return unknown if topic is None else outcomes.get((topic.id, partition), unknown)

    return OffsetDeleteResponse(
        topics=[
            _TopicAnswer(
                name=asked.name,
                partitions=[
                    _Answer(partition_index=one.partition_index, error_code=code_of(asked.name, one.partition_index))
                    for one in asked.partitions
                ],
            )
            for asked in request.topics
        ]
    )


def refused(call: Call, request: OffsetDeleteRequest, refusal: Refusal) -> OffsetDeleteResponse:
    """Refuse the whole request: its answer has a code of its own, and then names no partition."""
    return OffsetDeleteResponse(error_code=member_code(refusal.code))


def _named(node: Node, request: OffsetDeleteRequest) -> dict[str, Topic | None]:
    return {asked.name: node.topics.get(asked.name) for asked in request.topics}
