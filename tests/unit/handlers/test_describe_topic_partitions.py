"""DescribeTopicPartitions: sorted, bounded, and the cursor leads through everything once."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.handlers.call import Refusal, Refused
from headrace.handlers.describe_topic_partitions import MAX_PARTITIONS_PER_ANSWER, handle, refused
from headrace.handlers.operations import TOPIC_OPERATIONS
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import DescribeTopicPartitionsRequest
from tests.unit.handlers.topic_node import TopicNode, ask, call, over_the_wire

Cursor = DescribeTopicPartitionsRequest.Cursor


def request(*names: str, limit: int = 2000, cursor: Cursor | None = None) -> DescribeTopicPartitionsRequest:
    topics = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names]
    return DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor)


async def test_topics_come_sorted_with_leaders_and_errors() -> None:
    kit = TopicNode()
    await kit.create("b", "a", partitions=2)
    answer = await ask(handle, kit.node, 0, request("b", "nobody", "a/b", "a", "b"))
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("a", ErrorCode.NONE),
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("b", ErrorCode.NONE),
        ("nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert answer.next_cursor is None
    described = answer.topics[0]
    assert described.topic_id == kit.topic("a").id
    assert described.topic_authorized_operations == TOPIC_OPERATIONS
    for index, partition in enumerate(described.partitions):
        leader = kit.cluster.leader_of(kit.topic("a").streams[index])
        assert (partition.partition_index, partition.leader_id, partition.leader_epoch) == (index, leader, -1)
        assert partition.replica_nodes == partition.isr_nodes == [leader]
        assert partition.eligible_leader_replicas == partition.last_known_elr == partition.offline_replicas == []


async def test_an_empty_list_asks_for_all_topics_those_created_elsewhere_included() -> None:
    kit = TopicNode()
    await kit.create("a")
    await kit.admin_over(kit.another_directory()).auto_create(["b"])
    answer = await ask(handle, kit.node, 0, request())
    assert [topic.name for topic in answer.topics] == ["a", "b"]


async def test_nothing_is_created_by_describing_it() -> None:
    kit = TopicNode()
    await ask(handle, kit.node, 0, request("a"))
    assert kit.directory.known() == []


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    limit=st.integers(-1, 8),
    names_all=st.booleans(),
)
def test_the_cursor_leads_through_every_partition_once(sizes: list[int], limit: int, names_all: bool) -> None:
    async def walk() -> None:
        kit = TopicNode()
        names = [f"t{n}" for n in range(len(sizes))]
        for name, size in zip(names, sizes, strict=True):
            await kit.create(name, partitions=size)
        seen: list[tuple[str, int]] = []
        cursor: Cursor | None = None
        while True:
            wanted = request(*(names if names_all else ()), limit=limit, cursor=cursor)
            answer = await ask(handle, kit.node, 0, wanted)
            told = [(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions]
            assert 1 <= len(told) <= max(1, limit)
            seen += told
            if answer.next_cursor is None:
                break
            cursor = Cursor(
                topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
            )
        assert seen == [(name, index) for name, size in zip(names, sizes, strict=True) for index in range(size)]

    asyncio.run(walk())


async def test_an_answer_is_bounded_whatever_is_asked_for() -> None:
    kit = TopicNode()
    await kit.create("a", partitions=MAX_PARTITIONS_PER_ANSWER + 1)
    answer = await ask(handle, kit.node, 0, request("a", limit=2**31 - 1))
    assert len(answer.topics[0].partitions) == MAX_PARTITIONS_PER_ANSWER
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("a", MAX_PARTITIONS_PER_ANSWER)


async def test_a_cursor_behind_the_end_or_at_a_topic_that_is_gone_goes_on_with_what_follows() -> None:
    kit = TopicNode()
    await kit.create("a", "c", partitions=2)
    behind = await ask(handle, kit.node, 0, request(cursor=Cursor(topic_name="a", partition_index=9)))
    assert [(topic.name, len(topic.partitions)) for topic in behind.topics] == [("a", 0), ("c", 2)]
    gone = await ask(handle, kit.node, 0, request(cursor=Cursor(topic_name="b", partition_index=1)))
    assert [(topic.name, len(topic.partitions)) for topic in gone.topics] == [("c", 2)]


async def test_a_cursor_with_a_negative_partition_is_refused() -> None:
    kit = TopicNode()
    with pytest.raises(Refused) as raised:
        await handle(kit.node, call(0), request("a", cursor=Cursor(topic_name="a", partition_index=-1)))
    assert raised.value.refusal.code is ErrorCode.INVALID_REQUEST


async def test_partitions_without_a_leader_say_so() -> None:
    kit = TopicNode()
    await kit.create("a")
    kit.cluster.is_empty = True
    (partition,) = (await ask(handle, kit.node, 0, request("a"))).topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.replica_nodes) == (
        ErrorCode.LEADER_NOT_AVAILABLE,
        -1,
        [],
    )


def test_a_refusal_names_every_topic_once() -> None:
    answer = refused(call(0), request("a", "b", "a"), Refusal(ErrorCode.KAFKA_STORAGE_ERROR))
    assert [(topic.name, topic.error_code) for topic in over_the_wire(answer, 0).topics] == [
        ("a", ErrorCode.KAFKA_STORAGE_ERROR),
        ("b", ErrorCode.KAFKA_STORAGE_ERROR),
    ]
