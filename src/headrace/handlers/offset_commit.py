"""OffsetCommit (8), versions 0-10: how far a group has read, durable when it is answered.

- v0 and v1 come from clients before groups had members in the broker; v1 has a timestamp, v2-4 a retention time:
  offsets then expire by that, and not by the cluster's rule.
- v6 has leader epochs, which are kept and given back; v7 instance ids; v9 the member epochs of KIP-848.
- v10 names topics by their ids.

Offsets belong to a topic's id: a topic that is created again under the same name begins without any.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.groups.problems import GroupRefused
from headrace.groups.protocol import NO_EPOCH, CommitClaim
from headrace.groups.records import OffsetRecord
from headrace.handlers.call import Call, Refusal
from headrace.handlers.group_calls import member_code
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import Topic, TopicId
from headrace.wire.messages import OffsetCommitRequest, OffsetCommitResponse

FIRST_VERSION_WITH_MEMBERS = 1
VERSION_WITH_TIMESTAMP = 1
VERSIONS_WITH_RETENTION = range(2, 5)
FIRST_VERSION_WITH_EPOCHS = 9
FIRST_VERSION_BY_ID = 10

NOT_GIVEN = -1

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_UNKNOWN_CODES = (_UNKNOWN, ErrorCode.UNKNOWN_TOPIC_ID)

_Partition = OffsetCommitRequest.OffsetCommitRequestPartition
_TopicAnswer = OffsetCommitResponse.OffsetCommitResponseTopic
_Answer = OffsetCommitResponse.OffsetCommitResponsePartition


@dataclass(frozen=True, slots=True)
class _Checked:
    """What can be committed, and what is wrong with the rest: codes by topic and partition, in order."""

    offsets: dict[tuple[TopicId, int], OffsetRecord]
    codes: list[list[ErrorCode]]

    @property
    def has_known(self) -> bool:
        """Whether any partition exists: only then the group is asked, as by Kafka."""
        return any(code not in _UNKNOWN_CODES for codes in self.codes for code in codes)


async def handle(node: Node, call: Call, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit what can be committed, in one go; a partition that cannot be does not sink its neighbours."""
    topics = await _topics(node, call, request)
    checked = _checked(node, call, request, topics)
    if not checked.has_known:
        return _response(call, request, lambda row, column: checked.codes[row][column])
    claim = CommitClaim(
        member_id=request.member_id if call.version >= FIRST_VERSION_WITH_MEMBERS else "",
        instance_id=request.group_instance_id,
        epoch=request.generation_id_or_member_epoch if call.version >= FIRST_VERSION_WITH_MEMBERS else NO_EPOCH,
        knows_epochs=call.version >= FIRST_VERSION_WITH_EPOCHS,
    )
    try:
        # Also with nothing that can be committed: who is no member any more has to hear it.
        code = await node.groups.commit(request.group_id, claim, checked.offsets)
    except GroupRefused as error:
        code = member_code(error.code)

    def code_of(row: int, column: int) -> ErrorCode:
        own = checked.codes[row][column]
        return own if own in _UNKNOWN_CODES else code or own

    return _response(call, request, code_of)


def refused(call: Call, request: OffsetCommitRequest, refusal: Refusal) -> OffsetCommitResponse:
    """Refuse every partition that was named."""
    code = member_code(refusal.code)
    return _response(call, request, lambda row, column: code)


async def _topics(node: Node, call: Call, request: OffsetCommitRequest) -> list[Topic | None]:
    def find() -> list[Topic | None]:
        if call.version >= FIRST_VERSION_BY_ID:
            return [node.topics.get_by_id(TopicId(bytes(one.topic_id))) for one in request.topics]
        return [node.topics.get(one.name) for one in request.topics]

    found = find()
    if any(
        topic is None or any(one.partition_index >= len(topic.streams) for one in asked.partitions)
        for topic, asked in zip(found, request.topics, strict=True)
    ):
        await node.topics.refresh()
        found = find()
    return found


def _checked(node: Node, call: Call, request: OffsetCommitRequest, topics: list[Topic | None]) -> _Checked:
    now_ms = node.clock.now_ms()
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if call.version >= FIRST_VERSION_BY_ID else _UNKNOWN
    checked = _Checked({}, [])
    for asked, topic in zip(request.topics, topics, strict=True):
        if topic is None:
            checked.codes.append([unknown] * len(asked.partitions))
            continue
        codes = []
        for one in asked.partitions:
            code = _problem(node, topic, one)
            if code is ErrorCode.NONE:
                checked.offsets[topic.id, one.partition_index] = _record(call, request, one, now_ms)
            codes.append(code)
        checked.codes.append(codes)
    return checked


def _problem(node: Node, topic: Topic, one: _Partition) -> ErrorCode:
    if not 0 <= one.partition_index < len(topic.streams):
        return _UNKNOWN
    # Kafka calls it bytes and counts characters: whoever fills the limit with others than ASCII passes there, too.
    if one.committed_metadata is not None and len(one.committed_metadata) > node.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _record(call: Call, request: OffsetCommitRequest, one: _Partition, now_ms: int) -> OffsetRecord:
    committed_at_ms = now_ms
    if call.version == VERSION_WITH_TIMESTAMP and one.commit_timestamp != NOT_GIVEN:
        committed_at_ms = one.commit_timestamp
    expires_at_ms = None
    if call.version in VERSIONS_WITH_RETENTION and request.retention_time_ms != NOT_GIVEN:
        expires_at_ms = committed_at_ms + request.retention_time_ms
    return OffsetRecord(
        one.committed_offset, one.committed_leader_epoch, one.committed_metadata or "", committed_at_ms, expires_at_ms
    )


def _response(
    call: Call, request: OffsetCommitRequest, code_of: Callable[[int, int], ErrorCode]
) -> OffsetCommitResponse:
    is_by_id = call.version >= FIRST_VERSION_BY_ID
    topics = []
    for row, asked in enumerate(request.topics):
        partitions = [
            _Answer(partition_index=one.partition_index, error_code=code_of(row, column))
            for column, one in enumerate(asked.partitions)
        ]
        if is_by_id:
            topics.append(_TopicAnswer(topic_id=asked.topic_id, partitions=partitions))
        else:
            topics.append(_TopicAnswer(name=asked.name, partitions=partitions))
    return OffsetCommitResponse(topics=topics)
