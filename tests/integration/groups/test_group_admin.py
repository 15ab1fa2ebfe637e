"""What operators see of groups and do with them, through librdkafka's admin client."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its package exports them without saying so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import OffsetDeleteRequest
from tests.integration.clients.librdkafka import admin, create_topic
from tests.integration.clients.messages import CALL_LIMIT_SECONDS
from tests.integration.clients.waiting import eventually
from tests.integration.groups.group_wire import OFFSET_DELETE, Claim, GroupClient
from tests.integration.groups.team import CONSUMER, COOPERATIVE, RANGE, Kind, Team

NewName = Callable[[str], str]

KINDS = {ConsumerGroupType.CLASSIC: RANGE, ConsumerGroupType.CONSUMER: CONSUMER}
EITHER_KIND = pytest.mark.parametrize("kind", [RANGE, CONSUMER], ids=lambda kind: kind.name)

HEARTBEAT = "consumer.heartbeat.interval.ms"
SESSION = "consumer.session.timeout.ms"


@pytest.fixture(scope="module")
def operator(bootstrap: str) -> AdminClient:
    return admin(bootstrap)


@pytest.fixture
def client(port: int) -> Iterator[GroupClient]:
    with GroupClient(port) as connected:
        yield connected


def listed(operator: AdminClient, **filters: Any) -> dict[str, tuple[ConsumerGroupType, ConsumerGroupState]]:
    """Return groups with type and state."""
    found = operator.list_consumer_groups(request_timeout=CALL_LIMIT_SECONDS, **filters).result(CALL_LIMIT_SECONDS)
    assert found.errors == []
    return {one.group_id: (one.type, one.state) for one in found.valid}


def delete(operator: AdminClient, group: str) -> None:
    """Delete a group, or raise what was answered."""
    operator.delete_consumer_groups([group], request_timeout=CALL_LIMIT_SECONDS)[group].result(CALL_LIMIT_SECONDS)


def alter(operator: AdminClient, group: str, *parts: TopicPartition) -> list[KafkaError | None]:
    """Set offsets of a group; return what was answered for each partition."""
    asked = operator.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, list(parts))])
    return [part.error for part in asked[group].result(CALL_LIMIT_SECONDS).topic_partitions]


def refusal(call: Callable[[], object]) -> int:
    """Return the code that a call is refused with."""
    with pytest.raises(KafkaException) as refused:
        call()
    return int(refused.value.args[0].code())


def test_groups_are_listed_by_state_and_by_type(bootstrap: str, new_name: NewName, operator: AdminClient) -> None:
    names = {kind: new_name(kind.name) for kind in ConsumerGroupType if kind in KINDS}
    with (
        Team(bootstrap, names[ConsumerGroupType.CLASSIC]) as classic,
        Team(bootstrap, names[ConsumerGroupType.CONSUMER]) as consumer,
    ):
        teams = {ConsumerGroupType.CLASSIC: classic, ConsumerGroupType.CONSUMER: consumer}
        for kind, team in teams.items():
            team.join("only", KINDS[kind])
            team.wait_for_shares(6)
            team.send_and_read()
            team.wait_until_stable()
            assert listed(operator)[team.group] == (kind, ConsumerGroupState.STABLE)
        for kind, team in teams.items():
            ours = set(names.values())
            assert set(listed(operator, types={kind})) & ours == {team.group}
            assert set(listed(operator, states={ConsumerGroupState.STABLE})) >= ours
            assert not set(listed(operator, states={ConsumerGroupState.EMPTY})) & ours
        classic.leave_all()
        stable, empty = {ConsumerGroupState.STABLE}, {ConsumerGroupState.EMPTY}
        eventually("the classic group is empty", lambda: classic.group in listed(operator, states=empty))
        assert classic.group not in listed(operator, states=stable)
        assert consumer.group not in listed(operator, states=empty, types={ConsumerGroupType.CONSUMER})
        assert consumer.group in listed(operator, states=stable, types={ConsumerGroupType.CONSUMER})


@pytest.mark.parametrize("kind", [RANGE, COOPERATIVE, CONSUMER], ids=lambda kind: kind.name)
def test_a_group_is_described_with_its_members_and_what_they_have(
    bootstrap: str, new_name: NewName, operator: AdminClient, kind: Kind
) -> None:
    with Team(bootstrap, new_name("described")) as team:
        first, second = team.join("first", kind), team.join("second", kind, instance_id="static")
        team.wait_for_shares(3, 3)
        team.send_and_read()
        found = team.wait_until_stable()
        assert found.group_id == team.group and found.is_simple_consumer_group is False
        assert found.type == (ConsumerGroupType.CONSUMER if kind is CONSUMER else ConsumerGroupType.CLASSIC)
        assert found.partition_assignor == kind.more.get("partition.assignment.strategy", "uniform")
        assert f"{found.coordinator.host}:{found.coordinator.port}" == bootstrap
        told = {
            member.client_id: (
                member.member_id,
                member.group_instance_id,
                {(part.topic, part.partition) for part in member.assignment.topic_partitions},
            )
            for member in found.members
        }
        assert told == {
            "first": (first.member_id, None, first.owned),
            "second": (second.member_id, "static", second.owned),
        }
        assert all(member.host.endswith("127.0.0.1") for member in found.members)


def test_a_group_that_nobody_knows_is_told_as_such(new_name: NewName, operator: AdminClient) -> None:
    unknown = new_name("unknown")
    assert refusal(lambda: delete(operator, unknown)) == KafkaError.GROUP_ID_NOT_FOUND
    assert unknown not in listed(operator)


@EITHER_KIND
def test_a_group_with_members_is_safe_from_operators_and_goes_when_it_is_empty(
    bootstrap: str, new_name: NewName, operator: AdminClient, kind: Kind
) -> None:
    with Team(bootstrap, new_name("deleted")) as team:
        team.join("only", kind)
        team.wait_for_shares(6)
        team.send_and_read()
        team.wait_until_committed()
        assert refusal(lambda: delete(operator, team.group)) == KafkaError.NON_EMPTY_GROUP
        (error,) = alter(operator, team.group, TopicPartition(team.group, 0, 3))
        assert error is not None and error.code() == KafkaError.UNKNOWN_MEMBER_ID
        assert team.committed() == team.sent
        team.send_and_read()
        team.leave_all()
        assert alter(operator, team.group, TopicPartition(team.group, 0, 3)) == [None]
        assert team.committed() == {**team.sent, (team.group, 0): 3}
        delete(operator, team.group)
        assert team.group not in listed(operator) and team.committed() == {}
        assert refusal(lambda: delete(operator, team.group)) == KafkaError.GROUP_ID_NOT_FOUND


@EITHER_KIND
def test_offsets_are_forgotten_unless_a_member_reads_their_topic(
    bootstrap: str, new_name: NewName, client: GroupClient, operator: AdminClient, kind: Kind
) -> None:
    def forget(group: str, topic: str) -> tuple[int, list[int]]:
        part = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
        topics = [OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=[part])]
        answer = client.ask(OFFSET_DELETE, 0, OffsetDeleteRequest(group_id=group, topics=topics))
        return answer.error_code, [one.error_code for topic in answer.topics for one in topic.partitions]

    with Team(bootstrap, new_name("forgotten")) as team:
        other = f"{team.group}-other"
        create_topic(bootstrap, other)
        assert forget(team.group, other) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        assert alter(operator, team.group, TopicPartition(other, 0, 5)) == [None]
        team.join("only", kind)
        team.send_and_read()
        team.wait_until_committed()
        assert forget(team.group, team.group) == (ErrorCode.NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
        assert forget(team.group, other) == (ErrorCode.NONE, [ErrorCode.NONE])
        assert team.committed() == team.sent
        team.leave_all()
        assert forget(team.group, team.group) == (ErrorCode.NONE, [ErrorCode.NONE])
        assert set(team.sent) - set(team.committed()) == {(team.group, 0)}


def test_a_group_has_configs_of_its_own_and_its_members_keep_to_them(
    bootstrap: str, new_name: NewName, client: GroupClient, operator: AdminClient
) -> None:
    group = new_name("configured")
    create_topic(bootstrap, group)

    def configs() -> dict[str, ConfigEntry]:
        resource = ConfigResource(ResourceType.GROUP, group)
        found: dict[str, ConfigEntry] = operator.describe_configs([resource])[resource].result(CALL_LIMIT_SECONDS)
        return found

    def change(operation: AlterConfigOpType, name: str, value: str | None) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
        operator.incremental_alter_configs([resource])[resource].result(CALL_LIMIT_SECONDS)

    claim = client.become_consumer(group, group, 1)
    before = configs()
    assert ConfigSource(before[HEARTBEAT].source) != ConfigSource.GROUP_CONFIG
    assert refusal(lambda: change(AlterConfigOpType.SET, HEARTBEAT, "many")) == KafkaError.INVALID_CONFIG
    assert refusal(lambda: change(AlterConfigOpType.SET, "no.such.config", "1")) == KafkaError.INVALID_CONFIG
    assert configs()[HEARTBEAT].value == before[HEARTBEAT].value

    change(AlterConfigOpType.SET, HEARTBEAT, "12345")
    change(AlterConfigOpType.SET, SESSION, "50000")
    told = configs()
    assert {name: told[name].value for name in (HEARTBEAT, SESSION)} == {HEARTBEAT: "12345", SESSION: "50000"}
    assert ConfigSource(told[HEARTBEAT].source) == ConfigSource.GROUP_CONFIG
    eventually("members are told", lambda: client.consumer_beat(claim).heartbeat_interval_ms == 12345)

    change(AlterConfigOpType.DELETE, HEARTBEAT, None)
    assert configs()[HEARTBEAT].value == before[HEARTBEAT].value
    eventually("members are told", lambda: client.consumer_beat(claim).heartbeat_interval_ms != 12345)
    assert client.consumer_beat(Claim(group=group, member_id=claim.member_id, epoch=-1)).error_code == ErrorCode.NONE
