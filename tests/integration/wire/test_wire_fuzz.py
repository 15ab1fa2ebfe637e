"""A live broker takes a hundred thousand damaged requests and goes on serving.

Most of them have damaged values only, and reach their handlers; the others are damaged anywhere. They come pipelined
over several connections at once. Where one costs the connection, those behind it are sent again over the next, so
every one of them really arrives.
"""

import os
import random
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from struct import pack

import pytest

from tests.integration.wire.batches import batch, values_of
from tests.integration.wire.mutations import Mutator, seeds
from tests.integration.wire.raw import METADATA, Produced, RawClient, request, varint
from tests.integration.wire.watching import MIB, memory_bytes, metric, mistakes, wait_until
from tests.servers.headrace import HeadraceProcess, running_headrace

FRAMES = 100_000
CONNECTIONS = 12
PER_CONNECTION = 10
RANDOM_TOPIC = "topic"
"""What the random requests call topics, now and then. It will not live long."""

TOPIC = "records"
"""What is written to and read all the time."""

PARTITIONS = 4
PATIENCE_SECONDS = 0.5
"""A fetch whose limits were damaged may wait for minutes: who hears nothing for so long leaves."""

NOBODY_WAITS = {"group.initial.rebalance.delay.ms": "0", "group.max.size": "1"}
"""A join that waits for other members would hold up the frames behind it: so groups have one member."""

MAX_GROWTH_BYTES = 400 * MIB
"""The tail cache and the recycled buffers are half of it."""

SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("data"), settings=NOBODY_WAITS) as running:
        yield running


class Attack:
    """Sends frames over several connections at a time, and counts those that have arrived."""

    def __init__(self, port: int, mutator: Mutator) -> None:
        self._port = port
        self._mutator = mutator
        self._made = 0
        self._waiting: deque[bytes] = deque()
        self.taken = 0

    def run(self) -> None:
        while self.taken < FRAMES:
            lanes = [self._next() for _ in range(CONNECTIONS)]
            clients = [self._send(frames) for frames in lanes]
            for client, frames in zip(clients, lanes, strict=True):
                arrived = self._arrived(client, frames)
                self.taken += arrived
                self._waiting.extend(frames[arrived:])

    def _next(self) -> list[bytes]:
        while len(self._waiting) < PER_CONNECTION:
            self._waiting.append(self._mutator.frame(self._made))
            self._made += 1
        return [self._waiting.popleft() for _ in range(PER_CONNECTION)]

    def _send(self, frames: list[bytes]) -> RawClient:
        client = RawClient(self._port)
        # Thousands of connections come and go: none may stay in TIME_WAIT.
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        with suppress(ConnectionError):
            client.send(b"".join(frames))
            client.socket.shutdown(socket.SHUT_WR)
        return client

    def _arrived(self, client: RawClient, frames: list[bytes]) -> int:
        """Return how many frames the broker has surely taken: those answered, and the one that ended it all."""
        places = {frame[8:12]: place for place, frame in enumerate(frames)}
        last = -1
        client.socket.settimeout(PATIENCE_SECONDS)
        with client, suppress(ConnectionError, TimeoutError):
            while True:
                last = places[client.receive_frame()[:4]]
        return min(last + 2, len(frames))


def topic_id_of(client: RawClient, topic: str) -> bytes:
    """Return a topic's id, from Metadata v12."""
    name = varint(len(topic) + 1) + topic.encode()
    client.send(request(METADATA, 12, b"\x02" + bytes(16) + name + b"\0\0\0\0", tags=b"\0"))
    answer = client.receive_frame()
    at = answer.index(name) + len(name)
    return answer[at : at + 16]


def test_a_hundred_thousand_mutated_requests_leave_a_broker_that_serves(broker: HeadraceProcess) -> None:
    print(f"HEADRACE_FUZZ_SEED={SEED} has the same requests again")
    with RawClient(broker.kafka_port) as client:
        client.create_topic(RANDOM_TOPIC, partitions=PARTITIONS)
        client.create_topic(TOPIC, partitions=PARTITIONS)
        sound = seeds(TOPIC, topic_id_of(client, TOPIC), partitions=PARTITIONS)
        before = memory_bytes(broker)
        Attack(broker.kafka_port, Mutator(sound, SEED)).run()
        assert mistakes(broker) == []
        counted = metric(broker, "kafka_requests_total") + metric(broker, "kafka_connections_ended_by_broker_total")
        assert counted >= FRAMES
        client.create_topic("afterwards")
        assert client.produce("afterwards", {0: batch([b"still", b"here"])})[0] == Produced(0, 0)
        assert values_of(client.fetch("afterwards", 0, 0).records) == [b"still", b"here"]
        assert memory_bytes(broker) < before + MAX_GROWTH_BYTES
    wait_until(lambda: metric(broker, "kafka_connections") == 0, "no connection is left")
    wait_until(lambda: metric(broker, "kafka_request_memory_bytes") == 0, "all memory is given back")
