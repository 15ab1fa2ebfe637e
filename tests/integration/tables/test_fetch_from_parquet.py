"""Foreign clients read a topic from Parquet as they read it from the WAL: every byte, offset and time."""

import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.integration.clients.all_clients import CLIENTS
from tests.integration.clients.librdkafka import Librdkafka, create_topic, quiet
from tests.integration.clients.messages import (
    CALL_LIMIT_SECONDS,
    CODECS,
    Message,
    Stored,
    as_stored,
    assorted,
    ends_of,
)
from tests.integration.tables.moving import make_holes, move_to_table
from tests.servers.headrace import HeadraceProcess, running_headrace

FIRST_MS = 1_600_000_000_000
LAST_MS = 1_700_000_000_000
TIMES = [0, *range(FIRST_MS, LAST_MS, (LAST_MS - FIRST_MS) // 20), LAST_MS, 2**62]

SMALL_TAIL = {"fetch.tail.cache.max.bytes": str(1024 * 1024)}
"""What a broker wrote itself it serves from memory: let that be little."""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data_dir: Path) -> Iterator[HeadraceProcess]:
    with running_headrace(data_dir, settings=SMALL_TAIL) as process:
        yield process


def offsets_at_times(bootstrap: str, topic: str, partitions: int) -> list[list[int]]:
    """Return what ListOffsets answers for many times, for each partition."""
    consumer = Consumer(quiet({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}))
    try:
        return [
            [
                found.offset
                for found in consumer.offsets_for_times(
                    [TopicPartition(topic, partition, at_ms) for partition in range(partitions)],
                    timeout=CALL_LIMIT_SECONDS,
                )
            ]
            for at_ms in TIMES
        ]
    finally:
        consumer.close()


def wait_for_metric(broker: HeadraceProcess, name: str) -> None:
    """Wait until a metric is more than nothing."""
    deadline = time.monotonic() + CALL_LIMIT_SECONDS
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{broker.http}/metrics", timeout=CALL_LIMIT_SECONDS) as answer:
            found = re.search(rf"^headrace_{name} (\S+)$", answer.read().decode(), re.MULTILINE)
        if found and float(found[1]) > 0:
            return
        time.sleep(0.1)
    pytest.fail(f"{name} stays at nothing")


def produce_all_kinds(bootstrap: str, topic: str) -> dict[int, list[Stored]]:
    """Fill partition after partition, each with another codec, and return what must come out."""
    sent: list[Message] = []
    client = Librdkafka()
    for partition, codec in enumerate(CODECS):
        for is_idempotent in (False, True):
            messages = assorted(partition, null_headers=True)
            client.produce(bootstrap, topic, messages, codec=codec, idempotent=is_idempotent)
            sent += messages
    return as_stored(sent)


@pytest.mark.parametrize("compression", ["producer", "zstd", "uncompressed"])
def test_every_client_reads_the_same_from_parquet_after_a_restart(data_dir: Path, compression: str) -> None:
    topic = f"moved-{compression}"
    with running_headrace(data_dir) as broker:
        create_topic(broker.bootstrap, topic, len(CODECS), compression_type=compression)
        expected = produce_all_kinds(broker.bootstrap, topic)
        times = offsets_at_times(broker.bootstrap, topic, len(CODECS))
        assert broker.terminate() == 0
    assert move_to_table(data_dir, topic, row_group_bytes=100_000) == sum(len(rows) for rows in expected.values())
    with running_headrace(data_dir) as broker:
        for reader in CLIENTS.values():
            read = reader.read(broker.bootstrap, topic, ends_of(expected))
            for partition, codec in enumerate(CODECS):
                assert read[partition] == expected[partition], (reader.name, codec)
        assert offsets_at_times(broker.bootstrap, topic, len(CODECS)) == times
        wait_for_metric(broker, "table_cache_loads")
        assert broker.terminate() == 0


def test_reader_sees_every_record_once_while_its_log_moves(broker: HeadraceProcess, data_dir: Path) -> None:
    topic = "moving"
    create_topic(broker.bootstrap, topic, 2)
    client = Librdkafka()
    rounds = 4
    sent: list[Message] = []
    for number in range(rounds):
        sent += [
            Message(partition=n % 2, key=b"%d-%d" % (number, n), value=b"%d" % n * 400, timestamp_ms=FIRST_MS + n)
            for n in range(1_000)
        ]
    expected = as_stored(sent)
    read: list[dict[int, list[Stored]]] = []
    readers = [
        threading.Thread(target=lambda: read.append(client.read(broker.bootstrap, topic, ends_of(expected))))
        for _ in range(3)
    ]
    for reader in readers:
        reader.start()
    moved = 0
    for number in range(rounds):
        client.produce(broker.bootstrap, topic, sent[1_000 * number : 1_000 * (number + 1)], idempotent=True)
        moved += move_to_table(data_dir, topic, row_group_bytes=50_000, entries_per_step=2)
    for reader in readers:
        reader.join(CALL_LIMIT_SECONDS)
    assert moved == len(sent)
    assert read == [expected] * len(readers)
    # One more who begins when all of it lies in Parquet, on a broker that remembers where it lay before.
    assert client.read(broker.bootstrap, topic, ends_of(expected)) == expected


def test_clients_step_over_holes_at_the_beginning_in_the_middle_and_at_the_end(data_dir: Path) -> None:
    topic = "holes"
    with running_headrace(data_dir) as broker:
        create_topic(broker.bootstrap, topic)
        sent = [Message(value=b"%d" % n) for n in range(8)]
        for message in sent:
            Librdkafka().produce(broker.bootstrap, topic, [message])
        assert broker.terminate() == 0
    left = make_holes(data_dir, topic, [0, 1, 3, 6, 7])
    assert left == [(2, 3), (4, 5), (5, 6)]
    (expected,) = as_stored(sent).values()
    expected = [row for row in expected if row.offset in (2, 4, 5)]
    with running_headrace(data_dir) as broker:
        for reader in CLIENTS.values():
            assert reader.read(broker.bootstrap, topic, {0: 6}) == {0: expected}, reader.name
        assert position_at_the_end(broker.bootstrap, topic) == 8
        assert broker.terminate() == 0


def position_at_the_end(bootstrap: str, topic: str) -> int:
    """Read everything and return where the client says that the partition ends."""
    config = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer(quiet({**config, "enable.partition.eof": True}))
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    deadline = time.monotonic() + CALL_LIMIT_SECONDS
    try:
        while time.monotonic() < deadline:
            found = consumer.poll(0.5)
            error = None if found is None else found.error()
            if found is not None and error is not None and error.code() == KafkaError._PARTITION_EOF:
                offset = found.offset()
                assert offset is not None
                return offset
    finally:
        consumer.close()
    pytest.fail("the end was never reached")
