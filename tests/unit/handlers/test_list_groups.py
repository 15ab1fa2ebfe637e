"""ListGroups: all groups of this broker, or those of some states and types."""

import pytest

from headrace.groups.listing import GroupListing
from headrace.groups.records import GroupKind
from headrace.handlers.call import Refusal
from headrace.handlers.list_groups import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import ListGroupsRequest
from tests.unit.handlers.group_node import LOADING, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(6)

LISTINGS = (
    GroupListing(group_id="a", kind=GroupKind.CLASSIC, protocol_type="consumer", state="Stable"),
    GroupListing(group_id="b", kind=GroupKind.CLASSIC, protocol_type="connect", state="CompletingRebalance"),
    GroupListing(group_id="c", kind=GroupKind.CONSUMER, protocol_type="consumer", state="Stable"),
    GroupListing(group_id="", kind=GroupKind.CLASSIC, protocol_type="", state="Empty"),
)


def node() -> GroupNode:
    kit = GroupNode()
    kit.groups.listings = LISTINGS
    return kit


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_lists_what_it_can_tell(version: int) -> None:
    answer = await ask(handle, node().node, version, ListGroupsRequest())
    assert answer.error_code == 0
    assert [(one.group_id, one.protocol_type, one.group_state, one.group_type) for one in answer.groups] == [
        (
            one.group_id,
            one.protocol_type,
            one.state if version >= 4 else "",
            one.kind.name.lower() if version >= 5 else "",
        )
        for one in LISTINGS
    ]


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        (["Stable"], [], ["a", "c"]),
        (["stable", "EMPTY"], [], ["a", "c", ""]),
        (["CompletingRebalance"], [], ["b"]),
        (["Completing_Rebalance", "nonsense"], [], []),
        ([], ["classic"], ["a", "b", ""]),
        ([], ["Consumer"], ["c"]),
        ([], ["consumer", "CLASSIC"], ["a", "b", "c", ""]),
        ([], ["share"], []),
        ([], ["nonsense"], []),
        (["Stable"], ["classic"], ["a"]),
    ],
)
async def test_filters_leave_out_the_others(states: list[str], types: list[str], expected: list[str]) -> None:
    request = ListGroupsRequest(states_filter=states, types_filter=types)
    answer = await ask(handle, node().node, 5, request)
    assert [one.group_id for one in answer.groups] == expected


async def test_refusal_of_the_coordinator_is_answered_and_not_raised() -> None:
    kit = node()
    kit.groups.failure = LOADING
    answer = await ask(handle, kit.node, 5, ListGroupsRequest())
    assert (answer.error_code, answer.groups) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_is_one_code(version: int) -> None:
    answer = refused(call(version), ListGroupsRequest(), Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down"))
    assert over_the_wire(answer, version).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
