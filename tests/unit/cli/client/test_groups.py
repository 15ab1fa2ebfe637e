"""What librdkafka's answers about groups become: the answers are played, and no cluster is needed."""

import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Node,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConsumerGroupDescription,
    ConsumerGroupListing,
    ListConsumerGroupsResult,
    ListOffsetsResultInfo,
    MemberAssignment,
    MemberDescription,
    OffsetSpec,
)

from headrace.cli.client import groups as client_groups
from headrace.cli.client.groups import GroupAdmin
from headrace.cli.client.link import Refused
from headrace.cli.group_details import GroupDetails, GroupState, GroupType, MemberDetails, PartitionLag
from headrace.cli.offset_reset import PartitionSurvey
from headrace.cli.options import Connection
from headrace.errors import Missing, OutcomeUnknown, Retryable

CONNECTION = Connection(bootstrap="unused", timeout_seconds=1.0, properties={})


def _answered(answer: object) -> "Future[Any]":
    """Return what the library returns: an answer, or an error as an exception around it."""
    future: Future[Any] = Future()
    if isinstance(answer, KafkaError):
        future.set_exception(KafkaException(answer))
    else:
        future.set_result(answer)
    return future


class PlayedClient:
    """An `AdminClient` whose cluster is written down: groups, what they committed, and topics of two partitions."""

    def __init__(self) -> None:
        self.listed: ListConsumerGroupsResult = ListConsumerGroupsResult(valid=[], errors=[])
        self.names: set[str] = set()
        self.groups: dict[str, object] = {}
        self.committed: dict[str, list[TopicPartition] | KafkaError] = {}
        self.topics: dict[str, object] = {}
        self.offsets: dict[tuple[str, int], Mapping[int, int] | KafkaError] = {}
        self.altered: object = None
        self.asked: list[TopicPartition] = []
        self.deleted: dict[str, object] = {}

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> object:
        return SimpleNamespace(topics={})

    def poll(self, timeout: float = -1) -> int:
        return 0

    def list_consumer_groups(self, **_: object) -> "Future[Any]":
        return _answered(self.listed)

    def list_groups(self, group: str | None = None, timeout: float = -1) -> list[object]:
        warnings.warn("list_groups() is deprecated", DeprecationWarning, stacklevel=2)
        return [SimpleNamespace(id=name) for name in self.names if group in (None, name)]

    def describe_consumer_groups(self, names: Sequence[str], **_: object) -> dict[str, "Future[Any]"]:
        return {name: _answered(self.groups.get(name, _dead(name))) for name in names}

    def delete_consumer_groups(self, names: Sequence[str], **_: object) -> dict[str, "Future[Any]"]:
        return {name: _answered(self.deleted.get(name)) for name in names}

    def list_consumer_group_offsets(
        self, requests: Sequence[ConsumerGroupTopicPartitions], **_: object
    ) -> dict[str, "Future[Any]"]:
        [request] = requests
        found = self.committed.get(request.group_id, [])
        answer = found if isinstance(found, KafkaError) else ConsumerGroupTopicPartitions(request.group_id, found)
        return {request.group_id: _answered(answer)}

    def alter_consumer_group_offsets(
        self, requests: Sequence[ConsumerGroupTopicPartitions], **_: object
    ) -> dict[str, "Future[Any]"]:
        [request] = requests
        self.asked = request.topic_partitions or []
        return {request.group_id: _answered(self.altered)}

    def describe_topics(self, topics: Any, **_: object) -> dict[str, "Future[Any]"]:
        two = SimpleNamespace(partitions=[SimpleNamespace(id=1), SimpleNamespace(id=0)])
        return {name: _answered(self.topics.get(name, two)) for name in topics.topic_names}

    def list_offsets(
        self, asked: Mapping[TopicPartition, OffsetSpec], **_: object
    ) -> dict[TopicPartition, "Future[Any]"]:
        return {place: _answered(self._offset(place, spec)) for place, spec in asked.items()}

    def _offset(self, place: TopicPartition, spec: OffsetSpec) -> object:
        found = self.offsets[(place.topic, place.partition)]
        return found if isinstance(found, KafkaError) else ListOffsetsResultInfo(found[spec._value], -1, -1)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> PlayedClient:
    played = PlayedClient()
    monkeypatch.setattr(client_groups, "AdminClient", lambda _: played)
    return played


@pytest.fixture
def admin(client: PlayedClient) -> GroupAdmin:
    return GroupAdmin(CONNECTION)


def _bounds(earliest: int, latest: int, **at: int) -> dict[int, int]:
    return {-2: earliest, -1: latest, **{int(moment.removeprefix("ms")): offset for moment, offset in at.items()}}


def _group(
    name: str,
    state: ConsumerGroupState = ConsumerGroupState.EMPTY,
    type_: ConsumerGroupType = ConsumerGroupType.CLASSIC,
    members: Sequence[MemberDescription] = (),
    assignor: str = "",
) -> ConsumerGroupDescription:
    return ConsumerGroupDescription(
        group_id=name,
        is_simple_consumer_group=False,
        members=list(members),
        partition_assignor=assignor,
        state=state,
        coordinator=Node(7, "h", 9092),
        type=type_,
    )


def _dead(name: str) -> ConsumerGroupDescription:
    return _group(name, ConsumerGroupState.DEAD)


def _committed_at(topic: str, partition: int, offset: int) -> TopicPartition:
    return TopicPartition(topic, partition, offset)


@pytest.mark.parametrize(
    ("state", "type_", "expected"),
    [
        (ConsumerGroupState.STABLE, ConsumerGroupType.CLASSIC, (GroupType.CLASSIC, GroupState.STABLE)),
        (ConsumerGroupState.EMPTY, ConsumerGroupType.CONSUMER, (GroupType.CONSUMER, GroupState.EMPTY)),
        (
            ConsumerGroupState.PREPARING_REBALANCING,
            ConsumerGroupType.CLASSIC,
            (GroupType.CLASSIC, GroupState.PREPARING_REBALANCE),
        ),
        # Assigning and reconciling.
        (ConsumerGroupState.UNKNOWN, ConsumerGroupType.CONSUMER, (GroupType.CONSUMER, GroupState.REBALANCING)),
        # A broker that tells neither.
        (ConsumerGroupState.UNKNOWN, ConsumerGroupType.UNKNOWN, (GroupType.CLASSIC, GroupState.UNKNOWN)),
    ],
)
def test_states_and_types_have_our_names(
    admin: GroupAdmin,
    client: PlayedClient,
    state: ConsumerGroupState,
    type_: ConsumerGroupType,
    expected: tuple[GroupType, GroupState],
) -> None:
    client.listed = ListConsumerGroupsResult(
        valid=[ConsumerGroupListing("g", False, state=state, type=type_)], errors=[]
    )
    client.names = {"g"}
    [found] = admin.find().groups
    assert (found.type, found.state) == expected


def test_groups_of_other_kinds_are_found_by_name_and_silent_brokers_are_told(
    admin: GroupAdmin, client: PlayedClient
) -> None:
    known = ConsumerGroupListing("m", False, state=ConsumerGroupState.EMPTY, type=ConsumerGroupType.CLASSIC)
    # Announced as exceptions, and answered as bare errors: both are taken.
    errors: list[Any] = [KafkaError(KafkaError._TIMED_OUT), KafkaException(KafkaError(KafkaError._TRANSPORT))]
    client.listed = ListConsumerGroupsResult(valid=[known], errors=errors)
    client.names = {"z-share", "m", "a-share"}
    found = admin.find()
    assert [(group.name, group.type) for group in found.groups] == [
        ("a-share", GroupType.OTHER),
        ("m", GroupType.CLASSIC),
        ("z-share", GroupType.OTHER),
    ]
    assert [type(failure) for failure in found.failures] == [Retryable, Retryable]


def test_a_description_joins_members_commits_and_the_ends_of_partitions(
    admin: GroupAdmin, client: PlayedClient
) -> None:
    member = MemberDescription(
        member_id="m-1",
        client_id="c",
        host="/10.0.0.7",
        assignment=MemberAssignment([TopicPartition("t", 1), TopicPartition("t", 0)]),
        group_instance_id="i",
        target_assignment=MemberAssignment([TopicPartition("t", 0)]),
    )
    client.groups["g"] = _group(
        "g", ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER, members=[member], assignor="uniform"
    )
    client.committed["g"] = [_committed_at("t", 0, 4), _committed_at("old", 0, 9), _committed_at("t", 1, -1001)]
    client.offsets = {
        ("t", 0): _bounds(0, 10),
        ("t", 1): _bounds(0, 3),
        ("old", 0): KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART),
    }
    assert admin.describe(["g"]) == {
        "g": GroupDetails(
            name="g",
            type=GroupType.CONSUMER,
            state=GroupState.STABLE,
            assignor="uniform",
            coordinator=7,
            coordinator_address="h:9092",
            members=(
                MemberDetails(
                    member_id="m-1",
                    instance_id="i",
                    client_id="c",
                    host="10.0.0.7",
                    assigned=(("t", 0), ("t", 1)),
                    target=(("t", 0),),
                ),
            ),
            partitions=(
                PartitionLag(topic="old", partition=0, committed_offset=9, latest_offset=None, owner=None),
                PartitionLag(topic="t", partition=0, committed_offset=4, latest_offset=10, owner="m-1"),
                PartitionLag(topic="t", partition=1, committed_offset=None, latest_offset=3, owner="m-1"),
            ),
        )
    }


def test_each_group_is_described_or_says_why_not(admin: GroupAdmin, client: PlayedClient) -> None:
    client.groups = {
        "empty": _group("empty"),
        "hidden": _group("hidden"),
        "said-so": KafkaError(KafkaError.GROUP_ID_NOT_FOUND),
        "forbidden": KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED),
    }
    client.committed["hidden"] = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    client.names = {"empty", "share"}
    answers = admin.describe(["empty", "hidden", "dead", "said-so", "share", "forbidden"])
    assert [type(answer) for answer in answers.values()] == [
        GroupDetails,
        Refused,
        Missing,
        Missing,
        Refused,
        Refused,
    ]
    assert str(answers["dead"]) == "there is no group dead: `headrace group list` shows what there is"
    assert str(answers["share"]).startswith("share is no consumer group")


def test_each_group_is_deleted_or_says_why_not(admin: GroupAdmin, client: PlayedClient) -> None:
    client.deleted = {
        "busy": KafkaError(KafkaError.NON_EMPTY_GROUP),
        "nope": KafkaError(KafkaError.GROUP_ID_NOT_FOUND),
        "lost": KafkaError(KafkaError._TIMED_OUT),
    }
    failures = admin.delete(["idle", "busy", "nope", "lost"])
    assert [type(failure) for failure in failures.values()] == [type(None), Refused, Missing, OutcomeUnknown]
    assert "stop them first" in str(failures["busy"]) and "headrace group describe busy" in str(failures["busy"])


def test_only_a_group_without_members_may_be_reset(admin: GroupAdmin, client: PlayedClient) -> None:
    client.names = {"share"}
    client.groups = {
        "empty": _group("empty", type_=ConsumerGroupType.CONSUMER),
        "busy": _group("busy", ConsumerGroupState.STABLE),
        "moving": _group("moving", ConsumerGroupState.UNKNOWN, ConsumerGroupType.CONSUMER),
    }
    assert admin.require_empty("empty") and not admin.require_empty("new")
    for name in ("busy", "moving"):
        with pytest.raises(Refused, match=f"cannot reset the offsets of group {name}: it has members; stop them"):
            admin.require_empty(name)
    with pytest.raises(Refused, match="share is no consumer group"):
        admin.require_empty("share")


def test_a_survey_holds_what_was_committed_and_what_partitions_hold(admin: GroupAdmin, client: PlayedClient) -> None:
    client.committed["g"] = [_committed_at("t", 1, 5), _committed_at("gone", 0, 5)]
    client.topics["gone"] = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    client.offsets = {("t", 0): _bounds(2, 8, ms77=4), ("t", 1): _bounds(3, 9, ms77=-1), ("u", 1): _bounds(6, 0)}
    first = PartitionSurvey(topic="t", partition=0, committed_offset=None, start_offset=2, end_offset=8, offset_at=4)
    second = PartitionSurvey(topic="t", partition=1, committed_offset=5, start_offset=3, end_offset=9)
    assert admin.survey("g", None, 77) == [first, second]
    assert admin.survey("g", {"t": {1}}, None) == [second]
    # Created anew between the two questions.
    [third] = admin.survey("g", {"u": {1}}, None)
    assert (third.start_offset, third.end_offset) == (6, 6)


def test_a_survey_fails_as_a_whole_where_anything_cannot_be_found(admin: GroupAdmin, client: PlayedClient) -> None:
    client.committed["g"] = [_committed_at("gone", 0, 5)]
    client.topics = {
        "gone": KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART),
        "secret": KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED),
    }
    client.offsets = {("t", 0): _bounds(0, 1), ("t", 1): KafkaError(KafkaError.LEADER_NOT_AVAILABLE)}
    with pytest.raises(Missing, match="group new has committed no offsets"):
        admin.survey("new", None, None)
    with pytest.raises(Missing, match="all topics that group g has committed in are gone"):
        admin.survey("g", None, None)
    with pytest.raises(Missing, match="there is no topic gone"):
        admin.survey("g", {"t": None, "gone": None}, None)
    with pytest.raises(Missing, match="topic t has no partition 5"):
        admin.survey("g", {"t": {5}}, None)
    with pytest.raises(Refused, match="cannot describe topic secret"):
        admin.survey("g", {"secret": None}, None)
    with pytest.raises(Refused, match=r"cannot look up the offsets of t \[1\]"):
        admin.survey("g", {"t": None}, None)


def test_a_commit_answers_for_each_partition(admin: GroupAdmin, client: PlayedClient) -> None:
    # The constructor takes no error: the library sets it from within.
    joined: Any = SimpleNamespace(topic="t", partition=1, error=KafkaError(KafkaError.UNKNOWN_MEMBER_ID))
    client.altered = ConsumerGroupTopicPartitions("g", [TopicPartition("t", 0, 3), joined])
    failures = admin.commit("g", {("t", 0): 3, ("t", 1): 4})
    assert [(place.topic, place.partition, place.offset) for place in client.asked] == [("t", 0, 3), ("t", 1, 4)]
    assert failures[("t", 0)] is None and isinstance(failures[("t", 1)], Refused)
    assert "cannot reset group g in t [1]: it has members" in str(failures[("t", 1)])

    client.altered = ConsumerGroupTopicPartitions("g", [TopicPartition("t", 0, 3)])
    failures = admin.commit("g", {("t", 0): 3, ("t", 1): 4})
    assert failures[("t", 0)] is None and isinstance(failures[("t", 1)], OutcomeUnknown)

    client.altered = KafkaError(KafkaError._TIMED_OUT)
    failures = admin.commit("g", {("t", 0): 3, ("t", 1): 4})
    assert isinstance(failures[("t", 0)], OutcomeUnknown) and failures[("t", 0)] is failures[("t", 1)]
    client.asked = []
    assert admin.commit("g", {}) == {} and client.asked == []
