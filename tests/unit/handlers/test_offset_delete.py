"""OffsetDelete: partitions that exist go to the group, the others are unknown."""

import pytest

from headrace.groups.problems import GroupRefused
from headrace.handlers.call import Refusal
from headrace.handlers.offset_delete import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse
from tests.unit.handlers.group_node import MOVED, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def request(*topics: tuple[str, list[int]], group_id: str = "g") -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=one) for one in indexes],
            )
            for name, indexes in topics
        ],
    )


def codes(answer: OffsetDeleteResponse) -> list[tuple[str, list[tuple[int, int]]]]:
    return [
        (topic.name, [(one.partition_index, one.error_code) for one in topic.partitions]) for topic in answer.topics
    ]


async def test_every_partition_hears_what_became_of_it() -> None:
    kit = GroupNode()
    await kit.create("t", "u", partitions=2)
    kit.groups.deleted_offsets = {(kit.id("u"), 1): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    answer = await ask(handle, kit.node, 0, request(("t", [0, 9, -1]), ("nope", [0]), ("u", [1])))
    assert answer.error_code == 0
    assert codes(answer) == [
        ("t", [(0, 0), (9, UNKNOWN), (-1, UNKNOWN)]),
        ("nope", [(0, UNKNOWN)]),
        ("u", [(1, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)]),
    ]
    assert kit.groups.deletions == [("g", [(kit.id("t"), 0), (kit.id("u"), 1)])]


async def test_topic_that_another_broker_made_or_grew_is_known() -> None:
    kit = GroupNode()
    await kit.create("t")
    await kit.create_elsewhere("u")
    await kit.grow_elsewhere("t", 4)
    answer = await ask(handle, kit.node, 0, request(("t", [3]), ("u", [0])))
    assert codes(answer) == [("t", [(3, 0)]), ("u", [(0, 0)])]


@pytest.mark.parametrize(
    "failure",
    [
        MOVED,
        GroupRefused(ErrorCode.GROUP_ID_NOT_FOUND, "no such group"),
        GroupRefused(ErrorCode.NON_EMPTY_GROUP, "it has members"),
    ],
)
async def test_refusal_of_the_group_is_one_for_all(failure: GroupRefused) -> None:
    kit = GroupNode()
    kit.groups.failure = failure
    answer = await ask(handle, kit.node, 0, request(("nope", [0])))
    assert (answer.error_code, answer.topics) == (failure.code, [])


async def test_group_needs_a_name() -> None:
    answer = await ask(handle, GroupNode().node, 0, request(("t", [0]), group_id=""))
    assert (answer.error_code, answer.topics) == (ErrorCode.INVALID_GROUP_ID, [])


def test_refusal_is_one_code() -> None:
    answer = refused(call(0), request(("t", [0])), Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down"))
    assert over_the_wire(answer, 0).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
