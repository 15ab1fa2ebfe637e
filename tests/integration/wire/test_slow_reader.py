"""Readers that take their answers in sips while the tail cache and the buffers turn over: every byte is compared.

An answer from the tail cache consists of views of the buffers that its batches were received into. They lie in the
socket's queue for as long as the reader is slow, long after the cache has dropped them. If such a buffer were used
again too early, the reader would get bytes of other records: so the writers here go on all the time, and a reader
takes its next sip only after they have written more.
"""

import random
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from struct import unpack

import pytest

from tests.integration.wire.batches import batch, read_batches, values_of
from tests.integration.wire.raw import TIMEOUT_SECONDS, RawClient, fetch_request, produce_request
from tests.integration.wire.watching import MIB, metric, mistakes, wait_until
from tests.servers.headrace import HeadraceProcess, running_headrace

SETTINGS = {"fetch.tail.cache.max.bytes": str(2 * MIB), "buffers.idle.max.bytes": str(8 * MIB)}
TOPIC = "sips"
PARTITIONS = 2
BATCHES = 250
"""Per partition; with 30 to 600 KB each, they replace what the cache holds some 70 times."""

LARGEST_VALUE_BYTES = 600_000
IN_FLIGHT = 4
READERS = 4
SIP_BYTES = 64 * 1024
RECEIVE_BUFFER_BYTES = 4096
ANSWER_BYTES = 4 * MIB
PIPELINED = 6
BEHIND = 6
"""How many batches before the end a reader begins: the cache holds about as many."""


class Progress:
    """How many batches were acknowledged so far; readers wait for more of them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.acknowledged = 0
        self.writers = PARTITIONS

    def more(self) -> None:
        with self._changed:
            self.acknowledged += 1
            self._changed.notify_all()

    def ended(self) -> None:
        with self._changed:
            self.writers -= 1
            self._changed.notify_all()

    def wait_for_more(self) -> None:
        """Wait until one more batch was acknowledged, or nobody writes any longer."""
        with self._changed:
            seen = self.acknowledged
            assert self._changed.wait_for(lambda: self.acknowledged > seen or not self.writers, TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("data"), settings=SETTINGS) as running:
        yield running
        assert mistakes(running) == []


@lru_cache(maxsize=64)
def value(partition: int, offset: int) -> bytes:
    """Return the one value that belongs at this place; no two are alike anywhere."""
    chance = random.Random(partition * 1_000_003 + offset)
    return chance.randbytes(chance.randrange(30_000, LARGEST_VALUE_BYTES))


def write(broker: HeadraceProcess, partition: int, progress: Progress) -> None:
    """Write all batches of a partition, a few in flight at a time."""
    try:
        with RawClient(broker.kafka_port) as client:
            for offset in range(BATCHES + IN_FLIGHT):
                if offset < BATCHES:
                    data = batch([value(partition, offset)])
                    client.send(produce_request(TOPIC, {partition: data}, correlation_id=offset))
                if offset >= IN_FLIGHT:
                    answer = client.produced(correlation_id=offset - IN_FLIGHT)[partition]
                    assert (answer.code, answer.base_offset) == (0, offset - IN_FLIGHT), answer
                    progress.more()
    finally:
        progress.ended()


def sip(client: RawClient, progress: Progress) -> None:
    """Take an answer in sips, each after more was written; leave it to `fetched` as if it had come at once."""
    size = client.receive(4)
    (left,) = unpack(">i", size)
    parts = bytearray(size)
    while left:
        progress.wait_for_more()
        parts += client.receive(min(SIP_BYTES, left))
        left = int.from_bytes(size, "big") + 4 - len(parts)
    client.push_back(bytes(parts))


def check(partition: int, start_offset: int, records: bytes) -> int:
    """Compare every batch of an answer with what was written there; return the offset behind them."""
    offset = start_offset
    for one, found in zip(read_batches(records), values_of(records), strict=True):
        assert one.base_offset == offset, f"offset {one.base_offset} stands where {offset} belongs"
        assert found == value(partition, offset), f"the bytes at offset {offset} are not what was written"
        offset += 1
    return offset


def read_slowly(broker: HeadraceProcess, partition: int, progress: Progress) -> int:
    """Read near the end, again and again, while the writers write; return how many bytes were compared.

    Several requests are under way at once: the kernel swallows the first answers whole, and only what comes behind
    them waits in the broker.
    """
    compared = 0
    starts: deque[int] = deque()
    with (
        RawClient(broker.kafka_port, receive_buffer_bytes=RECEIVE_BUFFER_BYTES) as client,
        RawClient(broker.kafka_port) as asking,
    ):
        while progress.writers or starts:
            while progress.writers and len(starts) < PIPELINED:
                starts.append(max(0, asking.end_offset(TOPIC, partition) - BEHIND))
                client.send(fetch_request(TOPIC, partition, starts[-1], max_bytes=ANSWER_BYTES))
                progress.wait_for_more()
            sip(client, progress)
            records = client.fetched().records
            check(partition, starts.popleft(), records)
            compared += len(records)
    return compared


def test_slow_readers_get_the_right_bytes_while_cache_and_buffers_turn_over(broker: HeadraceProcess) -> None:
    progress = Progress()
    with RawClient(broker.kafka_port) as client, ThreadPoolExecutor(PARTITIONS * (1 + READERS)) as threads:
        client.create_topic(TOPIC, partitions=PARTITIONS)
        writers = [threads.submit(write, broker, partition, progress) for partition in range(PARTITIONS)]
        readers = [
            threads.submit(read_slowly, broker, partition, progress)
            for partition in range(PARTITIONS)
            for _ in range(READERS)
        ]
        for writer in writers:
            writer.result()
        compared = [reader.result() for reader in readers]
        assert all(size > 2 * MIB for size in compared), f"the readers had too little to compare: {compared}"
        for partition in range(PARTITIONS):
            offset = 0
            while offset < BATCHES:
                offset = check(partition, offset, client.fetch(TOPIC, partition, offset).records)
    wait_until(lambda: metric(broker, "buffers_leased_bytes") <= 6 * MIB, "buffers come back when readers are done")
