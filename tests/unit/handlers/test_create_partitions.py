"""CreatePartitions: topics grow while everything goes on, each on its own."""

import pytest

from headrace.handlers.call import Refusal
from headrace.handlers.create_partitions import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.topics.admin import MAX_PARTITIONS_PER_TOPIC
from headrace.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse
from tests.unit.handlers.topic_node import TopicNode, ask, call, over_the_wire

VERSIONS = range(4)
NEWEST = 3

Asked = CreatePartitionsRequest.CreatePartitionsTopic
Assignment = CreatePartitionsRequest.CreatePartitionsAssignment


def request(*wishes: tuple[str, int], validate_only: bool = False) -> CreatePartitionsRequest:
    topics = [Asked(name=name, count=count, assignments=None) for name, count in wishes]
    return CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only)


def results(answer: CreatePartitionsResponse) -> list[tuple[str, ErrorCode]]:
    return [(result.name, ErrorCode(result.error_code)) for result in answer.results]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_grows_topics_and_keeps_their_streams(version: int) -> None:
    kit = TopicNode()
    await kit.create("a", "b", partitions=2)
    before = kit.topic("a").streams
    answer = await ask(handle, kit.node, version, request(("a", 5), ("nobody", 3), ("b", 3)))
    assert results(answer) == [
        ("a", ErrorCode.NONE),
        ("nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("b", ErrorCode.NONE),
    ]
    after = kit.topic("a").streams
    assert after[:2] == before and len(after) == 5 and len(kit.topic("b").streams) == 3


@pytest.mark.parametrize("count", [-1, 0, 2, 3, MAX_PARTITIONS_PER_TOPIC + 1, 2**31 - 1])
async def test_a_number_that_does_not_grow_the_topic_is_refused_with_a_reason(count: int) -> None:
    kit = TopicNode()
    await kit.create("a", partitions=3)
    answer = await ask(handle, kit.node, NEWEST, request(("a", count)))
    assert results(answer) == [("a", ErrorCode.INVALID_PARTITIONS)]
    assert str(count) in answer.results[0].error_message
    assert len(kit.topic("a").streams) == 3


async def test_validation_only_changes_nothing() -> None:
    kit = TopicNode()
    await kit.create("a")
    answer = await ask(handle, kit.node, NEWEST, request(("a", 4), validate_only=True))
    assert results(answer) == [("a", ErrorCode.NONE)]
    await kit.directory.refresh()
    assert len(kit.topic("a").streams) == 1


async def test_replicas_of_living_brokers_are_taken_without_effect() -> None:
    kit = TopicNode()
    await kit.create("a", "b")
    asked = CreatePartitionsRequest(
        topics=[
            Asked(name="a", count=3, assignments=[Assignment(broker_ids=[1]), Assignment(broker_ids=[3])]),
            Asked(name="b", count=2, assignments=None),
        ]
    )
    assert results(await ask(handle, kit.node, NEWEST, asked)) == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]
    assert len(kit.topic("a").streams) == 3


@pytest.mark.parametrize(
    "lists", [[], [[1]], [[1], [1], [1]], [[1], [9]], [[1], []], [[1], [1, 2]], [[1, 1], [2, 3]]]
)
async def test_replicas_that_kafka_would_not_place_are_refused_with_advice(lists: list[list[int]]) -> None:
    kit = TopicNode()
    await kit.create("a")
    assignments = [Assignment(broker_ids=brokers) for brokers in lists]
    asked = CreatePartitionsRequest(topics=[Asked(name="a", count=3, assignments=assignments)])
    answer = await ask(handle, kit.node, NEWEST, asked)
    assert results(answer) == [("a", ErrorCode.INVALID_REPLICA_ASSIGNMENT)]
    assert "left out" in answer.results[0].error_message
    assert len(kit.topic("a").streams) == 1


async def test_a_topic_that_is_named_twice_is_refused_once() -> None:
    kit = TopicNode()
    await kit.create("a", "b")
    answer = await ask(handle, kit.node, NEWEST, request(("a", 2), ("b", 2), ("a", 3)))
    assert results(answer) == [("a", ErrorCode.INVALID_REQUEST), ("b", ErrorCode.NONE)]
    assert len(kit.topic("a").streams) == 1


async def test_a_name_that_no_topic_can_have_is_refused_as_such() -> None:
    kit = TopicNode()
    answer = await ask(handle, kit.node, NEWEST, request(("a/b", 2)))
    assert results(answer) == [("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_refusal_names_every_topic_once(version: int) -> None:
    refusal = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "gone")
    answer = over_the_wire(refused(call(version), request(("a", 1), ("b", 1), ("a", 2)), refusal), version)
    assert results(answer) == [("a", ErrorCode.KAFKA_STORAGE_ERROR), ("b", ErrorCode.KAFKA_STORAGE_ERROR)]
