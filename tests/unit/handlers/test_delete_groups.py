"""DeleteGroups: each group by itself, and once."""

import pytest

from headrace.handlers.call import Refusal
from headrace.handlers.delete_groups import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse
from tests.unit.handlers.group_node import DOWN, MOVED, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(3)


def codes(answer: DeleteGroupsResponse) -> list[tuple[str, ErrorCode]]:
    return [(one.group_id, ErrorCode(one.error_code)) for one in answer.results]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_answers_each_group_once(version: int) -> None:
    kit = GroupNode()
    kit.groups.deleted = {"a": ErrorCode.NONE, "busy": ErrorCode.NON_EMPTY_GROUP, "": ErrorCode.NONE}
    request = DeleteGroupsRequest(groups_names=["a", "busy", "nope", "", "a"])
    assert codes(await ask(handle, kit.node, version, request)) == [
        ("a", ErrorCode.NONE),
        ("busy", ErrorCode.NON_EMPTY_GROUP),
        ("nope", ErrorCode.GROUP_ID_NOT_FOUND),
        ("", ErrorCode.NONE),
    ]


async def test_group_that_is_refused_does_not_sink_its_neighbours() -> None:
    kit = GroupNode()
    kit.groups.deleted = {"a": ErrorCode.NONE}
    kit.groups.failing_groups = {"moved": MOVED, "down": DOWN}
    request = DeleteGroupsRequest(groups_names=["moved", "down", "a"])
    assert codes(await ask(handle, kit.node, 2, request)) == [
        ("moved", ErrorCode.NOT_COORDINATOR),
        ("down", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("a", ErrorCode.NONE),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_names_every_group_once(version: int) -> None:
    request = DeleteGroupsRequest(groups_names=["a", "b", "a"])
    answer = over_the_wire(refused(call(version), request, Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down")), version)
    away = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert codes(answer) == [("a", away), ("b", away)]
