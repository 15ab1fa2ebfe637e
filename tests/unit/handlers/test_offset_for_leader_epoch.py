"""OffsetForLeaderEpoch: no answer may look to a consumer as if records were lost."""

import pytest

from headrace.handlers.call import Refusal
from headrace.handlers.offset_for_leader_epoch import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import OffsetForLeaderEpochRequest
from tests.unit.handlers.admin_node import AdminNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(2, 5)
NEWEST = 4


def request(*topics: tuple[str, list[tuple[int, int]]]) -> OffsetForLeaderEpochRequest:
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                topic=name,
                partitions=[
                    OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                        partition=index, current_leader_epoch=12, leader_epoch=epoch
                    )
                    for index, epoch in partitions
                ],
            )
            for name, partitions in topics
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_epoch_ends_at_the_high_watermark(version: int) -> None:
    kit = AdminNode()
    await kit.filled("a", batches=2)
    answer = await ask(handle, kit.node, version, request(("a", [(0, 0), (0, 5), (0, 2**31 - 1)])))
    assert [(one.error_code, one.leader_epoch, one.end_offset) for one in answer.topics[0].partitions] == [
        (0, 0, 20),
        (0, 5, 20),
        (0, 2**31 - 1, 20),
    ]


@pytest.mark.parametrize("epoch", [-1, -(2**31)])
async def test_answer_never_says_unknown_which_consumers_take_for_a_loss(epoch: int) -> None:
    kit = AdminNode()
    await kit.filled("a")
    (end,) = (await ask(handle, kit.node, NEWEST, request(("a", [(0, epoch)])))).topics[0].partitions
    assert end.leader_epoch >= 0 and end.end_offset == 10


async def test_high_watermark_is_the_stores_not_a_memory_of_it() -> None:
    kit = AdminNode()
    stream = await kit.filled("a")
    asked = request(("a", [(0, 0)]))
    assert (await ask(handle, kit.node, NEWEST, asked)).topics[0].partitions[0].end_offset == 10
    await kit.log.append(stream, 7)
    assert (await ask(handle, kit.node, NEWEST, asked)).topics[0].partitions[0].end_offset == 17


async def test_unknown_partitions_are_answered_as_unknown_and_new_ones_found() -> None:
    kit = AdminNode()
    await kit.elsewhere().create("a")
    answer = await ask(handle, kit.node, NEWEST, request(("nope", [(0, 0)]), ("a", [(0, 0), (9, 0)])))
    assert [
        (topic.topic, one.partition, one.error_code, one.leader_epoch, one.end_offset)
        for topic in answer.topics
        for one in topic.partitions
    ] == [("nope", 0, 3, -1, -1), ("a", 0, 0, 0, 0), ("a", 9, 3, -1, -1)]


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_names_every_partition(version: int) -> None:
    answer = refused(call(version), request(("a", [(0, 1), (1, 1)])), Refusal(ErrorCode.KAFKA_STORAGE_ERROR))
    assert [
        (topic.topic, one.partition, one.error_code, one.leader_epoch, one.end_offset)
        for topic in over_the_wire(answer, version).topics
        for one in topic.partitions
    ] == [("a", 0, 56, -1, -1), ("a", 1, 56, -1, -1)]
