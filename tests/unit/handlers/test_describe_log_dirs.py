"""DescribeLogDirs: one label, and the bytes of what this broker leads."""

from typing import Any

import pytest

from headrace.handlers.call import Refusal
from headrace.handlers.describe_log_dirs import LOG_DIR, handle, refused
from headrace.index.streams import advance_log_start
from headrace.index.swap import Swap, replacement_for, swap_entries
from headrace.model.error_codes import ErrorCode
from headrace.model.extents import TableExtent
from headrace.wire.messages import DescribeLogDirsRequest
from tests.unit.handlers.admin_node import AdminNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(1, 6)
NEWEST = 5


def request(*topics: tuple[str, list[int]]) -> DescribeLogDirsRequest:
    return DescribeLogDirsRequest(
        topics=[
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=partitions)
            for name, partitions in topics
        ]
        or None
    )


def sizes(answer: Any) -> dict[tuple[str, int], int]:
    (result,) = answer.results
    assert (answer.error_code, result.error_code, result.log_dir) == (0, 0, LOG_DIR)
    return {(t.name, one.partition_index): one.partition_size for t in result.topics for one in t.partitions}


async def size_of(kit: AdminNode, topic: str) -> int | None:
    return sizes(await ask(handle, kit.node, NEWEST, request((topic, [0])))).get((topic, 0))


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_tells_the_bytes_that_were_sent(version: int) -> None:
    kit = AdminNode()
    await kit.filled("a", batches=3, size_bytes=100)
    answer = await ask(handle, kit.node, version, request())
    assert sizes(answer) == {("a", 0): 300}
    (result,) = answer.results
    assert (result.total_bytes, result.usable_bytes, result.is_cordoned) == (-1, -1, False)
    (partition,) = result.topics[0].partitions
    assert (partition.offset_lag, partition.is_future_key) == (0, False)


async def test_all_brokers_together_count_every_partition_once() -> None:
    kit = AdminNode()
    await kit.elsewhere().create("a", partitions=7)
    told = []
    for node_id in (1, 2, 3):
        kit.node.node_id = node_id  # type: ignore[misc]
        told += list(sizes(await ask(handle, kit.node, NEWEST, request())))
    assert sorted(told) == [("a", n) for n in range(7)]


async def test_only_what_was_asked_for_and_exists_is_told() -> None:
    kit = AdminNode()
    await kit.filled("a")
    asked = request(("a", [0, 5, -1, 0]), ("nope", [0]))
    assert sizes(await ask(handle, kit.node, NEWEST, asked)) == {("a", 0): 100}
    nothing = DescribeLogDirsRequest(topics=[])
    assert sizes(await ask(handle, kit.node, NEWEST, nothing)) == {}


async def test_size_follows_the_log_start_by_whole_entries() -> None:
    kit = AdminNode()
    stream = await kit.filled("a", batches=3, records=10, size_bytes=100)
    for log_start, size_bytes in ((5, 300), (10, 200), (25, 100), (30, 0)):
        await advance_log_start(kit.keys, stream, log_start, now_ms=0).apply(kit.store)
        assert await size_of(kit, "a") == size_bytes


async def test_first_entry_in_the_table_is_left_out_once_it_is_trimmed() -> None:
    kit = AdminNode()
    stream = await kit.filled("a", batches=3, records=10, size_bytes=100)
    await kit.log.fold()
    entries = await kit.log.index(stream)
    swap = Swap(stream=stream, planned=entries[:2], replacements=[replacement_for(entries[:2], TableExtent(()))])
    await swap_entries(kit.keys, swap, now_ms=0).apply(kit.store)
    assert await size_of(kit, "a") == 300
    await advance_log_start(kit.keys, stream, 5, now_ms=0).apply(kit.store)
    assert await size_of(kit, "a") == 100


async def test_deleted_topic_is_gone() -> None:
    kit = AdminNode()
    await kit.filled("a")
    await kit.elsewhere().directory.refresh()
    await kit.admin.delete(kit.topic("a").id)
    assert await size_of(kit, "a") is None


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_is_seen_in_every_version(version: int) -> None:
    answer = over_the_wire(refused(call(version), request(), Refusal(ErrorCode.KAFKA_STORAGE_ERROR)), version)
    assert (answer.results[0].error_code, answer.error_code) == (56, 56 if version >= 3 else 0)
