"""DescribeGroups: classic groups with their members; others are dead or not found, depending on the version."""

import pytest

from headrace.groups.protocol import ClassicMember, Client, GroupDescription
from headrace.groups.records import GroupHead, GroupKind
from headrace.handlers.call import Refusal
from headrace.handlers.describe_groups import handle, refused
from headrace.handlers.operations import GROUP_OPERATIONS, NOT_ASKED
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import DescribeGroupsRequest
from tests.unit.handlers.group_node import LOADING, MOVED, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(7)
NEWEST = 6

KAFKAS_GROUP_OPERATIONS = 3400
"""What Apache Kafka 4.3 answers when it has no authorizer."""


def head(group_id: str, kind: GroupKind = GroupKind.CLASSIC) -> GroupHead:
    return GroupHead(group_id=group_id, kind=kind, epoch=3, empty_since_ms=None, protocol_type="consumer")


def node() -> GroupNode:
    kit = GroupNode()
    member = ClassicMember(
        member_id="m1", instance_id=None, client=Client("c", "/10.0.0.7"), metadata=b"meta", assignment=b"mine"
    )
    kit.groups.described = {
        "classic": GroupDescription(
            head=head("classic"), state="Stable", protocol="range", classic_members=(member,)
        ),
        "": GroupDescription(head=head(""), state="Empty", protocol=""),
        "newer": GroupDescription(head=head("newer", GroupKind.CONSUMER), state="Stable", protocol="uniform"),
    }
    return kit


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_describes_a_group_and_its_members(version: int) -> None:
    answer = await ask(handle, node().node, version, DescribeGroupsRequest(groups=["classic", ""]))
    group, empty = answer.groups
    assert (group.error_code, group.group_id, group.group_state) == (0, "classic", "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == ("m1", "c", "/10.0.0.7")
    assert (member.member_metadata, member.member_assignment) == (b"meta", b"mine")
    assert (empty.error_code, empty.group_id, empty.group_state, empty.members) == (0, "", "Empty", [])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["newer", "nope"])
async def test_group_that_is_not_classic_or_not_there(version: int, name: str) -> None:
    answer = await ask(handle, node().node, version, DescribeGroupsRequest(groups=[name]))
    (group,) = answer.groups
    assert (group.group_id, group.group_state, group.protocol_type, group.members) == (name, "Dead", "", [])
    if version >= NEWEST:
        assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert name in group.error_message
    else:
        assert group.error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
async def test_operations_are_told_where_they_are_asked_for_and_there_is_no_error(version: int) -> None:
    request = DescribeGroupsRequest(groups=["classic", "nope"], include_authorized_operations=version >= 3)
    answer = await ask(handle, node().node, version, request)
    assert GROUP_OPERATIONS == KAFKAS_GROUP_OPERATIONS
    asked = GROUP_OPERATIONS if version >= 3 else NOT_ASKED
    assert [group.authorized_operations for group in answer.groups] == [
        asked,
        asked if version < NEWEST else NOT_ASKED,
    ]


async def test_group_that_is_refused_does_not_sink_its_neighbours() -> None:
    kit = node()
    kit.groups.failing_groups = {"moved": MOVED, "loading": LOADING}
    answer = await ask(handle, kit.node, NEWEST, DescribeGroupsRequest(groups=["moved", "classic", "loading"]))
    assert [(group.group_id, group.error_code) for group in answer.groups] == [
        ("moved", ErrorCode.NOT_COORDINATOR),
        ("classic", 0),
        ("loading", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_names_every_group(version: int) -> None:
    request = DescribeGroupsRequest(groups=["a", "b"])
    answer = over_the_wire(refused(call(version), request, Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down")), version)
    away = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [(group.group_id, group.error_code) for group in answer.groups] == [("a", away), ("b", away)]
