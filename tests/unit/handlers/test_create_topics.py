"""CreateTopics: each topic on its own, Kafka's codes, every version."""

from collections.abc import Mapping

import pytest

from headrace.handlers.call import Refusal
from headrace.handlers.create_topics import MAX_PARTITIONS_PER_REQUEST, handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.topics.admin import MAX_PARTITIONS_PER_TOPIC
from headrace.wire.messages import CreateTopicsRequest, CreateTopicsResponse
from tests.unit.handlers.topic_node import TopicNode, ask, call, over_the_wire

VERSIONS = range(8)
NEWEST = 7

Asked = CreateTopicsRequest.CreatableTopic


def asked(
    name: str, *, partitions: int = 1, factor: int = 1, configs: Mapping[str, str | None] | None = None
) -> Asked:
    return Asked(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=config, value=value)
            for config, value in (configs or {}).items()
        ],
    )


def request(*topics: Asked, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)


def codes(answer: CreateTopicsResponse) -> dict[str, ErrorCode]:
    return {topic.name: ErrorCode(topic.error_code) for topic in answer.topics}


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_creates_a_topic_and_tells_what_it_can_carry(version: int) -> None:
    kit = TopicNode()
    answer = await ask(handle, kit.node, version, request(asked("a", partitions=3, factor=2)))
    (result,) = answer.topics
    assert (result.name, result.error_code) == ("a", 0)
    assert len(kit.topic("a").streams) == 3
    if version >= 5:
        assert (result.num_partitions, result.replication_factor, result.topic_config_error_code) == (3, 1, 0)
        assert result.error_message is None
        values = {config.name: config.value for config in result.configs}
        assert values["max.message.bytes"] == "1000000"
    if version >= 7:
        assert result.topic_id == kit.topic("a").id


async def test_configs_that_were_set_are_stored_and_reported_as_the_topics_own() -> None:
    kit = TopicNode()
    answer = await ask(handle, kit.node, NEWEST, request(asked("a", configs={"retention.ms": "5000"})))
    assert kit.topic("a").overrides == {"retention.ms": "5000"}
    (found,) = [config for config in answer.topics[0].configs if config.name == "retention.ms"]
    assert (found.value, found.config_source, found.read_only, found.is_sensitive) == ("5000", 1, False, False)


async def test_numbers_that_are_left_to_the_cluster_become_its_defaults() -> None:
    kit = TopicNode()
    answer = await ask(handle, kit.node, NEWEST, request(asked("a", partitions=-1, factor=-1)))
    assert answer.topics[0].num_partitions == kit.admin.default_partition_count


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (asked("a", partitions=0), ErrorCode.INVALID_PARTITIONS),
        (asked("a", partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (asked("a", partitions=MAX_PARTITIONS_PER_TOPIC + 1), ErrorCode.INVALID_PARTITIONS),
        (asked("a", partitions=10**9), ErrorCode.INVALID_PARTITIONS),
        (asked("a", factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (asked("a", factor=-2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (asked("a", configs={"retenton.ms": "1"}), ErrorCode.INVALID_CONFIG),
        (asked("a", configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (asked("a", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (asked(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (asked("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (asked("../etc"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (asked("a\0b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (asked("n" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (asked("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (asked("th.re"), ErrorCode.NONE),
        (asked("with_dash"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
    ids=lambda value: value.name[:20] if isinstance(value, ErrorCode | Asked) else None,
)
async def test_what_is_wrong_has_its_own_code_and_harms_no_neighbour(wrong: Asked, code: ErrorCode) -> None:
    kit = TopicNode()
    await kit.create("there", "with.dash")
    answer = await ask(handle, kit.node, NEWEST, request(asked("first"), wrong, asked("last")))
    assert codes(answer) == {"first": ErrorCode.NONE, wrong.name: code, "last": ErrorCode.NONE}
    if code is not ErrorCode.NONE:
        assert answer.topics[1].error_message


async def test_a_name_that_stands_twice_is_refused_once_and_not_created() -> None:
    kit = TopicNode()
    answer = await ask(handle, kit.node, NEWEST, request(asked("a"), asked("b"), asked("a", partitions=2)))
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("a", ErrorCode.INVALID_REQUEST),
        ("b", ErrorCode.NONE),
    ]
    assert [topic.name for topic in kit.directory.known()] == ["b"]


def placed(*assignments: tuple[int, list[int]], partitions: int = -1, factor: int = -1) -> Asked:
    return Asked(
        name="a",
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in assignments
        ],
    )


@pytest.mark.parametrize("lists", [[[1], [1]], [[1, 2], [2, 3]], [[3, 1, 2]]])
async def test_replicas_that_living_brokers_could_have_are_taken_as_a_number_of_partitions(
    lists: list[list[int]],
) -> None:
    kit = TopicNode()
    answer = await ask(handle, kit.node, NEWEST, request(placed(*reversed(list(enumerate(lists))))))
    assert codes(answer) == {"a": ErrorCode.NONE}
    assert answer.topics[0].num_partitions == len(lists) == len(kit.topic("a").streams)


@pytest.mark.parametrize(
    ("asked_for", "code"),
    [
        (placed((0, [9])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (placed((0, [-1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (placed((0, [])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (placed((0, [1, 1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (placed((0, [1]), (1, [1, 2])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (placed((0, [1]), (0, [2])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (placed((0, [1]), (2, [1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (placed((1, [1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (placed((0, [1]), partitions=1), ErrorCode.INVALID_REQUEST),
        (placed((0, [1]), factor=1), ErrorCode.INVALID_REQUEST),
    ],
    ids=lambda value: None if isinstance(value, ErrorCode) else repr(value.assignments),
)
async def test_replicas_that_kafka_would_not_place_are_refused_with_advice(asked_for: Asked, code: ErrorCode) -> None:
    kit = TopicNode()
    (result,) = (await ask(handle, kit.node, NEWEST, request(asked_for))).topics
    assert result.error_code == code
    assert "left out" in result.error_message or "leave assignments out" in result.error_message
    assert not list(kit.directory.known())


async def test_validation_only_answers_like_creation_and_creates_nothing() -> None:
    kit = TopicNode()
    await kit.create("there")
    answer = await ask(
        handle, kit.node, NEWEST, request(asked("a", partitions=7), asked("there"), validate_only=True)
    )
    assert codes(answer) == {"a": ErrorCode.NONE, "there": ErrorCode.TOPIC_ALREADY_EXISTS}
    assert answer.topics[0].num_partitions == 7 and answer.topics[0].topic_id == bytes(16)
    assert [topic.name for topic in kit.directory.known()] == ["there"]


async def test_one_request_creates_a_bounded_number_of_partitions() -> None:
    kit = TopicNode()
    most = MAX_PARTITIONS_PER_REQUEST - 1
    answer = await ask(
        handle,
        kit.node,
        NEWEST,
        request(asked("a", partitions=most), asked("b", partitions=2), asked("c"), validate_only=True),
    )
    assert codes(answer) == {"a": ErrorCode.NONE, "b": ErrorCode.POLICY_VIOLATION, "c": ErrorCode.NONE}


async def test_a_store_that_fails_for_one_topic_is_told_for_that_one() -> None:
    kit = TopicNode()
    kit.store.plan = ["fine", "busy"]
    answer = await ask(handle, kit.node, NEWEST, request(asked("a"), asked("b"), asked("c")))
    assert codes(answer) == {"a": ErrorCode.NONE, "b": ErrorCode.KAFKA_STORAGE_ERROR, "c": ErrorCode.NONE}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_refusal_names_every_topic_once(version: int) -> None:
    refusal = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "gone")
    answer = refused(call(version), request(asked("a"), asked("b"), asked("a")), refusal)
    assert codes(over_the_wire(answer, version)) == dict.fromkeys(["a", "b"], ErrorCode.KAFKA_STORAGE_ERROR)
