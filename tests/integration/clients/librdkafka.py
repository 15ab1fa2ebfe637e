"""confluent-kafka: librdkafka, which most languages' clients are built on."""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka import Message as Delivered
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.integration.clients.messages import CALL_LIMIT_SECONDS, Failed, Gathered, Message, Stored

QUICK_TO_RETURN = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}
"""A broker that was killed is back in a moment: there is no point in waiting longer and longer for it."""


def quiet(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with the client's chatter about lost brokers turned off."""
    return {"log_level": 0, **QUICK_TO_RETURN, **config}


def admin(bootstrap: str) -> AdminClient:
    """Return an admin client."""
    return AdminClient(quiet({"bootstrap.servers": bootstrap}))


def create_topic(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic; `max_message_bytes="5"` stands for the config `max.message.bytes`."""
    config = {key.replace("_", "."): value for key, value in configs.items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    client = admin(bootstrap)
    client.create_topics([topic], request_timeout=CALL_LIMIT_SECONDS)[name].result(CALL_LIMIT_SECONDS)


def ends_now(bootstrap: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Return the high watermark of each partition."""
    consumer = Consumer(quiet({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}))
    try:
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=CALL_LIMIT_SECONDS)[1]
            for partition in partitions
        }
    finally:
        consumer.close()


def stored(found: Delivered) -> Stored:
    """Return what librdkafka delivered."""
    offset, found_partition = found.offset(), found.partition()
    assert offset is not None and found_partition is not None
    kind, timestamp_ms = found.timestamp()
    # Its types allow for a dict, too, which it takes but never gives.
    headers = cast("list[tuple[str, bytes | None]]", found.headers() or [])
    return Stored(
        offset=offset,
        message=Message(
            partition=found_partition,
            key=_bytes(found.key()),
            value=_bytes(found.value()),
            headers=tuple((name, _bytes(value)) for name, value in headers),
            timestamp_ms=timestamp_ms,
        ),
        timestamp_type=kind - 1,  # librdkafka counts: none, create time, append time
    )


def _bytes(value: str | bytes | None) -> bytes | None:
    assert value is None or isinstance(value, bytes)
    return value


class Librdkafka:
    """The `Client` of this library."""

    name = "librdkafka"
    sends_null_headers = True

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
        producer = Producer(
            quiet(
                {
                    "bootstrap.servers": bootstrap,
                    "compression.type": codec,
                    "enable.idempotence": idempotent,
                    "message.max.bytes": max_request_bytes,
                    "acks": "all",
                }
            )
        )
        offsets: list[int | None] = [None] * len(messages)
        refused: list[KafkaError] = []

        def delivered(position: int, error: KafkaError | None, message: Delivered) -> None:
            if error is not None:
                refused.append(error)
            offsets[position] = message.offset()

        for position, message in enumerate(messages):
            producer.produce(
                topic,
                message.value,
                message.key,
                message.partition,
                on_delivery=partial(delivered, position),
                timestamp=message.timestamp_ms,
                headers=list(message.headers),
            )
        assert producer.flush(CALL_LIMIT_SECONDS) == 0, "messages were never answered"
        if refused:
            raise Failed(refused[0].code(), refused[0].str())
        return [offset for offset in offsets if offset is not None]

    def read(self, bootstrap: str, topic: str, ends: Mapping[int, int]) -> dict[int, list[Stored]]:
        consumer = Consumer(quiet({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}))
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
        gathered = Gathered(ends)
        deadline = time.monotonic() + CALL_LIMIT_SECONDS
        try:
            while not gathered.is_complete:
                assert time.monotonic() < deadline, str(gathered)
                for found in consumer.consume(1000, timeout=0.2):
                    error = found.error()
                    if error is None:
                        gathered.add(stored(found))
                    elif not error.retriable() and error.code() >= 0:
                        raise Failed(error.code(), error.str())
        finally:
            consumer.close()
        return gathered.rows
