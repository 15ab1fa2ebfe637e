"""IncrementalAlterConfigs: set, unset, add to and take away from."""

import pytest

from headrace.handlers.call import Refusal
from headrace.handlers.config_resources import ResourceType
from headrace.handlers.incremental_alter_configs import Operation, handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import IncrementalAlterConfigsRequest
from tests.unit.handlers.admin_node import AdminNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(2)
NEWEST = 1

Change = tuple[str, int, str | None]


def request(*resources: tuple[int, str, list[Change]], validate_only: bool = False) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=number,
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(
                        name=config, config_operation=operation, value=value
                    )
                    for config, operation, value in changes
                ],
            )
            for number, name, changes in resources
        ],
        validate_only=validate_only,
    )


def topic(name: str, *changes: Change) -> tuple[int, str, list[Change]]:
    return ResourceType.TOPIC, name, list(changes)


async def prepared() -> AdminNode:
    kit = AdminNode()
    await kit.create("a", "b")
    await kit.admin.set_configs("a", {"retention.ms": "5", "flush.ms": "6"})
    return kit


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_not_named_stays(version: int) -> None:
    kit = await prepared()
    asked = request(topic("a", ("flush.ms", Operation.DELETE, None), ("segment.ms", Operation.SET, "9")))
    answer = await ask(handle, kit.node, version, asked)
    assert [
        (one.resource_type, one.resource_name, one.error_code, one.error_message) for one in answer.responses
    ] == [(2, "a", 0, None)]
    assert kit.topic("a").overrides == {"retention.ms": "5", "segment.ms": "9"}


async def test_list_is_added_to_and_taken_away_from() -> None:
    kit = await prepared()
    for operation, elements, after in (
        (Operation.APPEND, "compact", "delete,compact"),
        (Operation.APPEND, "compact", "delete,compact"),
        (Operation.SUBTRACT, "delete", "compact"),
        (Operation.SUBTRACT, "compact", ""),
    ):
        asked = request(topic("b", ("cleanup.policy", operation, elements)))
        answer = await ask(handle, kit.node, NEWEST, asked)
        assert (answer.responses[0].error_code, kit.topic("b").overrides) == (0, {"cleanup.policy": after})


async def test_list_is_added_to_as_another_broker_left_it() -> None:
    kit = await prepared()
    other = kit.elsewhere()
    await other.admin.set_configs("b", {"leader.replication.throttled.replicas": "0:1"})
    change = ("leader.replication.throttled.replicas", Operation.APPEND, "1:1")
    await ask(handle, kit.node, NEWEST, request(topic("b", change)))
    assert kit.topic("b").overrides == {"leader.replication.throttled.replicas": "0:1,1:1"}


async def test_unsetting_what_was_never_set_is_no_error() -> None:
    kit = await prepared()
    changes = [("segment.ms", Operation.DELETE, None), ("no.such", Operation.DELETE, "any")]
    answer = await ask(handle, kit.node, NEWEST, request(topic("b", *changes)))
    assert (answer.responses[0].error_code, kit.topic("b").overrides) == (0, {})


async def test_validation_changes_nothing() -> None:
    kit = await prepared()
    asked = request(topic("b", ("cleanup.policy", Operation.APPEND, "compact")), validate_only=True)
    answer = await ask(handle, kit.node, NEWEST, asked)
    await kit.directory.refresh()
    assert (answer.responses[0].error_code, kit.topic("b").overrides) == (0, {})


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        (topic("a", ("no.such", Operation.SET, "1")), ErrorCode.INVALID_CONFIG),
        (topic("a", ("no.such", Operation.APPEND, "1")), ErrorCode.INVALID_CONFIG),
        (topic("a", ("retention.ms", Operation.APPEND, "1")), ErrorCode.INVALID_CONFIG),
        (topic("a", ("cleanup.policy", Operation.APPEND, "burn")), ErrorCode.INVALID_CONFIG),
        (topic("a", ("flush.ms", 0, "1"), ("retention.ms", 0, "-7")), ErrorCode.INVALID_CONFIG),
        (topic("a", ("min.compaction.lag.ms", 0, "9"), ("max.compaction.lag.ms", 0, "8")), ErrorCode.INVALID_CONFIG),
        (topic("a", ("flush.ms", Operation.SET, None)), ErrorCode.INVALID_REQUEST),
        (topic("a", ("cleanup.policy", Operation.APPEND, None)), ErrorCode.INVALID_REQUEST),
        (topic("a", ("flush.ms", 9, "1")), ErrorCode.INVALID_REQUEST),
        (topic("a", ("flush.ms", 0, "1"), ("flush.ms", 1, None)), ErrorCode.INVALID_REQUEST),
        (topic("nope", ("flush.ms", 0, "1")), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (topic("nope", ("cleanup.policy", Operation.APPEND, "compact")), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (topic("..", ("cleanup.policy", Operation.APPEND, "compact")), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a/b", ("flush.ms", 0, "1")), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ((ResourceType.BROKER, "1", [("node.id", 0, "2")]), ErrorCode.INVALID_REQUEST),
        ((ResourceType.BROKER, "1", [("no.such", 0, "2")]), ErrorCode.INVALID_REQUEST),
        ((ResourceType.BROKER, "1", [("num.partitions", 0, "x")]), ErrorCode.INVALID_REQUEST),
        ((ResourceType.BROKER, "1", [("num.partitions", 0, None)]), ErrorCode.INVALID_REQUEST),
        ((ResourceType.BROKER, "1", [("num.partitions", 2, "1")]), ErrorCode.INVALID_CONFIG),
        ((ResourceType.BROKER, "1", [("num.partitions", 9, "1")]), ErrorCode.INVALID_REQUEST),
        ((ResourceType.BROKER, "2", [("num.partitions", 0, "2")]), ErrorCode.INVALID_REQUEST),
        ((ResourceType.BROKER, "", [("log.dirs", 0, "x")]), ErrorCode.INVALID_REQUEST),
        ((ResourceType.BROKER_LOGGER, "1", [("root", 0, "INFO")]), ErrorCode.INVALID_REQUEST),
        ((ResourceType.CLIENT_METRICS, "m", [("interval.ms", 0, "100")]), ErrorCode.INVALID_REQUEST),
        ((ResourceType.GROUP, "g", [("a", 0, "b")]), ErrorCode.INVALID_CONFIG),
        ((ResourceType.GROUP, "g", [("consumer.session.timeout.ms", 0, "1")]), ErrorCode.INVALID_CONFIG),
        ((ResourceType.GROUP, "g", [("consumer.session.timeout.ms", 2, "1")]), ErrorCode.INVALID_CONFIG),
        ((ResourceType.GROUP, "g", [("consumer.session.timeout.ms", 3, "1")]), ErrorCode.INVALID_CONFIG),
        ((ResourceType.GROUP, "g", [("consumer.session.timeout.ms", 0, None)]), ErrorCode.INVALID_REQUEST),
        ((ResourceType.GROUP, "g", [("consumer.session.timeout.ms", 9, "1")]), ErrorCode.INVALID_REQUEST),
        ((ResourceType.GROUP, "", [("consumer.session.timeout.ms", 0, "50000")]), ErrorCode.INVALID_REQUEST),
        ((77, "x", []), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_each_resource_is_refused_by_itself_and_left_as_it_was(
    resource: tuple[int, str, list[Change]], code: ErrorCode
) -> None:
    kit = await prepared()
    asked = request(resource, topic("b", ("flush.ms", Operation.SET, "1")))
    bad, good = (await ask(handle, kit.node, NEWEST, asked)).responses
    assert (bad.resource_type, bad.resource_name, bad.error_code) == (*resource[:2], code)
    assert bad.error_message
    assert good.error_code == 0
    assert kit.topic("a").overrides == {"retention.ms": "5", "flush.ms": "6"}
    assert kit.topic("b").overrides == {"flush.ms": "1"}


@pytest.mark.parametrize("version", VERSIONS)
async def test_configs_of_a_group_are_set_and_unset(version: int) -> None:
    kit = await prepared()
    group = ResourceType.GROUP
    steps: list[tuple[list[Change], dict[str, str]]] = [
        (
            [("consumer.session.timeout.ms", 0, "50000"), ("consumer.heartbeat.interval.ms", 0, "700")],
            {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "700"},
        ),
        (
            [("consumer.session.timeout.ms", 1, None), ("no.such", 1, None)],
            {"consumer.heartbeat.interval.ms": "700"},
        ),
        ([("consumer.heartbeat.interval.ms", 1, "any")], {}),
    ]
    for changes, after in steps:
        (one,) = (await ask(handle, kit.node, version, request((group, "g", changes)))).responses
        assert (one.resource_type, one.resource_name, one.error_code) == (group, "g", 0)
        assert kit.group_configs.overrides("g") == after


async def test_validation_leaves_a_group_as_it_was() -> None:
    kit = await prepared()
    change = ("consumer.session.timeout.ms", Operation.SET, "50000")
    asked = request((ResourceType.GROUP, "g", [change]), validate_only=True)
    (one,) = (await ask(handle, kit.node, NEWEST, asked)).responses
    assert (one.error_code, kit.group_configs.known()) == (0, [])


async def test_resource_that_is_named_twice_is_refused_twice() -> None:
    kit = await prepared()
    change = ("flush.ms", Operation.SET, "1")
    answer = await ask(handle, kit.node, NEWEST, request(topic("a", change), topic("a", change), topic("b", change)))
    assert [one.error_code for one in answer.responses] == [42, 42, 0]


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_names_every_resource(version: int) -> None:
    answer = refused(call(version), request(topic("a"), topic("b")), Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down"))
    responses = over_the_wire(answer, version).responses
    assert [(one.resource_name, one.error_code, one.error_message) for one in responses] == [
        ("a", 56, "down"),
        ("b", 56, "down"),
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_configs_of_brokers_are_set_unset_and_edited(version: int) -> None:
    kit = await prepared()

    async def alter(name: str, *changes: Change, validate_only: bool = False) -> int:
        asked = request((ResourceType.BROKER, name, list(changes)), validate_only=validate_only)
        (one,) = (await ask(handle, kit.node, version, asked)).responses
        return int(one.error_code)

    assert await alter("", ("num.partitions", Operation.SET, "4"), ("log.retention.ms", Operation.SET, "9000")) == 0
    assert await alter("1", ("num.partitions", Operation.SET, "6"), validate_only=True) == 0
    assert (kit.broker_configs.for_all["num.partitions"], kit.broker_configs.own) == ("4", {})
    assert await alter("", ("num.partitions", Operation.DELETE, None), ("no.such", Operation.DELETE, None)) == 0
    assert kit.broker_configs.for_all == {"log.retention.ms": "9000"}
    # Another broker adds to the list, and this one adds to what that has left.
    await kit.another_broker_configs(2).set({"log.cleanup.policy": "compact"}, for_all=True)
    assert await alter("", ("log.cleanup.policy", Operation.APPEND, "delete")) == 0
    assert kit.broker_configs.for_all["log.cleanup.policy"] == "compact,delete"
    assert await alter("1", ("log.cleanup.policy", Operation.SUBTRACT, "compact")) == 0
    assert kit.broker_configs.own == {"log.cleanup.policy": "delete"}
