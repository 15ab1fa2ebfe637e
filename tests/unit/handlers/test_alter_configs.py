"""AlterConfigs: replaces all configs of a topic or of a group, or none."""

import pytest

from headrace.handlers.alter_configs import handle, refused
from headrace.handlers.call import Refusal
from headrace.handlers.config_resources import ResourceType
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import AlterConfigsRequest
from tests.unit.handlers.admin_node import AdminNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(3)
NEWEST = 2


def request(
    *resources: tuple[int, str, list[tuple[str, str | None]]], validate_only: bool = False
) -> AlterConfigsRequest:
    return AlterConfigsRequest(
        resources=[
            AlterConfigsRequest.AlterConfigsResource(
                resource_type=number,
                resource_name=name,
                configs=[AlterConfigsRequest.AlterableConfig(name=config, value=value) for config, value in configs],
            )
            for number, name, configs in resources
        ],
        validate_only=validate_only,
    )


async def prepared() -> AdminNode:
    kit = AdminNode()
    await kit.create("a", "b")
    await kit.admin.set_configs("a", {"retention.ms": "5", "flush.ms": "6"})
    return kit


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_not_named_goes_back_to_default(version: int) -> None:
    kit = await prepared()
    asked = request((ResourceType.TOPIC, "a", [("flush.ms", "9")]), (ResourceType.TOPIC, "b", []))
    answer = await ask(handle, kit.node, version, asked)
    assert [
        (one.resource_type, one.resource_name, one.error_code, one.error_message) for one in answer.responses
    ] == [
        (2, "a", 0, None),
        (2, "b", 0, None),
    ]
    assert kit.topic("a").overrides == {"flush.ms": "9"}


async def test_validation_changes_nothing_but_says_what_is_wrong() -> None:
    kit = await prepared()
    asked = request(
        (ResourceType.TOPIC, "a", [("flush.ms", "9")]),
        (ResourceType.TOPIC, "b", [("flush.ms", "x")]),
        validate_only=True,
    )
    answer = await ask(handle, kit.node, NEWEST, asked)
    assert [one.error_code for one in answer.responses] == [0, ErrorCode.INVALID_CONFIG]
    await kit.directory.refresh()
    assert kit.topic("a").overrides == {"retention.ms": "5", "flush.ms": "6"}


@pytest.mark.parametrize(
    ("number", "name", "configs", "code"),
    [
        (ResourceType.TOPIC, "a", [("no.such", "1")], ErrorCode.INVALID_CONFIG),
        (ResourceType.TOPIC, "a", [("flush.ms", "1"), ("retention.ms", "-7")], ErrorCode.INVALID_CONFIG),
        (ResourceType.TOPIC, "a", [("flush.ms", None)], ErrorCode.INVALID_REQUEST),
        (ResourceType.TOPIC, "a", [("flush.ms", "1"), ("flush.ms", "2")], ErrorCode.INVALID_REQUEST),
        (ResourceType.TOPIC, "nope", [], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ResourceType.TOPIC, "a/b", [], ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ResourceType.TOPIC, "", [], ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ResourceType.BROKER, "1", [("num.partitions", "2"), ("node.id", "2")], ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "1", [("num.partitions", "many")], ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "1", [("no.such", "1")], ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "1", [("num.partitions", None)], ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "", [("node.id", "2")], ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "2", [], ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "one", [], ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER_LOGGER, "1", [], ErrorCode.INVALID_REQUEST),
        (ResourceType.CLIENT_METRICS, "m", [], ErrorCode.INVALID_REQUEST),
        (ResourceType.GROUP, "", [], ErrorCode.INVALID_REQUEST),
        (ResourceType.GROUP, "g", [("flush.ms", "1")], ErrorCode.INVALID_CONFIG),
        (ResourceType.GROUP, "g", [("share.session.timeout.ms", "45000")], ErrorCode.INVALID_CONFIG),
        (ResourceType.GROUP, "g", [("consumer.session.timeout.ms", "soon")], ErrorCode.INVALID_CONFIG),
        (ResourceType.GROUP, "g", [("consumer.session.timeout.ms", None)], ErrorCode.INVALID_REQUEST),
        (1, "a", [], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_each_resource_is_refused_by_itself_and_left_as_it_was(
    number: int, name: str, configs: list[tuple[str, str | None]], code: ErrorCode
) -> None:
    kit = await prepared()
    asked = request((number, name, configs), (ResourceType.TOPIC, "b", [("flush.ms", "1")]))
    bad, good = (await ask(handle, kit.node, NEWEST, asked)).responses
    assert (bad.resource_type, bad.resource_name, bad.error_code) == (number, name, code)
    assert bad.error_message
    assert good.error_code == 0
    assert kit.topic("a").overrides == {"retention.ms": "5", "flush.ms": "6"}
    assert kit.topic("b").overrides == {"flush.ms": "1"}
    assert (kit.broker_configs.own, kit.broker_configs.for_all) == ({}, {})


@pytest.mark.parametrize("version", VERSIONS)
async def test_broker_and_all_brokers_are_left_with_what_is_named(version: int) -> None:
    kit = await prepared()
    for for_all in (True, False):
        await kit.broker_configs.set({"num.partitions": "5"}, for_all=for_all)
    asked = request(
        (ResourceType.BROKER, "", [("message.max.bytes", "2000")]),
        (ResourceType.BROKER, "1", [("log.retention.ms", "5000")]),
    )
    assert [one.error_code for one in (await ask(handle, kit.node, version, asked)).responses] == [0, 0]
    assert kit.broker_configs.for_all == {"message.max.bytes": "2000"}
    assert kit.broker_configs.own == {"log.retention.ms": "5000"}
    other = kit.another_broker_configs(2)
    await other.refresh()
    assert (other.for_all, other.own) == ({"message.max.bytes": "2000"}, {})


@pytest.mark.parametrize("version", VERSIONS)
async def test_group_is_left_with_what_is_named(version: int) -> None:
    kit = await prepared()
    await kit.group_configs.set("g", {"consumer.session.timeout.ms": "50000"})
    asked = request((ResourceType.GROUP, "g", [("consumer.heartbeat.interval.ms", "700")]))
    (one,) = (await ask(handle, kit.node, version, asked)).responses
    assert (one.resource_type, one.resource_name, one.error_code) == (ResourceType.GROUP, "g", 0)
    assert kit.group_configs.overrides("g") == {"consumer.heartbeat.interval.ms": "700"}
    await ask(handle, kit.node, version, request((ResourceType.GROUP, "g", [])))
    assert kit.group_configs.known() == []


async def test_topic_that_is_named_twice_is_refused_twice() -> None:
    kit = await prepared()
    asked = request((ResourceType.TOPIC, "a", []), (ResourceType.TOPIC, "a", []), (ResourceType.TOPIC, "b", []))
    answer = await ask(handle, kit.node, NEWEST, asked)
    assert [one.error_code for one in answer.responses] == [42, 42, 0]
    assert kit.topic("a").overrides == {"retention.ms": "5", "flush.ms": "6"}


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_names_every_resource(version: int) -> None:
    asked = request((ResourceType.TOPIC, "a", []), (ResourceType.BROKER, "1", []))
    answer = over_the_wire(refused(call(version), asked, Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down")), version)
    assert [(one.resource_type, one.resource_name, one.error_code) for one in answer.responses] == [
        (2, "a", 56),
        (4, "1", 56),
    ]
