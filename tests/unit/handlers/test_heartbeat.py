"""Heartbeat: a sign of life in, a code out."""

import pytest

from headrace.groups.protocol import Beat, BeatReply
from headrace.handlers.call import Refusal
from headrace.handlers.heartbeat import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import HeartbeatRequest
from tests.unit.handlers.group_node import LOADING, MOVED, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(5)


def request(version: int, group_id: str = "g") -> HeartbeatRequest:
    instance_id = "i1" if version >= 3 else None
    return HeartbeatRequest(group_id=group_id, generation_id=3, member_id="m1", group_instance_id=instance_id)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.FENCED_INSTANCE_ID])
@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_is_passed_on_and_answered(version: int, code: ErrorCode) -> None:
    kit = GroupNode()
    kit.groups.reply = BeatReply(error=code)
    answer = await ask(handle, kit.node, version, request(version))
    assert answer.error_code == code
    instance_id = "i1" if version >= 3 else None
    assert kit.groups.events == [("g", Beat(member_id="m1", instance_id=instance_id, generation=3))]


async def test_group_needs_a_name() -> None:
    kit = GroupNode()
    answer = await ask(handle, kit.node, 4, request(4, group_id=""))
    assert (answer.error_code, kit.groups.events) == (ErrorCode.INVALID_GROUP_ID, [])


@pytest.mark.parametrize(
    ("failure", "code"), [(MOVED, ErrorCode.NOT_COORDINATOR), (LOADING, ErrorCode.COORDINATOR_NOT_AVAILABLE)]
)
async def test_member_that_cannot_be_served_here_looks_for_its_coordinator(
    failure: Exception, code: ErrorCode
) -> None:
    kit = GroupNode()
    kit.groups.failure = failure
    assert (await ask(handle, kit.node, 4, request(4))).error_code == code


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_is_one_that_members_act_on(version: int) -> None:
    answer = refused(call(version), request(version), Refusal(ErrorCode.REQUEST_TIMED_OUT))
    assert over_the_wire(answer, version).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
