"""Consuming chosen partitions of one topic, without a group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.cli.client.link import NO_TOPIC, Link, no_topic
from headrace.cli.options import Connection
from headrace.cli.records import Incoming

GROUP_ID = "headrace-consume"
"""librdkafka wants a name, although nothing is ever joined or committed."""
READ_AT_ONCE = 1000

_TIMESTAMP_TYPES = {1: "create", 2: "append"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AtEnd:
    """A partition has been read to where it ends for now."""

    partition: int


class RecordReader:
    """Reads chosen partitions of one topic from chosen offsets, without a group."""

    def __init__(self, connection: Connection, topic: str, *, tell_ends: bool) -> None:
        self._topic = topic
        self._timeout_seconds = connection.timeout_seconds
        self._link = Link(connection)
        self._consumer = self._link.open(
            Consumer,
            {
                "group.id": GROUP_ID,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "allow.auto.create.topics": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": tell_ends,
            },
        )

    def open(self) -> list[int]:
        """Wait until a broker answers and return the partitions of the topic. Raises `Missing` if there is none."""
        found = self._link.wait_for_broker(self._consumer, self._topic).topics[self._topic]
        if found.error is not None and found.error.code() in NO_TOPIC:
            raise no_topic(self._topic)
        if found.error is not None:
            raise self._link.translated(found.error, f"read topic {self._topic}")
        return sorted(found.partitions)

    def bounds(self, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition, and its end offset."""
        try:
            return self._consumer.get_watermark_offsets(
                TopicPartition(self._topic, partition), timeout=self._timeout_seconds
            )
        except KafkaException as error:
            raise self._link.translated(error.args[0], f"look up the offsets of {self._topic}") from error

    def offsets_at(self, timestamp_ms: int, partitions: Sequence[int]) -> dict[int, int | None]:
        """Return the first offset at or after a moment, or None where nothing is that young."""
        asked = [TopicPartition(self._topic, partition, timestamp_ms) for partition in partitions]
        try:
            answers = self._consumer.offsets_for_times(asked, timeout=self._timeout_seconds)
        except KafkaException as error:
            raise self._link.translated(error.args[0], f"look up offsets of {self._topic} by time") from error
        for answer in answers:
            if answer.error is not None:
                raise self._link.translated(answer.error, f"look up offsets of {self._topic} by time")
        return {answer.partition: answer.offset if answer.offset >= 0 else None for answer in answers}

    def start(self, offsets: Mapping[int, int]) -> None:
        """Begin to read these partitions at these offsets."""
        self._consumer.assign(
            [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        )

    def stop(self, partition: int) -> None:
        """Read no more of a partition."""
        self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def read(self, timeout_seconds: float) -> list[Incoming | AtEnd]:
        """Wait for records and return what is there. Raises what ends the reading."""
        first = self._consumer.poll(timeout_seconds)
        if self._link.lost:
            self._link.wait_for_broker(self._consumer, serve=False)
        if first is None:
            return []
        # A call for many waits for all of them or for its time: only the first one is waited for.
        return [self._event(message) for message in (first, *self._consumer.consume(READ_AT_ONCE, 0))]

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

    def _event(self, message: Message) -> Incoming | AtEnd:
        error = message.error()
        partition, offset = message.partition(), message.offset()
        if error is not None and error.code() == KafkaError._PARTITION_EOF and partition is not None:
            return AtEnd(partition=partition)
        if error is not None:
            raise self._link.translated(error, f"read {self._topic} [{partition}] at offset {offset}")
        assert partition is not None and offset is not None, "a record without an error has a place"
        kind, timestamp_ms = message.timestamp()
        return Incoming(
            topic=self._topic,
            partition=partition,
            offset=offset,
            value=message.value(),
            key=message.key(),
            headers=tuple((name, _bytes(value)) for name, value in _pairs(message.headers())),
            timestamp_ms=timestamp_ms if kind in _TIMESTAMP_TYPES else None,
            timestamp_type=_TIMESTAMP_TYPES.get(kind),
        )


def _pairs(headers: Any) -> list[tuple[str, str | bytes | None]]:
    return headers or []


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
