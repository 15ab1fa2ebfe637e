"""SyncGroup: assignments go in, the member's own comes out."""

import pytest

from headrace.groups.protocol import Sync, SyncReply
from headrace.handlers.call import Refusal
from headrace.handlers.sync_group import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import SyncGroupRequest
from tests.unit.handlers.group_node import LOADING, MOVED, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(6)
NEWEST = 5


def request(version: int, **values: object) -> SyncGroupRequest:
    given: dict[str, object] = {
        "group_id": "g",
        "generation_id": 3,
        "member_id": "m1",
        "assignments": [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id="m1", assignment=b"one"),
            SyncGroupRequest.SyncGroupRequestAssignment(member_id="m2", assignment=b"two"),
        ],
    }
    if version >= 3:
        given["group_instance_id"] = "i1"
    if version >= 5:
        given |= {"protocol_type": "consumer", "protocol_name": "range"}
    return SyncGroupRequest(**given | values)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_becomes_an_event_and_carries_the_reply(version: int) -> None:
    kit = GroupNode()
    kit.groups.reply = SyncReply(protocol_type="consumer", protocol="range", assignment=b"one")
    answer = await ask(handle, kit.node, version, request(version))
    assert kit.groups.events == [
        (
            "g",
            Sync(
                member_id="m1",
                instance_id="i1" if version >= 3 else None,
                generation=3,
                protocol_type="consumer" if version >= 5 else None,
                protocol="range" if version >= 5 else None,
                assignments=(("m1", b"one"), ("m2", b"two")),
            ),
        )
    ]
    assert (answer.error_code, answer.assignment) == (0, b"one")
    assert (answer.protocol_type, answer.protocol_name) == (("consumer", "range") if version >= 5 else (None, None))


async def test_error_of_the_group_passes_through() -> None:
    kit = GroupNode()
    kit.groups.reply = SyncReply(error=ErrorCode.REBALANCE_IN_PROGRESS)
    answer = await ask(handle, kit.node, NEWEST, request(NEWEST))
    assert (answer.error_code, answer.assignment) == (ErrorCode.REBALANCE_IN_PROGRESS, b"")


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
async def test_protocol_must_be_named_where_it_can_be(missing: str) -> None:
    kit = GroupNode()
    answer = await ask(handle, kit.node, NEWEST, request(NEWEST, **{missing: None}))
    assert (answer.error_code, kit.groups.events) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, [])


async def test_group_needs_a_name() -> None:
    kit = GroupNode()
    answer = await ask(handle, kit.node, 0, request(0, group_id=""))
    assert (answer.error_code, kit.groups.events) == (ErrorCode.INVALID_GROUP_ID, [])


@pytest.mark.parametrize(
    ("failure", "code"), [(MOVED, ErrorCode.NOT_COORDINATOR), (LOADING, ErrorCode.COORDINATOR_NOT_AVAILABLE)]
)
async def test_refusals_of_the_coordinator_are_those_that_members_act_on(failure: Exception, code: ErrorCode) -> None:
    kit = GroupNode()
    kit.groups.failure = failure
    assert (await ask(handle, kit.node, NEWEST, request(NEWEST))).error_code == code


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_has_no_assignment(version: int) -> None:
    answer = refused(call(version), request(version), Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down"))
    told = over_the_wire(answer, version)
    assert (told.error_code, told.assignment) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, b"")
