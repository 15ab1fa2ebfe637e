"""DeleteTopics: by name and by id, each topic on its own, every version."""

import pytest

from headrace.handlers.call import Refusal
from headrace.handlers.delete_topics import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import ZERO_UUID, DeleteTopicsRequest, DeleteTopicsResponse
from tests.unit.handlers.topic_node import TopicNode, ask, call, over_the_wire

VERSIONS = range(7)
NEWEST = 6

State = DeleteTopicsRequest.DeleteTopicState


def request(version: int, *names: str) -> DeleteTopicsRequest:
    if version < NEWEST:
        return DeleteTopicsRequest(topic_names=list(names), timeout_ms=1000)
    return DeleteTopicsRequest(topics=[State(name=name) for name in names], timeout_ms=1000)


def results(answer: DeleteTopicsResponse) -> list[tuple[str | None, ErrorCode]]:
    return [(result.name, ErrorCode(result.error_code)) for result in answer.responses]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_deletes_by_name(version: int) -> None:
    kit = TopicNode()
    await kit.create("a", "b")
    topic_id = kit.topic("a").id
    answer = await ask(handle, kit.node, version, request(version, "a", "nobody"))
    assert results(answer) == [("a", ErrorCode.NONE), ("nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert answer.responses[0].topic_id == (topic_id if version >= 6 else ZERO_UUID)
    assert [topic.name for topic in kit.directory.known()] == ["b"]


async def test_topics_are_deleted_by_id_and_unknown_ids_are_told() -> None:
    kit = TopicNode()
    await kit.create("a")
    topic_id, strange = kit.topic("a").id, bytes(range(16))
    asked = DeleteTopicsRequest(topics=[State(name=None, topic_id=each) for each in (strange, topic_id)])
    unknown, deleted = (await ask(handle, kit.node, NEWEST, asked)).responses
    assert (unknown.name, unknown.topic_id, unknown.error_code) == (None, strange, ErrorCode.UNKNOWN_TOPIC_ID)
    assert (deleted.name, deleted.topic_id, deleted.error_code) == ("a", topic_id, 0)
    assert kit.directory.known() == []


async def test_a_topic_is_named_by_exactly_one_of_name_and_id() -> None:
    kit = TopicNode()
    await kit.create("a")
    asked = DeleteTopicsRequest(topics=[State(name="a", topic_id=kit.topic("a").id), State(name=None)])
    answer = await ask(handle, kit.node, NEWEST, asked)
    assert results(answer) == [("a", ErrorCode.INVALID_REQUEST), (None, ErrorCode.INVALID_REQUEST)]
    assert kit.directory.get("a") is not None


@pytest.mark.parametrize("version", [1, NEWEST])
async def test_a_topic_that_is_named_twice_is_refused_once_and_kept(version: int) -> None:
    kit = TopicNode()
    await kit.create("a", "b")
    answer = await ask(handle, kit.node, version, request(version, "a", "b", "a"))
    assert results(answer) == [("a", ErrorCode.INVALID_REQUEST), ("b", ErrorCode.NONE)]
    assert kit.directory.get("a") is not None


async def test_a_name_means_the_topic_that_has_it_now() -> None:
    kit = TopicNode()
    await kit.create("a")
    old = kit.topic("a")
    elsewhere = kit.admin_over(kit.another_directory())
    await elsewhere.delete(old.id)
    await elsewhere.auto_create(["a"])
    assert kit.topic("a") is old, "this broker has not heard of it yet"
    (result,) = (await ask(handle, kit.node, NEWEST, request(NEWEST, "a"))).responses
    assert result.error_code == 0 and result.topic_id != old.id
    assert len(await kit.deleted()) == 2


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 300])
async def test_names_that_no_topic_can_have_are_unknown(name: str) -> None:
    kit = TopicNode()
    answer = await ask(handle, kit.node, NEWEST, request(NEWEST, name))
    assert results(answer) == [(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_a_store_that_fails_for_one_topic_is_told_for_that_one() -> None:
    kit = TopicNode()
    await kit.create("a", "b")
    kit.store.plan = ["busy"]
    answer = await ask(handle, kit.node, NEWEST, request(NEWEST, "a", "b"))
    assert results(answer) == [("a", ErrorCode.KAFKA_STORAGE_ERROR), ("b", ErrorCode.NONE)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_refusal_names_every_topic_once(version: int) -> None:
    refusal = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "gone")
    answer = over_the_wire(refused(call(version), request(version, "a", "b", "a"), refusal), version)
    assert results(answer) == [("a", ErrorCode.KAFKA_STORAGE_ERROR), ("b", ErrorCode.KAFKA_STORAGE_ERROR)]
