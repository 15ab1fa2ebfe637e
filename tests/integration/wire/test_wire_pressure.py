"""Clients who announce much and send little hold memory: they have to make room for the requests of others."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest

from tests.integration.wire.batches import batch
from tests.integration.wire.raw import API_VERSIONS, PRODUCE, Produced, RawClient
from tests.integration.wire.watching import MIB, closing, metric, mistakes
from tests.servers.headrace import HeadraceProcess, running_headrace

SETTINGS = {
    "queued.max.request.bytes": str(12 * MIB),
    # Patience that never ends while the test runs: only those who wait for memory can end it.
    "socket.slow.read.timeout.ms": "600000",
}
HALF_SENT_COUNT = 200
"""As if whole, these would take twelve times the memory of their size class."""

SHARE_BYTES = 4 * MIB
"""What small, medium and large requests may take each."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("data"), settings=SETTINGS) as running:
        yield running
        assert mistakes(running) == []


@contextlib.contextmanager
def half_sent(broker: HeadraceProcess, size_bytes: int) -> Iterator[list[RawClient]]:
    """Hold frames of this size that will never end: three times what there is memory for."""
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(3 * SHARE_BYTES // size_bytes + 3):
            clients.append(stack.enter_context(RawClient(broker.kafka_port)))
            clients[-1].send(pack(">ihhih", size_bytes, PRODUCE, 8, 7, -1) + bytes(1000))
        yield clients


@pytest.mark.parametrize("size_bytes", [60_000, 100_000, MIB, 3 * MIB, 9 * MIB])
def test_half_sent_requests_make_room_when_others_need_the_memory(broker: HeadraceProcess, size_bytes: int) -> None:
    topic = f"room-{size_bytes}"
    with RawClient(broker.kafka_port) as client, half_sent(broker, size_bytes) as attackers:
        client.create_topic(topic)
        for number in range(3):
            assert client.produce(topic, {0: batch([bytes(200_000)])})[0] == Produced(0, number)
        if size_bytes == 100_000:  # so many that even the first bytes of each fill the memory
            assert closing(broker, attackers[0].name)["kind"] == "slow-frame"


def test_half_sent_small_requests_never_keep_whole_ones_waiting(broker: HeadraceProcess) -> None:
    with half_sent(broker, 60_000), RawClient(broker.kafka_port) as client:
        for _ in range(20):
            assert client.ask(API_VERSIONS, 0, b"").number(2) == 0


def test_a_half_sent_request_that_nobody_has_to_wait_for_may_take_its_time(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as slow, RawClient(broker.kafka_port) as client:
        request = pack(">hhih", API_VERSIONS, 0, 7, -1)
        slow.send(pack(">i", len(request)) + request[:5])
        client.create_topic("calm")
        for number in range(20):
            assert client.produce("calm", {0: batch([bytes(200_000)])})[0] == Produced(0, number)
        slow.send(request[5:])
        assert slow.answer().number(2) == 0


def test_half_sent_requests_hold_only_what_they_have_sent(tmp_path: Path) -> None:
    patient = {"socket.slow.read.timeout.ms": "600000"}
    with running_headrace(tmp_path, settings=patient) as broker, contextlib.ExitStack() as stack:
        for _ in range(HALF_SENT_COUNT):
            attacker = stack.enter_context(RawClient(broker.kafka_port))
            attacker.send(pack(">ihhih", 8_000_000, PRODUCE, 8, 7, -1) + bytes(50_000))
        with RawClient(broker.kafka_port) as client:
            client.create_topic("passing", configs={"max.message.bytes": str(8 * MIB)})
            for number, size_bytes in enumerate((200_000, 900_000, 4_000_000)):
                assert client.produce("passing", {0: batch([bytes(size_bytes)])})[0] == Produced(0, number)
        assert metric(broker, "kafka_connections_ended_by_broker_total") == 0, "nobody had to go to make room"
        assert metric(broker, "kafka_connections") >= HALF_SENT_COUNT
