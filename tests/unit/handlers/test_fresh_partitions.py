"""What a request names is validated against the store, once however much it names."""

import pytest

from headrace.handlers.call import Refused
from headrace.handlers.fresh_partitions import FreshPartitions
from headrace.model.error_codes import ErrorCode
from tests.unit.handlers.admin_node import AdminNode


async def test_many_partitions_cost_one_read_of_the_index() -> None:
    kit = AdminNode()
    await kit.create("a", partitions=50)
    await kit.node.index.refresh()
    kit.store.gets.clear()
    partitions = FreshPartitions(kit.node)
    for index in range(50):
        found = await partitions.find("a", index)
        assert (found.topic, found.stream, found.head.high_watermark) == (kit.topic("a"), kit.stream("a", index), 0)
    assert kit.store.gets == [kit.keys.state]


async def test_many_unknown_partitions_cost_one_read_of_the_topics() -> None:
    kit = AdminNode()
    await kit.create("a")
    kit.store.gets.clear()
    partitions = FreshPartitions(kit.node)
    for index in range(1, 50):
        with pytest.raises(Refused) as refusal:
            await partitions.find("a", index)
        assert refusal.value.refusal.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(kit.store.gets) == 1


async def test_heads_are_as_fresh_as_the_request() -> None:
    kit = AdminNode()
    stream = await kit.filled("a")
    assert (await FreshPartitions(kit.node).find("a", 0)).head.high_watermark == 10
    await kit.log.append(stream, 5)
    assert (await FreshPartitions(kit.node).find("a", 0)).head.high_watermark == 15


async def test_refusal_shows_a_clients_string_on_one_line() -> None:
    with pytest.raises(Refused) as refusal:
        await FreshPartitions(AdminNode().node).find("a\n\x1b[31m" * 100, 0)
    message = refusal.value.refusal.message
    assert message is not None and message.isprintable() and len(message) < 250
