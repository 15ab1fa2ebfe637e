"""Clients that begin a request and do not go on: they are closed in the end, and stand in nobody's way until then."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from struct import pack

import pytest

from tests.integration.wire.batches import batch, values_of
from tests.integration.wire.raw import API_VERSIONS, PRODUCE, Produced, RawClient, produce_request
from tests.integration.wire.watching import (
    MIB,
    closing,
    forget_peak,
    many_files,
    metric,
    mistakes,
    peak_memory_bytes,
    wait_until,
)
from tests.servers.headrace import HeadraceProcess, running_headrace

HUGE_FRAME_BYTES = 90 * MIB
HUGE_COUNT = 300
SMALL_COUNT = 700
SPARE_FILES = 300
ROUNDS = 20

SETTINGS = {"socket.slow.read.timeout.ms": "2000"}
LARGE_BUDGET_BYTES = 128 * MIB
"""A third of queued.max.request.bytes, which is what large frames share."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    files = HUGE_COUNT + SMALL_COUNT + SPARE_FILES
    with many_files(files), running_headrace(tmp_path_factory.mktemp("data"), settings=SETTINGS) as running:
        yield running
        assert mistakes(running) == []


def beginning(size_bytes: int, sent_bytes: int) -> bytes:
    """Return the first bytes of a Produce request that announces `size_bytes`."""
    return (pack(">ihhih", size_bytes, PRODUCE, 8, 7, -1) + bytes(sent_bytes))[:sent_bytes]


def test_silence_inside_a_frame_is_closed_and_logged(broker: HeadraceProcess) -> None:
    with contextlib.ExitStack() as stack:
        clients = []
        for size, sent in ((1000, 2), (1000, 4), (1000, 500), (200_000, 100_000), (20 * MIB, 70_000)):
            clients.append(stack.enter_context(RawClient(broker.kafka_port)))
            clients[-1].send(beginning(size, sent))
        for client in clients:
            assert client.rest() == b""
            assert closing(broker, client.name)["kind"] == "slow-frame"


def test_a_frame_that_trickles_in_is_closed_although_it_never_stands_still(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        client.send(beginning(10_000, 20))
        client.socket.settimeout(0.05)
        with contextlib.suppress(ConnectionError):
            while True:
                with contextlib.suppress(TimeoutError):
                    assert client.socket.recv(1) == b""
                    break
                client.send(b"\0")
        assert closing(broker, client.name)["kind"] == "slow-frame"


def test_a_connection_that_is_only_silent_between_requests_stays(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client, RawClient(broker.kafka_port) as slow:
        assert client.ask(API_VERSIONS, 0, b"").number(2) == 0
        slow.send(beginning(1000, 500))
        assert slow.rest() == b""
        # The silent one has been quiet for longer than a frame may be.
        assert client.ask(API_VERSIONS, 0, b"").number(2) == 0


def test_hundreds_of_half_sent_huge_frames_take_bounded_memory_and_normal_traffic_goes_on(
    broker: HeadraceProcess,
) -> None:
    with RawClient(broker.kafka_port) as client, contextlib.ExitStack() as attackers:
        client.create_topic("traffic", partitions=2)
        client.create_topic("large", configs={"max.message.bytes": str(32 * MIB)})
        before = forget_peak(broker)
        for _ in range(HUGE_COUNT):
            attackers.enter_context(RawClient(broker.kafka_port)).send(beginning(HUGE_FRAME_BYTES, 100_000))
        for _ in range(SMALL_COUNT):
            attackers.enter_context(RawClient(broker.kafka_port)).send(beginning(1000, 100))
        wait_until(lambda: metric(broker, "kafka_request_memory_bytes") > HUGE_FRAME_BYTES, "a huge one is read")
        for number in range(ROUNDS):
            small, medium = batch([b"small"]), batch([bytes([number]) * 900_000])
            answers = client.produce("traffic", {0: small, 1: medium})
            assert answers == {0: Produced(0, number), 1: Produced(0, number)}
            assert values_of(client.fetch("traffic", 1, number).records) == [bytes([number]) * 900_000]
        # One large request of an honest client waits in line with them, and comes through when they are gone.
        with RawClient(broker.kafka_port) as honest, ThreadPoolExecutor(1) as threads:
            sending = threads.submit(honest.send, produce_request("large", {0: batch([bytes(20 * MIB)])}))
            assert client.produce("traffic", {0: batch([b"small"])})[0] == Produced(0, ROUNDS)
            attackers.close()
            sending.result()
            assert honest.produced()[0] == Produced(0, 0)
        assert peak_memory_bytes(broker) < before + LARGE_BUDGET_BYTES + 64 * MIB
    wait_until(lambda: metric(broker, "kafka_connections") == 0, "no connection is left")
    wait_until(lambda: metric(broker, "kafka_request_memory_bytes") == 0, "all memory is given back")
