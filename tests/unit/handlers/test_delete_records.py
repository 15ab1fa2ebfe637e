"""DeleteRecords: the beginning moves forward, never back and never past the end."""

import pytest

from headrace.handlers.call import Refusal
from headrace.handlers.delete_records import handle, refused
from headrace.index.streams import delete_stream
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import DeleteRecordsRequest
from tests.unit.handlers.admin_node import AdminNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(3)
NEWEST = 2


def request(*asked: tuple[str, int, int]) -> DeleteRecordsRequest:
    return DeleteRecordsRequest(
        topics=[
            DeleteRecordsRequest.DeleteRecordsTopic(
                name=name,
                partitions=[DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index, offset=offset)],
            )
            for name, index, offset in asked
        ],
        timeout_ms=1000,
    )


async def deleted(kit: AdminNode, *asked: tuple[str, int, int], version: int = NEWEST) -> list[tuple[int, int]]:
    """Ask, and return low watermark and error code of each partition."""
    answer = await ask(handle, kit.node, version, request(*asked))
    found = [(topic.name, one.partition_index) for topic in answer.topics for one in topic.partitions]
    assert found == [(name, index) for name, index, _ in asked]
    return [(one.low_watermark, one.error_code) for topic in answer.topics for one in topic.partitions]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_moves_the_beginning(version: int) -> None:
    kit = AdminNode()
    stream = await kit.filled("a", batches=2)
    assert await deleted(kit, ("a", 0, 7), version=version) == [(7, 0)]
    assert (await kit.log.head(stream)).log_start == 7


async def test_this_broker_serves_nothing_below_the_new_beginning_once_it_has_answered() -> None:
    kit = AdminNode()
    stream = await kit.filled("a", batches=2)
    await kit.node.index.fresh_head(stream)
    assert await deleted(kit, ("a", 0, 7)) == [(7, 0)]
    head = kit.node.index.view.head(stream)
    assert head is not None and head.log_start == 7, "a fetch plans with this head, without asking the store"


async def test_minus_one_is_the_end_as_the_store_knows_it() -> None:
    kit = AdminNode()
    stream = await kit.filled("a")
    assert await deleted(kit, ("a", 0, 0)) == [(0, 0)]
    await kit.log.append(stream, 5)
    assert await deleted(kit, ("a", 0, -1)) == [(15, 0)]


async def test_beginning_never_moves_back() -> None:
    kit = AdminNode()
    await kit.filled("a")
    assert await deleted(kit, ("a", 0, 8), ("a", 0, 3), ("a", 0, 0)) == [(8, 0), (8, 0), (8, 0)]


@pytest.mark.parametrize("offset", [11, 2**63 - 1, -2, -(2**63)])
async def test_offset_that_lies_nowhere_is_out_of_range(offset: int) -> None:
    kit = AdminNode()
    stream = await kit.filled("a")
    assert await deleted(kit, ("a", 0, offset)) == [(-1, ErrorCode.OFFSET_OUT_OF_RANGE)]
    assert (await kit.log.head(stream)).log_start == 0


async def test_unknown_partitions_fail_beside_those_that_exist() -> None:
    kit = AdminNode()
    await kit.filled("a")
    asked = [("nope", 0, 1), ("a", 1, 1), ("a", -1, 1), ("../a", 0, 1), ("a", 0, 1)]
    unknown = (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert await deleted(kit, *asked) == [unknown, unknown, unknown, unknown, (1, 0)]


async def test_topic_created_and_grown_elsewhere_is_found() -> None:
    kit = AdminNode()
    other = kit.elsewhere()
    await other.create("a", partitions=1)
    assert await deleted(kit, ("a", 0, -1)) == [(0, 0)]
    await other.admin.add_partitions("a", 3)
    assert await deleted(kit, ("a", 2, -1)) == [(0, 0)]


async def test_topic_deleted_and_created_again_elsewhere_is_the_new_one() -> None:
    kit = AdminNode()
    old = await kit.filled("a")
    other = kit.elsewhere()
    await other.directory.refresh()
    await other.admin.delete(kit.topic("a").id)
    await other.create("a")
    assert await deleted(kit, ("a", 0, -1)) == [(0, 0)]
    assert kit.stream("a") != old


async def test_stream_without_a_head_is_an_unknown_partition() -> None:
    kit = AdminNode()
    stream = await kit.filled("a")
    await delete_stream(kit.keys, stream, now_ms=0).apply(kit.store)
    assert await deleted(kit, ("a", 0, -1)) == [(-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


@pytest.mark.parametrize(
    ("policy", "code"), [("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", ErrorCode.NONE)]
)
async def test_topic_that_is_only_compacted_keeps_its_records(policy: str, code: ErrorCode) -> None:
    kit = AdminNode()
    await kit.filled("a")
    await kit.admin.set_configs("a", {"cleanup.policy": policy})
    ((_, answered),) = await deleted(kit, ("a", 0, 5))
    assert answered == code


async def test_lost_answer_of_the_store_is_retriable_and_harmless() -> None:
    kit = AdminNode()
    await kit.filled("a", batches=1)
    kit.store.plan = ["lost"]
    assert await deleted(kit, ("a", 0, 5)) == [(-1, ErrorCode.REQUEST_TIMED_OUT)]
    assert await deleted(kit, ("a", 0, 5)) == [(5, 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_names_every_partition(version: int) -> None:
    answer = refused(call(version), request(("a", 0, 1), ("b", 7, 1)), Refusal(ErrorCode.KAFKA_STORAGE_ERROR))
    assert [
        (topic.name, one.partition_index, one.low_watermark, one.error_code)
        for topic in over_the_wire(answer, version).topics
        for one in topic.partitions
    ] == [("a", 0, -1, 56), ("b", 7, -1, 56)]
