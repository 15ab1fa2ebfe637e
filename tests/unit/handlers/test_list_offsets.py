"""ListOffsets on the wire: every special timestamp in the versions that have it, and Kafka's codes for the rest."""

from typing import Any

import pytest

from headrace.errors import Retryable
from headrace.handlers import list_offsets
from headrace.handlers.call import Refusal
from headrace.index.streams import advance_log_start, delete_stream
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import ListOffsetsRequest, ListOffsetsResponse
from tests.unit.handlers.fetch_node import LIST_OFFSETS, FetchNode, over_the_wire
from tests.unit.produce.scripted import Refuse

VERSIONS = range(12)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6


def request_of(*wanted: tuple[int, int], topic: str = "t", **fields: Any) -> ListOffsetsRequest:
    """Ask for (partition, timestamp)."""
    partitions = [
        ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp, **fields)
        for partition, timestamp in wanted
    ]
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=partitions)]
    )


def answers(response: ListOffsetsResponse) -> list[tuple[int, int, int, int]]:
    """Return partition, error, offset and timestamp of each answer."""
    return [
        (one.partition_index, one.error_code, one.offset, one.timestamp)
        for topic in response.topics
        for one in topic.partitions
    ]


async def timed_node() -> FetchNode:
    """Return a topic whose partition 0 holds offsets 0 to 5 and begins at 1; partition 1 is empty."""
    node = FetchNode()
    await node.start(2)
    await node.put(0, b"a", b"b", at_ms=100)
    await node.put(0, b"c", b"d", at_ms=300)
    await node.put(0, b"e", b"f", at_ms=200)
    await advance_log_start(node.kit.keys, node.streams[0], 1, now_ms=0).apply(node.kit.metadata)
    return node


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= 1])
async def test_special_timestamps_mean_something_from_their_version_on(version: int) -> None:
    node = await timed_node()
    expected = {
        LATEST: (1, 6, -1),
        EARLIEST: (1, 1, -1),
        MAX_TIMESTAMP: (7, 3, 301),
        EARLIEST_LOCAL: (8, 1, -1),
        LATEST_TIERED: (9, -1, -1),
        PENDING_UPLOAD: (11, -1, -1),
    }
    for timestamp, (first_version, offset, at_ms) in expected.items():
        response = await node.list_offsets(version, request_of((0, timestamp)))
        if version >= first_version:
            assert answers(response) == [(0, 0, offset, at_ms)]
        else:
            assert answers(response) == [(0, ErrorCode.UNSUPPORTED_VERSION, -1, -1)]
        assert response.topics[0].partitions[0].leader_epoch == -1


@pytest.mark.parametrize("timestamp", [-7, -100, -(2**63)])
async def test_other_negative_timestamps_are_refused(timestamp: int) -> None:
    node = await timed_node()
    response = await node.list_offsets(11, request_of((0, timestamp)))
    assert answers(response) == [(0, ErrorCode.UNSUPPORTED_VERSION, -1, -1)]


@pytest.mark.parametrize(
    ("timestamp", "offset", "at_ms"),
    [(0, 1, 101), (101, 1, 101), (102, 2, 300), (301, 3, 301), (302, -1, -1), (2**63 - 1, -1, -1)],
)
async def test_time_finds_the_first_record_at_or_after_it(timestamp: int, offset: int, at_ms: int) -> None:
    node = await timed_node()
    assert answers(await node.list_offsets(5, request_of((0, timestamp)))) == [(0, 0, offset, at_ms)]


async def test_empty_partition_has_ends_and_no_times() -> None:
    node = await timed_node()
    for timestamp, offset in [(LATEST, 0), (EARLIEST, 0), (MAX_TIMESTAMP, -1), (0, -1)]:
        assert answers(await node.list_offsets(7, request_of((1, timestamp)))) == [(1, 0, offset, -1)]


@pytest.mark.parametrize(
    ("timestamp", "max_count", "offsets"),
    [
        (LATEST, 1, [6]),
        (LATEST, 5, [6, 1]),
        (EARLIEST, 5, [1]),
        (250, 5, [2, 1]),
        (9999, 1, [6]),
        (0, 3, [1]),
        (LATEST, 0, []),
        (LATEST, -1, []),
    ],
)
async def test_version_0_answers_with_lists(timestamp: int, max_count: int, offsets: list[int]) -> None:
    node = await timed_node()
    response = await node.list_offsets(0, request_of((0, timestamp), max_num_offsets=max_count))
    (one,) = response.topics[0].partitions
    assert (one.error_code, one.old_style_offsets) == (0, offsets)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_partition_that_was_asked_for_is_answered(version: int) -> None:
    node = await timed_node()
    known = request_of((0, LATEST), (9, LATEST), (-1, LATEST))
    unknown = request_of((3, LATEST), topic="unknown")
    both = ListOffsetsRequest(replica_id=-1, topics=[*known.topics, *unknown.topics])
    response = await node.list_offsets(version, both)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [one[:2] for one in answers(response)] == [(0, 0), (9, code), (-1, code), (3, code)]
    assert [topic.name for topic in response.topics] == ["t", "unknown"] and node.topics.refreshes == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_refusal_names_every_partition(version: int) -> None:
    node = FetchNode()
    refusal = Refusal(ErrorCode.KAFKA_STORAGE_ERROR)
    response = list_offsets.refused(node.call(LIST_OFFSETS, version), request_of((0, 0), (4, 0)), refusal)
    received = over_the_wire("ListOffsetsResponse", version, response)
    assert answers(received) == [(p, ErrorCode.KAFKA_STORAGE_ERROR, -1, -1) for p in (0, 4)]


async def test_partition_that_is_asked_for_twice_is_refused_alone() -> None:
    node = await timed_node()
    response = await node.list_offsets(5, request_of((0, LATEST), (1, LATEST), (0, EARLIEST)))
    assert [one[1] for one in answers(response)] == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]


async def test_answers_are_those_of_the_store() -> None:
    node = await timed_node()
    assert answers(await node.list_offsets(5, request_of((0, LATEST))))[0][2] == 6
    node.kit.writer._cache = None
    await node.put(0, b"elsewhere")
    assert answers(await node.list_offsets(5, request_of((0, LATEST))))[0][2] == 7
    await delete_stream(node.kit.keys, node.streams[0], now_ms=0).apply(node.kit.metadata)
    response = await node.list_offsets(5, request_of((0, LATEST)))
    assert answers(response) == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)]


async def test_store_that_cannot_be_read_fails_its_partition() -> None:
    node = await timed_node()
    node.kit.script.plan("read", Refuse(Retryable("busy")))
    response = await node.list_offsets(5, request_of((0, 150), (1, LATEST)))
    assert [one[1] for one in answers(response)] == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
