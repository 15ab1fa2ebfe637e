"""What a topic's configuration says happens to its records, and topics change while producers work on them."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from headrace.records.batch import Codec, iter_batches
from tests.integration.clients.all_clients import CLIENTS
from tests.integration.clients.librdkafka import admin, create_topic, ends_now, quiet
from tests.integration.clients.messages import (
    CALL_LIMIT_SECONDS,
    LOG_APPEND_TIME,
    Failed,
    Message,
    Stored,
    as_stored,
    ends_of,
)
from tests.integration.clients.waiting import eventually
from tests.integration.clients.wire_client import WireClient
from tests.servers.headrace import HeadraceProcess, running_headrace

MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
INVALID_RECORD = 87
HOUR_MS = 3_600_000

LIMITS = {"request_timeout": CALL_LIMIT_SECONDS}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def result(futures: Mapping[Any, Any]) -> Any:
    """Return the outcome of an admin call about one thing."""
    (future,) = futures.values()
    return future.result(CALL_LIMIT_SECONDS)


def alter(client: AdminClient, topic: str, **configs: str | None) -> None:
    """Set configs, and return those that are None to their defaults; `max_message_bytes` is `max.message.bytes`."""
    entries = [
        ConfigEntry(
            name.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in configs.items()
    ]
    result(
        client.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)], **LIMITS
        )
    )


def configs_of(client: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    found: dict[str, ConfigEntry] = result(
        client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)], **LIMITS)
    )
    return found


@pytest.mark.parametrize("name", CLIENTS)
def test_append_time_overrules_the_producers_time(broker: HeadraceProcess, name: str) -> None:
    topic = f"append-time-{name}"
    create_topic(broker.bootstrap, topic, message_timestamp_type="LogAppendTime")
    sent = [Message(value=b"%d" % n, timestamp_ms=1000 + n) for n in range(5)]
    before_ms = now_ms()
    CLIENTS[name].produce(broker.bootstrap, topic, sent, codec="gzip", idempotent=True)
    after_ms = now_ms()
    (rows,) = CLIENTS[name].read(broker.bootstrap, topic, {0: 5}).values()
    assert [row.message.value for row in rows] == [message.value for message in sent]
    for row in rows:
        assert row.timestamp_type == LOG_APPEND_TIME
        assert before_ms <= row.message.timestamp_ms <= after_ms


@pytest.mark.parametrize("name", CLIENTS)
def test_timestamps_too_far_ahead_are_refused(broker: HeadraceProcess, name: str) -> None:
    topic = f"ahead-{name}"
    create_topic(broker.bootstrap, topic, message_timestamp_after_max_ms=str(HOUR_MS))
    client = CLIENTS[name]
    near = Message(value=b"near", timestamp_ms=now_ms() + HOUR_MS // 2)
    far = Message(value=b"far", timestamp_ms=now_ms() + 2 * HOUR_MS)
    with pytest.raises(Failed) as refused:
        client.produce(broker.bootstrap, topic, [far])
    assert refused.value.code == INVALID_TIMESTAMP
    assert client.produce(broker.bootstrap, topic, [near]) == [0]
    assert client.read(broker.bootstrap, topic, {0: 1}) == as_stored([near])


@pytest.mark.parametrize("name", CLIENTS)
def test_another_compression_changes_the_batches_and_not_the_records(broker: HeadraceProcess, name: str) -> None:
    topic = f"recompressed-{name}"
    create_topic(broker.bootstrap, topic, compression_type="gzip")
    sent = [Message(key=b"%d" % n, value=b"squeeze me" * 100, headers=(("h", b"v"),)) for n in range(50)]
    CLIENTS[name].produce(broker.bootstrap, topic, sent, codec="lz4", idempotent=True)
    with WireClient(broker.kafka_port) as client:
        data = client.fetch(topic)
        assert isinstance(data.records, memoryview)
        assert {view.codec for view in iter_batches(data.records)} == {Codec.GZIP}
    expected = as_stored(sent)
    for reader in CLIENTS.values():
        assert reader.read(broker.bootstrap, topic, ends_of(expected)) == expected, reader.name


def test_configs_are_shown_changed_at_once_and_returned_to_their_defaults(tmp_path: Path) -> None:
    as_by_default = {"log.retention.ms": "-2"}
    with running_headrace(tmp_path / "data", settings=as_by_default) as broker:
        create_topic(broker.bootstrap, "tuned", retention_ms="100000")
        client = admin(broker.bootstrap)
        large, producer = Message(value=b"x" * 5000), CLIENTS["librdkafka"]
        assert producer.produce(broker.bootstrap, "tuned", [large]) == [0]

        shown = configs_of(client, "tuned")
        assert shown["retention.ms"].value == "100000"
        assert ConfigSource(shown["retention.ms"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert shown["max.message.bytes"].value == "1048588"
        assert shown["max.message.bytes"].is_default

        alter(client, "tuned", max_message_bytes="2000", retention_ms=None)
        shown = configs_of(client, "tuned")
        assert shown["max.message.bytes"].value == "2000"
        assert ConfigSource(shown["max.message.bytes"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert shown["retention.ms"].value == "604800000"
        assert shown["retention.ms"].is_default
        with pytest.raises(Failed) as refused:
            producer.produce(broker.bootstrap, "tuned", [large])
        assert refused.value.code == MESSAGE_TOO_LARGE

        with pytest.raises(KafkaException) as invalid:
            alter(client, "tuned", max_message_bytes="many")
        assert invalid.value.args[0].code() == KafkaError.INVALID_CONFIG
        alter(client, "tuned", max_message_bytes=None)
        assert producer.produce(broker.bootstrap, "tuned", [large]) == [1]


def test_partitions_are_added_while_a_producer_works(broker: HeadraceProcess) -> None:
    create_topic(broker.bootstrap, "grows", 2)
    client, writer = admin(broker.bootstrap), CLIENTS["librdkafka"]
    old = [Message(partition=n % 2, value=b"old %d" % n) for n in range(10)]
    writer.produce(broker.bootstrap, "grows", old)
    producer = Producer(quiet({"bootstrap.servers": broker.bootstrap, "topic.metadata.refresh.interval.ms": 200}))
    producer.produce("grows", b"warm", partition=0)
    producer.flush(CALL_LIMIT_SECONDS)

    result(client.create_partitions([NewPartitions("grows", 5)], **LIMITS))
    topic = client.list_topics("grows", timeout=CALL_LIMIT_SECONDS).topics["grows"]
    assert sorted(topic.partitions) == [0, 1, 2, 3, 4]
    with pytest.raises(KafkaException) as fewer:
        result(client.create_partitions([NewPartitions("grows", 3)], **LIMITS))
    assert fewer.value.args[0].code() == KafkaError.INVALID_PARTITIONS

    def reaches_the_new_one() -> bool:
        try:
            producer.produce("grows", b"new", partition=4)
        except KafkaException as error:
            assert error.args[0].code() == KafkaError._UNKNOWN_PARTITION
            return False
        return producer.flush(CALL_LIMIT_SECONDS) == 0

    eventually("the producer hears of the new partitions", reaches_the_new_one)
    values = {
        partition: [row.message.value for row in rows]
        for partition, rows in CLIENTS["aiokafka"].read(broker.bootstrap, "grows", {0: 6, 1: 5, 4: 1}).items()
    }
    assert values == {
        0: [b"old 0", b"old 2", b"old 4", b"old 6", b"old 8", b"warm"],
        1: [b"old 1", b"old 3", b"old 5", b"old 7", b"old 9"],
        4: [b"new"],
    }


def test_deleted_records_are_gone_and_the_rest_keeps_its_offsets(broker: HeadraceProcess) -> None:
    create_topic(broker.bootstrap, "trimmed")
    client, writer = admin(broker.bootstrap), CLIENTS["librdkafka"]
    sent = [Message(value=b"%d" % n) for n in range(10)]
    for message in sent:
        writer.produce(broker.bootstrap, "trimmed", [message])
    deleted = result(client.delete_records([TopicPartition("trimmed", 0, 4)], **LIMITS))
    assert deleted.low_watermark == 4
    expected = {0: [Stored(offset=n, message=sent[n]) for n in range(4, 10)]}
    for reader in CLIENTS.values():
        assert reader.read(broker.bootstrap, "trimmed", {0: 10}) == expected, reader.name
    with WireClient(broker.kafka_port) as wire:
        assert wire.fetch("trimmed", offset=3).error_code == 1, "OFFSET_OUT_OF_RANGE"
    assert writer.produce(broker.bootstrap, "trimmed", [Message(value=b"10")]) == [10]


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_topic_created_anew_is_another_topic(broker: HeadraceProcess, is_idempotent: bool) -> None:
    name = f"reborn-{is_idempotent}"
    client = admin(broker.bootstrap)
    create_topic(broker.bootstrap, name, 2)
    producer = Producer(
        quiet(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": is_idempotent,
                "topic.metadata.refresh.interval.ms": 200,
            }
        )
    )
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error)

    def produce(value: bytes) -> None:
        producer.produce(name, value, partition=0, on_delivery=delivered)
        assert producer.flush(CALL_LIMIT_SECONDS) == 0

    for n in range(5):
        produce(b"old %d" % n)
    old_id = topic_id(client, name)
    result(client.delete_topics([name], **LIMITS))
    result(client.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)], **LIMITS))
    assert topic_id(client, name) != old_id
    assert ends_now(broker.bootstrap, name, [0, 1]) == {0: 0, 1: 0}

    produce(b"new")
    assert failures == [], "a producer that was there before goes on"
    rows = CLIENTS["kafka-python"].read(broker.bootstrap, name, {0: 1})[0]
    assert [(row.offset, row.message.value) for row in rows] == [(0, b"new")]


def topic_id(client: AdminClient, name: str) -> str:
    return str(result(client.describe_topics(TopicCollection([name]), **LIMITS)).topic_id)


@pytest.mark.parametrize("name", CLIENTS)
def test_compacted_topic_refuses_records_without_a_key(broker: HeadraceProcess, name: str) -> None:
    topic = f"compacted-{name}"
    create_topic(broker.bootstrap, topic, cleanup_policy="compact")
    client = CLIENTS[name]
    with pytest.raises(Failed) as refused:
        client.produce(broker.bootstrap, topic, [Message(value=b"v")])
    # aiokafka does not know this code.
    assert refused.value.code == (-1 if name == "aiokafka" else INVALID_RECORD)
    assert client.produce(broker.bootstrap, topic, [Message(key=b"", value=None)]) == [0]
