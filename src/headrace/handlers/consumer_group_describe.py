"""ConsumerGroupDescribe (69), versions 0-1: groups of KIP-848, with what members have and what they should have.

- v1 tells whether a member speaks the classic protocol (0) or the newer one (1).
"""

from headrace.groups.problems import GroupRefused
from headrace.groups.protocol import ConsumerMember, GroupDescription, Partitions
from headrace.groups.records import GroupKind
from headrace.handlers.call import Call, Refusal
from headrace.handlers.group_calls import group_refusal, member_code, refusal_of_group
from headrace.handlers.node import Node
from headrace.handlers.operations import GROUP_OPERATIONS, NOT_ASKED
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import TopicId
from headrace.runtime.text import one_line
from headrace.wire.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

FIRST_VERSION_WITH_TYPES = 1
UNKNOWN_TYPE = -1
MAX_SHOWN_CHARS = 80

_Group = ConsumerGroupDescribeResponse.DescribedGroup
_Member = ConsumerGroupDescribeResponse.Member
_Assignment = ConsumerGroupDescribeResponse.Assignment
_TopicPartitions = ConsumerGroupDescribeResponse.TopicPartitions


async def handle(node: Node, call: Call, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    """Describe every group that was named, each by itself."""
    return ConsumerGroupDescribeResponse(
        groups=[await _group(node, call, request, group_id) for group_id in request.group_ids]
    )


def refused(call: Call, request: ConsumerGroupDescribeRequest, refusal: Refusal) -> ConsumerGroupDescribeResponse:
    """Refuse every group that was named."""
    return ConsumerGroupDescribeResponse(groups=[_refused(group_id, refusal) for group_id in request.group_ids])


async def _group(node: Node, call: Call, request: ConsumerGroupDescribeRequest, group_id: str) -> _Group:
    refusal = group_refusal(group_id)
    if refusal is not None:
        return _refused(group_id, refusal)
    try:
        found = await node.groups.describe(group_id)
    except GroupRefused as error:
        return _refused(group_id, refusal_of_group(error))
    if found is None or found.head.kind is not GroupKind.CONSUMER:
        shown = one_line(group_id, max_chars=MAX_SHOWN_CHARS)
        why = f"there is no group '{shown}'" if found is None else f"group '{shown}' is not a consumer group"
        return _refused(group_id, Refusal(ErrorCode.GROUP_ID_NOT_FOUND, why))
    if any(node.topics.get_by_id(topic_id) is None for topic_id in _topic_ids(found)):
        await node.topics.refresh()
    return _described(node, call, request, found)


def _topic_ids(found: GroupDescription) -> set[TopicId]:
    return {topic_id for one in found.consumer_members for part in (one.assigned, one.target) for topic_id in part}


def _described(node: Node, call: Call, request: ConsumerGroupDescribeRequest, found: GroupDescription) -> _Group:
    return _Group(
        error_message=None,
        group_id=found.head.group_id,
        group_state=found.state,
        group_epoch=found.head.epoch,
        assignment_epoch=found.head.target_epoch,
        assignor_name=found.protocol,
        members=[_member(node, call, one) for one in found.consumer_members],
        authorized_operations=GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED,
    )


def _member(node: Node, call: Call, one: ConsumerMember) -> _Member:
    member_type = UNKNOWN_TYPE
    if call.version >= FIRST_VERSION_WITH_TYPES:
        member_type = 0 if one.is_classic else 1
    return _Member(
        member_id=one.member_id,
        instance_id=one.instance_id,
        rack_id=one.rack,
        member_epoch=one.member_epoch,
        client_id=one.client.id,
        client_host=one.client.host,
        subscribed_topic_names=list(one.topics),
        subscribed_topic_regex=one.regex or "",
        assignment=_assignment(node, one.assigned),
        target_assignment=_assignment(node, one.target),
        member_type=member_type,
    )


def _assignment(node: Node, partitions: Partitions) -> _Assignment:
    """Name what is assigned; a topic that was deleted a moment ago has no name any more, and is left out."""
    return _Assignment(
        topic_partitions=[
            _TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=sorted(numbers))
            for topic_id, numbers in partitions.items()
            if (topic := node.topics.get_by_id(topic_id)) is not None
        ]
    )


def _refused(group_id: str, refusal: Refusal) -> _Group:
    return _Group(
        error_code=member_code(refusal.code),
        error_message=refusal.message,
        group_id=group_id,
        authorized_operations=NOT_ASKED,
    )
