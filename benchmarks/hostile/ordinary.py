"""The well-behaved one: a librdkafka producer and consumer whose every record is looked at, and timed.

The consumer is the only member of a KIP-848 group: nothing that others do may cost it its partitions.

Prints one line of JSON: how many records were acknowledged and read, what was wrong with them, and how long each was
on its way from the producer to the consumer.
"""

import hashlib
import json
import struct
import sys
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from benchmarks.hostile.plan import ORDINARY, ORDINARY_PARTITIONS

READ_LIMIT_SECONDS = 60.0
MAX_PROBLEMS = 20
LARGEST_VALUE_BYTES = 4_000

_HEAD = struct.Struct(">qd")


def value_of(number: int, sent_at: float) -> bytes:
    """Return a record's value: its number, when it was sent, and bytes that follow from the number."""
    digest = hashlib.sha256(b"%d" % number).digest()
    return _HEAD.pack(number, sent_at) + digest * (1 + number % (LARGEST_VALUE_BYTES // len(digest)))


class Ordinary:
    """Writes at a steady rate and reads all of it."""

    def __init__(self, bootstrap: str) -> None:
        common = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._producer = Producer({**common, "enable.idempotence": True, "linger.ms": 0})
        member = {"group.id": "ordinary", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**common, **member, "enable.auto.commit": False})
        self._consumer.subscribe([ORDINARY], on_lost=self._lost)
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.read: dict[int, tuple[int, int]] = {}
        self.latencies_ms: list[float] = []
        self.problems: list[str] = []

    def run(self, seconds: float, per_second: int) -> None:
        """Write and read, then read what is left."""
        began = time.monotonic()
        sent = 0
        while (passed := time.monotonic() - began) < seconds:
            while sent < passed * per_second:
                self._send(sent)
                sent += 1
            self._producer.poll(0)
            self._take(0.002)
        left = self._producer.flush(READ_LIMIT_SECONDS)
        if left:
            self._problem(f"{left} records were not acknowledged within {READ_LIMIT_SECONDS:.0f} s")
        deadline = time.monotonic() + READ_LIMIT_SECONDS
        while len(self.read) < len(self.acknowledged) and time.monotonic() < deadline:
            self._take(0.1)
        self._consumer.close()
        self._compare()

    def _send(self, number: int) -> None:
        def acknowledged(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._problem(f"record {number} was not written: {error}")
            else:
                self.acknowledged[number] = (message.partition() or 0, message.offset() or 0)

        self._producer.produce(
            ORDINARY,
            value_of(number, time.monotonic()),
            partition=number % ORDINARY_PARTITIONS,
            on_delivery=acknowledged,
        )

    def _take(self, patience_s: float) -> None:
        for message in self._consumer.consume(500, patience_s):
            value = message.value()
            if message.error() is not None or value is None:
                continue
            number, sent_at = _HEAD.unpack_from(value)
            if value != value_of(number, sent_at):
                self._problem(f"record {number} was changed")
            if number in self.read:
                self._problem(f"record {number} was read twice")
            self.read[number] = (message.partition() or 0, message.offset() or 0)
            self.latencies_ms.append((time.monotonic() - sent_at) * 1000)

    def _compare(self) -> None:
        for number, place in self.acknowledged.items():
            if self.read.get(number) != place:
                self._problem(f"record {number} was acknowledged at {place} and read at {self.read.get(number)}")
        for number in self.read.keys() - self.acknowledged.keys():
            self._problem(f"record {number} was read and never acknowledged")

    def _lost(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self._problem(f"the consumer has lost {len(parts)} partitions")

    def _problem(self, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)


def main(arguments: Sequence[str]) -> None:
    """Take the broker's address, seconds, and records per second."""
    bootstrap, seconds, per_second = arguments
    ordinary = Ordinary(bootstrap)
    ordinary.run(float(seconds), int(per_second))
    print(
        json.dumps(
            {
                "acknowledged": len(ordinary.acknowledged),
                "read": len(ordinary.read),
                "problems": ordinary.problems,
                "latencies_ms": [round(one, 1) for one in ordinary.latencies_ms],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
