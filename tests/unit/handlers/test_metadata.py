"""Metadata: every version, by name and id, all topics, auto-creation by rule."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from headrace.errors import Exists, Retryable
from headrace.handlers.all_topics import MAX_KEPT_ANSWERS
from headrace.handlers.call import Encoded, Refusal, Refused
from headrace.handlers.metadata import LARGE_ANSWER_PARTITIONS, MAX_CREATED_PER_REQUEST, handle, refused
from headrace.handlers.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from headrace.model.error_codes import ErrorCode
from headrace.runtime.executor import InlineExecutor
from headrace.wire.compiler import read_message
from headrace.wire.messages import MetadataRequest, MetadataResponse
from tests.unit.handlers.topic_node import FakeCluster, TopicNode, ask, call, over_the_wire

VERSIONS = range(14)
T = TypeVar("T")


def named(*names: str, auto_create: bool = True) -> MetadataRequest:
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=auto_create)


def by_id(*ids: bytes) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(topic_id=each, name=None) for each in ids])


def codes(answer: MetadataResponse) -> dict[str | None, ErrorCode]:
    return {topic.name: ErrorCode(topic.error_code) for topic in answer.topics}


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_names_brokers_and_leaders(version: int) -> None:
    kit = TopicNode()
    await kit.create("a", partitions=3)
    answer = await ask(handle, kit.node, version, named("a"))
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [
        (1, "one", 9092),
        (2, "two", 9092),
        (3, "three", 9093),
    ]
    assert [broker.rack for broker in answer.brokers] == (["a", "a", "b"] if version >= 1 else [None] * 3)
    assert answer.controller_id == (1 if version >= 1 else -1)
    assert answer.cluster_id == ("a-cluster" if version >= 2 else None)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, "a")
    assert topic.topic_id == (kit.topic("a").id if version >= 10 else bytes(16))
    for index, partition in enumerate(topic.partitions):
        leader = kit.cluster.leader_of(kit.topic("a").streams[index])
        assert (partition.partition_index, partition.leader_id, partition.error_code) == (index, leader, 0)
        assert partition.replica_nodes == partition.isr_nodes == [leader]
        assert partition.leader_epoch == -1 and partition.offline_replicas == []


async def test_all_topics_are_asked_for_by_an_empty_list_in_v0_and_by_null_later() -> None:
    kit = TopicNode()
    await kit.create("b", "a")
    assert list(codes(await ask(handle, kit.node, 0, MetadataRequest(topics=[])))) == ["a", "b"]
    for version in VERSIONS[1:]:
        assert list(codes(await ask(handle, kit.node, version, MetadataRequest(topics=None)))) == ["a", "b"]
        assert (await ask(handle, kit.node, version, MetadataRequest(topics=[]))).topics == []


async def test_a_topic_created_elsewhere_is_found_before_it_is_denied() -> None:
    kit = TopicNode(auto_create=False)
    elsewhere = kit.admin_over(kit.another_directory())
    await elsewhere.auto_create(["a"])
    assert codes(await ask(handle, kit.node, 12, named("a"))) == {"a": ErrorCode.NONE}
    await elsewhere.auto_create(["b"])
    assert list(codes(await ask(handle, kit.node, 12, MetadataRequest(topics=None)))) == ["a", "b"]


async def test_a_known_topic_is_told_without_asking_the_store() -> None:
    kit = TopicNode()
    await kit.create("a")
    kit.store.gets.clear()
    await ask(handle, kit.node, 12, named("a"))
    assert kit.store.gets == []


async def test_an_unknown_topic_is_created_and_has_a_leader_at_once() -> None:
    kit = TopicNode()
    answer = await ask(handle, kit.node, 9, named("new", "newer"))
    assert codes(answer) == {"new": ErrorCode.NONE, "newer": ErrorCode.NONE}
    assert all(partition.leader_id > 0 for topic in answer.topics for partition in topic.partitions)
    assert len(kit.topic("new").streams) == kit.admin.default_partition_count


@pytest.mark.parametrize(
    ("version", "node_allows", "client_allows"),
    # Before v4 clients cannot forbid it.
    [(0, False, True), (3, False, True), (4, False, True), (4, True, False), (12, True, False), (12, False, False)],
)
async def test_nothing_is_created_unless_broker_and_client_allow_it(
    version: int, node_allows: bool, client_allows: bool
) -> None:
    kit = TopicNode(auto_create=node_allows)
    answer = await ask(handle, kit.node, version, named("new", auto_create=client_allows))
    assert codes(answer) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert kit.directory.known() == []


async def test_each_topic_has_its_own_error_and_none_is_left_out() -> None:
    kit = TopicNode()
    await kit.create("a.b")
    answer = await ask(handle, kit.node, 8, named("..", "a.b", "a_b", "", "x/y", "a.b", "new"))
    assert codes(answer) == {
        "..": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "a.b": ErrorCode.NONE,
        "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "x/y": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "new": ErrorCode.NONE,
    }
    assert len(answer.topics) == 6, "what is named twice is answered once"


async def test_topics_are_found_by_id_and_unknown_ids_are_told() -> None:
    kit = TopicNode()
    await kit.create("a")
    strange = bytes(range(16))
    for version in (12, 13):
        known, unknown = (await ask(handle, kit.node, version, by_id(kit.topic("a").id, strange))).topics
        assert (known.name, known.error_code, len(known.partitions)) == ("a", 0, 1)
        assert (unknown.name, unknown.error_code, unknown.topic_id) == (None, ErrorCode.UNKNOWN_TOPIC_ID, strange)
    assert len(kit.directory.known()) == 1, "an id never creates anything"


@pytest.mark.parametrize("version", [10, 11])
async def test_ids_are_refused_before_version_12(version: int) -> None:
    kit = TopicNode()
    request = by_id(bytes(range(16)))
    with pytest.raises(Refused) as raised:
        await handle(kit.node, call(version), request)
    answer = over_the_wire(refused(call(version), request, raised.value.refusal), version)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("", ErrorCode.INVALID_REQUEST)]


async def test_what_is_allowed_is_told_where_it_is_asked_for() -> None:
    kit = TopicNode()
    await kit.create("a")
    for version in VERSIONS[8:]:
        asked = MetadataRequest(
            topics=named("a").topics,
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=version <= 10,
        )
        answer = await ask(handle, kit.node, version, asked)
        assert answer.topics[0].topic_authorized_operations == TOPIC_OPERATIONS == 3576
        assert answer.cluster_authorized_operations == (CLUSTER_OPERATIONS if version <= 10 else NOT_ASKED)
        plain = await ask(handle, kit.node, version, named("a"))
        assert plain.topics[0].topic_authorized_operations == plain.cluster_authorized_operations == NOT_ASKED


async def test_a_client_that_names_its_zone_is_sent_there() -> None:
    kit = TopicNode()
    await kit.create("a", partitions=4)
    answer = await ask(handle, kit.node, 12, named("a"), client_id="zone=b")
    assert {partition.leader_id for partition in answer.topics[0].partitions} == {3}


async def test_known_topics_are_told_while_the_store_is_away_and_others_asked_to_wait() -> None:
    kit = TopicNode()
    await kit.create("a")
    kit.store.reads_fail = True
    answer = await ask(handle, kit.node, 12, named("a", "b", ".."))
    assert codes(answer) == {
        "a": ErrorCode.NONE,
        "b": ErrorCode.LEADER_NOT_AVAILABLE,
        "..": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


async def test_a_topic_that_could_not_be_created_for_now_can_be_asked_for_again() -> None:
    kit = TopicNode()
    kit.store.plan = ["busy"]
    assert codes(await ask(handle, kit.node, 12, named("a"))) == {"a": ErrorCode.LEADER_NOT_AVAILABLE}
    assert codes(await ask(handle, kit.node, 12, named("a"))) == {"a": ErrorCode.NONE}


async def test_a_request_creates_a_bounded_number_of_topics_and_the_next_one_goes_on() -> None:
    kit = TopicNode()
    names = [f"t{n:03d}" for n in range(MAX_CREATED_PER_REQUEST + 5)]
    first = codes(await ask(handle, kit.node, 12, named(*names)))
    assert list(first) == names
    assert [name for name, code in first.items() if code is ErrorCode.LEADER_NOT_AVAILABLE] == names[-5:]
    second = codes(await ask(handle, kit.node, 12, named(*names)))
    assert second == dict.fromkeys(names, ErrorCode.NONE)


async def test_partitions_without_a_leader_say_so() -> None:
    kit = TopicNode()
    await kit.create("a")
    kit.cluster.is_empty = True
    (partition,) = (await ask(handle, kit.node, 12, named("a"))).topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert partition.replica_nodes == partition.isr_nodes == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_refusal_names_every_topic_that_was_asked_for(version: int) -> None:
    answer = over_the_wire(
        refused(call(version), named("a", "b"), Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "gone")), version
    )
    assert codes(answer) == {"a": ErrorCode.KAFKA_STORAGE_ERROR, "b": ErrorCode.KAFKA_STORAGE_ERROR}
    assert answer.error_code == (ErrorCode.KAFKA_STORAGE_ERROR if version >= 13 else 0)
    if version:
        everything = refused(call(version), MetadataRequest(topics=None), Refusal(ErrorCode.KAFKA_STORAGE_ERROR))
        assert over_the_wire(everything, version).topics == []


async def test_losing_the_race_to_create_a_topic_is_no_error() -> None:
    kit = TopicNode()
    elsewhere = kit.admin_over(kit.another_directory())
    refresh = kit.directory.refresh

    async def refresh_then_be_late() -> None:
        await refresh()
        if kit.directory.get("a") is None:
            await elsewhere.auto_create(["a"])

    kit.directory.refresh = refresh_then_be_late  # type: ignore[method-assign]
    assert codes(await ask(handle, kit.node, 12, named("a"))) == {"a": ErrorCode.NONE}
    with pytest.raises(Exists):
        await kit.create("a")


# Large answers


class Large(TopicNode):
    """A node with so many partitions that its list of all topics is kept."""

    async def fill(self, topics: int = 5) -> None:
        await self.create(*(f"t{n}" for n in range(topics)), partitions=LARGE_ANSWER_PARTITIONS)

    async def ask(self, version: int = 12, *, client_id: str = "test", **wishes: bool) -> Encoded:
        answer = await handle(self.node, call(version, client_id=client_id), MetadataRequest(topics=None, **wishes))
        assert isinstance(answer, Encoded)
        return answer


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_large_list_of_all_topics_says_what_each_topic_says_by_name(version: int) -> None:
    kit = Large()
    await kit.fill(2)
    kept = read_message("MetadataResponse", version, (await kit.ask(version)).body)
    assert kept == await ask(handle, kit.node, version, named("t0", "t1"))


async def test_large_list_is_encoded_once_until_topics_change() -> None:
    kit = Large()
    await kit.fill(1)
    first = await kit.ask()
    assert (await kit.ask()).body is first.body
    await kit.create("another")
    changed = await kit.ask()
    assert list(codes(read_message("MetadataResponse", 12, changed.body))) == ["another", "t0"]


async def test_large_list_is_made_anew_for_other_brokers() -> None:
    kit = Large()
    await kit.fill(1)
    first = await kit.ask()
    kit.cluster = FakeCluster()
    kit.cluster.brokers = kit.cluster.brokers[:1]
    kit.node.cluster = kit.cluster  # type: ignore[misc, assignment]
    answer = read_message("MetadataResponse", 12, (await kit.ask()).body)
    assert answer != read_message("MetadataResponse", 12, first.body)
    assert {partition.leader_id for partition in answer.topics[0].partitions} == {1}


async def test_large_list_differs_by_version_zone_and_wishes() -> None:
    kit = Large()
    await kit.fill(1)
    lists = [
        await kit.ask(),
        await kit.ask(9),
        await kit.ask(client_id="zone=b"),
        await kit.ask(include_topic_authorized_operations=True),
    ]
    assert len({answer.body for answer in lists}) == 4
    assert (await kit.ask(client_id="zone=nowhere")).body is lists[0].body, "a zone without brokers is none"


async def test_large_list_is_made_in_slices_and_once_for_all_who_ask_meanwhile() -> None:
    kit = Large()
    await kit.fill(10)
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            await asyncio.sleep(0)
            passes += 1

    probe = asyncio.create_task(count())
    answers = await asyncio.gather(*(kit.ask() for _ in range(5)))
    probe.cancel()
    assert passes >= 9, "the loop was kept until the list was made"
    assert len({id(answer.body) for answer in answers}) == 1


async def test_one_who_stops_waiting_does_not_break_the_making_off() -> None:
    kit = Large()
    await kit.fill(10)
    gone, stays = asyncio.create_task(kit.ask()), asyncio.create_task(kit.ask())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gone.cancel()
    assert len(codes(read_message("MetadataResponse", 12, (await stays).body))) == 10


async def test_making_that_failed_is_tried_again() -> None:
    kit = Large()
    await kit.fill(1)

    class Failing(InlineExecutor):
        async def run(self, work: Callable[[], T]) -> T:
            raise Retryable("no thread")

    kit.node.executor = Failing()  # type: ignore[misc]
    with pytest.raises(Retryable):
        await kit.ask()
    kit.node.executor = InlineExecutor()  # type: ignore[misc]
    assert (await kit.ask()).body


async def test_kept_lists_are_bounded() -> None:
    kit = Large()
    await kit.fill(1)
    for version in VERSIONS[1:]:
        await kit.ask(version)
    assert len(kit.node.all_topics._kept) == MAX_KEPT_ANSWERS
