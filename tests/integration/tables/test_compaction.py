"""A compacted topic, served by a real broker to real clients from Iceberg files, and held against Apache Kafka."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from tests.integration.clients.all_clients import CLIENTS
from tests.integration.clients.librdkafka import admin, create_topic, ends_now, quiet
from tests.integration.clients.messages import CALL_LIMIT_SECONDS
from tests.servers.apache_kafka import running_apache_kafka
from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.spark.table_cluster import pyiceberg_rows, run_headrace, run_pipeline_here

NOW_MS = time.time_ns() // 1_000_000
START_MS = NOW_MS - 10_000_000


Row = tuple[bytes | None, bytes | None]
Kept = tuple[int, bytes | None, bytes | None]


def create(bootstrap: str, topic: str, **configs: str) -> None:
    """Create a topic that is compacted as soon as a little is dirty."""
    create_topic(bootstrap, topic, 1, **{"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"} | configs)


def produce(bootstrap: str, topic: str, rows: Sequence[Row], *, first: int = 0, step_ms: int = 1_000) -> None:
    """Send rows one by one: each is a batch, later than the one before."""
    failures: list[KafkaError] = []
    producer = Producer(quiet({"bootstrap.servers": bootstrap, "linger.ms": 0, "batch.num.messages": 1}))
    for number, (key, value) in enumerate(rows, first):
        producer.produce(
            topic,
            key=key,
            value=value,
            partition=0,
            timestamp=START_MS + step_ms * number,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(CALL_LIMIT_SECONDS) == 0
    assert not failures


def read(bootstrap: str, topic: str, *, start: int = OFFSET_BEGINNING) -> tuple[list[Kept], int]:
    """Read all from an offset on; return it, and where the consumer stands at the end."""
    consumer = Consumer(
        quiet({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
        | {"enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        found: list[Kept] = []
        deadline = time.monotonic() + CALL_LIMIT_SECONDS
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                end = message.offset()
                assert end is not None
                return found, end
            offset = message.offset()
            assert offset is not None
            key, value = message.key(), message.value()
            found.append((offset, key, value))
        raise AssertionError("the end of the partition never came")
    finally:
        consumer.close()


def assert_left(broker: HeadraceProcess, topic: str, left: list[Kept], end: int) -> None:
    """Check what is left of a topic, once the broker has heard that its index has changed."""
    deadline = time.monotonic() + CALL_LIMIT_SECONDS
    found = read(broker.bootstrap, topic)
    while found != (left, end) and time.monotonic() < deadline:
        found = read(broker.bootstrap, topic)
    assert found == (left, end)


def compacted(rows: Sequence[Row]) -> list[Kept]:
    """Return the latest of every key, tombstones included."""
    latest = {key: offset for offset, (key, _) in enumerate(rows)}
    return [(offset, key, value) for offset, (key, value) in enumerate(rows) if latest[key] == offset]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("compaction") / "data") as running:
        yield running


def alter(bootstrap: str, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = admin(bootstrap)
    (done,) = client.incremental_alter_configs([resource], request_timeout=CALL_LIMIT_SECONDS).values()
    done.result(CALL_LIMIT_SECONDS)


def run_pipeline(broker: HeadraceProcess) -> None:
    report = run_pipeline_here(broker.data_dir)
    assert report.problems == {}


def verified(data_dir: Path, topic: str) -> None:
    done = run_headrace(data_dir, "table", "verify", topic)
    assert done.returncode == 0, done.stdout + done.stderr


ROWS: list[Row] = [(b"k%d" % (number * 7 % 5), b"v%d" % number) for number in range(40)]


def test_consumers_step_over_what_is_gone(broker: HeadraceProcess) -> None:
    create(broker.bootstrap, "steps")
    produce(broker.bootstrap, "steps", ROWS)
    run_pipeline(broker)
    produce(broker.bootstrap, "steps", [(b"k1", b"new"), (b"tail", b"t")], first=len(ROWS))
    everything = [*ROWS, (b"k1", b"new"), (b"tail", b"t")]
    left = [*compacted(ROWS), (40, b"k1", b"new"), (41, b"tail", b"t")]
    assert_left(broker, "steps", left, 42)
    run_pipeline(broker)
    left = compacted(everything)
    assert_left(broker, "steps", left, 42)
    for start in (1, 17, 35, 36, 39, 40, 41):
        assert read(broker.bootstrap, "steps", start=start) == ([one for one in left if one[0] >= start], 42)
    verified(broker.data_dir, "steps")


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_reads_a_compacted_topic(broker: HeadraceProcess, name: str) -> None:
    topic = f"read-by-{name}"
    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, ROWS)
    run_pipeline(broker)
    assert_left(broker, topic, compacted(ROWS), 40)
    rows = CLIENTS[name].read(broker.bootstrap, topic, {0: 40})[0]
    assert [(row.offset, row.message.key, row.message.value) for row in rows] == compacted(ROWS)


def test_expired_tombstone_at_the_end_leaves_consumers_at_the_high_watermark(broker: HeadraceProcess) -> None:
    create(broker.bootstrap, "ends", delete_retention_ms="0")
    produce(broker.bootstrap, "ends", [(b"a", b"1"), (b"b", b"1"), (b"b", None)])
    run_pipeline(broker)
    assert_left(broker, "ends", [(0, b"a", b"1"), (2, b"b", None)], 3)
    run_pipeline(broker)
    assert_left(broker, "ends", [(0, b"a", b"1")], 3)
    assert read(broker.bootstrap, "ends", start=2) == ([], 3)
    assert ends_now(broker.bootstrap, "ends", [0]) == {0: 3}
    produce(broker.bootstrap, "ends", [(b"c", b"1")], first=3)
    assert read(broker.bootstrap, "ends", start=2) == ([(3, b"c", b"1")], 4)
    verified(broker.data_dir, "ends")


def test_look_up_by_time_names_records_that_are_there(broker: HeadraceProcess) -> None:
    create(broker.bootstrap, "times")
    rows: list[Row] = [(b"a", b"0"), (b"b", b"1"), (b"a", b"2"), (b"c", b"3"), (b"a", b"4")]
    produce(broker.bootstrap, "times", rows)
    run_pipeline(broker)
    assert_left(broker, "times", compacted(rows), 5)
    consumer = Consumer(quiet({"bootstrap.servers": broker.bootstrap, "group.id": "times"}))
    try:
        for since, offset in ((0, 1), (1_000, 1), (1_001, 3), (3_000, 3), (3_001, 4), (4_001, -1)):
            asked = [TopicPartition("times", 0, START_MS + since)]
            (found,) = consumer.offsets_for_times(asked, timeout=CALL_LIMIT_SECONDS)
            assert found.offset == offset, since
    finally:
        consumer.close()
    asked_latest = {TopicPartition("times", 0): OffsetSpec.max_timestamp()}  # type: ignore[no-untyped-call]
    client = admin(broker.bootstrap)
    (answer,) = client.list_offsets(asked_latest, request_timeout=CALL_LIMIT_SECONDS).values()
    found = answer.result(CALL_LIMIT_SECONDS)
    assert (found.offset, found.timestamp) == (4, START_MS + 4_000)


@pytest.mark.parametrize("policy", ["history", "latest"])
def test_table_is_the_history_or_follows(broker: HeadraceProcess, policy: str) -> None:
    topic = f"table-{policy}"
    create(broker.bootstrap, topic, headrace_table_compaction=policy)
    produce(broker.bootstrap, topic, ROWS)
    run_pipeline(broker)
    shown = [(row[1], row[5], row[6]) for row in pyiceberg_rows(broker.data_dir, topic)]
    everything = [(offset, key, value) for offset, (key, value) in enumerate(ROWS)]
    assert shown == (everything if policy == "history" else compacted(ROWS))
    verified(broker.data_dir, topic)


def test_outcome_is_that_of_apache_kafka(broker: HeadraceProcess, tmp_path: Path) -> None:
    """Kafka compacts all but its active segment: of that, and of all below, the same records are left."""
    rows: list[Row] = [(None, b"no key")]
    rows += [(b"k%d" % (number * number % 11), None if number % 7 == 0 else b"v%d" % number) for number in range(60)]
    tail: list[Row] = [(b"roll", b"1"), (b"active", b"1")]
    kafka_settings = {"log.cleaner.backoff.ms": "100"}
    with running_apache_kafka(tmp_path / "kafka", settings=kafka_settings) as kafka:
        for bootstrap in (kafka.bootstrap, broker.bootstrap):
            create(bootstrap, "same", segment_ms="500", cleanup_policy="delete")
            produce(bootstrap, "same", rows[:1])
            alter(bootstrap, "same", "cleanup.policy", "compact")
            produce(bootstrap, "same", rows[1:], first=1)
            produce(bootstrap, "same", tail, first=len(rows))
        deadline = time.monotonic() + CALL_LIMIT_SECONDS
        expected = compacted(rows)[1:] if compacted(rows)[0][1] is None else compacted(rows)
        theirs, end = read(kafka.bootstrap, "same")
        while theirs[: len(expected)] != expected and time.monotonic() < deadline:
            theirs, end = read(kafka.bootstrap, "same")
    run_pipeline(broker)
    assert_left(broker, "same", theirs, end)
