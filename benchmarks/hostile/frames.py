"""Requests that the tests' raw client does not have, packed by hand."""

from struct import pack

from tests.integration.groups.frames import GroupFrames
from tests.integration.wire.raw import DELETE_TOPICS, FETCH, METADATA, array, request, text, varint

INIT_PRODUCER_ID = 22
CONSUMER_GROUP_HEARTBEAT = 68
NO_TEXT = pack(">h", -1)
LEAVING_EPOCH = -1
MEMBER_REBALANCE_MS = 10_000


def init_producer_id(client: GroupFrames) -> tuple[int, int, int]:
    """Send InitProducerId v1 without a transactional id; return code, id and epoch."""
    answer = client.ask(INIT_PRODUCER_ID, 1, NO_TEXT + pack(">i", 60_000))
    answer.take(4)
    return answer.number(2), answer.number(8), answer.number(2)


def delete_topics(client: GroupFrames, *names: str) -> list[int]:
    """Send DeleteTopics v3; return the codes."""
    answer = client.ask(DELETE_TOPICS, 3, array([text(name) for name in names]) + pack(">i", 60_000))
    answer.take(4)
    codes = []
    for _ in range(answer.number(4)):
        answer.text()
        codes.append(answer.number(2))
    return codes


def unknown_metadata(client: GroupFrames, names: list[str]) -> list[int]:
    """Send Metadata v4 for names that may not be created; return their codes."""
    answer = client.ask(METADATA, 4, array([text(name) for name in names]) + b"\0")
    answer.take(4)
    for _ in range(answer.number(4)):
        answer.take(4)
        answer.text()
        answer.take(4)
        answer.text()
    answer.text()
    answer.take(4)
    codes = []
    for _ in range(answer.number(4)):
        codes.append(answer.number(2))
        answer.text()
        answer.take(1)
        assert answer.number(4) == 0, "an unknown topic has no partitions"
    return codes


def fetch_session(topic: str, partitions: int) -> bytes:
    """Return a Fetch v7 that begins a session over some partitions."""
    wanted = [pack(">iqqi", index, 0, -1, 1024) for index in range(partitions)]
    head = pack(">iiiibii", -1, 0, 0, 1024, 0, 0, 0)
    return request(FETCH, 7, head + array([text(topic) + array(wanted)]) + array([]))


def begun_session(client: GroupFrames) -> tuple[int, int]:
    """Read the head of its answer: code and session id."""
    answer = client.answer()
    answer.take(4)
    return answer.number(2), answer.number(4)


def member_beat(client: GroupFrames, group: str, member: str, epoch: int, *, regex: str | None = None) -> int:
    """Send ConsumerGroupHeartbeat v1: to join with a regular expression, or to leave; return the code."""
    is_joining = epoch == 0
    body = _compact(group) + _compact(member) + pack(">i", epoch) + b"\0\0"
    body += pack(">i", MEMBER_REBALANCE_MS if is_joining else -1)
    body += (varint(1) if is_joining else b"\0") + (b"\0" if regex is None else _compact(regex)) + b"\0"
    body += (varint(1) if is_joining else b"\0") + b"\0"
    client.send(request(CONSUMER_GROUP_HEARTBEAT, 1, body, tags=b"\0"))
    answer = client.answer(tags=b"\0")
    answer.take(4)
    return answer.number(2)


def _compact(value: str) -> bytes:
    data = value.encode()
    return varint(len(data) + 1) + data
