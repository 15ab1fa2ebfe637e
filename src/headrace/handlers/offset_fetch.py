"""OffsetFetch (9), versions 1-10: how far groups have read.

- v2 asks for all topics with null, and has an error for the whole answer; v5 leader epochs; v7 can ask for stable
  offsets only, and all are, as long as no transaction can be open.
- v8 asks for several groups at once; v9 says which member asks; v10 names topics by their ids.

A group or a partition that nobody has committed for is no error: its offset is -1. What was committed for a topic
that is deleted is not shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.groups.problems import GroupRefused
from headrace.groups.protocol import NO_EPOCH, CommitClaim
from headrace.groups.records import OffsetRecord
from headrace.handlers.call import Call, Refusal, refusal_of
from headrace.handlers.group_calls import fetch_code, refusal_of_group
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import Topic, TopicId
from headrace.wire.messages import ZERO_UUID, OffsetFetchRequest, OffsetFetchResponse

FIRST_VERSION_WITH_ERROR = 2
FIRST_VERSION_OF_MANY = 8
FIRST_VERSION_WITH_EPOCHS = 9
FIRST_VERSION_BY_ID = 10

NO_OFFSET = -1

_GroupRequest = OffsetFetchRequest.OffsetFetchRequestGroup
_Partition = OffsetFetchResponse.OffsetFetchResponsePartition
_Topic = OffsetFetchResponse.OffsetFetchResponseTopic
_GroupPartition = OffsetFetchResponse.OffsetFetchResponsePartitions
_GroupTopic = OffsetFetchResponse.OffsetFetchResponseTopics
_Group = OffsetFetchResponse.OffsetFetchResponseGroup

_NONE = OffsetRecord(NO_OFFSET, NO_EPOCH, "", 0)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A topic as the client names it, and its partitions."""

    name: str
    topic_id: bytes
    partitions: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Told:
    """One topic of an answer; `code` stands at each of its partitions."""

    asked: _Asked
    offsets: Mapping[int, OffsetRecord]
    code: ErrorCode = ErrorCode.NONE


async def handle(node: Node, call: Call, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Answer every group by itself."""
    if call.version < FIRST_VERSION_OF_MANY:
        asked = _asked_old(request)
        try:
            return _old_response(call, await _offsets(node, call, request.group_id, None, asked), ErrorCode.NONE)
        except GroupRefused as error:
            return refused(call, request, refusal_of_group(error))
    return OffsetFetchResponse(groups=[await _group(node, call, one) for one in request.groups])


def refused(call: Call, request: OffsetFetchRequest, refusal: Refusal) -> OffsetFetchResponse:
    """Refuse every group, and every partition: Sarama looks at nothing else, and below v2 there is nothing else."""
    if call.version >= FIRST_VERSION_OF_MANY:
        return OffsetFetchResponse(groups=[_refused_group(call, one, refusal) for one in request.groups])
    code = fetch_code(refusal.code)
    return _old_response(call, [_Told(one, {}, code) for one in _asked_old(request) or ()], code)


def _refused_group(call: Call, request: _GroupRequest, refusal: Refusal) -> _Group:
    code = fetch_code(refusal.code)
    topics = [_group_topic(call, _Told(one, {}, code)) for one in _asked(request) or ()]
    return _Group(group_id=request.group_id, topics=topics, error_code=code)


async def _group(node: Node, call: Call, request: _GroupRequest) -> _Group:
    claim = None
    if call.version >= FIRST_VERSION_WITH_EPOCHS and request.member_id is not None:
        claim = CommitClaim(
            member_id=request.member_id, instance_id=None, epoch=request.member_epoch, knows_epochs=True
        )
    try:
        told = await _offsets(node, call, request.group_id, claim, _asked(request))
    except GroupRefused as error:
        return _refused_group(call, request, refusal_of_group(error))
    except HeadraceError as error:
        return _refused_group(call, request, refusal_of(error))
    return _Group(group_id=request.group_id, topics=[_group_topic(call, one) for one in told])


async def _offsets(
    node: Node, call: Call, group_id: str, claim: CommitClaim | None, asked: Sequence[_Asked] | None
) -> list[_Told]:
    """Return what a group has committed of what was asked for, in order, or of all topics that exist."""
    if asked is None:
        found = await node.groups.fetch(group_id, claim, None)
        await _know(node, {topic_id for topic_id, _ in found})
        return _all(node, found)
    topics = await _topics(node, call, asked)
    wanted = [
        (topic.id, partition)
        for topic, one in zip(topics, asked, strict=True)
        if topic is not None
        for partition in one.partitions
        if partition >= 0
    ]
    found = await node.groups.fetch(group_id, claim, wanted)
    # By name, an unknown topic is one that nobody has committed for; an unknown id is a client's stale knowledge.
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if call.version >= FIRST_VERSION_BY_ID else ErrorCode.NONE
    return [
        _Told(one, {}, unknown)
        if topic is None
        else _Told(one, {part: found[topic.id, part] for part in one.partitions if (topic.id, part) in found})
        for topic, one in zip(topics, asked, strict=True)
    ]


async def _topics(node: Node, call: Call, asked: Sequence[_Asked]) -> list[Topic | None]:
    def find() -> list[Topic | None]:
        if call.version >= FIRST_VERSION_BY_ID:
            return [node.topics.get_by_id(TopicId(one.topic_id)) for one in asked]
        return [node.topics.get(one.name) for one in asked]

    found = find()
    if None in found:
        await node.topics.refresh()
        found = find()
    return found


async def _know(node: Node, topic_ids: set[TopicId]) -> None:
    if any(node.topics.get_by_id(topic_id) is None for topic_id in topic_ids):
        await node.topics.refresh()


def _all(node: Node, found: Mapping[tuple[TopicId, int], OffsetRecord]) -> list[_Told]:
    by_topic: dict[TopicId, dict[int, OffsetRecord]] = {}
    for (topic_id, partition), record in found.items():
        by_topic.setdefault(topic_id, {})[partition] = record
    told = []
    for topic_id, offsets in by_topic.items():
        topic = node.topics.get_by_id(topic_id)
        if topic is not None:
            told.append(_Told(_Asked(topic.name, topic_id, sorted(offsets)), offsets))
    return told


def _asked(request: _GroupRequest) -> list[_Asked] | None:
    if request.topics is None:
        return None
    return [_Asked(one.name, bytes(one.topic_id), one.partition_indexes) for one in request.topics]


def _asked_old(request: OffsetFetchRequest) -> list[_Asked] | None:
    if request.topics is None:
        return None
    return [_Asked(one.name, ZERO_UUID, one.partition_indexes) for one in request.topics]


def _old_response(call: Call, told: Sequence[_Told], code: ErrorCode) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        topics=[
            _Topic(
                name=one.asked.name,
                partitions=[
                    _Partition(
                        partition_index=part,
                        committed_offset=record.offset,
                        committed_leader_epoch=record.leader_epoch,
                        metadata=record.metadata,
                        error_code=one.code,
                    )
                    for part in one.asked.partitions
                    for record in (one.offsets.get(part, _NONE),)
                ],
            )
            for one in told
        ],
        error_code=code if call.version >= FIRST_VERSION_WITH_ERROR else ErrorCode.NONE,
    )


def _group_topic(call: Call, one: _Told) -> _GroupTopic:
    partitions = [
        _GroupPartition(
            partition_index=part,
            committed_offset=record.offset,
            committed_leader_epoch=record.leader_epoch,
            metadata=record.metadata,
            error_code=one.code,
        )
        for part in one.asked.partitions
        for record in (one.offsets.get(part, _NONE),)
    ]
    if call.version >= FIRST_VERSION_BY_ID:
        return _GroupTopic(topic_id=one.asked.topic_id, partitions=partitions)
    return _GroupTopic(name=one.asked.name, partitions=partitions)
