"""Refusals cost nothing afterwards: whatever is wrong with a large request, its memory is free once it is answered.

A broker collects circles of references seldom, so one error that is held by its own traceback keeps a whole request.
"""

import gzip
from collections.abc import Callable, Iterator
from contextlib import suppress
from struct import pack

import pytest

from tests.integration.wire.batches import GZIP, batch, old_message
from tests.integration.wire.raw import METADATA, RawClient, produce_request, request
from tests.integration.wire.watching import MIB, memory_bytes, metric, wait_until
from tests.servers.headrace import HeadraceProcess, running_headrace

ROUNDS = 80
LARGE_BYTES = 3 * MIB // 2
MAX_GROWTH_BYTES = 48 * MIB
"""Eighty requests of one and a half MiB are 120 MiB: were a good part of them kept, it would show."""

MAX_MESSAGE_BYTES = 8 * MIB

LARGE = bytes(LARGE_BYTES)
NOISE = bytes(range(256)) * (LARGE_BYTES // 256)

REFUSALS: dict[str, Callable[[], bytes]] = {
    "larger than the topic takes": lambda: produce_request("small", {0: batch([LARGE])}),
    "a wrong CRC": lambda: produce_request("large", {0: batch([LARGE], crc=1)}),
    "a count that lies": lambda: produce_request("large", {0: batch([LARGE], count=2)}),
    "no key on a compacted topic": lambda: produce_request("compacted", {0: batch([LARGE], key=None)}),
    "gzip that is none, on a compacted topic": lambda: produce_request(
        "compacted", {0: batch([b"x"], attributes=GZIP, body=NOISE)}
    ),
    "gzip with too few records": lambda: produce_request(
        "compacted", {0: batch([b"x"], attributes=GZIP, body=gzip.compress(NOISE, 0), count=5)}
    ),
    "an old message with a wrong CRC": lambda: produce_request(
        "large", {0: old_message(LARGE, magic=1)[:-1] + b"x"}, version=2
    ),
    "a timestamp far ahead": lambda: produce_request("recent", {0: batch([LARGE], timestamp_ms=2**50)}),
    "a topic that is not there": lambda: produce_request("missing", {0: batch([LARGE])}),
    "a partition that is not there": lambda: produce_request("large", {9: batch([LARGE])}),
    "acks that are none": lambda: produce_request("large", {0: batch([LARGE])}, acks=7),
    "no acknowledgement, and refused": lambda: produce_request("small", {0: batch([LARGE])}, acks=0),
    "a body that is none": lambda: request(METADATA, 1, pack(">i", 2**31 - 1) + LARGE),
    "a version that is not served": lambda: request(METADATA, 99, LARGE),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("refusals")) as broker:
        with RawClient(broker.kafka_port) as client:
            wide = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
            client.create_topic("small")
            client.create_topic("large", configs=wide)
            client.create_topic("recent", configs=wide | {"message.timestamp.after.max.ms": "1000"})
            client.create_topic("compacted", configs=wide | {"cleanup.policy": "compact"})
        yield broker


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_request_leaves_no_memory_behind(broker: HeadraceProcess, name: str) -> None:
    frame = REFUSALS[name]()
    refuse(broker, frame, rounds=5)  # what is kept for use again is there by now
    before_bytes = memory_bytes(broker)
    refuse(broker, frame, rounds=ROUNDS)
    wait_until(lambda: metric(broker, "buffers_leased_bytes") == 0, "every buffer of a refused request has come back")
    assert memory_bytes(broker) - before_bytes < MAX_GROWTH_BYTES


def refuse(broker: HeadraceProcess, frame: bytes, *, rounds: int) -> None:
    """Send the frame so often, over one connection as long as the broker keeps it."""
    client = RawClient(broker.kafka_port)
    for _ in range(rounds):
        with suppress(ConnectionError):
            client.send(frame)
            client.receive_frame()
            continue
        client.socket.close()
        client = RawClient(broker.kafka_port)
    client.socket.close()
