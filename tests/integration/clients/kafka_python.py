"""kafka-python: the client that is Python all through.

It takes Snappy from a package that is not among ours; its own framing is what matters here, so the raw compression
comes from cramjam.
"""

import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cramjam

with warnings.catch_warnings():
    # It reads its definitions in a way that Python means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.errors import KafkaError

from tests.integration.clients.messages import CALL_LIMIT_SECONDS, Failed, Gathered, Message, Stored, stored_of

# What it logs about brokers that it cannot reach holds on to its sockets, and pytest holds on to the log.
logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)

COOPERATIVE_STICKY = CooperativeStickyAssignor

LIMIT_MS = int(CALL_LIMIT_SECONDS * 1000)


def open_producer(bootstrap: str, **config: Any) -> KafkaProducer:
    """Return a producer of this library, which nobody else should import: it warns."""
    return KafkaProducer(bootstrap_servers=bootstrap, acks="all", **config)


def open_consumer(bootstrap: str, **config: Any) -> KafkaConsumer:
    """Return a consumer of this library, for the same reason."""
    return KafkaConsumer(bootstrap_servers=bootstrap, **config)


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # the package has no types
    """Passes on what a consumer of this library is told of its partitions."""

    def __init__(self, on_revoked: Callable[[Any], None], on_assigned: Callable[[Any], None]) -> None:
        self._on_revoked = on_revoked
        self._on_assigned = on_assigned

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._on_revoked(revoked)

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._on_assigned(assigned)


class _RawSnappy:
    """The two functions of `python-snappy` that kafka-python calls."""

    @staticmethod
    def compress(data: bytes) -> bytes:
        return bytes(cramjam.snappy.compress_raw(data))

    @staticmethod
    def decompress(data: bytes) -> bytes:
        return bytes(cramjam.snappy.decompress_raw(data))


if not kafka.codec.has_snappy():
    kafka.codec.snappy = _RawSnappy


class KafkaPython:
    """The `Client` of this library."""

    name = "kafka-python"
    sends_null_headers = False

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        idempotent: bool = False,
        max_request_bytes: int = 1_048_588,
    ) -> list[int]:
        producer = open_producer(
            bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            max_request_size=max_request_bytes,
            delivery_timeout_ms=LIMIT_MS,
        )
        try:
            sending = [
                producer.send(
                    topic,
                    message.value,
                    message.key,
                    list(message.headers),
                    message.partition,
                    message.timestamp_ms,
                )
                for message in messages
            ]
            return [one.get(CALL_LIMIT_SECONDS).offset for one in sending]
        except KafkaError as error:
            raise Failed(getattr(error, "errno", -1), repr(error)) from error
        finally:
            producer.close()

    def read(self, bootstrap: str, topic: str, ends: Mapping[int, int]) -> dict[int, list[Stored]]:
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        try:
            places = [TopicPartition(topic, partition) for partition in ends]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            gathered = Gathered(ends)
            deadline = time.monotonic() + CALL_LIMIT_SECONDS
            while not gathered.is_complete:
                assert time.monotonic() < deadline, str(gathered)
                for rows in consumer.poll(timeout_ms=500).values():
                    for row in rows:
                        gathered.add(stored_of(row))
            return gathered.rows
        finally:
            consumer.close()
