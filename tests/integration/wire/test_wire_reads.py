"""Fetch and ListOffsets at the ends of their ranges: what the protocol says, and no waiter outlives its client."""

import contextlib
from collections.abc import Iterator
from struct import pack

import pytest

from tests.integration.wire.batches import batch, read_batches, values_of
from tests.integration.wire.raw import (
    FETCH,
    LIST_OFFSETS,
    RawClient,
    array,
    fetch_request,
    list_offsets_request,
    listed_offsets,
    text,
)
from tests.integration.wire.watching import MIB, forget_peak, memory_bytes, metric, mistakes, wait_until
from tests.servers.headrace import HeadraceProcess, running_headrace

NONE, OFFSET_OUT_OF_RANGE, UNKNOWN_PARTITION, UNSUPPORTED_VERSION, INVALID_REQUEST = 0, 1, 3, 35, 42
GREATEST_INT, LEAST_INT = 2**31 - 1, -(2**31)
GREATEST_LONG, LEAST_LONG = 2**63 - 1, -(2**63)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6

WAITERS = 300
TIMES_MS = [1_700_000_000_000, 1_700_000_005_000, 1_700_000_002_000]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("data")) as running:
        yield running
        assert mistakes(running) == []


@pytest.fixture
def client(broker: HeadraceProcess) -> Iterator[RawClient]:
    with RawClient(broker.kafka_port) as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions; the first has three batches of 1,000 bytes and more, two values each."""
    name = str(request.node.name).translate(str.maketrans("[]", "..")).strip(".")
    client.create_topic(name, partitions=3)
    for number, time_ms in enumerate(TIMES_MS):
        values = [bytes([number]) * 500, bytes([number + 100]) * 500]
        assert client.produce(name, {0: batch(values, timestamp_ms=time_ms)})[0].code == NONE
    return name


@pytest.mark.parametrize("limit", [1, 0, -1, LEAST_INT, 1200])
def test_however_small_the_limits_one_whole_batch_is_there(client: RawClient, topic: str, limit: int) -> None:
    for limits in ({"max_bytes": limit}, {"partition_max_bytes": limit}):
        for offset in range(6):
            fetched = client.fetch(topic, 0, offset, **limits)
            (only,) = read_batches(fetched.records)
            assert only.base_offset == offset // 2 * 2, "the batch holds the offset that was asked for"
            assert fetched.code == NONE and fetched.high_watermark == 6


def test_greatest_limits_are_no_promise_to_fill_them(client: RawClient, topic: str) -> None:
    limits = {"max_bytes": GREATEST_INT, "partition_max_bytes": GREATEST_INT}
    assert len(values_of(client.fetch(topic, 0, 0, **limits).records)) == 6


@pytest.mark.parametrize("wait_ms", [50, 0, -1, LEAST_INT])
def test_a_minimum_that_never_comes_ends_with_the_wait_and_gives_what_is_there(
    client: RawClient, topic: str, wait_ms: int
) -> None:
    fetched = client.fetch(topic, 0, 4, min_bytes=GREATEST_INT, max_wait_ms=wait_ms)
    assert len(values_of(fetched.records)) == 2
    assert client.fetch(topic, 0, 6, min_bytes=GREATEST_INT, max_wait_ms=wait_ms).records == b""


@pytest.mark.parametrize("min_bytes", [0, -1, LEAST_INT])
def test_without_a_minimum_nobody_waits(client: RawClient, topic: str, min_bytes: int) -> None:
    assert client.fetch(topic, 0, 6, min_bytes=min_bytes, max_wait_ms=GREATEST_INT).records == b""


def test_the_longest_wait_ends_when_records_come(broker: HeadraceProcess, client: RawClient, topic: str) -> None:
    with RawClient(broker.kafka_port) as producer:
        client.send(fetch_request(topic, 1, 0, min_bytes=1, max_wait_ms=GREATEST_INT))
        assert producer.produce(topic, {1: batch([b"at last"])})[1].code == NONE
        assert values_of(client.fetched().records) == [b"at last"]


def test_clients_that_leave_while_they_wait_leave_nothing_behind(
    broker: HeadraceProcess, client: RawClient, topic: str
) -> None:
    before = forget_peak(broker)
    asked = metric(broker, "kafka_requests_total", api="Fetch")
    with contextlib.ExitStack() as stack:
        for _ in range(WAITERS):
            waiter = stack.enter_context(RawClient(broker.kafka_port))
            waiter.send(fetch_request(topic, 1, 0, min_bytes=GREATEST_INT, max_wait_ms=GREATEST_INT))
        wait_until(
            lambda: metric(broker, "kafka_requests_total", api="Fetch") >= asked + WAITERS, "all of them are waiting"
        )
        assert client.produce(topic, {1: batch([b"not enough"])})[1].code == NONE
    wait_until(lambda: metric(broker, "kafka_connections") == 1, "their connections are gone")
    wait_until(lambda: metric(broker, "kafka_request_memory_bytes") == 0, "their requests are gone")
    assert memory_bytes(broker) < before + 64 * MIB
    assert values_of(client.fetch(topic, 1, 0).records) == [b"not enough"]


@pytest.mark.parametrize("offset", [7, GREATEST_LONG, -1, LEAST_LONG])
def test_an_offset_outside_the_log_is_out_of_range(client: RawClient, topic: str, offset: int) -> None:
    # Such an error ends the wait at once.
    fetched = client.fetch(topic, 0, offset, min_bytes=GREATEST_INT, max_wait_ms=GREATEST_INT)
    assert (fetched.code, fetched.records) == (OFFSET_OUT_OF_RANGE, b"")


@pytest.mark.parametrize("partition", [3, -1, GREATEST_INT, LEAST_INT])
def test_a_partition_that_does_not_exist_is_unknown(client: RawClient, topic: str, partition: int) -> None:
    fetched = client.fetch(topic, partition, 0, min_bytes=GREATEST_INT, max_wait_ms=GREATEST_INT)
    assert (fetched.code, fetched.records) == (UNKNOWN_PARTITION, b"")


def test_an_answer_does_not_grow_with_how_often_a_partition_is_named(
    broker: HeadraceProcess, client: RawClient, topic: str
) -> None:
    client.produce(topic, {2: batch([bytes(1_000_000)])})
    before = forget_peak(broker)
    wanted = array([pack(">iqi", 2, 0, GREATEST_INT)] * 20_000)
    client.send_request(FETCH, 4, pack(">iiiib", -1, 0, 0, 2 * MIB, 0) + array([text(topic) + wanted]))
    assert len(client.receive_frame()) < 4 * MIB
    assert memory_bytes(broker) < before + 96 * MIB


def test_special_timestamps_mean_what_the_protocol_says(client: RawClient, topic: str) -> None:
    def answer(timestamp: int, version: int = 11) -> tuple[int, int, int]:
        client.send(list_offsets_request(topic, [timestamp], version=version))
        (only,) = listed_offsets(client)
        return only

    nothing = (NONE, -1, -1)
    assert answer(LATEST) == (NONE, -1, 6)
    assert answer(EARLIEST) == answer(EARLIEST_LOCAL) == (NONE, -1, 0)
    assert answer(MAX_TIMESTAMP) == (NONE, TIMES_MS[1], 2)
    assert answer(LATEST_TIERED) == answer(EARLIEST_PENDING) == nothing
    assert answer(0) == answer(TIMES_MS[0]) == (NONE, TIMES_MS[0], 0)
    assert answer(TIMES_MS[0] + 1) == answer(TIMES_MS[1]) == (NONE, TIMES_MS[1], 2)
    assert answer(TIMES_MS[1] + 1) == answer(GREATEST_LONG) == nothing
    for meaningless in (-7, LEAST_INT, LEAST_LONG):
        assert answer(meaningless) == (UNSUPPORTED_VERSION, -1, -1)
    for timestamp, first in ((MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING, 11)):
        assert answer(timestamp, first)[0] == NONE
        assert answer(timestamp, first - 1) == (UNSUPPORTED_VERSION, -1, -1)


def test_special_timestamps_of_an_empty_partition_find_nothing_but_its_start(client: RawClient, topic: str) -> None:
    for timestamp in (LATEST, EARLIEST, EARLIEST_LOCAL):
        client.send(list_offsets_request(topic, [0, timestamp]))
        assert listed_offsets(client)[1] == (NONE, -1, 0)
    for timestamp in (MAX_TIMESTAMP, LATEST_TIERED, EARLIEST_PENDING, 0, GREATEST_LONG):
        client.send(list_offsets_request(topic, [0, timestamp]))
        assert listed_offsets(client)[1] == (NONE, -1, -1)


def test_unknown_and_repeated_partitions_get_their_code_and_neighbours_their_offset(
    client: RawClient, topic: str
) -> None:
    wanted = array([pack(">iq", index, LATEST) for index in (0, 99, -1, 1, 1)])
    answer = client.ask(LIST_OFFSETS, 1, pack(">i", -1) + array([text(topic) + wanted]))
    assert answer.number(4) == 1
    answer.text()
    found = []
    for _ in range(answer.number(4)):
        index, code = answer.number(4), answer.number(2)
        answer.take(8)
        found.append((index, code, answer.number(8)))
    assert found == [
        (0, NONE, 6),
        (99, UNKNOWN_PARTITION, -1),
        (-1, UNKNOWN_PARTITION, -1),
        (1, INVALID_REQUEST, -1),
        (1, INVALID_REQUEST, -1),
    ]
