"""Fetch on the wire: every version, every partition answered, sessions, old formats, and Kafka's codes."""

import asyncio
from typing import Any

import pytest

from headrace.errors import Corrupt
from headrace.handlers import fetch
from headrace.handlers.call import Refusal
from headrace.handlers.message_sets import batches_from_message_set
from headrace.index.streams import advance_log_start, delete_stream
from headrace.model.error_codes import ErrorCode
from headrace.records.batch import CONTROL_BIT, HEADER_BYTES, Codec
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.records.stamping import ATTRIBUTES_AT, stamp_crc
from headrace.testing.batches import read_batches
from headrace.wire.messages import FetchRequest, FetchResponse
from tests.unit.handlers.fetch_node import FETCH, FetchNode, over_the_wire, topic_id
from tests.unit.produce.scripted import Refuse

READS_BEFORE_DAMAGE = 3
"""As planned, once more, and the entry by itself."""

VERSIONS = range(19)
FIRST_WITH_IDS = 13
ALL = 2**31 - 1

Partition = FetchRequest.FetchPartition
Data = FetchResponse.PartitionData


def request_of(
    version: int, *partitions: tuple[int, int], topic: str = "t", number: int = 1, **fields: Any
) -> FetchRequest:
    """Ask for (partition, offset) of one topic, by name or id as the version has it."""
    wanted = [Partition(partition=p, fetch_offset=offset, partition_max_bytes=ALL) for p, offset in partitions]
    named = {"topic_id": topic_id(number)} if version >= FIRST_WITH_IDS else {"topic": topic}
    topics = [FetchRequest.FetchTopic(partitions=wanted, **named)] if wanted else []
    fields = {"min_bytes": 1, "max_wait_ms": 0, **({"max_bytes": ALL} if version >= 3 else {}), **fields}
    return FetchRequest(topics=topics, **fields)


def partitions_of(response: FetchResponse) -> list[Data]:
    return [data for topic in response.responses for data in topic.partitions]


def offsets_in(data: Data) -> list[int]:
    assert isinstance(data.records, memoryview)
    return [record.offset for record in read_batches(data.records)]


def bytes_in(data: Data) -> bytes:
    assert isinstance(data.records, memoryview)
    return bytes(data.records)


def codes(response: FetchResponse) -> list[tuple[int, int]]:
    return [(data.partition_index, data.error_code) for data in partitions_of(response)]


async def node_with(*counts: int, **options: int) -> FetchNode:
    """Return a topic whose partitions hold that many batches of two records."""
    node = FetchNode(**options)
    await node.start(len(counts))
    for partition, count in enumerate(counts):
        for n in range(count):
            await node.put(partition, b"%d" % (2 * n), b"%d" % (2 * n + 1))
        await node.kit.cache.fresh_head(node.streams[partition])
    node.kit.script.calls.clear()
    return node


# All versions


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= 4])
async def test_batches_are_answered_in_every_version(version: int) -> None:
    node = await node_with(2, 0)
    response = await node.fetch(version, request_of(version, (0, 1), (1, 0)))
    (topic,) = response.responses
    assert (topic.topic, topic.topic_id) == (("", topic_id(1)) if version >= FIRST_WITH_IDS else ("t", bytes(16)))
    full, empty = topic.partitions
    assert (offsets_in(full), full.error_code, full.high_watermark, full.last_stable_offset) == (
        [0, 1, 2, 3],
        0,
        4,
        4,
    )
    assert full.log_start_offset == (0 if version >= 5 else -1)
    assert (empty.partition_index, empty.high_watermark, bytes_in(empty)) == (1, 0, b"")
    assert (full.aborted_transactions, full.preferred_read_replica) == (None, -1)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
async def test_old_versions_get_message_sets(version: int) -> None:
    node = await node_with(2)
    response = await node.fetch(version, request_of(version, (0, 1)))
    (data,) = partitions_of(response)
    assert isinstance(data.records, memoryview) and data.high_watermark == 4
    assert data.records[16] == (1 if version >= 2 else 0), "the magic byte"
    assert int.from_bytes(data.records[:8], "big") == 1, "it begins with the offset that was asked for"
    again = read_batches(memoryview(batches_from_message_set(data.records, max_open_bytes=1000)))
    assert [record.value for record in again] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_partition_that_was_asked_for_is_answered(version: int) -> None:
    node = await node_with(1)
    unknown_topic = ErrorCode.UNKNOWN_TOPIC_ID if version >= FIRST_WITH_IDS else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = request_of(version, (0, 0), (7, 0), (-1, 0), (0, 99))
    other = request_of(version, (3, 0), (4, 0), topic="unknown", number=9)
    both = FetchRequest(topics=[*request.topics, *other.topics], max_wait_ms=60_000)
    response = await node.fetch(version, both)
    assert codes(response) == [
        (0, 0),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (3, unknown_topic),
        (4, unknown_topic),
    ]
    assert all(data.high_watermark == -1 for data in partitions_of(response) if data.error_code)
    assert node.topics.refreshes == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_refusal_names_every_partition(version: int) -> None:
    node = FetchNode()
    request = request_of(version, (0, 0), (5, 9))
    response = fetch.refused(node.call(FETCH, version), request, Refusal(ErrorCode.KAFKA_STORAGE_ERROR))
    received = over_the_wire("FetchResponse", version, response)
    assert codes(received) == [(0, ErrorCode.KAFKA_STORAGE_ERROR), (5, ErrorCode.KAFKA_STORAGE_ERROR)]
    assert received.error_code == (ErrorCode.KAFKA_STORAGE_ERROR if version >= 7 else 0)


# Topics


@pytest.mark.parametrize("version", [12, 13])
async def test_topic_that_only_the_store_knows_is_found(version: int) -> None:
    node = await node_with(1)
    node.topics.add("late", 2, node.streams, is_here=False)
    response = await node.fetch(version, request_of(version, (0, 0), topic="late", number=2))
    assert codes(response) == [(0, 0)]


@pytest.mark.parametrize(
    ("version", "code"), [(12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)]
)
async def test_deleted_topic_is_unknown(version: int, code: ErrorCode) -> None:
    node = await node_with(1)
    await delete_stream(node.kit.keys, node.streams[0], now_ms=0).apply(node.kit.metadata)
    await node.kit.cache.refresh()
    assert codes(await node.fetch(version, request_of(version, (0, 0), max_wait_ms=60_000))) == [(0, code)]


@pytest.mark.parametrize(("version", "code"), [(9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (10, ErrorCode.NONE)])
async def test_topic_that_is_stored_with_zstd_needs_a_client_that_knows_it(version: int, code: ErrorCode) -> None:
    node = await node_with(1)
    node.topics.add("packed", 2, node.streams, compression="zstd")
    assert codes(await node.fetch(version, request_of(version, (0, 0), topic="packed"))) == [(0, code)]


# Limits and waits


async def test_smallest_limits_still_give_one_batch_and_nothing_is_waited_for() -> None:
    node = await node_with(2, 2)
    response = await node.fetch(12, request_of(12, (0, 0), (1, 0), max_bytes=1, max_wait_ms=ALL))
    assert [offsets_in(data) for data in partitions_of(response)] == [[0, 1], []]


@pytest.mark.parametrize("size", [0, -1, -(2**31)])
async def test_negative_limits_are_none_at_all(size: int) -> None:
    node = await node_with(2)
    request = FetchRequest(
        topics=[
            FetchRequest.FetchTopic(
                topic="t", partitions=[Partition(partition=0, fetch_offset=0, partition_max_bytes=size)]
            )
        ],
        max_bytes=size,
        min_bytes=size,
        max_wait_ms=size,
    )
    assert [offsets_in(data) for data in partitions_of(await node.fetch(12, request))] == [[0, 1]]


async def test_greatest_min_bytes_and_wait_end_with_the_cap() -> None:
    node = await node_with(1)
    waiting = asyncio.create_task(node.fetch(12, request_of(12, (0, 0), min_bytes=ALL, max_wait_ms=ALL)))
    await node.kit.clock.settle()
    assert not waiting.done()
    await node.kit.clock.advance(301)
    assert [offsets_in(data) for data in partitions_of(await waiting)] == [[0, 1]]


async def test_request_for_nothing_is_answered_at_once() -> None:
    node = await node_with(1)
    response = await node.fetch(12, request_of(12, max_wait_ms=ALL))
    assert response.responses == [] and response.session_id == 0


async def test_read_committed_lists_no_aborted_transactions() -> None:
    node = await node_with(1)
    (data,) = partitions_of(await node.fetch(12, request_of(12, (0, 0), isolation_level=1)))
    assert data.aborted_transactions == [] and data.last_stable_offset == 2


@pytest.mark.parametrize("version", [0, 3, 4, 12])
async def test_damaged_object_is_a_corrupt_message(version: int) -> None:
    """Clients tell their user of it; on KAFKA_STORAGE_ERROR they ask for ever, without a word."""
    node = await node_with(1, tail_bytes=0)
    node.kit.script.plan("read", *[Refuse(Corrupt("damaged"))] * READS_BEFORE_DAMAGE)
    request = request_of(version, (0, 0), max_wait_ms=ALL)
    assert codes(await node.fetch(version, request)) == [(0, ErrorCode.CORRUPT_MESSAGE)]
    assert "damaged" in node.kit.logged.getvalue()


async def test_one_bad_read_is_no_damage() -> None:
    node = await node_with(1, tail_bytes=0)
    node.kit.script.plan("read", *[Refuse(Corrupt("a bad read"))] * (READS_BEFORE_DAMAGE - 1))
    assert codes(await node.fetch(12, request_of(12, (0, 0)))) == [(0, ErrorCode.NONE)]
    assert node.kit.damages.found == 0


# Sessions


async def opened(node: FetchNode, version: int, *partitions: tuple[int, int]) -> tuple[int, FetchResponse]:
    response = await node.fetch(version, request_of(version, *partitions, session_epoch=0))
    assert response.session_id > 0
    return response.session_id, response


async def goes_on(
    node: FetchNode, version: int, session_id: int, epoch: int, *partitions: tuple[int, int], **fields: Any
) -> FetchResponse:
    request = request_of(version, *partitions, session_id=session_id, session_epoch=epoch, **fields)
    return await node.fetch(version, request)


@pytest.mark.parametrize("version", [7, 12, 13, 18])
async def test_session_answers_only_what_changed(version: int) -> None:
    node = await node_with(1, 1, 0)
    session_id, response = await opened(node, version, (0, 0), (1, 2), (2, 0))
    assert [data.partition_index for data in partitions_of(response)] == [0, 1, 2], "the first answer is full"
    response = await goes_on(node, version, session_id, 1, (0, 2))
    assert (response.session_id, response.error_code, response.responses) == (session_id, 0, [])
    await node.put(2, b"x")
    response = await goes_on(node, version, session_id, 2)
    (data,) = partitions_of(response)
    assert (data.partition_index, offsets_in(data)) == (2, [0])
    await advance_log_start(node.kit.keys, node.streams[1], 1, now_ms=0).apply(node.kit.metadata)
    response = await goes_on(node, version, session_id, 3, (2, 1))
    (data,) = partitions_of(response)
    assert (data.partition_index, data.log_start_offset, bytes_in(data)) == (1, 1, b"")


async def test_session_forgets_partitions_and_ends_with_the_last() -> None:
    node = await node_with(1, 1)
    session_id, _ = await opened(node, 12, (0, 0), (1, 0))
    forgotten = FetchRequest.ForgottenTopic(topic="t", partitions=[0])
    response = await goes_on(node, 12, session_id, 1, forgotten_topics_data=[forgotten])
    assert [data.partition_index for data in partitions_of(response)] == [1]
    forgotten = FetchRequest.ForgottenTopic(topic="t", partitions=[1])
    response = await goes_on(node, 12, session_id, 2, forgotten_topics_data=[forgotten])
    assert (response.session_id, response.error_code, response.responses) == (0, 0, [])
    assert node.sessions.session_count == 0


async def test_errors_of_the_session_refuse_the_whole_request() -> None:
    node = await node_with(1)
    session_id, _ = await opened(node, 12, (0, 0))
    response = await goes_on(node, 12, session_id + 1, 1)
    assert (response.error_code, response.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
    response = await goes_on(node, 12, session_id, 5)
    assert (response.error_code, response.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
    response = await goes_on(node, 13, session_id, 1)
    assert (response.error_code, response.session_id) == (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 0)


async def test_partition_with_an_error_is_told_until_it_is_well() -> None:
    node = await node_with(1)
    session_id, _ = await opened(node, 12, (0, 2))
    for epoch in (1, 2):
        response = await goes_on(node, 12, session_id, epoch, (0, 9))
        assert codes(response) == [(0, ErrorCode.OFFSET_OUT_OF_RANGE)]
    assert codes(await goes_on(node, 12, session_id, 3, (0, 2))) == [(0, 0)]
    assert codes(await goes_on(node, 12, session_id, 4)) == []


async def test_full_answers_take_turns_among_partitions() -> None:
    node = await node_with(3, 3, 3)
    session_id, response = await opened(node, 12, (0, 0), (1, 0), (2, 0))
    positions = {data.partition_index: len(offsets_in(data)) for data in partitions_of(response)}
    assert positions == {0: 6, 1: 6, 2: 6}
    served = []
    for epoch in range(1, 4):
        response = await goes_on(node, 12, session_id, epoch, (0, 0), (1, 0), (2, 0), max_bytes=1)
        served += [data.partition_index for data in partitions_of(response) if data.records]
    assert served == [0, 1, 2]


async def test_client_without_a_session_gets_full_answers() -> None:
    node = await node_with(1, 0)
    for _ in range(2):
        response = await node.fetch(12, request_of(12, (0, 0), (1, 0), session_epoch=-1))
        assert response.session_id == 0 and len(partitions_of(response)) == 2


# Old formats


async def test_old_client_is_read_on_for_behind_batches_of_markers() -> None:
    node = await node_with(0)
    marker = bytearray(BatchEncoder().encode(columns_of([Record(offset=0, timestamp_ms=0, key=b"k", value=b"v")])))
    marker[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = CONTROL_BIT.to_bytes(2, "big")
    stamp_crc(memoryview(marker))
    for _ in range(3):
        await node.kit.put_batch(node.streams[0], marker)
    response = await node.fetch(2, request_of(2, (0, 0)))
    (data,) = partitions_of(response)
    assert (data.error_code, data.high_watermark, bytes_in(data)) == (0, 3, b"")
    await node.put(0, b"value")
    (data,) = partitions_of(await node.fetch(3, request_of(3, (0, 0), max_bytes=1)))
    assert isinstance(data.records, memoryview) and int.from_bytes(data.records[:8], "big") == 3


async def test_what_an_old_client_gets_is_limited_after_it_was_opened() -> None:
    node = await node_with(0, 0)
    records = [Record(offset=n, timestamp_ms=0, value=b"z" * 1000) for n in range(50)]
    packed = BatchEncoder(codec=Codec.GZIP).encode(columns_of(records))
    assert len(packed) < 1500
    for stream in node.streams:
        await node.kit.put_batch(stream, packed)
    response = await node.fetch(3, request_of(3, (0, 0), (1, 0), max_bytes=10_000))
    first, second = partitions_of(response)
    assert 9_000 < len(first.records or b"") <= 10_000
    assert len(second.records or b"") < 1_100, "one message at most goes over the limit"


async def test_batch_that_cannot_be_opened_is_a_corrupt_message_for_old_clients_only() -> None:
    node = await node_with(0)
    packed = bytearray(BatchEncoder(codec=Codec.GZIP).encode(columns_of([Record(offset=0, timestamp_ms=0)])))
    packed[HEADER_BYTES:] = b"?" * (len(packed) - HEADER_BYTES)
    stamp_crc(memoryview(packed))
    await node.kit.put_batch(node.streams[0], packed)
    assert codes(await node.fetch(3, request_of(3, (0, 0)))) == [(0, ErrorCode.CORRUPT_MESSAGE)]
    assert codes(await node.fetch(12, request_of(12, (0, 0)))) == [(0, 0)]
