"""A cluster whose tables are read by other engines: hostile records, the real pipeline, and rows told alike."""

import asyncio
import io
import os
import subprocess
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from headrace.broker.pipeline import PipelineHost
from headrace.broker.storage import Runtime, opened_storage
from headrace.broker.tables import open_table_catalog
from headrace.objects.port import ObjectStore
from headrace.pipeline.key_scanning import scan_keys
from headrace.pipeline.performing import perform_task
from headrace.pipeline.ports import NoProgress
from headrace.pipeline.rewrites import TableTask
from headrace.pipeline.runner import RunReport
from headrace.pipeline.scans import ScannedStream, ScanTask
from headrace.records.batch import Codec
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import system_rng
from headrace.settings import load_settings
from headrace.tables.files import WrittenFile
from tests.integration.wire.raw import RawClient
from tests.servers.headrace import HeadraceProcess

HEADRACE = str(Path(sysconfig.get_path("scripts")) / "headrace")
LIMIT_SECONDS = 240.0
NOON_MS = 1_700_049_600_000

Row = tuple[Any, ...]
"""A row of the table, times in microseconds, headers as pairs: the columns of `COLUMNS`."""

COLUMNS = (
    *("partition", "offset", "timestamp", "append_time", "timestamp_type", "key", "value", "headers"),
    *("producer_id", "producer_epoch", "sequence", "attributes", "raw"),
)
TIMES = ("timestamp", "append_time")


def hostile_records() -> list[Record]:
    """Return records that have broken somebody's table before."""
    odd: Sequence[tuple[bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...], int]] = [
        (None, None, (), NOON_MS),
        (b"", b"", ((b"", b""),), NOON_MS),
        (b"\xff\xfe\x00", bytes(range(256)), ((b"same", b"1"), (b"same", b"2"), (b"same", None)), NOON_MS),
        (b"not-utf-8", b"header", ((b"\xc3\x28", b"bad key"), (b"good", b"\xff")), NOON_MS),
        (b"late", b"time", (), 2**63 - 1),
        (b"early", b"time", (), -(2**62)),
        (b"none", b"time", (), -1),
        ("schlüssel".encode(), "日本語 🎉".encode(), ((("überschrift").encode(), b"x"),), 0),
        (b"quote'\"`;--", b"line\r\nbreak\ttab\x1b[31m", (), NOON_MS + 1),
        (b"long" * 100, b"v" * 200_000, (), NOON_MS + 2),
        (b"k" * 16, b"\x00" * 16, (), NOON_MS + 3),
    ]
    return [
        Record(offset=number, timestamp_ms=time, key=key, value=value, headers=headers)
        for number, (key, value, headers, time) in enumerate(odd)
    ]


def plain_records(count: int, *, start: int = 0) -> list[Record]:
    return [
        Record(offset=n, timestamp_ms=NOON_MS + n, key=b"%d" % (start + n), value=b"value %d" % (start + n))
        for n in range(count)
    ]


def put(broker: HeadraceProcess, topic: str, partition: int, records: Sequence[Record], codec: Codec) -> None:
    """Produce one batch with a client that lets everything through."""
    put_batch(broker, topic, partition, bytes(BatchEncoder(codec=codec).encode(columns_of(records))))


def put_batch(broker: HeadraceProcess, topic: str, partition: int, batch: bytes) -> None:
    """Produce bytes as they are."""
    with RawClient(broker.kafka_port) as client:
        produced = client.produce(topic, {partition: batch})[partition]
        assert produced.code == 0, produced


def run_headrace(data_dir: Path, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a command on the data as users do."""
    return subprocess.run(
        [HEADRACE, *arguments, "--data-dir", str(data_dir)],
        env={name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )


class OwnWriter:
    """Writes files in this very process: what Spark's tasks do, without a second Spark."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def write(self, tasks: Sequence[TableTask]) -> list[WrittenFile]:
        return [await perform_task(task, self._objects, attempt="own") for task in tasks]

    async def scan(self, tasks: Sequence[ScanTask]) -> list[ScannedStream]:
        return [await scan_keys(task, self._objects, attempt="own") for task in tasks]


def catalog_settings(data_dir: Path) -> dict[str, str]:
    """Return how a session attaches the catalog, as the guide for Spark says."""
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.headrace": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.headrace.type": "jdbc",
        "spark.sql.catalog.headrace.uri": f"jdbc:sqlite:{data_dir}/catalog.db",
        "spark.sql.catalog.headrace.jdbc.schema-version": "V1",
        "spark.sql.catalog.headrace.warehouse": f"file://{data_dir}/warehouse",
        "spark.sql.catalog.headrace.cache-enabled": "false",
    }


def run_pipeline_here(data_dir: Path, *pairs: str) -> RunReport:
    """Bring all that waits into the tables, with the real pipeline and files written here."""
    settings = load_settings(pairs=[f"data.dir={data_dir}", *pairs], environment={}).tree
    clock = SystemClock()
    log = open_log(io.StringIO(), clock=clock)
    runtime = Runtime(clock=clock, rng=system_rng(), crash_points=NoCrashes(), metrics=Metrics(), log=log)

    async def work() -> RunReport:
        async with opened_storage(settings, runtime) as storage, open_table_catalog(settings, runtime) as catalog:
            host = PipelineHost(settings, runtime, storage, catalog, NoProgress())
            await host.begin(OwnWriter(storage.objects))
            try:
                return await host.round(force=True)
            finally:
                await host.end()

    return asyncio.run(work())


def rows_of_arrow(table: Any) -> list[Row]:
    """Return an Arrow table's rows, in the order of the log."""
    columns: dict[str, list[Any]] = {}
    for name in COLUMNS:
        column = table.column(name)
        if name in TIMES and pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        columns[name] = column.to_pylist()
    columns["headers"] = [[(one["key"], one["value"]) for one in headers] for headers in columns["headers"]]
    rows = list(zip(*(columns[name] for name in COLUMNS), strict=True))
    return sorted(rows, key=lambda row: (row[0], row[1]))


def pyiceberg_rows(data_dir: Path, topic: str, *, where: str | None = None) -> list[Row]:
    """Read a table as the guide for PyIceberg says."""
    catalog = SqlCatalog("headrace", uri=f"sqlite:///{data_dir}/catalog.db")
    try:
        table = catalog.load_table(("topics", topic))
        scan = table.scan() if where is None else table.scan(row_filter=where)
        return rows_of_arrow(scan.to_arrow())
    finally:
        catalog.close()


def metadata_location(data_dir: Path, topic: str) -> str:
    """Return where a table's newest metadata is: what engines without a catalog are pointed at."""
    catalog = SqlCatalog("headrace", uri=f"sqlite:///{data_dir}/catalog.db")
    try:
        return catalog.load_table(("topics", topic)).metadata_location
    finally:
        catalog.close()


def wait_until(is_so: Callable[[], bool], *, step: Callable[[], object]) -> None:
    """Let `step` happen until something is so."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        step()
