"""DescribeCluster as clients see it: every answer goes through the wire of its version."""

from typing import Any, cast

import pytest

from headrace.cluster.registration import BROKER_CODEC, BrokerRecord
from headrace.cluster.view import ClusterView
from headrace.errors import Retryable
from headrace.handlers import describe_cluster
from headrace.handlers.call import Call, refusal_of
from headrace.handlers.node import Node
from headrace.metadata import keys
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Decision, Reads
from headrace.model.error_codes import ErrorCode
from headrace.model.ids import SessionId, WriterId
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock
from headrace.wire.compiler import read_message, write_message
from headrace.wire.messages import DescribeClusterRequest, DescribeClusterResponse

VERSIONS = (0, 1, 2)
RACKS = {7: None, 3: "eu-1a"}


async def cluster() -> ClusterView:
    store = MemoryMetadata(seeded_rng(1))
    records = [
        BrokerRecord(node_id, WriterId("w"), f"host{node_id}", 9092 + node_id, rack, SessionId("s"), 0, None)
        for node_id, rack in RACKS.items()
    ]
    puts = {keys.broker(record.node_id): BROKER_CODEC.encode(record) for record in records}
    await store.transact([keys.REGISTRY], Reads(), lambda seen: Decision(result=None, puts=puts))
    view = ClusterView(store, cluster_id="Some-Cluster_Id0000000", clock=ManualClock())
    await view.refresh()
    return view


def call(version: int) -> Call:
    return Call(api_key=60, version=version, client_id=None, peer="peer", arrived_at=0.0)


def sent(version: int, message: DescribeClusterRequest) -> DescribeClusterRequest:
    return cast(
        DescribeClusterRequest,
        read_message("DescribeClusterRequest", version, write_message("DescribeClusterRequest", version, message)),
    )


def received(version: int, message: DescribeClusterResponse) -> DescribeClusterResponse:
    return cast(
        DescribeClusterResponse,
        read_message("DescribeClusterResponse", version, write_message("DescribeClusterResponse", version, message)),
    )


async def ask(version: int, **fields: Any) -> DescribeClusterResponse:
    # The handler needs the cluster only; whatever else it reached for would fail here.
    node = cast(Node, type("Parts", (), {"cluster": await cluster()})())
    request = sent(version, DescribeClusterRequest(**fields))
    return received(version, await describe_cluster.handle(node, call(version), request))


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_living_brokers_and_the_cluster_are_told(version: int) -> None:
    answer = await ask(version)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    assert answer.cluster_id == "Some-Cluster_Id0000000" and answer.controller_id == 3
    told = [(one.broker_id, one.host, one.port, one.rack, one.is_fenced) for one in answer.brokers]
    assert told == [(3, "host3", 9095, "eu-1a", False), (7, "host7", 9099, None, False)]
    assert answer.endpoint_type == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_operations_are_told_to_those_who_ask(version: int) -> None:
    assert (await ask(version)).cluster_authorized_operations == -(2**31)
    asked = await ask(version, include_cluster_authorized_operations=True)
    # What Kafka without an authorizer answers: all that can be done to a cluster.
    assert asked.cluster_authorized_operations == 8096


async def test_nobody_is_fenced_here_so_asking_for_the_fenced_adds_none() -> None:
    answer = await ask(2, include_fenced_brokers=True)
    assert [one.is_fenced for one in answer.brokers] == [False, False]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (-1, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (127, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
async def test_a_broker_describes_brokers_only(version: int, endpoint_type: int, code: ErrorCode) -> None:
    answer = await ask(version, endpoint_type=endpoint_type)
    assert answer.error_code == code and answer.error_message and answer.brokers == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failure_has_the_right_shape(version: int) -> None:
    refusal = refusal_of(Retryable("the store is away"))
    answer = received(
        version, describe_cluster.refused(call(version), sent(version, DescribeClusterRequest()), refusal)
    )
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR and answer.error_message == "the store is away"
    assert answer.brokers == [] and answer.controller_id == -1
