"""Merges beside people with Spark: their procedures break no Kafka read, our merges no query or stream of theirs.

Spark is the real one with Iceberg's own runtime; the pipeline is the real one, too. One merge is made by its tasks.
"""

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import duckdb
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from duckdb_extensions import import_extension  # type: ignore[import-untyped]
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from headrace.pipeline.runner import RunReport
from headrace.records.batch import Codec
from tests.integration.clients.librdkafka import Librdkafka, create_topic
from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.servers.spark_jars import iceberg_jars
from tests.servers.spark_sessions import SOCKETS_ARE_COLLECTED, running_spark
from tests.spark.pipelines import LIMIT_SECONDS, consumed
from tests.spark.table_cluster import (
    catalog_settings,
    metadata_location,
    plain_records,
    put,
    pyiceberg_rows,
    run_headrace,
    run_pipeline_here,
    wait_until,
)

pytestmark = [SOCKETS_ARE_COLLECTED, pytest.mark.timeout(600)]

PARTITIONS = 2
ROWS = 20
MERGING = "pipeline.merge.min.files=3"
NOT_MERGING = "pipeline.merge.enable=false"
TWO_DAYS_S = 2 * 24 * 3600


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("keeping") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def merged_by_spark(broker: HeadraceProcess) -> str:
    """A topic whose files Spark's tasks have merged; before the session starts, because a process has one JVM."""
    create_topic(broker.bootstrap, "merged", PARTITIONS)
    for run in range(4):
        produce_and_run(broker, "merged", run, NOT_MERGING)
    assert len(files(broker.data_dir, "merged")) == 4
    leave_in_main(broker, "left")
    told = run_headrace(broker.data_dir, "pipeline", "run", "--once", "--set", MERGING)
    assert told.returncode == 0, told.stderr
    return "merged"


@pytest.fixture(scope="module")
def spark(
    broker: HeadraceProcess, merged_by_spark: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    directory, settings = tmp_path_factory.mktemp("spark"), catalog_settings(broker.data_dir)
    with running_spark(directory, jars=iceberg_jars(), settings=settings) as session:
        yield session


def test_all_engines_and_metadata_tables_agree_after_a_merge_by_spark(
    broker: HeadraceProcess, merged_by_spark: str, spark: SparkSession, tmp_path: Path
) -> None:
    topic, wanted = merged_by_spark, 4 * ROWS * PARTITIONS
    table = f"headrace.topics.{topic}"
    assert len(files(broker.data_dir, topic)) == 1
    assert len(pyiceberg_rows(broker.data_dir, topic)) == wanted
    assert one(spark, f"select count(*), count(distinct partition, `offset`) from {table}") == (wanted, wanted)
    assert one(spark, f"select count(*) from {table}.branch_headrace_log") == (wanted,)
    connection = duckdb.connect(config={"extension_directory": str(tmp_path)})
    for name in ("avro", "iceberg"):
        import_extension(name, con=connection)
        connection.load_extension(name)
    location = metadata_location(broker.data_dir, topic)
    assert connection.execute(f"select count(*) from iceberg_scan('{location}')").fetchone() == (wanted,)
    connection.close()
    assert one(spark, f"select count(*), sum(record_count) from {table}.files") == (1, wanted)
    assert one(spark, f"select count(distinct file_path) from {table}.all_data_files") == (5,)
    added, existing, deleted = one(
        spark,
        "select sum(added_data_files_count), sum(existing_data_files_count), sum(deleted_data_files_count)"
        f" from {table}.manifests",
    )
    assert (added, existing, deleted) == (1, 0, 4)
    entries = spark.sql(f"select status, sequence_number from {table}.entries order by sequence_number").collect()
    assert [tuple(row) for row in entries] == [(2, 1), (2, 2), (2, 3), (2, 4), (1, 5)]
    history = spark.sql(f"select operation, summary from {table}.snapshots order by committed_at").collect()
    assert [row[0] for row in history] == ["append"] * 4 + ["replace"]
    summary = history[-1][1]
    counts = {name: summary[name] for name in ("added-data-files", "deleted-data-files", "total-data-files")}
    assert counts == {"added-data-files": "1", "deleted-data-files": "4", "total-data-files": "1"}
    assert summary["total-records"] == str(wanted)
    check_kafka(broker, topic, runs=4)
    check_proof(broker, topic)


def test_what_the_log_has_forgotten_is_merged_in_main_alone(
    broker: HeadraceProcess, merged_by_spark: str, spark: SparkSession
) -> None:
    table, forgotten, kept = "headrace.topics.left", 4 * ROWS * PARTITIONS, ROWS * PARTITIONS
    main, log = (set(files(broker.data_dir, "left", ref=ref)) for ref in ("main", "headrace_log"))
    assert (len(main - log), len(log)) == (1, 1) and log < main
    rows = forgotten + kept
    assert one(spark, f"select count(*), count(distinct partition, `offset`) from {table}") == (rows, rows)
    assert one(spark, f"select count(*) from {table}.branch_headrace_log") == (kept,)
    assert len(pyiceberg_rows(broker.data_dir, "left")) == rows
    history = spark.sql(f"select operation from {table}.snapshots order by committed_at").collect()
    assert "overwrite" not in {row[0] for row in history} and [row[0] for row in history][-2:] == ["replace"] * 2
    check_proof(broker, "left")
    assert consumed(broker, "left") == sorted(
        b"value %d" % number for number in range(4 * ROWS, 5 * ROWS) for _ in range(PARTITIONS)
    )


def test_a_stream_of_spark_goes_on_across_merges(
    broker: HeadraceProcess, spark: SparkSession, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, "streamed", PARTITIONS)
    produce_and_run(broker, "streamed", 0, MERGING)
    query = (
        spark.readStream.format("iceberg")
        .load("headrace.topics.streamed")
        .selectExpr("partition", "offset")
        .writeStream.format("memory")
        .queryName("streamed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    merges = 0
    try:
        for run in range(1, 7):
            merges += produce_and_run(broker, "streamed", run, MERGING).merges
            if run % 3 == 0:
                wanted = (run + 1) * ROWS * PARTITIONS
                wait_until(partial(has_rows, spark, wanted), step=partial(query.awaitTermination, 1))
        assert query.exception() is None and query.isActive
    finally:
        query.stop()
    assert merges >= 2
    seen = [tuple(row) for row in spark.sql("select * from streamed").collect()]
    assert len(seen) == len(set(seen)) == 7 * ROWS * PARTITIONS
    assert len(files(broker.data_dir, "streamed")) < 7


def test_procedures_of_users_break_no_kafka_read_and_the_pipeline_goes_on(
    broker: HeadraceProcess, spark: SparkSession
) -> None:
    create_topic(broker.bootstrap, "kept", PARTITIONS)
    for run in range(4):
        produce_and_run(broker, "kept", run, NOT_MERGING)
    maintain(spark, broker.data_dir, "kept")
    assert not set(files(broker.data_dir, "kept")) & set(files(broker.data_dir, "kept", ref="headrace_log"))
    check_kafka(broker, "kept", runs=4)
    check_proof(broker, "kept")
    merged = files(broker.data_dir, "kept", ref="headrace_log")
    report = produce_and_run(broker, "kept", 4, MERGING)
    assert report.merges == 1
    assert len(files(broker.data_dir, "kept", ref="headrace_log")) == 1
    rows = 5 * ROWS * PARTITIONS
    assert one(spark, "select count(*), count(distinct partition, `offset`) from headrace.topics.kept") == (
        rows,
        rows,
    )
    assert one(spark, "select count(*) from headrace.topics.kept.branch_headrace_log") == (rows,)
    check_kafka(broker, "kept", runs=5)
    check_proof(broker, "kept")
    maintain(spark, broker.data_dir, "kept")
    # Somebody may be about to read what a merge has replaced a moment ago, or the index may still name it.
    assert [file for file in merged if not Path(file.removeprefix("file://")).exists()] == []
    produce_and_run(broker, "kept", 5, MERGING)
    check_kafka(broker, "kept", runs=6)
    check_proof(broker, "kept")


def test_rows_that_a_user_has_deleted_do_not_come_back(broker: HeadraceProcess, spark: SparkSession) -> None:
    create_topic(broker.bootstrap, "deleted", 1)
    table = "headrace.topics.deleted"
    for run in range(3):
        put(broker, "deleted", 0, plain_records(ROWS, start=run * ROWS), Codec.NONE)
        assert run_pipeline_here(broker.data_dir, NOT_MERGING).problems == {}
    spark.sql(f"alter table {table} set tblproperties ('write.delete.mode' = 'merge-on-read')")
    spark.sql(f"delete from {table} where `offset` in (3, 27)")
    put(broker, "deleted", 0, plain_records(ROWS, start=3 * ROWS), Codec.NONE)
    report = run_pipeline_here(broker.data_dir, MERGING)
    assert (report.problems, report.merges) == ({}, 1)
    assert one(spark, f"select count(*) from {table}.branch_headrace_log") == (4 * ROWS,)
    assert one(spark, f"select count(*), count_if(`offset` in (3, 27)) from {table}") == (4 * ROWS - 2, 0)
    found = Librdkafka().read(broker.bootstrap, "deleted", {0: 4 * ROWS})[0]
    assert [message.message.value for message in found] == [b"value %d" % n for n in range(4 * ROWS)]


def produce_and_run(broker: HeadraceProcess, topic: str, run: int, *pairs: str) -> RunReport:
    """Produce to all partitions, and let the pipeline make a round."""
    for partition in range(PARTITIONS):
        put(broker, topic, partition, plain_records(ROWS, start=run * ROWS), Codec.NONE)
    report = run_pipeline_here(broker.data_dir, *pairs)
    assert report.problems == {}
    return report


def leave_in_main(broker: HeadraceProcess, topic: str) -> None:
    """Let the log forget what four runs have brought into the table, which keeps it; then make one more run."""
    create_topic(broker.bootstrap, topic, PARTITIONS)
    for run in range(4):
        produce_and_run(broker, topic, run, NOT_MERGING)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    ends = [TopicPartition(topic, partition, 4 * ROWS) for partition in range(PARTITIONS)]
    for deleted in admin.delete_records(ends).values():
        deleted.result(LIMIT_SECONDS)
    # Brokers trim the index, and then the pipeline releases.
    wait_until(
        lambda: files(broker.data_dir, topic, ref="headrace_log") == [],
        step=partial(run_pipeline_here, broker.data_dir, NOT_MERGING),
    )
    assert len(files(broker.data_dir, topic)) == 4
    produce_and_run(broker, topic, 4, NOT_MERGING)


def maintain(spark: SparkSession, data_dir: Path, topic: str) -> None:
    """Do what guides for Iceberg tell its users to do at times, as hard as it goes."""
    name = f"topics.{topic}"
    spark.sql(
        f"call headrace.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
    ).collect()
    now = spark.sql("select date_format(current_timestamp() + interval 1 hour, 'yyyy-MM-dd HH:mm:ss')").collect()[0][
        0
    ]
    spark.sql(
        f"call headrace.system.expire_snapshots(table => '{name}', older_than => timestamp '{now}', retain_last => 1)"
    ).collect()
    # The procedure takes no files that are younger than a day, so they all get older.
    for directory, _, names in os.walk(data_dir / "objects" / "tables"):
        for file in names:
            os.utime(Path(directory) / file, (time.time() - TWO_DAYS_S,) * 2)
    day_ago = spark.sql("select date_format(current_timestamp() - interval 25 hour, 'yyyy-MM-dd HH:mm:ss')").collect()
    spark.sql(
        f"call headrace.system.remove_orphan_files(table => '{name}', older_than => timestamp '{day_ago[0][0]}')"
    ).collect()


def check_kafka(broker: HeadraceProcess, topic: str, *, runs: int) -> None:
    """Check that a consumer gets every record of all runs, in order."""
    found = Librdkafka().read(broker.bootstrap, topic, dict.fromkeys(range(PARTITIONS), runs * ROWS))
    for partition in range(PARTITIONS):
        values = [message.message.value for message in found[partition]]
        assert values == [b"value %d" % number for number in range(runs * ROWS)]


def check_proof(broker: HeadraceProcess, topic: str) -> None:
    told = run_headrace(broker.data_dir, "table", "verify", topic)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.splitlines()[-1] == f"{topic} is clean"


def files(data_dir: Path, topic: str, *, ref: str = "main") -> list[str]:
    """Return the data files that a ref names."""
    catalog = SqlCatalog("headrace", uri=f"sqlite:///{data_dir}/catalog.db")
    try:
        table = catalog.load_table(("topics", topic))
        snapshot = table.metadata.snapshot_by_name(ref)
        assert snapshot is not None
        return [
            entry.data_file.file_path
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
        ]
    finally:
        catalog.close()


def one(spark: SparkSession, query: str) -> tuple[object, ...]:
    return tuple(spark.sql(query).collect()[0])


def has_rows(spark: SparkSession, count: int) -> bool:
    return bool(spark.sql("select count(*) from streamed").collect()[0][0] >= count)
