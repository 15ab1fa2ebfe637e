"""DescribeProducers: what a partition remembers of those who wrote to it."""

import pytest

from headrace.handlers import describe_producers
from headrace.handlers.call import Refusal
from headrace.handlers.describe_producers import handle, refused
from headrace.index.values import PRODUCER_STATE, ProducerState
from headrace.metadata.port import Decision, Reads
from headrace.model.error_codes import ErrorCode
from headrace.model.ids import ProducerId
from headrace.wire.messages import DescribeProducersRequest
from tests.log_kit import batch
from tests.unit.handlers.admin_node import AdminNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire


def request(*topics: tuple[str, list[int]]) -> DescribeProducersRequest:
    return DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics
        ]
    )


async def test_each_producer_tells_its_epoch_and_its_last_sequence() -> None:
    kit = AdminNode()
    stream = await kit.filled("a")
    await kit.log.commit((stream, [batch(3, producer=7, epoch=2, sequence=0)]))
    await kit.log.commit((stream, [batch(4, producer=7, epoch=2, sequence=3)]))
    await kit.log.commit((stream, [batch(3, producer=12, epoch=0, sequence=2**31 - 2)]))
    answer = await ask(handle, kit.node, 0, request(("a", [0])))
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code, partition.error_message) == (0, None)
    found = [(one.producer_id, one.producer_epoch, one.last_sequence) for one in partition.active_producers]
    assert found == [(7, 2, 6), (12, 0, 0)]
    assert {
        (one.last_timestamp, one.coordinator_epoch, one.current_txn_start_offset)
        for one in partition.active_producers
    } == {(kit.log.now_ms, -1, -1)}


async def test_open_transaction_and_a_producer_without_batches_are_told() -> None:
    kit = AdminNode()
    stream = await kit.filled("a")
    state = PRODUCER_STATE.encode(ProducerState(1, (), 99, 5))
    key = kit.keys.producer(stream, ProducerId(3))
    await kit.store.transact([kit.keys.unit], Reads(), lambda _: Decision(result=None, puts={key: state}))
    answer = await ask(handle, kit.node, 0, request(("a", [0])))
    (producer,) = answer.topics[0].partitions[0].active_producers
    assert (producer.last_sequence, producer.last_timestamp, producer.current_txn_start_offset) == (-1, 99, 5)


async def test_many_producers_are_read_in_pages_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_producers, "PRODUCERS_PER_READ", 4)
    monkeypatch.setattr(describe_producers, "MAX_PRODUCERS", 8)
    kit = AdminNode()
    stream = await kit.filled("a")
    for count, expected in ((6, 6), (11, 8)):
        for producer in range(count):
            await kit.log.commit((stream, [batch(1, producer=producer, sequence=0)]))
        answer = await ask(handle, kit.node, 0, request(("a", [0])))
        found = [one.producer_id for one in answer.topics[0].partitions[0].active_producers]
        assert found == list(range(expected))


async def test_every_partition_that_was_named_is_answered() -> None:
    kit = AdminNode()
    await kit.filled("a")
    answer = await ask(handle, kit.node, 0, request(("a", [0, 8]), ("nope", [0]), ("a/b", [0]), ("a", [0])))
    assert [
        (topic.name, one.partition_index, one.error_code) for topic in answer.topics for one in topic.partitions
    ] == [("a", 0, 0), ("a", 8, 3), ("nope", 0, 3), ("a/b", 0, 17), ("a", 0, 0)]


def test_refusal_names_every_partition() -> None:
    answer = refused(call(0), request(("a", [0, 1]), ("b", [2])), Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down"))
    assert [
        (topic.name, one.partition_index, one.error_code, one.error_message)
        for topic in over_the_wire(answer, 0).topics
        for one in topic.partitions
    ] == [("a", 0, 56, "down"), ("a", 1, 56, "down"), ("b", 2, 56, "down")]
