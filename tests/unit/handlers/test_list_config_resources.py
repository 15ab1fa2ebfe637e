"""ListConfigResources: topics, brokers and groups that have configs, and nothing that does not exist."""

import pytest

from headrace.handlers.call import Refusal, Refused
from headrace.handlers.config_resources import ResourceType
from headrace.handlers.list_config_resources import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import ListConfigResourcesRequest
from tests.unit.handlers.admin_node import AdminNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

TOPICS = [("a", ResourceType.TOPIC), ("b", ResourceType.TOPIC)]
BROKERS = [(node, ResourceType.BROKER) for node in "123"]
LOGGERS = [(node, ResourceType.BROKER_LOGGER) for node in "123"]
GROUPS = [("g", ResourceType.GROUP), ("h", ResourceType.GROUP)]


async def listed(version: int, *types: int) -> list[tuple[str, int]]:
    kit = AdminNode()
    await kit.elsewhere().create("b", "a")
    for group in ("h", "g"):
        await kit.another_group_configs().set(group, {"consumer.session.timeout.ms": "50000"})
    answer = await ask(handle, kit.node, version, ListConfigResourcesRequest(resource_types=list(types)))
    assert answer.error_code == 0
    return [(one.resource_name, one.resource_type) for one in answer.config_resources]


async def test_oldest_version_lists_client_metrics_of_which_there_are_none() -> None:
    assert await listed(0) == []


async def test_no_type_asks_for_all() -> None:
    assert await listed(1) == TOPICS + BROKERS + LOGGERS + GROUPS


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([ResourceType.TOPIC], TOPICS),
        ([ResourceType.BROKER, ResourceType.TOPIC, ResourceType.BROKER], BROKERS + TOPICS),
        ([ResourceType.BROKER_LOGGER], LOGGERS),
        ([ResourceType.CLIENT_METRICS], []),
        ([ResourceType.GROUP], GROUPS),
    ],
)
async def test_each_type_is_listed_once(types: list[int], expected: list[tuple[str, int]]) -> None:
    assert await listed(1, *types) == expected


async def test_unknown_type_refuses_the_list() -> None:
    with pytest.raises(Refused) as refusal:
        await listed(1, ResourceType.TOPIC, 77)
    assert refusal.value.refusal.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", [0, 1])
def test_refusal_is_one_code(version: int) -> None:
    answer = refused(call(version), ListConfigResourcesRequest(), Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down"))
    assert over_the_wire(answer, version).error_code == 56
