"""One table, read by everybody: PyIceberg, DuckDB, Spark with Iceberg's own runtime, and Kafka's consumers agree.

The records go through a real broker and the real pipeline on Spark. DuckDB reads with its own Iceberg extension, from
the table's metadata; Spark through the catalog, as the guide says. A stream that follows it sees each row once.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from duckdb_extensions import import_extension  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from headrace.records.batch import Codec
from headrace.records.record import Record
from tests.integration.clients.librdkafka import Librdkafka, create_topic
from tests.integration.wire.batches import GZIP, batch
from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.servers.spark_jars import iceberg_jars
from tests.servers.spark_sessions import SOCKETS_ARE_COLLECTED, running_spark
from tests.spark.table_cluster import (
    COLUMNS,
    Row,
    catalog_settings,
    hostile_records,
    metadata_location,
    plain_records,
    put,
    put_batch,
    pyiceberg_rows,
    rows_of_arrow,
    run_headrace,
    run_pipeline_here,
    wait_until,
)

pytestmark = [SOCKETS_ARE_COLLECTED, pytest.mark.timeout(600)]

PARTITIONS = 3
STREAMED_RUNS = 4
UNOPENED = {"headrace.compressed.check": "header"}
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "message.timestamp.before.max.ms": str(2**63 - 1)}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    """A broker whose topic `hostile` is in its table, brought there by two runs of the real pipeline."""
    data_dir = tmp_path_factory.mktemp("engines") / "data"
    with running_headrace(data_dir) as running:
        create_topic(running.bootstrap, "hostile", PARTITIONS, **ANY_TIME, **UNOPENED)
        codecs = list(Codec)
        for number, record in enumerate(hostile_records()):
            put(running, "hostile", number % PARTITIONS, [_alone(record)], codecs[number % len(codecs)])
        put(running, "hostile", 1, plain_records(500), Codec.ZSTD)
        put_batch(running, "hostile", 0, batch(count=3, body=b"this is no gzip", attributes=GZIP))
        first = run_headrace(data_dir, "pipeline", "run", "--once")
        assert first.returncode == 0, first.stderr
        put(running, "hostile", 2, plain_records(100, start=1000), Codec.LZ4)
        assert run_pipeline_here(data_dir).problems == {}
        yield running


@pytest.fixture(scope="module")
def spark(broker: HeadraceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A plain session with the catalog attached as the guide for Spark says."""
    settings = catalog_settings(broker.data_dir)
    with running_spark(tmp_path_factory.mktemp("spark"), jars=iceberg_jars(), settings=settings) as session:
        yield session


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with its Iceberg extension, from the package index instead of DuckDB's own host."""
    connection = duckdb.connect(config={"extension_directory": str(tmp_path_factory.mktemp("duckdb"))})
    for name in ("avro", "iceberg"):
        import_extension(name, con=connection)
        connection.load_extension(name)
    connection.execute("SET TimeZone = 'UTC'")
    yield connection
    connection.close()


def test_all_engines_show_the_same_rows(
    broker: HeadraceProcess, spark: SparkSession, duck: duckdb.DuckDBPyConnection
) -> None:
    by_pyiceberg = pyiceberg_rows(broker.data_dir, "hostile")
    assert len(by_pyiceberg) == len(hostile_records()) + 600
    assert _duckdb_rows(duck, broker.data_dir) == by_pyiceberg
    assert _spark_rows(spark, "select * from headrace.topics.hostile") == by_pyiceberg


def test_the_rows_are_the_records_that_were_produced(broker: HeadraceProcess) -> None:
    rows = pyiceberg_rows(broker.data_dir, "hostile")
    found = {(row[5], row[6]): dict(zip(COLUMNS, row, strict=True)) for row in rows}
    for record in hostile_records():
        row = found[(record.key, record.value)]
        keys = [key.decode("utf-8", "replace") for key, _ in record.headers]
        assert row["headers"] == [(key, value) for key, (_, value) in zip(keys, record.headers, strict=True)]
        if row["raw"] is None:
            assert row["timestamp"] == record.timestamp_ms * 1000
    assert sum(row["raw"] is not None for row in found.values()) == 3


def test_counts_and_filters_agree(
    broker: HeadraceProcess, spark: SparkSession, duck: duckdb.DuckDBPyConnection
) -> None:
    location = metadata_location(broker.data_dir, "hostile")
    # PyIceberg, as any engine, leaves out files by their partition value and by the bounds of their columns.
    day = "append_time >= '2020-01-01T00:00:00+00:00'"
    for where in (
        *("true", "partition = 1", 'partition = 2 and "offset" >= 50', 'partition = 7 or "offset" < 0'),
        *(
            "append_time >= timestamptz '2020-01-01 00:00:00+00'",
            "append_time < timestamptz '2020-01-01 00:00:00+00'",
        ),
    ):
        counted = duck.execute(f"select count(*) from iceberg_scan('{location}') where {where}").fetchone()
        spark_where = where.replace('"', "`").replace("timestamptz", "timestamp").replace("+00'", "Z'")
        [row] = spark.sql(f"select count(*) from headrace.topics.hostile where {spark_where}").collect()
        assert counted is not None and counted[0] == row[0], where
    assert len(pyiceberg_rows(broker.data_dir, "hostile", where="partition = 1")) == 504
    assert len(pyiceberg_rows(broker.data_dir, "hostile", where=day)) == len(hostile_records()) + 600


def test_a_stream_of_spark_follows_the_table_over_many_runs(
    broker: HeadraceProcess, spark: SparkSession, tmp_path: Path
) -> None:
    create_topic(broker.bootstrap, "followed", 2)
    produced = _produce_and_run(broker, 0)
    following = (
        spark.readStream.format("iceberg")
        .load("headrace.topics.followed")
        .selectExpr("partition", "offset", "cast(value as string) value")
        .writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        for run in range(1, STREAMED_RUNS):
            produced += _produce_and_run(broker, run)
            wait_until(partial(_has_rows, spark, len(produced)), step=partial(following.awaitTermination, 1))
        assert following.exception() is None and following.isActive
    finally:
        following.stop()
    seen = spark.sql("select partition, offset, value from seen").collect()
    assert len({(row[0], row[1]) for row in seen}) == len(seen)
    assert sorted(row[2] for row in seen) == sorted(produced)


def test_what_users_do_to_main_with_spark_is_no_damage_and_the_pipeline_goes_on(
    broker: HeadraceProcess, spark: SparkSession
) -> None:
    create_topic(broker.bootstrap, "changed", 1)
    for run in range(3):
        put(broker, "changed", 0, plain_records(10, start=10 * run), Codec.NONE)
        assert run_pipeline_here(broker.data_dir).problems == {}
    table = "headrace.topics.changed"
    spark.sql(f"delete from {table} where `offset` in (3, 14)")
    spark.sql(f"alter table {table} set tblproperties ('write.delete.mode' = 'merge-on-read')")
    spark.sql(f"delete from {table} where `offset` = 25")
    put(broker, "changed", 0, plain_records(10, start=30), Codec.NONE)
    assert run_pipeline_here(broker.data_dir).problems == {}
    spark.sql(
        "call headrace.system.rewrite_data_files(table => 'topics.changed', options => map('rewrite-all', 'true'))"
    )
    spark.sql(f"alter table {table} add column note string")
    put(broker, "changed", 0, plain_records(10, start=40), Codec.NONE)
    assert run_pipeline_here(broker.data_dir).problems == {}
    assert spark.sql(f"select count(*), count(distinct `offset`) from {table}").collect()[0] == (47, 47)
    assert spark.sql(f"select count(*) from {table}.branch_headrace_log").collect()[0][0] == 50
    told = run_headrace(broker.data_dir, "table", "verify", "changed", "--output", "json")
    report = json.loads(told.stdout)
    assert told.returncode == 0 and report["counts"] == {"missing-on-main": 3}
    assert "3, 14, 25" in report["findings"][0]["message"]
    with_kafka = Librdkafka().read(broker.bootstrap, "changed", {0: 50})
    assert [one.message.value for one in with_kafka[0]] == [b"value %d" % number for number in range(50)]


def test_the_proof_is_clean_and_names_what_was_held_back(broker: HeadraceProcess) -> None:
    told = run_headrace(broker.data_dir, "table", "verify", "hostile")
    assert (told.returncode, told.stderr) == (0, "")
    first, *_, last = told.stdout.splitlines()
    assert first.startswith("warning: held-back: partition 0: offsets 4–6 are held back in the WAL")
    assert last == "hostile is clean"


def _alone(record: Record) -> Record:
    """Return the record as the first of a batch of its own: two of these times do not fit into one."""
    return replace(record, offset=0)


def _has_rows(spark: SparkSession, count: int) -> bool:
    return bool(spark.sql("select count(*) from seen").collect()[0][0] >= count)


def _produce_and_run(broker: HeadraceProcess, run: int) -> list[str]:
    values = []
    for partition in range(2):
        records = plain_records(20, start=1000 * run + 100 * partition)
        put(broker, "followed", partition, records, Codec.NONE)
        values += [(record.value or b"").decode() for record in records]
    assert run_pipeline_here(broker.data_dir).problems == {}
    return values


def _duckdb_rows(duck: duckdb.DuckDBPyConnection, data_dir: Path) -> list[Row]:
    location = metadata_location(data_dir, "hostile")
    chosen = ", ".join(
        f"epoch_us({name}) as {name}" if name in ("timestamp", "append_time") else f'"{name}"' for name in COLUMNS
    )
    return rows_of_arrow(duck.execute(f"select {chosen} from iceberg_scan('{location}')").to_arrow_table())


def _spark_rows(spark: SparkSession, query: str) -> list[Row]:
    chosen = [
        f"unix_micros({name}) as {name}" if name in ("timestamp", "append_time") else f"`{name}`" for name in COLUMNS
    ]
    rows = []
    for row in spark.sql(query).selectExpr(*chosen).collect():
        cells: list[Any] = [bytes(cell) if isinstance(cell, bytearray) else cell for cell in row]
        at = COLUMNS.index("headers")
        cells[at] = [
            (header["key"], None if header["value"] is None else bytes(header["value"])) for header in cells[at]
        ]
        rows.append(tuple(cells))
    return sorted(rows, key=lambda row: (row[0], row[1]))
