"""LeaveGroup: one member or several, and an answer for each."""

import pytest

from headrace.groups.protocol import Leave, Leaver, LeaveReply
from headrace.handlers.call import Refusal
from headrace.handlers.leave_group import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import LeaveGroupRequest
from tests.unit.handlers.group_node import MOVED, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

SINGLE_VERSIONS = range(3)
BATCH_VERSIONS = range(3, 6)

UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


def request(version: int, group_id: str = "g") -> LeaveGroupRequest:
    if version < 3:
        return LeaveGroupRequest(group_id=group_id, member_id="m1")
    reason = "enough" if version >= 5 else None
    return LeaveGroupRequest(
        group_id=group_id,
        members=[
            LeaveGroupRequest.MemberIdentity(member_id="m1", reason=reason),
            LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id="i2"),
        ],
    )


@pytest.mark.parametrize("version", SINGLE_VERSIONS)
@pytest.mark.parametrize("code", [ErrorCode.NONE, UNKNOWN])
async def test_old_versions_tell_what_became_of_the_one_member(version: int, code: ErrorCode) -> None:
    kit = GroupNode()
    kit.groups.reply = LeaveReply(leavers=(code,))
    answer = await ask(handle, kit.node, version, request(version))
    assert (answer.error_code, answer.members) == (code, [])
    assert kit.groups.events == [("g", Leave(leavers=(Leaver(member_id="m1", instance_id=None),)))]


@pytest.mark.parametrize("version", BATCH_VERSIONS)
async def test_new_versions_tell_what_became_of_each(version: int) -> None:
    kit = GroupNode()
    kit.groups.reply = LeaveReply(leavers=(ErrorCode.NONE, UNKNOWN))
    answer = await ask(handle, kit.node, version, request(version))
    assert answer.error_code == 0
    assert [(one.member_id, one.group_instance_id, one.error_code) for one in answer.members] == [
        ("m1", None, 0),
        ("", "i2", UNKNOWN),
    ]
    reason = "enough" if version >= 5 else None
    assert kit.groups.events == [
        (
            "g",
            Leave(
                leavers=(
                    Leaver(member_id="m1", instance_id=None, reason=reason),
                    Leaver(member_id="", instance_id="i2"),
                )
            ),
        )
    ]


@pytest.mark.parametrize("version", [0, 5])
async def test_group_needs_a_name(version: int) -> None:
    kit = GroupNode()
    answer = await ask(handle, kit.node, version, request(version, group_id=""))
    assert (answer.error_code, answer.members, kit.groups.events) == (ErrorCode.INVALID_GROUP_ID, [], [])


@pytest.mark.parametrize("version", [0, 5])
async def test_refusal_of_the_coordinator_is_one_for_all(version: int) -> None:
    kit = GroupNode()
    kit.groups.failure = MOVED
    answer = await ask(handle, kit.node, version, request(version))
    assert (answer.error_code, answer.members) == (ErrorCode.NOT_COORDINATOR, [])


@pytest.mark.parametrize("version", range(6))
def test_refusal_is_one_code(version: int) -> None:
    answer = refused(call(version), request(version), Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down"))
    assert over_the_wire(answer, version).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
