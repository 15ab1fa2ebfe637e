"""Requests of tools that move replicas, elect leaders or ask for a quorum: answered in their own shape, as no-ops."""

from typing import Any

import pytest

from headrace.handlers import (
    alter_partition_reassignments,
    alter_replica_log_dirs,
    describe_quorum,
    elect_leaders,
    list_partition_reassignments,
    update_features,
)
from headrace.handlers.call import Refusal
from headrace.handlers.describe_log_dirs import LOG_DIR
from headrace.handlers.table import TABLE
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    UpdateFeaturesRequest,
)
from tests.unit.handlers.topic_node import TopicNode, ask, call

NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
async def kit() -> TopicNode:
    kit = TopicNode()
    await kit.create("a", partitions=2)
    return kit


@pytest.mark.parametrize("version", range(3))
async def test_every_partition_hears_that_no_election_is_needed(kit: TopicNode, version: int) -> None:
    asked = ElectLeadersRequest(
        topic_partitions=[
            ElectLeadersRequest.TopicPartitions(topic="a", partitions=[0, 1, 2, -1]),
            ElectLeadersRequest.TopicPartitions(topic="nobody", partitions=[0]),
        ]
    )
    answer = await ask(elect_leaders.handle, kit.node, version, asked)
    needless = ErrorCode.ELECTION_NOT_NEEDED
    assert [
        (one.topic, [(each.partition_id, each.error_code) for each in one.partition_result])
        for one in answer.replica_election_results
    ] == [("a", [(0, needless), (1, needless), (2, UNKNOWN), (-1, UNKNOWN)]), ("nobody", [(0, UNKNOWN)])]
    assert answer.error_code == NONE


async def test_election_of_all_partitions_has_nothing_to_report(kit: TopicNode) -> None:
    answer = await ask(elect_leaders.handle, kit.node, 2, ElectLeadersRequest(topic_partitions=None))
    assert (answer.error_code, answer.replica_election_results) == (NONE, [])


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ([1], NONE),
        ([3, 2], NONE),
        ([9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
async def test_partitions_may_be_moved_to_living_brokers_without_effect(
    kit: TopicNode, version: int, replicas: list[int] | None, code: ErrorCode
) -> None:
    partition = AlterPartitionReassignmentsRequest.ReassignablePartition
    asked = AlterPartitionReassignmentsRequest(
        topics=[
            AlterPartitionReassignmentsRequest.ReassignableTopic(
                name="a",
                partitions=[
                    partition(partition_index=1, replicas=replicas),
                    partition(partition_index=7, replicas=[1]),
                ],
            )
        ]
    )
    answer = await ask(alter_partition_reassignments.handle, kit.node, version, asked)
    (topic,) = answer.responses
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(1, code), (7, UNKNOWN)]
    listed = await ask(
        list_partition_reassignments.handle, kit.node, 0, ListPartitionReassignmentsRequest(topics=None)
    )
    assert (listed.error_code, listed.topics) == (NONE, [])


@pytest.mark.parametrize("version", range(3))
async def test_quorum_is_said_not_to_exist(kit: TopicNode, version: int) -> None:
    answer = await ask(describe_quorum.handle, kit.node, version, DescribeQuorumRequest())
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert version < 2 or "metadata store" in answer.error_message


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(
    ("feature", "level", "code"),
    [
        ("group.version", 1, NONE),
        ("group.version", 0, ErrorCode.INVALID_UPDATE_VERSION),
        ("metadata.version", 20, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
async def test_features_stay_as_they_are(
    kit: TopicNode, version: int, feature: str, level: int, code: ErrorCode
) -> None:
    update = UpdateFeaturesRequest.FeatureUpdateKey(feature=feature, max_version_level=level)
    answer = await ask(update_features.handle, kit.node, version, UpdateFeaturesRequest(feature_updates=[update]))
    if version < update_features.FIRST_WITHOUT_RESULTS:
        assert [(one.feature, one.error_code) for one in answer.results] == [(feature, code)]
    else:
        assert answer.error_code == code


@pytest.mark.parametrize("version", [1, 2])
async def test_partitions_are_in_the_one_directory_already(kit: TopicNode, version: int) -> None:
    topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic
    asked = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=LOG_DIR, topics=[topic(name="a", partitions=[0, 5])]),
            AlterReplicaLogDirsRequest.AlterReplicaLogDir(path="/tmp/x", topics=[topic(name="a", partitions=[1])]),
        ]
    )
    answer = await ask(alter_replica_log_dirs.handle, kit.node, version, asked)
    (result,) = answer.results
    assert [(each.partition_index, each.error_code) for each in result.partitions] == [
        (0, NONE),
        (5, UNKNOWN),
        (1, ErrorCode.LOG_DIR_NOT_FOUND),
    ]


REQUESTS: dict[int, Any] = {
    34: AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                path="x", topics=[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name="a", partitions=[3])]
            )
        ]
    ),
    43: ElectLeadersRequest(
        topic_partitions=[ElectLeadersRequest.TopicPartitions(topic="a", partitions=[3])],
    ),
    45: AlterPartitionReassignmentsRequest(
        topics=[
            AlterPartitionReassignmentsRequest.ReassignableTopic(
                name="a",
                partitions=[AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=3, replicas=[])],
            )
        ]
    ),
    46: ListPartitionReassignmentsRequest(topics=None),
    55: DescribeQuorumRequest(),
    57: UpdateFeaturesRequest(),
}


@pytest.mark.parametrize("key", REQUESTS)
async def test_refusal_names_everything_that_was_asked_for(key: int) -> None:
    api = TABLE[key]
    answer = api.refused(call(api.last_version), REQUESTS[key], Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "away"))
    assert f"error_code={ErrorCode.KAFKA_STORAGE_ERROR.value}" in repr(answer).replace(
        repr(ErrorCode.KAFKA_STORAGE_ERROR), str(ErrorCode.KAFKA_STORAGE_ERROR.value)
    )
