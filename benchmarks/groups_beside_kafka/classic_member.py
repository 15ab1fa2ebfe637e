"""A member that speaks the classic protocol: join, sync, heartbeat; eager, with the range assignor.

It does what the Java client does with callbacks that take no time. When a heartbeat tells of a rebalance it gives up
everything at once and joins again; the leader computes the ranges. The first heartbeat follows the assignment by an
interval, each other one the heartbeat before.
"""

from typing import Any

from benchmarks.groups_beside_kafka.actions import (
    NOTHING,
    REBALANCE_TIMEOUT_MS,
    Action,
    Ask,
    Ended,
    Patience,
    Rest,
    unexpected,
)
from benchmarks.groups_beside_kafka.consumer_protocol import (
    assign_range,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    Message,
    SyncGroupRequest,
    SyncGroupResponse,
)

JOIN_KEY, JOIN_VERSION = 11, 9
HEARTBEAT_KEY, HEARTBEAT_VERSION = 12, 4
LEAVE_KEY, LEAVE_VERSION = 13, 5
SYNC_KEY, SYNC_VERSION = 14, 5

SESSION_TIMEOUT_MS = 45_000
PROTOCOL_TYPE = "consumer"
ASSIGNOR = "range"
NO_GENERATION = -1

_LOST_GENERATION = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)


class ClassicMember:
    """The state machine. What is asked next follows from `_request_key`, the API whose turn it is."""

    def __init__(self, *, group_id: str, topic: str, partitions: int, heartbeat_seconds: float) -> None:
        self.member_id = ""
        self.owned: frozenset[int] = NOTHING
        self.fenced = 0
        self._group_id = group_id
        self._topic = topic
        self._partitions = partitions
        self._heartbeat_seconds = heartbeat_seconds
        self._generation = NO_GENERATION
        self._shares: dict[str, range] = {}
        self._request_key = JOIN_KEY
        self._due_at_s = 0.0
        self._sent_at_s = 0.0
        self._patience = Patience()
        self._is_leaving = False
        self._has_ended = False

    @property
    def epoch(self) -> int:
        return self._generation

    def leave(self) -> None:
        self._is_leaving = True

    def next_action(self, now_s: float) -> Action:
        """Return what to do now."""
        if self._has_ended:
            return Ended()
        if (delay := self._patience.delay(now_s)) is not None:
            return delay
        if self._is_leaving:
            # What it owned goes before the request does: somebody else may have it before the answer arrives.
            self.owned = NOTHING
            return Ask(api_key=LEAVE_KEY, version=LEAVE_VERSION, request=self._farewell())
        if self._request_key == JOIN_KEY:
            return Ask(api_key=JOIN_KEY, version=JOIN_VERSION, request=self._join())
        if self._request_key == SYNC_KEY:
            return Ask(api_key=SYNC_KEY, version=SYNC_VERSION, request=self._sync())
        if now_s < self._due_at_s:
            return Rest(until_s=self._due_at_s)
        self._sent_at_s = now_s
        return Ask(api_key=HEARTBEAT_KEY, version=HEARTBEAT_VERSION, request=self._heartbeat())

    def handle(self, response: Any, now_s: float) -> None:
        """Take the answer to whatever was asked last."""
        if isinstance(response, LeaveGroupResponse):
            self._has_ended = not self._patience.takes(response.error_code, now_s)
        elif self._patience.takes(response.error_code, now_s):
            return
        elif isinstance(response, JoinGroupResponse):
            self._handle_join(response)
        elif response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._start_over()
        elif response.error_code in _LOST_GENERATION:
            self._give_up()
        elif response.error_code != ErrorCode.NONE:
            raise unexpected(type(response).__name__, response.error_code, self.member_id)
        elif isinstance(response, SyncGroupResponse):
            self._take_assignment(response, now_s)
        else:
            assert isinstance(response, HeartbeatResponse)
            self._due_at_s = self._sent_at_s + self._heartbeat_seconds

    def _handle_join(self, response: JoinGroupResponse) -> None:
        match response.error_code:
            case ErrorCode.NONE:
                self.member_id = response.member_id
                self._generation = response.generation_id
                is_leader = response.leader == response.member_id
                member_ids = [member.member_id for member in response.members]
                self._shares = assign_range(member_ids, self._partitions) if is_leader and member_ids else {}
                self._request_key = SYNC_KEY
            case ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
            case ErrorCode.UNKNOWN_MEMBER_ID:
                self._start_over()
            case ErrorCode.REBALANCE_IN_PROGRESS:
                pass  # join again, with the id it has
            case code:
                raise unexpected("JoinGroup", code, self.member_id)

    def _take_assignment(self, response: SyncGroupResponse, now_s: float) -> None:
        self.owned = frozenset(decode_assignment(bytes(response.assignment)).get(self._topic, ()))
        self._request_key = HEARTBEAT_KEY
        self._due_at_s = now_s + self._heartbeat_seconds

    def _give_up(self) -> None:
        self.owned = NOTHING
        self._shares = {}
        self._request_key = JOIN_KEY

    def _start_over(self) -> None:
        self._give_up()
        self.fenced += 1
        self.member_id = ""
        self._generation = NO_GENERATION

    def _join(self) -> Message:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(
            name=ASSIGNOR, metadata=encode_subscription([self._topic])
        )
        return JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
        )

    def _sync(self) -> Message:
        return SyncGroupRequest(
            group_id=self._group_id,
            generation_id=self._generation,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=ASSIGNOR,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member_id, assignment=encode_assignment(self._topic, share)
                )
                for member_id, share in self._shares.items()
            ],
        )

    def _heartbeat(self) -> Message:
        return HeartbeatRequest(group_id=self._group_id, generation_id=self._generation, member_id=self.member_id)

    def _farewell(self) -> Message:
        identity = LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
        return LeaveGroupRequest(group_id=self._group_id, members=[identity])
