"""FindCoordinator: one key or many, each by itself, in every version."""

import pytest

from headrace.cluster.view import BrokerInfo
from headrace.handlers.call import Refusal
from headrace.handlers.find_coordinator import GROUP, SHARE, TRANSACTION, handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import FindCoordinatorRequest
from tests.unit.handlers.group_node import DOWN, LOADING, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

SINGLE_VERSIONS = range(4)
BATCH_VERSIONS = range(4, 7)
NEWEST = 6

BROKER = BrokerInfo(node_id=2, host="two", port=9092, rack="a")
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def node() -> GroupNode:
    kit = GroupNode()
    kit.groups.coordinator = BROKER
    return kit


@pytest.mark.parametrize("version", SINGLE_VERSIONS)
async def test_old_versions_find_one_key(version: int) -> None:
    kit = node()
    answer = await ask(handle, kit.node, version, FindCoordinatorRequest(key="g"))
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 2, "two", 9092)
    assert kit.groups.found == [("g", True)]


@pytest.mark.parametrize("version", BATCH_VERSIONS)
async def test_new_versions_find_many_keys(version: int) -> None:
    kit = node()
    request = FindCoordinatorRequest(coordinator_keys=["g", "", "h", "g"])
    answer = await ask(handle, kit.node, version, request)
    assert [(one.key, one.node_id, one.error_code) for one in answer.coordinators] == [
        ("g", 2, 0),
        ("", 2, 0),
        ("h", 2, 0),
        ("g", 2, 0),
    ]


@pytest.mark.parametrize("version", [1, 3])
async def test_transactions_have_coordinators_by_name(version: int) -> None:
    kit = node()
    answer = await ask(handle, kit.node, version, FindCoordinatorRequest(key="t", key_type=TRANSACTION))
    assert (answer.error_code, kit.groups.found) == (0, [("t", False)])


@pytest.mark.parametrize(
    ("key", "is_good"),
    [
        (f"g:{TOPIC_ID}:0", True),
        (f"g:{TOPIC_ID}:-1", True),
        (f"a:b\n:{TOPIC_ID}:12", True),
        (f":{TOPIC_ID}:0", False),
        ("g", False),
        ("", False),
        ("g:zz:0", False),
        (f"g:{TOPIC_ID}:x", False),
        (f"g:{TOPIC_ID}:", False),
        (f"g:{TOPIC_ID}:٣", False),
    ],
)
async def test_share_keys_are_group_topic_and_partition(key: str, is_good: bool) -> None:
    kit = node()
    request = FindCoordinatorRequest(key_type=SHARE, coordinator_keys=[key])
    (one,) = (await ask(handle, kit.node, NEWEST, request)).coordinators
    assert (one.error_code == 0) is is_good
    assert kit.groups.found == ([(key, False)] if is_good else [])
    if not is_good:
        assert (one.error_code, one.node_id, one.port) == (ErrorCode.INVALID_REQUEST, -1, -1)


@pytest.mark.parametrize(("version", "key_type"), [(1, SHARE), (1, 9), (4, SHARE), (5, SHARE), (6, 3), (6, -1)])
async def test_unknown_types_are_refused(version: int, key_type: int) -> None:
    request = FindCoordinatorRequest(key_type=key_type)
    if version >= 4:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[f"g:{TOPIC_ID}:0"])
    answer = await ask(handle, node().node, version, request)
    code = answer.coordinators[0].error_code if version >= 4 else answer.error_code
    assert code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("failure", [LOADING, DOWN])
@pytest.mark.parametrize("version", [0, 1, NEWEST])
async def test_what_may_pass_is_told_as_not_available_for_that_key_alone(version: int, failure: Exception) -> None:
    kit = node()
    kit.groups.failing_groups = {"bad": failure}
    if version < 4:
        answer = await ask(handle, kit.node, version, FindCoordinatorRequest(key="bad"))
        assert (answer.error_code, answer.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        return
    request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=["bad", "good"])
    bad, good = (await ask(handle, kit.node, version, request)).coordinators
    assert (bad.error_code, bad.error_message) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failure))
    assert good.error_code == 0


async def test_nobody_alive_is_not_available() -> None:
    kit = GroupNode()
    answer = await ask(handle, kit.node, 1, FindCoordinatorRequest(key="g"))
    assert (answer.error_code, answer.node_id, answer.host) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "")
    assert answer.error_message


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_refusal_names_every_key(version: int) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["a", "b"]) if version >= 4 else FindCoordinatorRequest(key="a")
    answer = over_the_wire(refused(call(version), request, Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "oh")), version)
    if version < 4:
        assert answer.error_code == -1
    else:
        assert [(one.key, one.error_code, one.error_message) for one in answer.coordinators] == [
            ("a", -1, "oh"),
            ("b", -1, "oh"),
        ]
