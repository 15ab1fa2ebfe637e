"""A member that speaks KIP-848: one request, ConsumerGroupHeartbeat, for everything.

It does what the Java client does with callbacks that take no time: an assignment takes effect when it is heard, and
if that changed what the member owns it says so in a heartbeat at once. Otherwise the next heartbeat follows the last
one by the interval that the coordinator returned. Fields that did not change since they were last sent stay out.
"""

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
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

HEARTBEAT_KEY = 68
HEARTBEAT_VERSION = 1
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
UNCHANGED = -1
MS_PER_SECOND = 1000


class ConsumerMember:
    """The state machine. The member makes its own id, as clients do from version 1 on."""

    def __init__(self, *, group_id: str, member_id: str, topic: str, topic_id: bytes) -> None:
        self.member_id = member_id
        self.owned: frozenset[int] = NOTHING
        self.fenced = 0
        self._group_id = group_id
        self._topic = topic
        self._topic_id = topic_id
        self._epoch = JOIN_EPOCH
        # What the coordinator was last told; `None`: it has to be told everything.
        self._reported: frozenset[int] | None = None
        self._due_at_s = 0.0
        self._sent_at_s = 0.0
        self._patience = Patience()
        self._is_leaving = False
        self._has_ended = False

    @property
    def epoch(self) -> int:
        return self._epoch

    def leave(self) -> None:
        self._is_leaving = True

    def next_action(self, now_s: float) -> Action:
        """Return what to do now."""
        if self._has_ended:
            return Ended()
        if (delay := self._patience.delay(now_s)) is not None:
            return delay
        if self._is_leaving:
            return self._farewell()
        if now_s < self._due_at_s:
            return Rest(until_s=self._due_at_s)
        self._sent_at_s = now_s
        request = self._heartbeat()
        self._reported = self.owned
        return _ask(request)

    def handle(self, response: ConsumerGroupHeartbeatResponse, now_s: float) -> None:
        """Take the answer to a heartbeat, the first and the last one included."""
        code = response.error_code
        if self._patience.takes(code, now_s):
            self._reported = None  # nobody knows what the coordinator took of it
        elif self._is_leaving and self._epoch == LEAVE_EPOCH:
            self._has_ended = True
        elif code == ErrorCode.NONE:
            self._follow(response, now_s)
        elif code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self._start_over(now_s)
        else:
            raise unexpected("a heartbeat", code, self.member_id)

    def _follow(self, response: ConsumerGroupHeartbeatResponse, now_s: float) -> None:
        self._epoch = response.member_epoch
        self._due_at_s = self._sent_at_s + response.heartbeat_interval_ms / MS_PER_SECOND
        if response.assignment is None:
            return
        self.owned = frozenset(
            partition
            for topic in response.assignment.topic_partitions
            if topic.topic_id == self._topic_id
            for partition in topic.partitions
        )
        if self.owned != self._reported:
            self._due_at_s = now_s

    def _start_over(self, now_s: float) -> None:
        self.owned = NOTHING
        self.fenced += 1
        self._epoch = JOIN_EPOCH
        self._reported = None
        self._due_at_s = now_s

    def _farewell(self) -> Action:
        # What it owned goes before the request does: somebody else may have it before the answer arrives.
        self.owned = NOTHING
        self._epoch = LEAVE_EPOCH
        return _ask(
            ConsumerGroupHeartbeatRequest(
                group_id=self._group_id, member_id=self.member_id, member_epoch=LEAVE_EPOCH, topic_partitions=None
            )
        )

    def _heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        tells_all = self._reported is None
        topics = [
            ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=self._topic_id, partitions=sorted(self.owned))
        ]
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=self._epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if tells_all else UNCHANGED,
            subscribed_topic_names=[self._topic] if tells_all else None,
            topic_partitions=None if self.owned == self._reported else topics if self.owned else [],
        )


def _ask(request: ConsumerGroupHeartbeatRequest) -> Ask:
    return Ask(api_key=HEARTBEAT_KEY, version=HEARTBEAT_VERSION, request=request)
