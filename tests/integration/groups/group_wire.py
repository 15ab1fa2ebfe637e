"""Group requests without a client library: to speak with one certain broker as one certain member.

Versions are the newest, unless a call says otherwise. Nothing is ever sent in the background, so a member of this
kind is as silent as a test wants it to be; its session timeouts are long.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.model.error_codes import ErrorCode
from headrace.model.subscriptions import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from headrace.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.integration.clients.waiting import eventually
from tests.integration.clients.wire_client import WireClient

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE = 15, 16, 42, 47
CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = 68, 69

SESSION_MS = 120_000
REBALANCE_MS = 60_000
JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2

_SUBSCRIPTION_VERSION = 1
_PASSING = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)

TopicPartitions = ConsumerGroupHeartbeatRequest.TopicPartitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A member as it shows itself: `epoch` is its generation or its member epoch."""

    group: str
    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


class GroupClient(WireClient):
    """One connection to one broker, for group requests."""

    def __enter__(self) -> "GroupClient":
        return self

    def topic_id(self, topic: str) -> bytes:
        """Return a topic's id."""
        return bytes(self.metadata(topic).topics[0].topic_id)

    def coordinator_of(self, group: str) -> int:
        """Return the node id of a group's coordinator, as this broker sees it; wait until there is one."""

        def find() -> int:
            answer = self.ask(FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=[group]))
            (found,) = answer.coordinators
            return int(found.node_id) if found.error_code == ErrorCode.NONE else 0

        return eventually(f"{group} has a coordinator", find)

    # The classic protocol

    def join(
        self, claim: Claim, metadata: bytes, *, session_ms: int = SESSION_MS, version: int = 9
    ) -> JoinGroupResponse:
        """Send JoinGroup with one protocol, `range`, and return the answer."""
        self.send_join(claim, metadata, session_ms=session_ms, version=version)
        return self.receive_join(version=version)

    def send_join(self, claim: Claim, metadata: bytes, *, session_ms: int = SESSION_MS, version: int = 9) -> None:
        """Send JoinGroup, which may have to wait for others."""
        self.send(JOIN_GROUP, version, join_request(claim, metadata, session_ms=session_ms))

    def receive_join(self, *, version: int = 9) -> JoinGroupResponse:
        """Return the answer to JoinGroup."""
        answer: JoinGroupResponse = self.receive(JOIN_GROUP, version)
        return answer

    def sync(
        self, claim: Claim, assignments: Mapping[str, bytes] | None = None, *, version: int = 5
    ) -> SyncGroupResponse:
        """Send SyncGroup; only the leader brings assignments."""
        request = SyncGroupRequest(
            group_id=claim.group,
            generation_id=claim.epoch,
            member_id=claim.member_id,
            group_instance_id=claim.instance_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
        )
        answer: SyncGroupResponse = self.ask(SYNC_GROUP, version, request)
        return answer

    def beat(self, claim: Claim, *, version: int = 4) -> ErrorCode:
        """Send Heartbeat."""
        return ErrorCode(self.ask(HEARTBEAT, version, beat_request(claim)).error_code)

    def leave(self, claim: Claim, *, version: int = 5) -> ErrorCode:
        """Send LeaveGroup for one member."""
        if version < 3:
            alone = LeaveGroupRequest(group_id=claim.group, member_id=claim.member_id)
            return ErrorCode(self.ask(LEAVE_GROUP, version, alone).error_code)
        member = LeaveGroupRequest.MemberIdentity(member_id=claim.member_id, group_instance_id=claim.instance_id)
        answer = self.ask(LEAVE_GROUP, version, LeaveGroupRequest(group_id=claim.group, members=[member]))
        return ErrorCode(answer.error_code or answer.members[0].error_code)

    def become_only_member(self, group: str, topic: str, partitions: int) -> Claim:
        """Join an empty group and assign everything to ourselves; return the member that we are then."""
        metadata = subscription_to(topic)
        asked = self.join(Claim(group=group), metadata)
        assert asked.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = self.join(Claim(group=group, member_id=asked.member_id), metadata)
        assert joined.error_code == ErrorCode.NONE and joined.leader == joined.member_id
        claim = Claim(group=group, member_id=joined.member_id, epoch=joined.generation_id)
        synced = self.sync(claim, {claim.member_id: assignment_of(topic, partitions)})
        assert synced.error_code == ErrorCode.NONE
        assert assigned_partitions(synced.assignment, topic) == list(range(partitions))
        return claim

    # KIP-848

    def consumer_beat(
        self,
        claim: Claim,
        *,
        topics: list[str] | None = None,
        owned: Mapping[bytes, list[int]] | None = None,
        version: int = 1,
    ) -> ConsumerGroupHeartbeatResponse:
        """Send ConsumerGroupHeartbeat; who joins names topics."""
        request = consumer_beat_request(claim, topics=topics, owned=owned)
        answer: ConsumerGroupHeartbeatResponse = self.ask(CONSUMER_HEARTBEAT, version, request)
        return answer

    def become_consumer(self, group: str, topic: str, partitions: int) -> Claim:
        """Join an empty group of the newer protocol; return the member that we are when we own all partitions."""
        claim = Claim(group=group, member_id=str(uuid.uuid4()), epoch=JOINING_EPOCH)
        answer = self.consumer_beat(claim, topics=[topic], owned={})
        assert answer.error_code == ErrorCode.NONE, answer
        assert answer.assignment is not None
        ((topic_id, numbers),) = [
            (bytes(part.topic_id), list(part.partitions)) for part in answer.assignment.topic_partitions
        ]
        assert (topic_id, numbers) == (self.topic_id(topic), list(range(partitions)))
        claim = Claim(group=group, member_id=claim.member_id, epoch=answer.member_epoch)
        assert self.consumer_beat(claim, owned={topic_id: numbers}).error_code == ErrorCode.NONE
        return claim

    # Offsets

    def commit(
        self, claim: Claim, topic: str, offsets: Mapping[int, int], *, metadata: str | None = None, version: int = 9
    ) -> dict[int, ErrorCode]:
        """Send OffsetCommit for partitions of one topic."""
        answer = self.ask(OFFSET_COMMIT, version, commit_request(claim, topic, offsets, metadata=metadata))
        return {part.partition_index: ErrorCode(part.error_code) for part in answer.topics[0].partitions}

    def committed(self, group: str, topic: str, *partitions: int) -> dict[int, int]:
        """Return committed offsets as this broker tells them; wait while it has yet to load the group."""

        def fetch() -> dict[int, int]:
            wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=list(partitions))
            asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[wanted])
            (found,) = self.ask(OFFSET_FETCH, 8, OffsetFetchRequest(groups=[asked])).groups
            if found.error_code in _PASSING:
                return {}
            assert found.error_code == ErrorCode.NONE
            return {part.partition_index: part.committed_offset for part in found.topics[0].partitions}

        return eventually(f"offsets of {group}", fetch)

    # What admin clients ask

    def described(self, group: str, *, version: int = 6) -> DescribeGroupsResponse.DescribedGroup:
        """Send DescribeGroups for one group."""
        answer: DescribeGroupsResponse = self.ask(DESCRIBE_GROUPS, version, DescribeGroupsRequest(groups=[group]))
        return answer.groups[0]

    def consumer_described(self, group: str, *, version: int = 1) -> ConsumerGroupDescribeResponse.DescribedGroup:
        """Send ConsumerGroupDescribe for one group."""
        request = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
        answer: ConsumerGroupDescribeResponse = self.ask(CONSUMER_DESCRIBE, version, request)
        return answer.groups[0]

    def listed(
        self, *, states: list[str] | None = None, types: list[str] | None = None, version: int = 5
    ) -> dict[str, ListGroupsResponse.ListedGroup]:
        """Send ListGroups; return what is listed by its name."""
        request = ListGroupsRequest(states_filter=states or [], types_filter=types or [])
        answer: ListGroupsResponse = self.ask(LIST_GROUPS, version, request)
        assert answer.error_code == ErrorCode.NONE
        return {one.group_id: one for one in answer.groups}


def is_passing(code: ErrorCode) -> bool:
    """Say whether a client that hears this looks for the coordinator again."""
    return code in _PASSING


def join_request(claim: Claim, metadata: bytes, *, session_ms: int = SESSION_MS) -> JoinGroupRequest:
    """Return a JoinGroup with one protocol, `range`."""
    return JoinGroupRequest(
        group_id=claim.group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=REBALANCE_MS,
        member_id=claim.member_id,
        group_instance_id=claim.instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


def beat_request(claim: Claim) -> HeartbeatRequest:
    """Return a Heartbeat of the classic protocol."""
    return HeartbeatRequest(
        group_id=claim.group,
        generation_id=claim.epoch,
        member_id=claim.member_id,
        group_instance_id=claim.instance_id,
    )


def consumer_beat_request(
    claim: Claim, *, topics: list[str] | None = None, owned: Mapping[bytes, list[int]] | None = None
) -> ConsumerGroupHeartbeatRequest:
    """Return a heartbeat of KIP-848."""
    return ConsumerGroupHeartbeatRequest(
        group_id=claim.group,
        member_id=claim.member_id,
        member_epoch=claim.epoch,
        instance_id=claim.instance_id,
        rebalance_timeout_ms=REBALANCE_MS if claim.epoch == JOINING_EPOCH else -1,
        subscribed_topic_names=topics,
        topic_partitions=None
        if owned is None
        else [TopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in owned.items()],
    )


def commit_request(
    claim: Claim, topic: str, offsets: Mapping[int, int], *, metadata: str | None = None, topic_id: bytes = bytes(16)
) -> OffsetCommitRequest:
    """Return an OffsetCommit for partitions of one topic."""
    parts = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        for partition, offset in offsets.items()
    ]
    return OffsetCommitRequest(
        group_id=claim.group,
        generation_id_or_member_epoch=claim.epoch,
        member_id=claim.member_id,
        group_instance_id=claim.instance_id,
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=parts)],
    )


def subscription_to(*topics: str) -> bytes:
    """Return what a classic member says of its topics."""
    return encode_subscription(Subscription(topics=topics), _SUBSCRIPTION_VERSION)


def assignment_of(topic: str, partitions: int) -> bytes:
    """Return an assignment of all partitions of a topic."""
    return encode_assignment(Assignment(partitions=((topic, tuple(range(partitions))),)), _SUBSCRIPTION_VERSION)


def assigned_partitions(assignment: bytes | bytearray | memoryview, topic: str) -> list[int]:
    """Return the partitions of a topic in an assignment."""
    return [
        number
        for name, numbers in decode_assignment(bytes(assignment)).partitions
        if name == topic
        for number in numbers
    ]
