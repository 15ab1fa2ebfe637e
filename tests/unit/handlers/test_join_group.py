"""JoinGroup: what a version asks for, and what it can carry back."""

import pytest

from headrace.groups.protocol import Client, Join, JoinReply
from headrace.handlers.call import Refusal
from headrace.handlers.join_group import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import JoinGroupRequest
from tests.unit.handlers.group_node import DOWN, LOADING, MOVED, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(10)

JOINED = JoinReply(
    generation=3,
    protocol_type="consumer",
    protocol="range",
    leader="m1",
    skip_assignment=True,
    member_id="m1",
    members=(("m1", None, b"one"), ("m2", None, b"two")),
)


def request(version: int, **values: object) -> JoinGroupRequest:
    given: dict[str, object] = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "member_id": "m1",
        "protocol_type": "consumer",
        "protocols": [
            JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"one"),
            JoinGroupRequest.JoinGroupRequestProtocol(name="sticky", metadata=b"uno"),
        ],
    }
    if version >= 1:
        given["rebalance_timeout_ms"] = 60_000
    if version >= 5:
        given["group_instance_id"] = "i1"
    if version >= 8:
        given["reason"] = "why not"
    return JoinGroupRequest(**given | values)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_becomes_an_event_and_carries_the_reply(version: int) -> None:
    kit = GroupNode()
    kit.groups.reply = JOINED
    answer = await ask(handle, kit.node, version, request(version))
    assert kit.groups.events == [
        (
            "g",
            Join(
                member_id="m1",
                instance_id="i1" if version >= 5 else None,
                protocol_type="consumer",
                protocols=(("range", b"one"), ("sticky", b"uno")),
                session_timeout_ms=10_000,
                rebalance_timeout_ms=60_000 if version >= 1 else 10_000,
                client=Client("test", "/peer"),
                needs_member_id=version >= 4,
                can_skip_assignment=version >= 9,
            ),
        )
    ]
    assert (answer.error_code, answer.generation_id, answer.leader, answer.member_id) == (0, 3, "m1", "m1")
    assert (answer.protocol_type, answer.protocol_name) == ("consumer" if version >= 7 else None, "range")
    assert answer.skip_assignment is (version >= 9)
    assert [(one.member_id, one.metadata) for one in answer.members] == [("m1", b"one"), ("m2", b"two")]


@pytest.mark.parametrize("version", [5, 9])
async def test_leader_hears_of_instance_ids(version: int) -> None:
    kit = GroupNode()
    kit.groups.reply = JoinReply(member_id="m1", members=(("m1", "i1", b""),))
    answer = await ask(handle, kit.node, version, request(version))
    assert answer.members[0].group_instance_id == "i1"


@pytest.mark.parametrize("version", VERSIONS)
async def test_new_member_is_told_its_id(version: int) -> None:
    kit = GroupNode()
    kit.groups.reply = JoinReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="test-1")
    answer = await ask(handle, kit.node, version, request(version, member_id=""))
    assert (answer.error_code, answer.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "test-1")
    assert (answer.generation_id, answer.protocol_name, answer.leader, answer.members) == (
        -1,
        None if version >= 7 else "",
        "",
        [],
    )


async def test_group_without_a_name_is_refused_before_it_is_looked_for() -> None:
    kit = GroupNode()
    answer = await ask(handle, kit.node, 9, request(9, group_id=""))
    assert (answer.error_code, answer.member_id) == (ErrorCode.INVALID_GROUP_ID, "m1")
    assert kit.groups.events == []


@pytest.mark.parametrize("failure", [MOVED, LOADING])
async def test_refusals_of_the_coordinator_are_answered_and_not_raised(failure: Exception) -> None:
    kit = GroupNode()
    kit.groups.failure = failure
    answer = await ask(handle, kit.node, 9, request(9))
    assert answer.error_code == failure.code  # type: ignore[attr-defined]


async def test_other_failures_are_raised_for_the_log() -> None:
    kit = GroupNode()
    kit.groups.failure = DOWN
    with pytest.raises(type(DOWN)):
        await ask(handle, kit.node, 9, request(9))


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_is_one_that_members_act_on(version: int) -> None:
    answer = refused(call(version), request(version), Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down"))
    assert over_the_wire(answer, version).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
