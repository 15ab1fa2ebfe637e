"""`df.write` and `df.writeStream` `.format("headrace")` with a real Spark, a running broker, and librdkafka as judge.

One session and one broker serve all tests of the file. Drivers die where a file says so (`dying_source`): Spark then
sees what it sees of a driver that was killed, and begins again from the checkpoint.
"""

import asyncio
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.query import StreamingQuery

from headrace.broker.storage import DOMAIN, Runtime, opened_storage
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import CrashPoint, NoCrashes
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import system_rng
from headrace.settings import load_settings
from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.servers.spark_sessions import SOCKETS_ARE_COLLECTED, running_spark
from tests.spark.pipelines import LIMIT_SECONDS, consumed
from tests.spark.table_cluster import run_headrace

PARTITIONS = 3
NOON_MS = 1_700_049_600_000
BEFORE_COMMIT = "before-commit"

pytestmark = [SOCKETS_ARE_COLLECTED, pytest.mark.timeout(600)]

_topic_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("data")) as process:
        yield process


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with running_spark(tmp_path_factory.mktemp("spark"), settings={"spark.master": "local[2,4]"}) as session:
        yield session


@pytest.fixture
def topic(broker: HeadraceProcess) -> str:
    return create_topic(broker)


def test_rows_become_records_that_consumers_and_spark_read(
    broker: HeadraceProcess, spark: SparkSession, topic: str
) -> None:
    waiting = consumer_at_the_end(broker, topic)
    rows: list[tuple[Any, ...]] = [
        (f"k{number}".encode(), f"v{number}", [("n", b"1"), ("n", None)], NOON_MS + number) for number in range(500)
    ]
    rows += [(None, "no key", None, NOON_MS), (b"no value", None, [], None)]
    frame = spark.createDataFrame(
        rows, "key binary, value string, headers array<struct<key string, value binary>>, at long"
    ).selectExpr("key", "value", "headers", "timestamp_millis(at) as timestamp")
    write(broker, frame.repartition(3), topic)
    received = received_by(waiting, len(rows))
    found = Counter((one.key(), one.value(), tuple(one.headers() or ()), one.timestamp()[1]) for one in received)
    wanted = Counter(
        (key, None if value is None else value.encode(), tuple(headers or ()), at)
        for key, value, headers, at in rows
        if at is not None
    )
    without_time = [one for one in received if one.key() == b"no value"]
    assert [one.value() for one in without_time] == [None] and without_time[0].timestamp()[1] > NOON_MS
    assert found - Counter({key: 1 for key in found if key[0] == b"no value"}) == wanted
    by_java = partitions_of_java(broker, [row[0] for row in rows if row[0] is not None])
    assert {one.key(): one.partition() for one in received if one.key() is not None} == by_java
    back = spark.read.format("headrace").options(dataDir=str(broker.data_dir), subscribe=topic).load()
    assert Counter(bytes(row.value or b"") for row in back.collect()) == Counter(
        one.value() or b"" for one in received
    )


def test_rows_choose_their_topics_and_partitions(broker: HeadraceProcess, spark: SparkSession) -> None:
    names = [create_topic(broker) for _ in range(2)]
    rows = [(names[number % 2], number % PARTITIONS, f"{number}") for number in range(60)]
    write(broker, spark.createDataFrame(rows, "topic string, partition int, value string"), None)
    for index, name in enumerate(names):
        own = [row for row in rows if row[0] == name]
        assert consumed(broker, name) == sorted(row[2].encode() for row in own), index
        ends = {number: offsets_of(broker, name, number)[1] for number in range(PARTITIONS)}
        assert ends == Counter(row[1] for row in own)


def test_a_batch_that_comes_again_is_appended_once(broker: HeadraceProcess, spark: SparkSession, topic: str) -> None:
    frame = spark.range(100).selectExpr("cast(id as string) as value")
    for batch_id in (7, 7, 8, 8, 7):
        try:
            write(broker, frame, topic, sinkId="copy", batchId=str(batch_id))
        except PySparkException as error:
            assert batch_id == 7 and "comes after batch 8" in str(error)
    assert len(consumed(broker, topic)) == 200


def test_every_write_of_a_foreach_batch_counts_and_a_repeated_one_does_not(
    broker: HeadraceProcess, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "lines").mkdir()
    copy = create_topic(broker)

    def write_twice(frame: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            write(broker, frame, topic)
            write(broker, frame, copy, sinkId="copy in foreachBatch", batchId=str(batch_id))

    for number in range(2):
        (tmp_path / "lines" / f"{number}.txt").write_text(f"line {number}\n")
        lines = spark.readStream.text(str(tmp_path / "lines"))
        writer = lines.writeStream.foreachBatch(write_twice).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert consumed(broker, topic) == [b"line 0", b"line 0", b"line 1", b"line 1"]
    assert consumed(broker, copy) == [b"line 0", b"line 1"]


def test_what_cannot_be_written_is_refused_before_anything_runs(
    broker: HeadraceProcess, spark: SparkSession, topic: str
) -> None:
    good = spark.range(3).selectExpr("cast(id as string) as value")
    refused: list[tuple[DataFrame, str | None, Mapping[str, str], str]] = [
        (spark.range(3), topic, {}, "column 'id' cannot be written"),
        (spark.range(3).selectExpr("id as value"), topic, {}, "value takes string or binary"),
        (good, None, {}, "no topic is named"),
        (good, "nowhere", {}, "there is no topic 'nowhere'"),
        (good, topic, {"acks": "1"}, "there is no option acks"),
        (good, topic, {"kafka.bootstrap.servers": "x"}, "no broker is asked here"),
        (good, topic, {"sinkId": "x"}, "sinkId and batchId go together"),
    ]
    for frame, name, options, why in refused:
        with pytest.raises(PySparkException, match=why):
            write(broker, frame, name, **options)
    with pytest.raises(PySparkException, match="only ever appended to"):
        good.write.format("headrace").mode("overwrite").options(topic=topic, dataDir=str(broker.data_dir)).save()
    assert consumed(broker, topic) == []


def test_the_rules_of_a_topic_hold_for_rows_too(broker: HeadraceProcess, spark: SparkSession) -> None:
    compacted = create_topic(broker, {"cleanup.policy": "compact"})
    small = create_topic(broker, {"max.message.bytes": "2000", "compression.type": "zstd"})
    keyless = spark.range(3).selectExpr("cast(id as string) as value")
    with pytest.raises(PySparkException, match="compacted by key"):
        write(broker, keyless, compacted)
    write(broker, spark.range(400).selectExpr("cast(id as string) as key", "repeat('x', 100) as value"), small)
    assert len(consumed(broker, small)) == 400
    with pytest.raises(PySparkException, match=r"max\.message\.bytes is 2000"):
        write(broker, spark.createDataFrame([(os.urandom(4000),)], "value binary"), small)
    assert consumed(broker, compacted) == []


def test_tasks_that_fail_are_tried_again_and_a_job_that_fails_leaves_nothing(
    broker: HeadraceProcess, spark: SparkSession, topic: str
) -> None:
    def failing(doomed: bool) -> DataFrame:
        def rows(task: int, numbers: Iterable[int]) -> Iterator[tuple[str]]:
            from pyspark import TaskContext

            for number in numbers:
                yield (str(number),)
            context = TaskContext.get()
            if task == 1 and (doomed or context is None or context.attemptNumber() < 2):
                raise RuntimeError("this attempt is lost")

        numbers = spark.sparkContext.parallelize(range(900), 3)
        return spark.createDataFrame(numbers.mapPartitionsWithIndex(rows), "value string")

    before = wal_objects(broker)
    with pytest.raises(PySparkException, match="this attempt is lost"):
        write(broker, failing(doomed=True), topic)
    assert consumed(broker, topic) == []
    left_behind = wal_objects(broker) - before
    assert left_behind, "the tasks that did not fail have written their frames"
    write(broker, failing(doomed=False), topic)
    everything = sorted(b"%d" % number for number in range(900))
    assert consumed(broker, topic) == everything
    collected = run_headrace(broker.data_dir, "collect", "--set=wal.orphan.age.floor.ms=0")
    assert collected.returncode == 0, collected.stderr
    found = wal_objects(broker)
    assert not found & left_behind, "what the job that failed has left is gone"
    assert len(found - before) == 3, "what the job that went well has written, one object per task, is there"
    assert consumed(broker, topic) == everything


def test_stream_goes_on_from_its_checkpoint_wherever_its_driver_died(
    broker: HeadraceProcess, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    flag = tmp_path / "die-at"
    spark.dataSource.register(dying_source(str(flag)))
    lines, total = tmp_path / "lines", 0
    lines.mkdir()

    def run(point: str | None) -> StreamingQuery:
        nonlocal total
        (lines / f"{total}.txt").write_text("".join(f"{number}\n" for number in range(total, total + 100)))
        total += 100
        if point is not None:
            flag.write_text(point)
        query = (
            spark.readStream.text(str(lines))
            .writeStream.format("dying")
            .options(topic=topic, dataDir=str(broker.data_dir), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except PySparkException:
            assert point is not None
        return query

    for point in (None, CrashPoint.SINK_AFTER_BEGIN, BEFORE_COMMIT, CrashPoint.SINK_AFTER_COMMIT):
        query = run(point)
        assert not flag.exists(), f"nobody died at {point}"
        assert (query.exception() is not None) == (point is not None)
    assert run(CrashPoint.SINK_AFTER_WRITE).exception() is None, "a task that dies is tried again"
    assert run(None).exception() is None
    assert consumed(broker, topic) == sorted(b"%d" % number for number in range(total))


def test_a_batch_of_a_stream_that_fails_leaves_neither_objects_nor_its_record(
    broker: HeadraceProcess, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "0.txt").write_text("".join(f"{number}\n" for number in range(100)))
    before, under_way = wal_objects(broker), writes_under_way(broker)
    query = (
        spark.readStream.text(str(tmp_path / "lines"))
        .selectExpr("if(value = '99', raise_error('this row is bad'), value) as value")
        .writeStream.format("headrace")
        .options(topic=topic, dataDir=str(broker.data_dir), checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException, match="this row is bad"):
        query.awaitTermination()
    assert writes_under_way(broker) == under_way
    assert wal_objects(broker) == before
    assert consumed(broker, topic) == []


def test_stream_copies_a_topic_with_both_ends_in_storage(
    broker: HeadraceProcess, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    copy = create_topic(broker)
    for start in (0, 300):
        write(broker, spark.range(start, start + 300).selectExpr("cast(id as string) as value"), topic)
        query = (
            spark.readStream.format("headrace")
            .options(dataDir=str(broker.data_dir), subscribe=topic, startingOffsets="earliest")
            .load()
            .select("key", "value", "partition", "timestamp")
            .writeStream.format("headrace")
            .options(topic=copy, dataDir=str(broker.data_dir), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert consumed(broker, copy) == consumed(broker, topic)
    assert len(consumed(broker, copy)) == 600


def test_stream_that_fails_in_its_first_batch_begins_where_it_began(
    broker: HeadraceProcess, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    # Spark writes down where the first batch ends, and asks for its start once more when the query comes back.
    def run(doing: Callable[[DataFrame, int], None]) -> None:
        source = spark.readStream.format("headrace").options(dataDir=str(broker.data_dir), subscribe=topic).load()
        writer = source.select("value").writeStream.foreachBatch(doing).trigger(processingTime="0 seconds")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def fail(frame: DataFrame, batch_id: int) -> None:
        raise RuntimeError("the first batch fails")

    found: list[bytes] = []
    write(broker, spark.range(3).selectExpr("cast(id as string) as value"), topic)
    with pytest.raises(PySparkException, match="the first batch fails"):
        run(fail)
    write(broker, spark.range(3, 6).selectExpr("cast(id as string) as value"), topic)
    run(lambda frame, _: found.extend(bytes(row.value) for row in frame.collect()))
    assert sorted(found) == [b"3", b"4", b"5"]


def test_stream_never_goes_on_in_a_topic_that_was_created_again(
    broker: HeadraceProcess, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    found: list[bytes] = []

    def run(**options: str) -> None:
        given = {"dataDir": str(broker.data_dir), "subscribe": topic, "startingOffsets": "earliest", **options}
        source = spark.readStream.format("headrace").options(**given).load().select("value")
        writer = source.writeStream.foreachBatch(
            lambda frame, _: found.extend(bytes(row.value) for row in frame.collect())
        )
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()

    write(broker, spark.range(3).selectExpr("cast(id as string) as value", "0 as partition"), topic)
    run()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(LIMIT_SECONDS)
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])[topic].result(
        LIMIT_SECONDS
    )
    write(broker, spark.range(10, 15).selectExpr("cast(id as string) as value", "0 as partition"), topic)
    with pytest.raises(PySparkException, match=f"topic {topic} was deleted and created again"):
        run()
    assert sorted(found) == [b"0", b"1", b"2"]
    run(failOnDataLoss="false")
    assert sorted(found[3:]) == [b"10", b"11", b"12", b"13", b"14"]


def dying_source(flag: str) -> type[DataSource]:
    """Return our data source, under another name, whose processes die where the file `flag` says, once."""

    def desk() -> Any:
        import os
        import signal
        from pathlib import Path
        from typing import Any

        from headrace.broker.sinks import StoreDesk

        class FileCrashes:
            def reach(self, point: str) -> None:
                path = Path(flag)
                if path.exists() and path.read_text() == point:
                    path.unlink()
                    os.kill(os.getpid(), signal.SIGKILL)

        class DyingDesk(StoreDesk):
            def __init__(self) -> None:
                self.crash_points = FileCrashes()

            def commit(self, *arguments: Any) -> None:
                FileCrashes().reach("before-commit")
                super().commit(*arguments)

        return DyingDesk()

    class DyingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            from headrace.pipeline.spark.sink import stream_writer

            return stream_writer(self.options, schema, overwrite, desk=desk)

    return DyingSource


def write(broker: HeadraceProcess, frame: DataFrame, topic: str | None, **options: str) -> None:
    named = options if topic is None else {"topic": topic, **options}
    frame.write.format("headrace").mode("append").options(dataDir=str(broker.data_dir), **named).save()


def create_topic(broker: HeadraceProcess, configs: Mapping[str, str] | None = None) -> str:
    name = f"sink-{next(_topic_numbers)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(name, num_partitions=PARTITIONS, replication_factor=1, config=dict(configs or {}))
    admin.create_topics([new])[name].result(LIMIT_SECONDS)
    return name


def consumer_at_the_end(broker: HeadraceProcess, topic: str) -> Consumer:
    """Return a consumer that waits for what comes, in fetches that only new records end."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "waiting",
            "enable.auto.commit": "false",
            "fetch.wait.max.ms": "300000",
            "socket.timeout.ms": "300000",
        }
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_END) for number in range(PARTITIONS)])
    assert consumer.poll(2.0) is None
    return consumer


def received_by(consumer: Consumer, count: int) -> list[Any]:
    received: list[Any] = []
    try:
        while len(received) < count:
            message = consumer.poll(LIMIT_SECONDS)
            assert message is not None and message.error() is None, f"{len(received)} of {count} came"
            received.append(message)
    finally:
        consumer.close()
    return received


def partitions_of_java(broker: HeadraceProcess, keys: list[bytes]) -> dict[bytes, int]:
    """Return where librdkafka's twin of Java's partitioner puts keys."""
    topic = create_topic(broker)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    placed: dict[Any, Any] = {}
    for key in keys:
        producer.produce(topic, b"", key, on_delivery=lambda _, one: placed.update({one.key(): one.partition()}))
    assert producer.flush(LIMIT_SECONDS) == 0
    return placed


def offsets_of(broker: HeadraceProcess, topic: str, partition: int) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "ends"})
    try:
        found: tuple[int, int] = consumer.get_watermark_offsets(TopicPartition(topic, partition), LIMIT_SECONDS)
        return found
    finally:
        consumer.close()


def writes_under_way(broker: HeadraceProcess) -> set[str]:
    """Return the writes that are announced and have not ended."""

    async def read() -> set[str]:
        clock = SystemClock()
        runtime = Runtime(
            clock=clock,
            rng=system_rng(),
            crash_points=NoCrashes(),
            metrics=Metrics(),
            log=open_log(sys.stderr, clock=clock),
        )
        settings = load_settings(pairs=[f"data.dir={broker.data_dir}"]).tree
        async with opened_storage(settings, runtime, makes_directory=False) as storage:
            found = await storage.metadata.range(prefix_range(DomainKeys(DOMAIN).sink_writes_prefix, limit=100))
            return {item.key for item in found}

    return asyncio.run(read())


def wal_objects(broker: HeadraceProcess) -> set[Path]:
    """Return the objects that sinks have written: their numbers are longer than those of a broker's segments."""
    return {path for path in (broker.data_dir / "objects" / "wal").rglob("*") if len(path.name) == 32 + 1 + 29}
