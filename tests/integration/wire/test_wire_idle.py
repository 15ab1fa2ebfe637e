"""Connections on which nothing happens: thousands of them cost little, and one too many is refused."""

import contextlib
import socket
from pathlib import Path
from struct import pack

import pytest

from tests.integration.wire.batches import batch, values_of
from tests.integration.wire.raw import API_VERSIONS, Produced, RawClient
from tests.integration.wire.watching import MIB, closing, many_files, memory_bytes, metric, mistakes, wait_until
from tests.servers.headrace import running_headrace

CONNECTIONS = 5000
SPARE_FILES = 300
MAX_GROWTH_BYTES = 200 * MIB
RESET = pack("ii", 1, 0)
"""SO_LINGER: leave at once, so that thousands of ports do not stay in TIME_WAIT."""


def test_five_thousand_silent_connections_cost_little_and_others_are_served(tmp_path: Path) -> None:
    with (
        many_files(CONNECTIONS + SPARE_FILES),
        running_headrace(tmp_path) as broker,
        contextlib.ExitStack() as stack,
    ):
        client = stack.enter_context(RawClient(broker.kafka_port))
        client.create_topic("between")
        before = memory_bytes(broker)
        for number in range(CONNECTIONS):
            idle = stack.enter_context(RawClient(broker.kafka_port))
            idle.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            if number % 2:
                # Half of them have said something before they fell silent, as real clients do.
                assert idle.ask(API_VERSIONS, 0, b"").number(2) == 0
        wait_until(lambda: metric(broker, "kafka_connections") == CONNECTIONS + 1, "all are connected")
        assert memory_bytes(broker) < before + MAX_GROWTH_BYTES
        assert client.produce("between", {0: batch([b"served"])})[0] == Produced(0, 0)
        assert values_of(client.fetch("between", 0, 0).records) == [b"served"]
        stack.close()
        wait_until(lambda: metric(broker, "kafka_connections") == 0, "all are gone")
        assert mistakes(broker) == []


@pytest.mark.parametrize("limit", ["connections.max.count", "max.connections.per.ip"])
def test_one_connection_too_many_is_refused_and_the_others_stay(tmp_path: Path, limit: str) -> None:
    with running_headrace(tmp_path, settings={limit: "3"}) as broker, contextlib.ExitStack() as stack:
        allowed = [stack.enter_context(RawClient(broker.kafka_port)) for _ in range(3)]
        for client in allowed:
            assert client.ask(API_VERSIONS, 0, b"").number(2) == 0
        for _ in range(3):
            with RawClient(broker.kafka_port) as refused:
                assert refused.rest() == b""
                entry = closing(broker, refused.name)
                assert entry["kind"] == "limit" and limit in entry["reason"]
        for client in allowed:
            assert client.ask(API_VERSIONS, 0, b"").number(2) == 0
        allowed[0].socket.close()
        wait_until(lambda: metric(broker, "kafka_connections") == 2, "one has left")
        with RawClient(broker.kafka_port) as client:
            assert client.ask(API_VERSIONS, 0, b"").number(2) == 0
        assert mistakes(broker) == []


def test_a_connection_that_is_silent_for_too_long_is_closed_unless_an_answer_is_due(tmp_path: Path) -> None:
    with (
        running_headrace(tmp_path, settings={"connections.max.idle.ms": "1000"}) as broker,
        RawClient(broker.kafka_port) as client,
        RawClient(broker.kafka_port) as waiting,
    ):
        client.create_topic("quiet")
        # This one waits for longer than it may be idle, and it is we who keep it waiting.
        fetched = waiting.fetch("quiet", 0, 0, min_bytes=1, max_wait_ms=4000)
        assert fetched.code == 0 and fetched.records == b""
        assert client.rest() == b""
        assert waiting.rest() == b""
        assert metric(broker, "kafka_connections_ended_by_broker_total", reason="idle") == 2
        assert mistakes(broker) == []
