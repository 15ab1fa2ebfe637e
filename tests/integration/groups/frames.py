"""Group requests packed by hand, in old encodings: as wrong as they like, and not by our own codec."""

from struct import pack

from tests.integration.wire.raw import RawClient, array, request, text, varint

OFFSET_COMMIT, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 8, 10, 11, 12, 13, 14

SESSION_MS = 60_000
REBALANCE_MS = 60_000
NULL_TEXT = pack(">h", -1)
SUBSCRIPTION = pack(">h", 0) + array([text("any")]) + pack(">i", -1)
"""What a consumer says of its topics. Apache Kafka 4.3.1 left one that says something else unanswered."""

JOIN_VERSION = 5
COMMIT_VERSION = 7


def data(value: bytes) -> bytes:
    """Return bytes in the old encoding."""
    return pack(">i", len(value)) + value


def join_body(
    group: str,
    member_id: str = "",
    *,
    metadata: bytes = SUBSCRIPTION,
    protocols: tuple[str, ...] = ("range",),
    protocol_type: str = "consumer",
    session_ms: int = SESSION_MS,
) -> bytes:
    """Return JoinGroup v5."""
    offered = array([text(name) + data(metadata) for name in protocols])
    times = pack(">ii", session_ms, REBALANCE_MS)
    return text(group) + times + text(member_id) + NULL_TEXT + text(protocol_type) + offered


def flexible_commit(group: str, topic: str, *, metadata: bytes) -> bytes:
    """Return a whole frame with OffsetCommit v9, which has compact strings, for partition 0."""
    part = pack(">iqi", 0, 5, -1) + _compact(metadata) + b"\0"
    named = _compact(topic.encode()) + varint(2) + part + b"\0"
    body = _compact(group.encode()) + pack(">i", -1) + _compact(b"") + b"\0" + varint(2) + named + b"\0"
    return request(OFFSET_COMMIT, 9, body, tags=b"\0")


def _compact(value: bytes) -> bytes:
    return varint(len(value) + 1) + value


class GroupFrames(RawClient):
    """One connection; every call returns the code that was answered."""

    def __enter__(self) -> "GroupFrames":
        return self

    def join(self, body: bytes) -> tuple[int, int, str]:
        """Send JoinGroup v5; return code, generation and member id."""
        self.send_request(JOIN_GROUP, JOIN_VERSION, body)
        return self.joined()

    def joined(self) -> tuple[int, int, str]:
        """Read the answer to JoinGroup v5."""
        answer = self.answer()
        answer.take(4)
        code, generation = answer.number(2), answer.number(4)
        answer.text(), answer.text()
        member_id = answer.text() or ""
        for _ in range(answer.number(4)):
            answer.text(), answer.text()
            answer.take(answer.number(4))
        answer.end()
        return code, generation, member_id

    def become_only_member(self, group: str) -> tuple[int, str]:
        """Join an empty group and assign something to ourselves; return generation and member id."""
        _, _, given = self.join(join_body(group))
        code, generation, member_id = self.join(join_body(group, given))
        assert code == 0
        assert self.sync(group, generation, member_id, member_id) == 0
        return generation, member_id

    def sync(self, group: str, generation: int, member_id: str, *named: str, assignment: bytes = b"all") -> int:
        """Send SyncGroup v3 with the same assignment for everybody who is named."""
        assignments = array([text(one) + data(assignment) for one in named])
        body = text(group) + pack(">i", generation) + text(member_id) + NULL_TEXT + assignments
        answer = self.ask(SYNC_GROUP, 3, body)
        answer.take(4)
        return answer.number(2)

    def beat(self, group: str, generation: int, member_id: str) -> int:
        """Send Heartbeat v3."""
        answer = self.ask(HEARTBEAT, 3, text(group) + pack(">i", generation) + text(member_id) + NULL_TEXT)
        answer.take(4)
        code = answer.number(2)
        answer.end()
        return code

    def leave(self, group: str, member_id: str) -> int:
        """Send LeaveGroup v1."""
        answer = self.ask(LEAVE_GROUP, 1, text(group) + text(member_id))
        answer.take(4)
        code = answer.number(2)
        answer.end()
        return code

    def commit(
        self,
        group: str,
        topic: str,
        *,
        generation: int = -1,
        member_id: str = "",
        metadata: bytes = b"",
        instance_id: bytes = NULL_TEXT,
    ) -> int:
        """Send OffsetCommit v7 for partition 0."""
        part = pack(">iqi", 0, 5, -1) + text(metadata)
        head = text(group) + pack(">i", generation) + text(member_id) + instance_id
        answer = self.ask(OFFSET_COMMIT, COMMIT_VERSION, head + array([text(topic) + array([part])]))
        answer.take(4)
        assert (answer.number(4), answer.text(), answer.number(4), answer.number(4)) == (1, topic, 1, 0)
        code = answer.number(2)
        answer.end()
        return code
