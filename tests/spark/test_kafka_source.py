"""Spark's own Kafka connector, `format("kafka")`, against a broker process: batch and streaming, in and out.

What the connector reads is compared with what a librdkafka client wrote, and the other way round. One session serves
all tests of the file: starting it takes longer than most of them.
"""

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.servers.spark_jars import kafka_source_jars
from tests.servers.spark_sessions import SOCKETS_ARE_COLLECTED, running_spark

LIMIT_SECONDS = 120.0
PAUSE_SECONDS = 0.1
PARTITIONS = 3
FIRST_TIMESTAMP_MS = 1_700_000_000_000
STEP_MS = 1000

Header = tuple[str, bytes | None]

_topic_numbers = itertools.count(1)

pytestmark = SOCKETS_ARE_COLLECTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A record as a client wrote it, and where the broker put it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("data")) as process:
        yield process


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with running_spark(tmp_path_factory.mktemp("spark"), jars=kafka_source_jars()) as session:
        yield session


@pytest.fixture
def topic(broker: HeadraceProcess) -> str:
    return create_topic(broker)


def test_batch_reads_every_column_of_every_record(broker: HeadraceProcess, spark: SparkSession, topic: str) -> None:
    sent = [
        *send(broker, topic, count=40),
        *send(broker, topic, count=1, key=None, headers=()),
        *send(broker, topic, count=1, value=None, headers=(("twice", b"1"), ("twice", b"2"), ("nothing", None))),
        *send(broker, topic, count=1, key=b"", value=b"", headers=(("empty", b""), ("ümläut", b"\xff\x00"))),
    ]
    frame = reader(broker, spark, subscribe=topic, includeHeaders="true").load()
    assert records_of(frame) == sorted_by_place(sent)
    assert {(row.topic, row.timestampType) for row in frame.select("topic", "timestampType").collect()} == {
        (topic, 0)
    }


def test_batch_keeps_to_the_offsets_it_is_given(broker: HeadraceProcess, spark: SparkSession, topic: str) -> None:
    sent = send(broker, topic, count=90)
    starts, ends = {0: 3, 1: -2, 2: 29}, {0: 20, 1: 11, 2: -1}  # −2 is the earliest, −1 the latest
    frame = reader(
        broker, spark, subscribe=topic, startingOffsets=by_topic(topic, starts), endingOffsets=by_topic(topic, ends)
    ).load()
    wanted = {(0, offset) for offset in range(3, 20)} | {(1, offset) for offset in range(11)} | {(2, 29)}
    assert places_of(frame) == wanted
    assert wanted <= {(record.partition, record.offset) for record in sent}


def test_batch_finds_offsets_by_timestamp(broker: HeadraceProcess, spark: SparkSession, topic: str) -> None:
    sent = send(broker, topic, count=60)
    from_ms, until_ms = FIRST_TIMESTAMP_MS + 10 * STEP_MS, FIRST_TIMESTAMP_MS + 31 * STEP_MS - 1
    wanted = {(each.partition, each.offset) for each in sent if from_ms <= each.timestamp_ms <= until_ms}
    for_all = reader(broker, spark, subscribe=topic, startingTimestamp=from_ms, endingTimestamp=until_ms)
    for_each = reader(
        broker,
        spark,
        subscribe=topic,
        startingOffsetsByTimestamp=by_topic(topic, dict.fromkeys(range(PARTITIONS), from_ms)),
        endingOffsetsByTimestamp=by_topic(topic, dict.fromkeys(range(PARTITIONS), until_ms)),
    )
    assert places_of(for_all.load()) == wanted
    assert places_of(for_each.load()) == wanted


def test_batch_reads_topics_by_pattern_in_split_ranges(broker: HeadraceProcess, spark: SparkSession) -> None:
    names = [create_topic(broker, prefix="pattern") for _ in range(2)]
    for name in names:
        send(broker, name, count=60)
    # More Spark partitions than the topics have: the connector cuts offset ranges and reads from their middle.
    frame = reader(broker, spark, subscribePattern="pattern-.*", minPartitions="12").load()
    counted = {
        (row["topic"], row["partition"]): row["count"]
        for row in frame.groupBy("topic", "partition").count().collect()
    }
    assert counted == {(name, partition): 20 for name in names for partition in range(PARTITIONS)}


def test_batch_writes_what_clients_read(broker: HeadraceProcess, spark: SparkSession, topic: str) -> None:
    rows: list[tuple[Any, ...]] = [
        (number % PARTITIONS, f"k{number}".encode(), bytes([number]) * number, [("n", bytes([number])), ("n", None)])
        for number in range(50)
    ]
    rows.append((0, None, b"no key", None))
    rows.append((1, b"no value", None, []))
    frame = spark.createDataFrame(
        rows, "partition int, key binary, value binary, headers array<struct<key string, value binary>>"
    )
    frame.write.format("kafka").options(
        **{"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "includeHeaders": "true"}
    ).save()
    received = consume(broker, topic, count=len(rows))
    found = [(each.partition, each.key, each.value, list(each.headers)) for each in received]
    assert sorted(found, key=repr) == sorted(
        ((partition, key, value, headers or []) for partition, key, value, headers in rows), key=repr
    )


def test_stream_from_topic_to_topic_goes_on_where_its_checkpoint_says(
    broker: HeadraceProcess, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    copy = create_topic(broker)
    sent: list[Sent] = []
    for _ in range(3):
        sent += send(broker, topic, count=120)
        query = start_copying(broker, spark, topic, copy, checkpoint=tmp_path / "checkpoint")
        finish(query)
        if len(sent) == 120:
            assert len([each for each in query.recentProgress if each.numInputRows]) >= 3  # 50 per trigger
    received = consume(broker, copy, count=len(sent))
    assert sorted(content_of(each) for each in received) == sorted(content_of(each) for each in sent)
    ends = {partition: sum(each.partition == partition for each in received) for partition in range(PARTITIONS)}
    assert {(each.partition, each.offset) for each in received} == {
        (partition, offset) for partition, end in ends.items() for offset in range(end)
    }


def test_stream_that_is_stopped_at_work_loses_and_doubles_nothing(
    broker: HeadraceProcess, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    sent = send(broker, topic, count=300)
    query = start_keeping(broker, spark, topic, tmp_path)
    wait_until_at_work(query)
    query.stop()
    sent += send(broker, topic, count=150)
    query = start_keeping(broker, spark, topic, tmp_path)
    query.processAllAvailable()
    query.stop()
    kept = spark.read.parquet(str(tmp_path / "kept"))
    assert records_of(kept) == sorted_by_place(sent)


def create_topic(broker: HeadraceProcess, *, prefix: str = "topic") -> str:
    name = f"{prefix}-{next(_topic_numbers)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)
    admin.create_topics([new])[name].result(LIMIT_SECONDS)
    return name


def send(
    broker: HeadraceProcess,
    topic: str,
    *,
    count: int,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    headers: Sequence[Header] = (("source", b"test"), ("empty", b"")),
) -> list[Sent]:
    """Write records one partition after the other, a second of timestamps apart, and tell where they are."""
    sent: list[Sent] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})

    def note(error: object, message: Any) -> None:
        assert error is None, error
        sent.append(
            Sent(
                partition=message.partition(),
                offset=message.offset(),
                timestamp_ms=message.timestamp()[1],
                key=key,
                value=message.value() if value is not None else None,
                headers=tuple(headers),
            )
        )

    for number in range(count):
        producer.produce(
            topic,
            key=key,
            value=value + b"-%d" % number if value else value,
            partition=number % PARTITIONS,
            timestamp=FIRST_TIMESTAMP_MS + number * STEP_MS,
            headers=list(headers),
            on_delivery=note,
        )
    assert producer.flush(LIMIT_SECONDS) == 0
    return sent


def consume(broker: HeadraceProcess, topic: str, *, count: int) -> list[Sent]:
    """Read a topic to its end and check that it has that many records."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    found: list[Sent] = []
    try:
        parts = [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
        assert sum(consumer.get_watermark_offsets(part, timeout=LIMIT_SECONDS)[1] for part in parts) == count
        consumer.assign(parts)
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count, timeout=1.0):
                assert message.error() is None, message.error()
                found.append(sent_of_message(message))
    finally:
        consumer.close()
    return found


def sent_of_message(message: Any) -> Sent:
    return Sent(
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )


def reader(broker: HeadraceProcess, spark: SparkSession, **options: object) -> Any:
    return spark.read.format("kafka").options(**kafka_options(broker, options))


def stream(broker: HeadraceProcess, spark: SparkSession, **options: object) -> DataFrame:
    return spark.readStream.format("kafka").options(**kafka_options(broker, options)).load()


def kafka_options(broker: HeadraceProcess, options: Mapping[str, object]) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap, **{key: str(value) for key, value in options.items()}}


def by_topic(topic: str, numbers: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): number for partition, number in numbers.items()}})


def start_copying(
    broker: HeadraceProcess, spark: SparkSession, topic: str, copy: str, *, checkpoint: Path
) -> StreamingQuery:
    """Copy what is there now to another topic, in several small batches."""
    source = stream(
        broker,
        spark,
        subscribe=topic,
        startingOffsets="earliest",
        includeHeaders="true",
        maxOffsetsPerTrigger=50,
    )
    options = kafka_options(broker, {"topic": copy, "includeHeaders": "true", "checkpointLocation": checkpoint})
    columns = source.select("key", "value", "headers", "partition")
    return columns.writeStream.format("kafka").options(**options).trigger(availableNow=True).start()


def start_keeping(broker: HeadraceProcess, spark: SparkSession, topic: str, directory: Path) -> StreamingQuery:
    """Follow a topic into Parquet files, which Spark writes exactly once per batch, until the query is stopped."""
    source = stream(
        broker,
        spark,
        subscribe=topic,
        startingOffsets="earliest",
        includeHeaders="true",
        maxOffsetsPerTrigger=90,
    )
    places = {"path": str(directory / "kept"), "checkpointLocation": str(directory / "checkpoint")}
    return source.writeStream.format("parquet").options(**places).trigger(processingTime="0 seconds").start()


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(int(LIMIT_SECONDS)), "the query has not ended"
    assert query.exception() is None, query.exception()


def wait_until_at_work(query: StreamingQuery) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not any(progress.numInputRows for progress in query.recentProgress):
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline, f"no batch has ended: {query.lastProgress}"
        time.sleep(PAUSE_SECONDS)


def places_of(frame: DataFrame) -> set[tuple[int, int]]:
    rows = frame.select("partition", "offset").collect()
    places = {(int(row["partition"]), int(row["offset"])) for row in rows}
    assert len(places) == len(rows), "a record came twice"
    return places


def records_of(frame: DataFrame) -> list[Sent]:
    columns = ("partition", "offset", "key", "value", "headers")
    rows = frame.selectExpr(*columns, "unix_millis(timestamp) as timestamp_ms").collect()
    return sorted_by_place([sent_of_row(row) for row in rows])


def sent_of_row(row: Row) -> Sent:
    return Sent(
        partition=row["partition"],
        offset=row["offset"],
        timestamp_ms=row["timestamp_ms"],
        key=bytes_or_none(row["key"]),
        value=bytes_or_none(row["value"]),
        headers=tuple((header["key"], bytes_or_none(header["value"])) for header in row["headers"] or ()),
    )


def bytes_or_none(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def sorted_by_place(records: Sequence[Sent]) -> list[Sent]:
    return sorted(records, key=lambda each: (each.partition, each.offset))


def content_of(record: Sent) -> tuple[int, bytes, bytes, str]:
    return record.partition, record.key or b"", record.value or b"", repr(record.headers)
