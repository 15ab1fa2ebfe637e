"""Every version of every group API is served, as old and as new clients send it."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import (
    ApiVersionsRequest,
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from tests.integration.clients.librdkafka import create_topic
from tests.integration.groups.group_wire import (
    CONSUMER_DESCRIBE,
    CONSUMER_HEARTBEAT,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    JOINING_EPOCH,
    LEAVE_GROUP,
    LEAVING_EPOCH,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC_GROUP,
    Claim,
    GroupClient,
    assigned_partitions,
    assignment_of,
    commit_request,
    subscription_to,
)

NewName = Callable[[str], str]

TOPIC = f"versions-{uuid.uuid4().hex[:8]}"
PARTITIONS = 3
NO_ID = bytes(16)

VERSIONS = {
    OFFSET_COMMIT: (0, 10),
    OFFSET_FETCH: (1, 10),
    FIND_COORDINATOR: (0, 6),
    JOIN_GROUP: (0, 9),
    HEARTBEAT: (0, 4),
    LEAVE_GROUP: (0, 5),
    SYNC_GROUP: (0, 5),
    DESCRIBE_GROUPS: (0, 6),
    LIST_GROUPS: (0, 5),
    DELETE_GROUPS: (0, 2),
    OFFSET_DELETE: (0, 0),
    CONSUMER_HEARTBEAT: (0, 1),
    CONSUMER_DESCRIBE: (0, 1),
}


def versions_of(api_key: int) -> pytest.MarkDecorator:
    first, last = VERSIONS[api_key]
    return pytest.mark.parametrize("version", range(first, last + 1))


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def topic_id(bootstrap: str) -> bytes:
    create_topic(bootstrap, TOPIC, PARTITIONS)
    with GroupClient(int(bootstrap.rpartition(":")[2])) as client:
        return client.topic_id(TOPIC)


@pytest.fixture
def client(port: int, topic_id: bytes) -> Iterator[GroupClient]:
    with GroupClient(port) as connected:
        yield connected


@pytest.fixture
def group(new_name: NewName) -> str:
    return new_name("group")


def test_all_of_them_are_told_to_clients(client: GroupClient) -> None:
    answer = client.ask(18, 3, ApiVersionsRequest(client_software_name="test", client_software_version="1"))
    told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert {api_key: told.get(api_key) for api_key in VERSIONS} == VERSIONS


@versions_of(FIND_COORDINATOR)
def test_find_coordinator(client: GroupClient, port: int, group: str, version: int) -> None:
    node_id = client.metadata().brokers[0].node_id
    if version < 4:
        answer = client.ask(FIND_COORDINATOR, version, FindCoordinatorRequest(key=group))
        assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, node_id, "127.0.0.1", port)
        return
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group, f"{group}-too"])
    answer = client.ask(FIND_COORDINATOR, version, request)
    assert [one.key for one in answer.coordinators] == [group, f"{group}-too"]
    for one in answer.coordinators:
        assert (one.error_code, one.node_id, one.host, one.port) == (0, node_id, "127.0.0.1", port)


@versions_of(JOIN_GROUP)
def test_join_group(client: GroupClient, group: str, version: int) -> None:
    metadata = subscription_to(TOPIC)
    claim = Claim(group=group)
    joined = client.join(claim, metadata, version=version)
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED and joined.member_id
        joined = client.join(Claim(group=group, member_id=joined.member_id), metadata, version=version)
    assert joined.error_code == ErrorCode.NONE
    assert (joined.generation_id, joined.protocol_name) == (1, "range")
    assert joined.leader == joined.member_id and joined.member_id.startswith("wire-")
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    (member,) = joined.members
    assert (member.member_id, bytes(member.metadata)) == (joined.member_id, metadata)
    assert client.leave(Claim(group=group, member_id=joined.member_id)) == ErrorCode.NONE


@pytest.mark.parametrize("version", range(5, 10))
def test_join_group_with_an_instance_id(client: GroupClient, group: str, version: int) -> None:
    claim = Claim(group=group, instance_id="one")
    joined = client.join(claim, subscription_to(TOPIC), version=version)
    assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 1)
    assert joined.members[0].group_instance_id == "one"
    assert client.leave(claim, version=3) == ErrorCode.NONE, "an instance id is enough to leave"


@versions_of(SYNC_GROUP)
def test_sync_group(client: GroupClient, group: str, version: int) -> None:
    joined = client.join(Claim(group=group), subscription_to(TOPIC), version=3)
    claim = Claim(group=group, member_id=joined.member_id, epoch=joined.generation_id)
    synced = client.sync(claim, {claim.member_id: assignment_of(TOPIC, PARTITIONS)}, version=version)
    assert synced.error_code == ErrorCode.NONE
    assert assigned_partitions(synced.assignment, TOPIC) == [0, 1, 2]
    assert (synced.protocol_type, synced.protocol_name) == (("consumer", "range") if version >= 5 else (None, None))
    again = client.sync(claim, version=version)
    assert bytes(again.assignment) == bytes(synced.assignment), "whoever has missed the answer asks again"


@versions_of(HEARTBEAT)
def test_heartbeat(client: GroupClient, group: str, version: int) -> None:
    claim = client.become_only_member(group, TOPIC, PARTITIONS)
    assert client.beat(claim, version=version) == ErrorCode.NONE


@versions_of(LEAVE_GROUP)
def test_leave_group(client: GroupClient, group: str, version: int) -> None:
    claim = client.become_only_member(group, TOPIC, PARTITIONS)
    assert client.leave(claim, version=version) == ErrorCode.NONE
    assert client.beat(claim) == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.described(group).group_state == "Empty"


@versions_of(OFFSET_COMMIT)
def test_offset_commit(client: GroupClient, topic_id: bytes, group: str, version: int) -> None:
    request = commit_request(Claim(group=group), TOPIC, {0: 7, 2: 9}, metadata="note", topic_id=topic_id)
    answer = client.ask(OFFSET_COMMIT, version, request)
    (topic,) = answer.topics
    assert (topic.name, topic.topic_id) == ((TOPIC, NO_ID) if version < 10 else ("", topic_id))
    assert [(part.partition_index, part.error_code) for part in topic.partitions] == [(0, 0), (2, 0)]
    assert client.committed(group, TOPIC, 0, 1, 2) == {0: 7, 1: -1, 2: 9}


@versions_of(OFFSET_COMMIT)
def test_offset_commit_of_a_member(client: GroupClient, topic_id: bytes, group: str, version: int) -> None:
    claim = client.become_only_member(group, TOPIC, PARTITIONS)
    answer = client.ask(OFFSET_COMMIT, version, commit_request(claim, TOPIC, {1: 3}, topic_id=topic_id))
    # Version 0 cannot say who commits, and a group with members takes nothing from strangers.
    expected = ErrorCode.NONE if version > 0 else ErrorCode.UNKNOWN_MEMBER_ID
    assert answer.topics[0].partitions[0].error_code == expected


@versions_of(OFFSET_FETCH)
def test_offset_fetch(client: GroupClient, topic_id: bytes, group: str, version: int) -> None:
    assert set(client.commit(Claim(group=group), TOPIC, {0: 5}, metadata="note").values()) == {ErrorCode.NONE}
    wanted = [0, 1]
    if version < 8:
        topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=wanted)]
        answer = client.ask(OFFSET_FETCH, version, OffsetFetchRequest(group_id=group, topics=topics))
        assert answer.error_code == ErrorCode.NONE
        found = answer.topics
    else:
        asked = OffsetFetchRequest.OffsetFetchRequestTopics(name=TOPIC, topic_id=topic_id, partition_indexes=wanted)
        groups = [
            OffsetFetchRequest.OffsetFetchRequestGroup(group_id=one, topics=[asked])
            for one in (group, f"{group}-unknown")
        ]
        answer = client.ask(OFFSET_FETCH, version, OffsetFetchRequest(groups=groups, require_stable=True))
        assert [(one.group_id, one.error_code) for one in answer.groups] == [(group, 0), (f"{group}-unknown", 0)]
        unknown = answer.groups[1].topics[0].partitions
        assert [(part.committed_offset, part.error_code) for part in unknown] == [(-1, 0), (-1, 0)]
        found = answer.groups[0].topics
        assert (found[0].name, found[0].topic_id) == ((TOPIC, NO_ID) if version < 10 else ("", topic_id))
    (topic,) = found
    rows = [
        (part.partition_index, part.committed_offset, part.metadata, part.error_code) for part in topic.partitions
    ]
    assert rows == [(0, 5, "note", 0), (1, -1, "", 0)]


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_fetch_of_all_topics(client: GroupClient, topic_id: bytes, group: str, version: int) -> None:
    assert set(client.commit(Claim(group=group), TOPIC, {0: 5, 2: 6}).values()) == {ErrorCode.NONE}
    if version < 8:
        (topic,) = client.ask(OFFSET_FETCH, version, OffsetFetchRequest(group_id=group, topics=None)).topics
    else:
        asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
        (found,) = client.ask(OFFSET_FETCH, version, OffsetFetchRequest(groups=[asked])).groups
        (topic,) = found.topics
    assert topic.topic_id == topic_id if version >= 10 else topic.name == TOPIC
    assert {part.partition_index: part.committed_offset for part in topic.partitions} == {0: 5, 2: 6}


@versions_of(OFFSET_DELETE)
def test_offset_delete(client: GroupClient, group: str, version: int) -> None:
    client.commit(Claim(group=group), TOPIC, {0: 5, 1: 6})
    parts = [OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=one) for one in (0, 2, PARTITIONS)]
    topics = [OffsetDeleteRequest.OffsetDeleteRequestTopic(name=TOPIC, partitions=parts)]
    answer = client.ask(OFFSET_DELETE, version, OffsetDeleteRequest(group_id=group, topics=topics))
    assert answer.error_code == ErrorCode.NONE
    codes = {part.partition_index: part.error_code for part in answer.topics[0].partitions}
    assert codes == {0: ErrorCode.NONE, 2: ErrorCode.NONE, PARTITIONS: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert client.committed(group, TOPIC, 0, 1) == {0: -1, 1: 6}


@versions_of(DESCRIBE_GROUPS)
def test_describe_groups(client: GroupClient, group: str, version: int) -> None:
    claim = client.become_only_member(group, TOPIC, PARTITIONS)
    found = client.described(group, version=version)
    assert (found.error_code, found.group_id, found.group_state) == (ErrorCode.NONE, group, "Stable")
    assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
    (member,) = found.members
    assert (member.member_id, member.client_id, member.client_host) == (claim.member_id, "wire", "/127.0.0.1")
    assert bytes(member.member_metadata) == subscription_to(TOPIC)
    assert assigned_partitions(member.member_assignment, TOPIC) == [0, 1, 2]
    unknown = client.described(f"{group}-unknown", version=version)
    code = ErrorCode.NONE if version < 6 else ErrorCode.GROUP_ID_NOT_FOUND
    assert (unknown.error_code, unknown.group_state, unknown.members) == (code, "Dead", [])


@versions_of(LIST_GROUPS)
def test_list_groups(client: GroupClient, group: str, version: int) -> None:
    client.become_only_member(group, TOPIC, PARTITIONS)
    found = client.listed(version=version)[group]
    assert found.protocol_type == "consumer"
    assert found.group_state == ("Stable" if version >= 4 else "")
    assert found.group_type == ("classic" if version >= 5 else "")


@versions_of(DELETE_GROUPS)
def test_delete_groups(client: GroupClient, group: str, version: int) -> None:
    client.commit(Claim(group=group), TOPIC, {0: 5})
    held = f"{group}-held"
    client.become_only_member(held, TOPIC, PARTITIONS)
    names = [group, held, f"{group}-unknown"]
    answer = client.ask(DELETE_GROUPS, version, DeleteGroupsRequest(groups_names=names))
    codes = {one.group_id: one.error_code for one in answer.results}
    expected = [ErrorCode.NONE, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    assert codes == dict(zip(names, expected, strict=True))
    assert client.committed(group, TOPIC, 0) == {0: -1}


@versions_of(CONSUMER_HEARTBEAT)
def test_consumer_group_heartbeat(client: GroupClient, topic_id: bytes, group: str, version: int) -> None:
    own_id = "" if version == 0 else str(uuid.uuid4())
    joined = client.consumer_beat(
        Claim(group=group, member_id=own_id, epoch=JOINING_EPOCH), topics=[TOPIC], owned={}, version=version
    )
    assert joined.error_code == ErrorCode.NONE, joined.error_message
    assert joined.member_id and joined.member_id == (own_id or joined.member_id)
    assert joined.member_epoch > 0 and joined.heartbeat_interval_ms > 0 and joined.assignment is not None
    (part,) = joined.assignment.topic_partitions
    assert (part.topic_id, sorted(part.partitions)) == (topic_id, [0, 1, 2])
    claim = Claim(group=group, member_id=joined.member_id, epoch=joined.member_epoch)
    told = client.consumer_beat(claim, owned={topic_id: [0, 1, 2]}, version=version)
    assert (told.error_code, told.member_epoch) == (ErrorCode.NONE, joined.member_epoch)
    left = client.consumer_beat(Claim(group=group, member_id=claim.member_id, epoch=LEAVING_EPOCH), version=version)
    assert (left.error_code, left.member_epoch) == (ErrorCode.NONE, LEAVING_EPOCH)
    assert client.consumer_beat(claim, version=version).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@versions_of(CONSUMER_DESCRIBE)
def test_consumer_group_describe(client: GroupClient, topic_id: bytes, group: str, version: int) -> None:
    claim = client.become_consumer(group, TOPIC, PARTITIONS)
    found = client.consumer_described(group, version=version)
    assert (found.error_code, found.group_id, found.group_state) == (ErrorCode.NONE, group, "Stable")
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (claim.epoch, claim.epoch, "uniform")
    (member,) = found.members
    assert (member.member_id, member.member_epoch, member.client_id) == (claim.member_id, claim.epoch, "wire")
    assert member.subscribed_topic_names == [TOPIC] and member.member_type == (1 if version >= 1 else -1)
    for told in (member.assignment, member.target_assignment):
        (part,) = told.topic_partitions
        assert (part.topic_id, part.topic_name, sorted(part.partitions)) == (topic_id, TOPIC, [0, 1, 2])
    unknown = client.consumer_described(f"{group}-unknown", version=version)
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
