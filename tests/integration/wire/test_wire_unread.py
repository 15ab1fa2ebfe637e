"""Clients that ask for much and do not read: their answers take bounded memory, and those who read go on."""

import contextlib
from collections.abc import Iterator
from struct import pack

import pytest

from tests.integration.wire.batches import batch, values_of
from tests.integration.wire.raw import FETCH, Produced, RawClient, array, request, text
from tests.integration.wire.watching import MIB, forget_peak, metric, mistakes, peak_memory_bytes, wait_until
from tests.servers.headrace import HeadraceProcess, running_headrace

ANSWER_MEMORY_BYTES = 64 * MIB
SPARE_BYTES = 96 * MIB
"""What reads under way, cursors and new connections take beside it."""

SETTINGS = {"queued.max.response.bytes": str(ANSWER_MEMORY_BYTES), "fetch.tail.cache.max.bytes": str(4 * MIB)}
PARTITIONS = 12
BATCHES_PER_PARTITION = 5
BATCH_BYTES = 900_000
UNREAD_COUNT = 60
PIPELINED = 3
ROUNDS = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("data"), settings=SETTINGS) as running:
        yield running
        assert mistakes(running) == []


def fetch_everything(topic: str) -> bytes:
    """Return a Fetch request for all that there is, from the beginning."""
    limits = pack(">iiiib", -1, 0, 0, 1 << 26, 0)
    wanted = array([pack(">iqi", partition, 0, 1 << 26) for partition in range(PARTITIONS)])
    return request(FETCH, 4, limits + array([text(topic) + wanted]))


def test_answers_that_nobody_reads_take_bounded_memory_and_readers_go_on(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client, contextlib.ExitStack() as unread:
        client.create_topic("backlog", partitions=PARTITIONS)
        client.create_topic("tail")
        for _ in range(BATCHES_PER_PARTITION):
            answers = client.produce("backlog", {n: batch([bytes(BATCH_BYTES)]) for n in range(PARTITIONS)})
            assert {answer.code for answer in answers.values()} == {0}
        before_bytes = forget_peak(broker)
        for _ in range(UNREAD_COUNT):
            one = unread.enter_context(RawClient(broker.kafka_port, receive_buffer_bytes=4096))
            one.send(fetch_everything("backlog") * PIPELINED)
        for number in range(ROUNDS):
            value = bytes([number]) * BATCH_BYTES
            assert client.produce("tail", {0: batch([value])})[0] == Produced(0, number)
            assert values_of(client.fetch("tail", 0, number).records) == [value]
        wait_until(lambda: metric(broker, "kafka_answer_memory_bytes") > 4 * MIB, "answers wait for those who sleep")
        assert peak_memory_bytes(broker) < before_bytes + ANSWER_MEMORY_BYTES + SPARE_BYTES
    wait_until(lambda: metric(broker, "kafka_connections") == 0, "no connection is left")
    wait_until(lambda: metric(broker, "kafka_answer_memory_bytes") == 0, "all memory is given back")


def test_large_answers_are_read_whole_by_many_readers_at_once(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client, contextlib.ExitStack() as stack:
        client.create_topic("read")
        for _ in range(BATCHES_PER_PARTITION):
            assert client.produce("read", {0: batch([bytes(BATCH_BYTES)])})[0].code == 0
        readers = [stack.enter_context(RawClient(broker.kafka_port)) for _ in range(30)]
        for offset in range(BATCHES_PER_PARTITION):
            for reader in readers:
                assert len(values_of(reader.fetch("read", 0, offset).records)) >= 1
    wait_until(lambda: metric(broker, "kafka_answer_memory_bytes") == 0, "all memory is given back")
