"""Retention as clients see it, with two brokers: the log start moves everywhere, readers go on, the disk is freed."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from headrace.model.error_codes import ErrorCode
from tests.integration.clients.librdkafka import Librdkafka, create_topic, quiet
from tests.integration.clients.messages import CALL_LIMIT_SECONDS, Message
from tests.integration.clients.test_two_brokers import Pair, running_pair
from tests.integration.clients.waiting import eventually
from tests.integration.clients.wire_client import WireClient

HOUR_MS = 3_600_000
QUICK = {
    "log.retention.check.interval.ms": "100",
    "wal.segment.max.age.ms": "1000",
    "wal.sealed.grace.ms": "1000",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tmp_path_factory.mktemp("data"), QUICK) as brokers:
        yield brokers


def send(pair: Pair, topic: str, count: int, *, age_ms: int, size: int = 10) -> list[int]:
    at_ms = round(time.time() * 1000) - age_ms
    messages = [Message(partition=0, value=b"x" * size, timestamp_ms=at_ms) for _ in range(count)]
    return Librdkafka().produce(pair[0].bootstrap, topic, messages)


def error_below(broker_port: int, topic: str, offset: int) -> int:
    with WireClient(broker_port) as client:
        return client.fetch(topic, offset=offset).error_code


def set_config(pair: Pair, topic: str, values: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in values.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    client = AdminClient(quiet({"bootstrap.servers": pair[0].bootstrap}))
    for done in client.incremental_alter_configs([resource]).values():
        done.result(CALL_LIMIT_SECONDS)


def low_watermark(bootstrap: str, topic: str) -> int:
    consumer = Consumer(quiet({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}))
    try:
        found = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=CALL_LIMIT_SECONDS, cached=False)
        assert found is not None
        return found[0]
    finally:
        consumer.close()


def wal_bytes(data_dir: Path) -> int:
    return sum(path.stat().st_size for path in (data_dir / "objects" / "wal").rglob("*") if path.is_file())


def test_old_records_go_on_every_broker_and_a_consumer_goes_on_behind_them(pair: Pair) -> None:
    create_topic(pair[0].bootstrap, "aged", retention_ms=str(10 * HOUR_MS))
    assert send(pair, "aged", 30, age_ms=2 * HOUR_MS) == list(range(30))
    consumer = Consumer(
        quiet({"bootstrap.servers": pair[1].bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    )
    try:
        consumer.commit(offsets=[TopicPartition("aged", 0, 5)], asynchronous=False)
        set_config(pair, "aged", {"retention.ms": str(HOUR_MS)})
        for broker in pair:
            eventually(
                "a fetch below the log start is refused",
                lambda: error_below(broker.kafka_port, "aged", 29) == ErrorCode.OFFSET_OUT_OF_RANGE,  # noqa: B023
            )
            assert low_watermark(broker.bootstrap, "aged") == 30
        assert send(pair, "aged", 3, age_ms=0) == [30, 31, 32], "offsets go on where they were"
        consumer.subscribe(["aged"])
        found: list[int] = []
        while len(found) < 3:
            message = consumer.poll(CALL_LIMIT_SECONDS)
            assert message is not None and message.error() is None
            offset = message.offset()
            assert offset is not None
            found.append(offset)
        assert found == [30, 31, 32], "its committed offset was gone, so it began with what there is"
    finally:
        consumer.close()


def test_by_size_the_newest_stay(pair: Pair) -> None:
    create_topic(pair[0].bootstrap, "sized", retention_bytes="50000")
    for _ in range(20):
        send(pair, "sized", 5, age_ms=0, size=2000)
    start = eventually("the oldest went", lambda: low_watermark(pair[1].bootstrap, "sized"))
    assert 0 < start <= 75, "25 records of 2,000 bytes are the least that may be left"
    eventually("as much went as may", lambda: low_watermark(pair[1].bootstrap, "sized") >= 70)


def test_topic_that_keeps_nothing_by_age_is_left_alone(pair: Pair) -> None:
    create_topic(pair[0].bootstrap, "kept", cleanup_policy="compact", retention_ms="1")
    create_topic(pair[0].bootstrap, "endless", retention_ms="-1")
    create_topic(pair[0].bootstrap, "gone", retention_ms="1")
    message = Message(partition=0, key=b"k", value=b"v", timestamp_ms=1)
    for topic in ("kept", "endless", "gone"):
        Librdkafka().produce(pair[0].bootstrap, topic, [message])
    eventually("the last of them went", lambda: low_watermark(pair[0].bootstrap, "gone") == 1)
    assert low_watermark(pair[0].bootstrap, "kept") == low_watermark(pair[0].bootstrap, "endless") == 0


def test_disk_is_given_back_behind_retention_and_behind_deleted_records(tmp_path: Path) -> None:
    with running_pair(tmp_path, QUICK) as pair:
        create_topic(pair[0].bootstrap, "expires", retention_ms=str(HOUR_MS))
        create_topic(pair[0].bootstrap, "deleted", retention_ms="-1")
        send(pair, "deleted", 50, age_ms=0, size=20_000)
        send(pair, "expires", 50, age_ms=2 * HOUR_MS, size=20_000)
        assert wal_bytes(tmp_path) > 1_000_000
        client = AdminClient(quiet({"bootstrap.servers": pair[1].bootstrap}))
        for done in client.delete_records([TopicPartition("deleted", 0, 50)]).values():
            assert done.result(CALL_LIMIT_SECONDS).low_watermark == 50
        eventually("the disk is free", lambda: wal_bytes(tmp_path) == 0, limit_seconds=120)
        assert low_watermark(pair[0].bootstrap, "expires") == 50
        assert send(pair, "deleted", 1, age_ms=0) == [50]


def test_disk_is_given_back_behind_a_deleted_topic_although_the_log_is_quiet(tmp_path: Path) -> None:
    with running_pair(tmp_path, QUICK) as pair:
        create_topic(pair[0].bootstrap, "dropped", retention_ms="-1")
        send(pair, "dropped", 50, age_ms=0, size=20_000)
        assert wal_bytes(tmp_path) > 1_000_000
        client = AdminClient(quiet({"bootstrap.servers": pair[1].bootstrap}))
        for done in client.delete_topics(["dropped"]).values():
            done.result(CALL_LIMIT_SECONDS)
        eventually("the disk is free", lambda: wal_bytes(tmp_path) == 0, limit_seconds=120)
