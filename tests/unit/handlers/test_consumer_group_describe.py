"""ConsumerGroupDescribe: groups of the newer protocol, what members have and what they should have."""

import pytest

from headrace.groups.protocol import Client, ConsumerMember, GroupDescription, Partitions
from headrace.groups.records import GroupHead, GroupKind
from headrace.handlers.call import Refusal
from headrace.handlers.consumer_group_describe import handle, refused
from headrace.handlers.operations import GROUP_OPERATIONS, NOT_ASKED
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import TopicId
from headrace.wire.messages import ConsumerGroupDescribeRequest
from tests.unit.handlers.group_node import MOVED, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(2)
NEWEST = 1

GONE = TopicId(bytes([7] * 16))


def member(
    member_id: str, assigned: Partitions, target: Partitions, *, regex: str | None = None, is_classic: bool = False
) -> ConsumerMember:
    return ConsumerMember(
        member_id=member_id,
        instance_id="i1",
        rack="r1",
        member_epoch=6,
        client=Client("c", "/10.0.0.7"),
        topics=("t",),
        regex=regex,
        assigned=assigned,
        target=target,
        is_classic=is_classic,
    )


def described(*members: ConsumerMember, kind: GroupKind = GroupKind.CONSUMER) -> GroupDescription:
    head = GroupHead(group_id="g", kind=kind, epoch=7, empty_since_ms=None, target_epoch=6)
    return GroupDescription(head=head, state="Reconciling", protocol="uniform", consumer_members=members)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_describes_a_group_and_its_members(version: int) -> None:
    kit = GroupNode()
    await kit.create("t", partitions=3)
    topic_id = kit.id("t")
    kit.groups.described = {
        "g": described(
            member("m1", {topic_id: frozenset({2, 0})}, {topic_id: frozenset({0}), GONE: frozenset({1})}),
            member("m2", {}, {}, regex="t.*", is_classic=True),
        )
    }
    (group,) = (await ask(handle, kit.node, version, ConsumerGroupDescribeRequest(group_ids=["g"]))).groups
    assert (group.error_code, group.error_message, group.group_id) == (0, None, "g")
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Reconciling", 7, 6)
    assert (group.assignor_name, group.authorized_operations) == ("uniform", NOT_ASKED)
    one, two = group.members
    assert (one.member_id, one.instance_id, one.rack_id, one.member_epoch) == ("m1", "i1", "r1", 6)
    assert (one.client_id, one.client_host, one.subscribed_topic_names) == ("c", "/10.0.0.7", ["t"])
    assert (one.subscribed_topic_regex, two.subscribed_topic_regex) == ("", "t.*")
    shown = [
        [(part.topic_id, part.topic_name, part.partitions) for part in assignment.topic_partitions]
        for assignment in (one.assignment, one.target_assignment, two.assignment)
    ]
    assert shown == [[(topic_id, "t", [0, 2])], [(topic_id, "t", [0])], []]
    assert [each.member_type for each in group.members] == ([1, 0] if version >= 1 else [-1, -1])


async def test_topics_that_another_broker_made_have_names() -> None:
    kit = GroupNode()
    await kit.create_elsewhere("far")
    other = kit.another_directory()
    await other.refresh()
    (far,) = other.known()
    kit.groups.described = {"g": described(member("m1", {far.id: frozenset({0})}, {}))}
    (group,) = (await ask(handle, kit.node, NEWEST, ConsumerGroupDescribeRequest(group_ids=["g"]))).groups
    assert [part.topic_name for part in group.members[0].assignment.topic_partitions] == ["far"]


async def test_each_group_is_answered_by_itself() -> None:
    kit = GroupNode()
    kit.groups.described = {"g": described(), "classic": described(kind=GroupKind.CLASSIC)}
    kit.groups.failing_groups = {"moved": MOVED}
    names = ["classic", "nope", "", "moved", "g"]
    request = ConsumerGroupDescribeRequest(group_ids=names, include_authorized_operations=True)
    answer = await ask(handle, kit.node, NEWEST, request)
    assert [(group.group_id, group.error_code, group.authorized_operations) for group in answer.groups] == [
        ("classic", ErrorCode.GROUP_ID_NOT_FOUND, NOT_ASKED),
        ("nope", ErrorCode.GROUP_ID_NOT_FOUND, NOT_ASKED),
        ("", ErrorCode.INVALID_GROUP_ID, NOT_ASKED),
        ("moved", ErrorCode.NOT_COORDINATOR, NOT_ASKED),
        ("g", 0, GROUP_OPERATIONS),
    ]
    assert all(group.error_message for group in answer.groups[:-1])


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_names_every_group(version: int) -> None:
    request = ConsumerGroupDescribeRequest(group_ids=["a", "b"])
    answer = over_the_wire(refused(call(version), request, Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down")), version)
    away = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [(group.group_id, group.error_code) for group in answer.groups] == [("a", away), ("b", away)]
