"""`format("headrace")` in a plain session: the rows of Spark's own Kafka source, read from storage without a broker.

While the broker lives, Spark's Kafka source says what is right. Then the broker ends, and everything else is read
straight from its data directory: topics that lie in the WAL, in Parquet, and in both.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.records.batch import Codec
from headrace.records.record import Record
from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.servers.spark_jars import kafka_source_jars
from tests.servers.spark_sessions import SOCKETS_ARE_COLLECTED, running_spark
from tests.spark.table_cluster import hostile_records, put, run_pipeline_here

pytestmark = [SOCKETS_ARE_COLLECTED, pytest.mark.timeout(900)]

LIMIT_SECONDS = 120.0
PAUSE_SECONDS = 0.1
PARTITIONS = 3
FIRST_MS = 1_700_000_000_000
STEP_MS = 1_000
FROM_MS, UNTIL_MS = FIRST_MS + 100 * STEP_MS, FIRST_MS + 401 * STEP_MS
PUSHING = "spark.sql.python.filterPushdown.enabled"

Rows = list[tuple[Any, ...]]


def by_topic(topic: str, numbers: Sequence[int]) -> str:
    return json.dumps({topic: {str(partition): number for partition, number in enumerate(numbers)}})


READS: Mapping[str, Mapping[str, str]] = {
    "everything of a topic": {"subscribe": "mixed", "includeHeaders": "true"},
    "records that have broken others": {"subscribe": "hostile", "includeHeaders": "true"},
    "three topics in many tasks": {"subscribe": "mixed,in-wal,in-table", "minPartitions": "20"},
    "topics by pattern": {"subscribePattern": "in-.*"},
    "few records per task": {"subscribe": "in-wal", "maxRecordsPerPartition": "7"},
    "some partitions": {"assign": '{"mixed": [0, 2]}'},
    "from the middle of entries to the middle of others": {
        "subscribe": "mixed",
        "startingOffsets": by_topic("mixed", [33, -2, 160]),
        "endingOffsets": by_topic("mixed", [121, 77, -1]),
    },
    "between two times": {
        "subscribe": "mixed",
        "startingTimestamp": str(FROM_MS),
        "endingTimestamp": str(UNTIL_MS),
    },
    "between times of each partition": {
        "subscribe": "mixed",
        "startingOffsetsByTimestamp": by_topic("mixed", [FROM_MS, FROM_MS + 90 * STEP_MS, FIRST_MS]),
        "endingOffsetsByTimestamp": by_topic("mixed", [UNTIL_MS, UNTIL_MS + 1, UNTIL_MS + 10_000 * STEP_MS]),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Data at rest, and what Spark's Kafka source read of it while a broker served it."""

    data_dir: Path
    rows: Mapping[str, Rows]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with running_spark(tmp_path_factory.mktemp("spark"), jars=kafka_source_jars()) as session:
        yield session


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Log:
    data_dir = tmp_path_factory.mktemp("data")
    with running_headrace(data_dir) as broker:
        for name in ("mixed", "in-table", "hostile"):
            create_topic(broker, name)
        create_topic(broker, "in-wal", **{"headrace.table.enable": "false"})
        send(broker, "mixed", count=300)
        send(broker, "in-table", count=90)
        put(broker, "hostile", 0, readable_records(), Codec.NONE)
        assert run_pipeline_here(data_dir).problems == {}
        send(broker, "mixed", count=300, first=300)
        send(broker, "in-wal", count=90)
        put(broker, "hostile", 0, readable_records(), Codec.ZSTD)
        rows = {name: rows_of(kafka(broker, spark, options)) for name, options in READS.items()}
    assert all(rows.values())
    return Log(data_dir=data_dir, rows=rows)


def readable_records() -> list[Record]:
    """Return the records that have broken others, but for times that Spark's Kafka source itself cannot read."""
    return [
        replace(record, timestamp_ms=record.timestamp_ms if abs(record.timestamp_ms) < 2 * FIRST_MS else 0)
        for record in hostile_records()
    ]


def create_topic(broker: HeadraceProcess, name: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(name, num_partitions=PARTITIONS, replication_factor=1, config=config)
    admin.create_topics([new])[name].result(LIMIT_SECONDS)


def send(broker: HeadraceProcess, topic: str, *, count: int, first: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    for number in range(first, first + count):
        producer.produce(
            topic,
            key=None if number % 5 == 0 else b"key-%d" % number,
            value=None if number % 7 == 0 else b"value-%d" % number,
            partition=number % PARTITIONS,
            timestamp=FIRST_MS + number * STEP_MS,
            headers=[] if number % 2 else [("source", b"test"), ("source", None), ("empty", b"")],
        )
    assert producer.flush(LIMIT_SECONDS) == 0


def kafka(broker: HeadraceProcess, spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
    return spark.read.format("kafka").options(**given).load()


def headrace(log: Log, spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("headrace").options(dataDir=str(log.data_dir), **options).load()


def rows_of(frame: DataFrame) -> Rows:
    columns = ["topic", "partition", "offset", "unix_micros(timestamp)", "timestampType", "key", "value"]
    columns += ["headers"] if "headers" in frame.columns else []
    rows = [tuple(plain(value) for value in row) for row in frame.selectExpr(*columns).collect()]
    return sorted(rows, key=lambda row: row[:3])


def plain(value: Any) -> Any:
    """Return a value that can be compared and read in a failure's text."""
    if isinstance(value, bytearray):
        return bytes(value)
    return [(header["key"], plain(header["value"])) for header in value] if isinstance(value, list) else value


def places(rows: Rows) -> list[tuple[str, int, int]]:
    return [row[:3] for row in rows]


@pytest.mark.parametrize("name", READS)
def test_rows_are_those_of_sparks_kafka_source(log: Log, spark: SparkSession, name: str) -> None:
    assert rows_of(headrace(log, spark, **READS[name])) == log.rows[name]


def test_columns_are_those_of_sparks_kafka_source(log: Log, spark: SparkSession) -> None:
    plain_frame = headrace(log, spark, subscribe="mixed")
    assert plain_frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert headrace(log, spark, subscribe="mixed", includeHeaders="true").schema[
        "headers"
    ].dataType.simpleString() == ("array<struct<key:string,value:binary>>")


def test_more_tasks_than_partitions_read_one_partition(log: Log, spark: SparkSession) -> None:
    frame = headrace(log, spark, assign='{"mixed": [1]}', minPartitions="9")
    assert frame.rdd.getNumPartitions() == 9
    assert [offset for _, _, offset in places(rows_of(frame))] == list(range(200))


def test_chosen_columns_and_conditions_bring_less(log: Log, spark: SparkSession) -> None:
    frame = headrace(
        log,
        spark,
        subscribe="mixed",
        columns="offset,key",
        pushdown=f"timestamp >= {FROM_MS} and timestamp < {UNTIL_MS} and partition in (0, 1)",
    )
    assert frame.columns == ["offset", "key"]
    wanted = [n for n in range(100, 401) if n % PARTITIONS in (0, 1)]
    found = [(row["offset"], plain(row["key"])) for row in frame.collect()]
    keys = [None if n % 5 == 0 else b"key-%d" % n for n in wanted]
    assert sorted(found, key=repr) == sorted(zip([n // PARTITIONS for n in wanted], keys, strict=True), key=repr)


def test_filters_are_pushed_down_where_the_session_lets_them(log: Log, spark: SparkSession) -> None:
    where = "topic = 'mixed' and partition > 0 and offset between 90 and 120 and timestamp >= timestamp_millis({})"
    narrow = headrace(log, spark, subscribe="mixed,in-wal").where(where.format(FIRST_MS + 300 * STEP_MS))
    wanted = rows_of(narrow)
    assert [place[1:] for place in places(wanted)] == [(p, o) for p in (1, 2) for o in range(100, 121)]
    spark.conf.set(PUSHING, "true")
    try:
        pushed = headrace(log, spark, subscribe="mixed,in-wal").where(where.format(FIRST_MS + 300 * STEP_MS))
        assert rows_of(pushed) == wanted
        plan: Any = pushed._jdf.queryExecution().executedPlan().toString()
        assert "Filter (" in plan, "Spark compares again, so rows do not depend on what was left out before"
        assert pushed.rdd.getNumPartitions() == 2, "partitions that cannot fit have no task"
        assert headrace(log, spark, subscribe="mixed").where("value is null").count() == 86
    finally:
        spark.conf.unset(PUSHING)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "mixed", "kafka.bootstrap.servers": "x:1"}, "storage is read directly"),
        (
            {"subscribe": "mixed", "startingOfsets": "earliest"},
            "there is no option startingofsets; there are subscribe",
        ),
        ({"subscribe": "ghosts"}, "there is no topic ghosts"),
        ({"subscribe": "mixed", "endingOffsets": by_topic("mixed", [900, -1, -1])}, "ends at 200"),
    ],
)
def test_what_cannot_be_read_is_told(log: Log, spark: SparkSession, options: Mapping[str, str], says: str) -> None:
    with pytest.raises((AnalysisException, PySparkException), match=says):
        headrace(log, spark, **options).count()


def test_a_directory_without_data_is_told_and_stays_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises((AnalysisException, PySparkException), match="there is no data of Headrace"):
        spark.read.format("headrace").options(dataDir=str(tmp_path / "typo"), subscribe="x").load().count()
    assert not (tmp_path / "typo").exists()


def test_a_stream_takes_its_limit_per_trigger_and_goes_on_from_its_checkpoint(
    log: Log, spark: SparkSession, tmp_path: Path
) -> None:
    query = follow(log, spark, tmp_path, maxOffsetsPerTrigger="130", trigger="processingTime")
    wait_for_batches(query, 2)
    query.stop()
    query = follow(log, spark, tmp_path, maxOffsetsPerTrigger="130", trigger="processingTime")
    query.processAllAvailable()
    taken = [progress.numInputRows for progress in query.recentProgress]
    query.stop()
    assert max(taken) <= 130
    kept = spark.read.parquet(str(tmp_path / "kept"))
    assert rows_of(kept) == log.rows["everything of a topic"]


def test_a_stream_brings_in_all_there_is_with_available_now(log: Log, spark: SparkSession, tmp_path: Path) -> None:
    source = stream(log, spark, subscribePattern="in-.*", startingOffsets="earliest")
    query = start(source, tmp_path, availableNow=True)
    assert query.awaitTermination(int(LIMIT_SECONDS)), "the query has not ended"
    assert query.exception() is None, query.exception()
    assert rows_of(spark.read.parquet(str(tmp_path / "kept"))) == log.rows["topics by pattern"]


def test_limits_that_available_now_would_break_are_refused(log: Log, spark: SparkSession, tmp_path: Path) -> None:
    source = stream(log, spark, subscribe="mixed", maxOffsetsPerTrigger="10")
    with pytest.raises(Exception, match="trigger=processingTime"):
        start(source, tmp_path, availableNow=True).awaitTermination(int(LIMIT_SECONDS))


def stream(log: Log, spark: SparkSession, **options: str) -> DataFrame:
    return spark.readStream.format("headrace").options(dataDir=str(log.data_dir), **options).load()


def follow(log: Log, spark: SparkSession, directory: Path, **options: str) -> StreamingQuery:
    source = stream(log, spark, subscribe="mixed", startingOffsets="earliest", includeHeaders="true", **options)
    return start(source, directory, processingTime="0 seconds")


def start(source: DataFrame, directory: Path, **trigger: Any) -> StreamingQuery:
    """Write a stream to Parquet files, which Spark does exactly once per batch."""
    places = {"path": str(directory / "kept"), "checkpointLocation": str(directory / "checkpoint")}
    return source.writeStream.format("parquet").options(**places).trigger(**trigger).start()


def wait_for_batches(query: StreamingQuery, count: int) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while sum(progress.numInputRows > 0 for progress in query.recentProgress) < count:
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline, f"no batch has ended: {query.lastProgress}"
        time.sleep(PAUSE_SECONDS)
