"""Kill one of two brokers under an idempotent producer and a waiting consumer, and count what arrives.

Must stay true: every acknowledged record is read, none twice, each partition in order; the killed broker leaves the
metadata, and a new client that knows only the survivor works.
"""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported without saying so

from compat.driver_kit import WAIT_LIMIT_SECONDS, check, check_equal, wait_until

TOPIC = "failover"
PARTITIONS = 6
# Records that must be acknowledged before the kill, and again after it.
STRETCH = 400
# What may pass between the kill and the last acknowledgement: a session timeout, and time on a slow machine.
DELIVERY_LIMIT_MS = 120_000


class Pair:
    """The two brokers, run by another process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None and process.stdout is not None
        self._to: IO[str] = process.stdin
        self._from: IO[str] = process.stdout
        self.bootstrap: list[str] = json.loads(self._from.readline())["bootstrap"]

    def kill(self, number: int) -> None:
        """Kill a broker and return when it is dead."""
        check_equal(self._order("kill", number), {"killed": number}, "answer to a kill")

    def start(self, number: int) -> None:
        """Start a killed broker at its old address and return when it serves."""
        check_equal(self._order("start", number), {"started": number}, "answer to a start")

    def _order(self, verb: str, number: int) -> object:
        self._to.write(f"{verb} {number}\n")
        self._to.flush()
        return json.loads(self._from.readline())


@contextmanager
def running_pair() -> Iterator[Pair]:
    """Start two brokers on one data directory, and end them."""
    command = [os.environ["COMPAT_PAIR_PYTHON"], "-m", "compat.broker_pair"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Pair(process)


class Acknowledged:
    """What the producer was told."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.errors: list[str] = []

    def take(self, error: KafkaError | None, message: Message) -> None:
        """Receive one delivery report."""
        value = message.value()
        if error is not None:
            self.errors.append(str(error))
        elif value is not None:
            self.values.append(value)


def failover() -> str:
    """Run the case and tell how long the survivor took to answer."""
    with running_pair() as pair:
        both: dict[str, str | int | float | bool] = {
            "bootstrap.servers": ",".join(pair.bootstrap),
            "client.id": "compat-failover",
        }
        admin = AdminClient(both)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WAIT_LIMIT_SECONDS)
        wait_until(
            lambda: len(admin.list_topics(TOPIC, timeout=WAIT_LIMIT_SECONDS).brokers) == 2, "both brokers are known"
        )
        leaders = Counter(
            part.leader
            for part in admin.list_topics(TOPIC, timeout=WAIT_LIMIT_SECONDS).topics[TOPIC].partitions.values()
        )
        producer = Producer({**both, "enable.idempotence": True, "delivery.timeout.ms": DELIVERY_LIMIT_MS})
        consumer = Consumer({**both, "group.id": "unused", "enable.auto.commit": False})
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        told = Acknowledged()
        seen: list[Message] = []
        sent = _send(producer, consumer, told, seen, 0, STRETCH)
        pair.kill(0)
        sent = _send(producer, consumer, told, seen, sent, 2 * STRETCH)
        check_equal(producer.flush(DELIVERY_LIMIT_MS / 1000), 0, "records without an answer")
        check_equal(told.errors, [], "delivery errors")
        check_equal(len(told.values), sent, "acknowledged records")
        _read(consumer, seen, sent)
        consumer.close()
        _check_seen(seen, told)
        wait_until(
            lambda: len(admin.list_topics(TOPIC, timeout=WAIT_LIMIT_SECONDS).brokers) == 1, "the dead one is gone"
        )
        _check_survivor(pair.bootstrap[1], sent)
        return f"{sent} records, leaders before the kill {dict(leaders)}"


def _send(
    producer: Producer, consumer: Consumer, told: Acknowledged, seen: list[Message], sent: int, wanted: int
) -> int:
    """Send and read until `wanted` records are acknowledged. A few are always under way."""
    while len(told.values) < wanted and not told.errors:
        if sent < len(told.values) + 100:
            producer.produce(TOPIC, str(sent).encode(), partition=sent % PARTITIONS, on_delivery=told.take)
            sent += 1
        producer.poll(0.001)
        _take(consumer.poll(0), seen)
    return sent


def _read(consumer: Consumer, seen: list[Message], count: int) -> None:
    while len(seen) < count:
        message = consumer.poll(WAIT_LIMIT_SECONDS)
        check(
            message is not None, f"{len(seen)} of {count} records after {WAIT_LIMIT_SECONDS:.0f} s without one more"
        )
        _take(message, seen)


def _take(message: Message | None, seen: list[Message]) -> None:
    # An error here is an event that librdkafka tells of and mends by itself, such as a broker that is down.
    if message is not None and message.error() is None:
        seen.append(message)


def _check_seen(seen: list[Message], told: Acknowledged) -> None:
    counts = Counter(message.value() for message in seen)
    check_equal([value for value, count in counts.items() if count > 1], [], "records that were read twice")
    check_equal(sorted(set(told.values) - set(counts)), [], "acknowledged records that were not read")
    for number in range(PARTITIONS):
        part = [message for message in seen if message.partition() == number]
        check_equal([message.offset() for message in part], list(range(len(part))), f"offsets of partition {number}")
        values = [int(message.value() or b"") for message in part]
        check_equal(values, sorted(values), f"order in partition {number}")


def _check_survivor(bootstrap: str, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        seen: list[Message] = []
        _read(consumer, seen, count)
    finally:
        consumer.close()
