"""The clients of a soak: one writes to all topics and remembers every acknowledgement, others read along.

Must stay true: what is acknowledged stands in the ledger under its offset, and nothing else does; what a reader sees
is judged against the ledger when all is over, because a reader may be quicker than an acknowledgement.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.soak.plan import NUMBER_HEADER, SoakTopic

ADMIN_LIMIT_SECONDS = 60.0
FLUSH_LIMIT_SECONDS = 180.0
READ_LIMIT_SECONDS = 120.0
TICK_SECONDS = 0.05

Place = tuple[int, int]
"""Partition and offset."""


class Ledger:
    """Which record of a topic was acknowledged at which place."""

    def __init__(self) -> None:
        self.at: dict[Place, int] = {}
        self.acknowledged_at: dict[Place, float] = {}
        """By the monotonic clock."""
        self.failures: list[str] = []

    def acknowledged(self, number: int, error: KafkaError | None, message: Message) -> None:
        """Take a delivery report."""
        if error is not None:
            self.failures.append(f"record {number}: {error}")
            return
        place = (message.partition() or 0, message.offset() or 0)
        if place in self.at:
            self.failures.append(f"records {self.at[place]} and {number} were both given {place}")
        self.at[place] = number
        self.acknowledged_at[place] = time.monotonic()


def create_topics(bootstrap: str, topics: Sequence[SoakTopic]) -> None:
    """Create all topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = [NewTopic(topic.name, topic.partitions, 1, config=dict(topic.config)) for topic in topics]
    for created in admin.create_topics(new).values():
        created.result(ADMIN_LIMIT_SECONDS)


class Writing(threading.Thread):
    """Writes to all topics in turn at a steady rate until it is told to end."""

    def __init__(self, bootstrap: str, topics: Sequence[SoakTopic], *, records_per_second: int) -> None:
        super().__init__(name="writing", daemon=True)
        self._topics = topics
        self._rate = records_per_second
        self._ending = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                # A killed broker is back within seconds: nothing is to be given up.
                "delivery.timeout.ms": 600_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self.ledgers = {topic.name: Ledger() for topic in topics}
        self.written = 0

    def run(self) -> None:
        began = time.monotonic()
        while not self._ending.is_set():
            due = int((time.monotonic() - began) * self._rate)
            while self.written < due and not self._ending.is_set():
                self._write(self._topics[self.written % len(self._topics)], self.written // len(self._topics))
                self.written += 1
            self._producer.poll(TICK_SECONDS)

    def end(self) -> None:
        """Write no more, and wait until all is acknowledged. Raises `RuntimeError` if that takes too long."""
        self._ending.set()
        self.join()
        left = self._producer.flush(FLUSH_LIMIT_SECONDS)
        if left:
            raise RuntimeError(f"{left} records were not acknowledged within {FLUSH_LIMIT_SECONDS:.0f} s")

    def _write(self, topic: SoakTopic, number: int) -> None:
        ledger = self.ledgers[topic.name]
        while True:
            try:
                self._producer.produce(
                    topic.name,
                    topic.value_of(number),
                    topic.key_of(number),
                    partition=topic.partition_of(number),
                    headers={NUMBER_HEADER: b"%d" % number},
                    on_delivery=lambda error, message: ledger.acknowledged(number, error, message),
                )
                return
            except BufferError:
                self._producer.poll(TICK_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Offsets that a reader was not given, and when it noticed."""

    partition: int
    start_offset: int
    end_offset: int
    at: float


class Sightings:
    """What a reader has seen of one topic, from the offset on where it began."""

    def __init__(self, topic: SoakTopic) -> None:
        self.at: dict[Place, int] = {}
        self.skips: list[Skip] = []
        self.problems: list[str] = []
        self._topic = topic
        self._next: dict[int, int] = {}

    def see(self, message: Message) -> None:
        """Take a record: offsets only grow, and it is what was written under its number."""
        topic = self._topic
        partition, offset = message.partition() or 0, message.offset() or 0
        number = _number_of(message)
        expected = self._next.get(partition, offset)
        if offset < expected:
            self.problems.append(f"{topic.name}-{partition}: offset {offset} came where {expected} was next")
        elif offset > expected:
            skip = Skip(partition=partition, start_offset=expected, end_offset=offset, at=time.monotonic())
            self.skips.append(skip)
        self._next[partition] = offset + 1
        if message.value() != topic.value_of(number) or message.key() != topic.key_of(number):
            self.problems.append(f"{topic.name}-{partition}: record {number} at {offset} is not as it was written")
        self.at[partition, offset] = number


class Following(threading.Thread):
    """Reads a topic from its beginning along with the writer, until it is told to end."""

    def __init__(self, bootstrap: str, topic: SoakTopic) -> None:
        super().__init__(name=f"following {topic.name}", daemon=True)
        self._topic = topic
        self._ending = threading.Event()
        self._consumer = _consumer(bootstrap)
        self.seen = Sightings(topic)

    def run(self) -> None:
        topic = self._topic
        self._consumer.assign([TopicPartition(topic.name, number, 0) for number in range(topic.partitions)])
        while not self._ending.is_set():
            message = self._consumer.poll(TICK_SECONDS)
            if message is not None and message.error() is None:
                self.seen.see(message)
        self._consumer.close()

    def end_after(self, places: Sequence[Place]) -> None:
        """End once the last of these places was seen, or after a while without that."""
        deadline = time.monotonic() + READ_LIMIT_SECONDS
        last = dict(sorted(places))
        while time.monotonic() < deadline and not all(place in self.seen.at for place in last.items()):
            time.sleep(TICK_SECONDS)
        self._ending.set()
        self.join()


def read_all(bootstrap: str, topic: SoakTopic) -> Sightings:
    """Read a topic from its log start to its end with a new client. Raises `RuntimeError` if it gets stuck."""
    seen = Sightings(topic)
    consumer = _consumer(bootstrap)
    try:
        consumer.assign([TopicPartition(topic.name, number, OFFSET_BEGINNING) for number in range(topic.partitions)])
        at_end: set[int | None] = set()
        while len(at_end) < topic.partitions:
            message = consumer.poll(READ_LIMIT_SECONDS)
            if message is None:
                raise RuntimeError(f"reading {topic.name} got stuck after {len(seen.at)} records")
            error = message.error()
            if error is None:
                seen.see(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            elif not error.retriable():
                raise KafkaException(error)
    finally:
        consumer.close()
    return seen


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "soak",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )


def _number_of(message: Message) -> int:
    headers = dict(message.headers() or ())
    return int(headers[NUMBER_HEADER] or b"")
