"""DescribeConfigs: every resource by itself, what a version can carry, and no secret."""

from typing import Any

import pytest

from headrace.handlers.call import Refusal
from headrace.handlers.config_resources import ResourceType
from headrace.handlers.describe_configs import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.topics.config_kinds import ConfigType
from headrace.topics.config_table import TOPIC_CONFIGS
from headrace.wire.messages import DescribeConfigsRequest
from tests.unit.handlers.admin_node import AdminNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(1, 5)
NEWEST = 4


def request(
    *resources: tuple[int, str, list[str] | None], synonyms: bool = False, documentation: bool = False
) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=number, resource_name=name, configuration_keys=keys
            )
            for number, name, keys in resources
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


def topic(name: str, *keys: str) -> tuple[int, str, list[str] | None]:
    return ResourceType.TOPIC, name, list(keys) if keys else None


def by_name(result: Any) -> dict[str, Any]:
    return {config.name: config for config in result.configs}


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_tells_values_and_sources(version: int) -> None:
    kit = AdminNode()
    await kit.create("a")
    await kit.admin.set_configs("a", {"retention.ms": " 5 "})
    asked = request(topic("a"), synonyms=True, documentation=version >= 3)
    (result,) = (await ask(handle, kit.node, version, asked)).results
    assert (result.error_code, result.resource_type, result.resource_name) == (0, ResourceType.TOPIC, "a")
    configs = by_name(result)
    assert set(configs) == set(TOPIC_CONFIGS)
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
    # The kit's broker was started with another limit than Kafka's.
    assert (configs["max.message.bytes"].value, configs["max.message.bytes"].config_source) == ("1000000", 4)
    assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("1073741824", 5)
    assert [one.source for one in configs["retention.ms"].synonyms] == [1, 5]
    if version >= 3:
        assert configs["retention.ms"].config_type == ConfigType.LONG
        assert configs["retention.ms"].documentation


async def test_synonyms_and_sentences_come_only_if_asked_for() -> None:
    kit = AdminNode()
    await kit.create("a")
    (result,) = (await ask(handle, kit.node, NEWEST, request(topic("a")))).results
    assert {(len(config.synonyms), config.documentation) for config in result.configs} == {(0, None)}


async def test_named_configs_are_told_and_unknown_ones_left_out() -> None:
    kit = AdminNode()
    await kit.create("a")
    asked = request(topic("a", "retention.ms", "no.such.config"), (ResourceType.TOPIC, "a", []))
    some, every = (await ask(handle, kit.node, NEWEST, asked)).results
    assert list(by_name(some)) == ["retention.ms"]
    assert set(by_name(every)) == set(TOPIC_CONFIGS)


async def test_what_another_broker_changed_shows_at_once() -> None:
    kit = AdminNode()
    await kit.create("a")
    other = kit.elsewhere()
    await other.directory.refresh()
    await other.admin.set_configs("a", {"retention.ms": "7"})
    (result,) = (await ask(handle, kit.node, NEWEST, request(topic("a", "retention.ms")))).results
    assert by_name(result)["retention.ms"].value == "7"


async def test_each_resource_fails_by_itself_with_a_sentence() -> None:
    kit = AdminNode()
    await kit.create("a")
    asked = [
        (topic("nope"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ((ResourceType.BROKER, "2", None), ErrorCode.INVALID_REQUEST),
        ((ResourceType.BROKER, "one", None), ErrorCode.INVALID_REQUEST),
        ((ResourceType.BROKER_LOGGER, "", None), ErrorCode.INVALID_REQUEST),
        ((ResourceType.CLIENT_METRICS, "", None), ErrorCode.INVALID_REQUEST),
        ((ResourceType.GROUP, "", None), ErrorCode.INVALID_REQUEST),
        ((0, "a", None), ErrorCode.INVALID_REQUEST),
        ((99, "a", None), ErrorCode.INVALID_REQUEST),
    ]
    answer = await ask(handle, kit.node, NEWEST, request(*(one for one, _ in asked), topic("a")))
    assert [result.error_code for result in answer.results] == [*(code for _, code in asked), 0]
    assert [(result.resource_type, result.resource_name) for result in answer.results] == [
        *((number, name) for (number, name, _), _ in asked),
        (ResourceType.TOPIC, "a"),
    ]
    assert all(result.error_message for result in answer.results[:-1])


@pytest.mark.parametrize("version", VERSIONS)
async def test_broker_tells_its_settings_but_no_secret(version: int) -> None:
    asked = request((ResourceType.BROKER, "1", None), synonyms=True)
    (result,) = (await ask(handle, AdminNode().node, version, asked)).results
    configs = by_name(result)
    number = configs["num.partitions"]
    assert (number.value, number.config_source, number.read_only, len(number.synonyms)) == ("3", 4, False, 2)
    identity = configs["broker.id"]
    assert (identity.value, identity.config_source, identity.read_only) == ("1", 4, True)
    assert "hush" not in repr(result) and "bucket" in configs["objects.url"].value


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_was_set_for_brokers_shows_with_its_source_and_all_synonyms(version: int) -> None:
    kit = AdminNode()
    await kit.another_broker_configs(2).set({"num.partitions": "5", "log.cleanup.policy": "compact"}, for_all=True)
    await kit.broker_configs.set({"num.partitions": "7"}, for_all=False)
    wanted = ["num.partitions", "log.cleanup.policy"]
    asked = request((ResourceType.BROKER, "1", wanted), (ResourceType.BROKER, "", None), synonyms=True)
    own, for_all = (by_name(result) for result in (await ask(handle, kit.node, version, asked)).results)
    told = own["num.partitions"]
    assert (told.value, told.config_source) == ("7", 2)
    assert [(one.value, one.source) for one in told.synonyms] == [("7", 2), ("5", 3), ("3", 4), ("1", 5)]
    assert (own["log.cleanup.policy"].value, own["log.cleanup.policy"].config_source) == ("compact", 3)
    assert {name: (one.value, one.config_source) for name, one in for_all.items()} == {
        "log.cleanup.policy": ("compact", 3),
        "num.partitions": ("5", 3),
    }


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (ResourceType.BROKER, ""),
        (ResourceType.BROKER_LOGGER, "1"),
        (ResourceType.CLIENT_METRICS, "m"),
    ],
)
async def test_what_has_no_configs_here_answers_with_none(number: int, name: str) -> None:
    (result,) = (await ask(handle, AdminNode().node, NEWEST, request((number, name, None)))).results
    assert (result.error_code, result.configs) == (0, [])


@pytest.mark.parametrize("version", VERSIONS)
async def test_group_has_configs_whether_it_exists_or_not(version: int) -> None:
    kit = AdminNode()
    await kit.another_group_configs().set("g", {"consumer.session.timeout.ms": " 50000 "})
    asked = request((ResourceType.GROUP, "g", None), (ResourceType.GROUP, "h", ["no.such"]), synonyms=True)
    some, none = (await ask(handle, kit.node, version, asked)).results
    assert (some.error_code, none.error_code, none.configs) == (0, 0, [])
    configs = by_name(some)
    assert set(configs) == {"consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"}
    session = configs["consumer.session.timeout.ms"]
    assert (session.value, session.config_source, session.read_only) == ("50000", 8, False)
    assert [(one.name, one.value, one.source) for one in session.synonyms] == [
        ("consumer.session.timeout.ms", "50000", 8),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]
    interval = configs["consumer.heartbeat.interval.ms"]
    assert (interval.value, interval.config_source) == ("0", 5)


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_names_every_resource(version: int) -> None:
    answer = refused(call(version), request(topic("a"), topic("b")), Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down"))
    results = over_the_wire(answer, version).results
    assert [(one.resource_name, one.error_code, one.error_message) for one in results] == [
        ("a", 56, "down"),
        ("b", 56, "down"),
    ]
