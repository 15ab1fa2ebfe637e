"""A byte that went wrong on the disk: consumers get what lies before it, hear of it, and can go on behind it."""

import json
import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.integration.clients.librdkafka import create_topic, quiet
from tests.integration.clients.messages import CALL_LIMIT_SECONDS
from tests.integration.clients.waiting import eventually
from tests.servers.headrace import HeadraceProcess, running_headrace

TOPIC = "damaged"
PER_BATCH = 3
BATCHES = 5
DAMAGED = 2
LINGER_MS = 100_000


def value_of(offset: int) -> bytes:
    return b"the value at offset %04d" % offset


def produce(broker: HeadraceProcess) -> None:
    """Fill the topic. Only a flush sends what is there, so each makes one batch, however slow the machine is."""
    create_topic(broker.bootstrap, TOPIC)
    producer = Producer(quiet({"bootstrap.servers": broker.bootstrap, "linger.ms": LINGER_MS}))
    for batch in range(BATCHES):
        for offset in range(batch * PER_BATCH, (batch + 1) * PER_BATCH):
            producer.produce(TOPIC, value_of(offset), partition=0)
        assert producer.flush(CALL_LIMIT_SECONDS) == 0, "messages were never answered"


def flip_a_byte(data_dir: Path, value: bytes) -> str:
    """Damage a value where it is stored; return the object's key."""
    objects = data_dir / "objects"
    (path,) = [path for path in objects.rglob("*") if path.is_file() and value in path.read_bytes()]
    data = bytearray(path.read_bytes())
    data[data.index(value)] ^= 1
    path.write_bytes(data)
    return str(path.relative_to(objects))


def metrics_of(broker: HeadraceProcess) -> str:
    with urllib.request.urlopen(f"{broker.http}/metrics") as answer:
        return str(answer.read(), "utf-8")


class Reader:
    """Takes what librdkafka gives: values by their offsets, and the broker's first error."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.values: dict[int, bytes] = {}
        self.error: tuple[int | None, KafkaError] | None = None

    def take(self) -> None:
        found = self._consumer.poll(0.1)
        if found is None:
            return
        error = found.error()
        if error is not None:
            if error.code() > 0:  # others are the client's own, about its connections
                self.error = self.error or (found.offset(), error)
            return
        offset, value = found.offset(), found.value()
        assert offset is not None and isinstance(value, bytes) and offset not in self.values
        self.values[offset] = value

    def has_error(self) -> bool:
        self.take()
        return self.error is not None

    def has(self, offset: int) -> bool:
        self.take()
        return offset in self.values


def test_consumer_reads_up_to_the_damage_hears_of_it_and_goes_on_behind_it(tmp_path: Path) -> None:
    with running_headrace(tmp_path) as broker:
        produce(broker)
        assert broker.terminate() == 0
    first, behind, end = DAMAGED * PER_BATCH, (DAMAGED + 1) * PER_BATCH, BATCHES * PER_BATCH
    key = flip_a_byte(tmp_path, value_of(first + 1))
    with running_headrace(tmp_path) as broker:
        consumer = Consumer(
            quiet({"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False})
        )
        try:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            before = Reader(consumer)
            eventually("an error at the damage", before.has_error)
            assert before.values == {offset: value_of(offset) for offset in range(first)}
            assert before.error is not None
            offset, error = before.error
            assert offset == first and error.code() == KafkaError.INVALID_MSG and not error.retriable()
            consumer.seek(TopicPartition(TOPIC, 0, behind))
            after = Reader(consumer)
            eventually("the last record", lambda: after.has(end - 1))
            assert after.values == {offset: value_of(offset) for offset in range(behind, end)}
        finally:
            consumer.close()
        lines = [json.loads(line) for line in broker.log if line.startswith("{")]
        (told,) = [line for line in lines if line["level"] == "error"]
        assert (told["topic"], told["partition"], told["object"]) == (TOPIC, 0, key)
        assert (told["start_offset"], told["end_offset"]) == (first, behind)
        eventually("the count", lambda: "headrace_log_damages_found 1.0\n" in metrics_of(broker))
