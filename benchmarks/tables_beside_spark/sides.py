"""The two ways from a broker's records to a table's rows, and one turn of each.

A turn writes records into a topic, lets the dirty pages go to the disk, and then takes the time and the CPU seconds
from the word "run" to the last row in the table: of the side's driver with its JVM and Python workers, and of the
broker, which one side reads through and the other does not.
"""

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.beside_kafka import process_cost
from benchmarks.beside_kafka.brokers import Contestant
from benchmarks.tables_beside_spark.digests import TableLook, check, look_at
from benchmarks.tables_beside_spark.load import Batch, Load, write_load
from benchmarks.tables_beside_spark.plan import FILE_BYTES
from benchmarks.tables_beside_spark.processes import SideProcess
from benchmarks.tables_beside_spark.streaming_side import CATALOG, NAMESPACE

SETTLE_SECONDS = 0.5
GB = 1e9

OUR_CATALOG, OUR_NAMESPACE = "headrace", "topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one turn took. `content_bytes` are those of keys, values and headers."""

    rows: int
    content_bytes: int
    seconds: float
    spark_cpu_seconds: float
    broker_cpu_seconds: float
    files: int
    file_bytes: int

    @property
    def cpu_seconds(self) -> float:
        return self.spark_cpu_seconds + self.broker_cpu_seconds

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    @property
    def rows_per_cpu_second(self) -> float:
        return self.rows / self.cpu_seconds

    @property
    def cpu_seconds_per_gb(self) -> float:
        return self.cpu_seconds / (self.content_bytes / GB)


class Side(Protocol):
    """One of the two."""

    def turn(self, load: Load, pool: Sequence[Batch]) -> tuple[Turn, TableLook]:
        """Bring a load into a fresh table, check that all of it is there, and clean up."""
        ...


@dataclass(slots=True, kw_only=True)
class StreamingSide:
    """Apache Kafka, and Structured Streaming into Iceberg. Its topics are written once and read in every round."""

    broker: Contestant
    process: SideProcess
    directory: Path
    _topics: dict[Load, tuple[str, Mapping[int, int]]] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def turn(self, load: Load, pool: Sequence[Batch]) -> tuple[Turn, TableLook]:
        if load not in self._topics:
            topic = self.broker.create_topic(load.partitions)
            self._topics[load] = topic, write_load(self.broker.bootstrap, topic, load, pool)
        topic, written = self._topics[load]
        table = f"t{next(self._numbers)}"
        costs = _Costs(self.process.pid, self.broker.pid)
        answer = self.process.ask(
            do="run", bootstrap=self.broker.bootstrap, topic=topic, table=table, file_bytes=FILE_BYTES
        )
        spark_cpu_seconds, broker_cpu_seconds = costs.so_far()
        look = look_at(self.directory / "catalog.db", CATALOG, (NAMESPACE, table))
        check(look, written, record_bytes=load.record_bytes, where="Structured Streaming")
        self.process.ask(do="drop", table=table)
        return _turn(load, written, answer["seconds"], spark_cpu_seconds, broker_cpu_seconds, look), look


@dataclass(slots=True, kw_only=True)
class PipelineSide:
    """Headrace's broker and pipeline. A run takes what is new, so every turn writes a topic of its own."""

    broker: Contestant
    process: SideProcess
    data_dir: Path

    def turn(self, load: Load, pool: Sequence[Batch]) -> tuple[Turn, TableLook]:
        with self.broker.topic(load.partitions) as topic:
            written = write_load(self.broker.bootstrap, topic, load, pool)
            costs = _Costs(self.process.pid, self.broker.pid)
            answer = self.process.ask(do="run")
            spark_cpu_seconds, broker_cpu_seconds = costs.so_far()
            look = look_at(self.data_dir / "catalog.db", OUR_CATALOG, (OUR_NAMESPACE, topic))
            check(look, written, record_bytes=load.record_bytes, where="Headrace")
        return _turn(load, written, answer["seconds"], spark_cpu_seconds, broker_cpu_seconds, look), look


class _Costs:
    """CPU seconds of a side's process and its broker, from here on."""

    def __init__(self, spark_pid: int, broker_pid: int) -> None:
        os.sync()  # what others left to the kernel is not to be written while this side is measured
        self._pids = spark_pid, broker_pid
        self._began = [process_cost.cpu_seconds(pid) for pid in self._pids]

    def so_far(self) -> tuple[float, float]:
        """Return both, after a moment for what was put off."""
        time.sleep(SETTLE_SECONDS)
        spark, broker = (
            process_cost.cpu_seconds(pid) - began for pid, began in zip(self._pids, self._began, strict=True)
        )
        return spark, broker


def _turn(
    load: Load,
    written: Mapping[int, int],
    seconds: float,
    spark_cpu_seconds: float,
    broker_cpu_seconds: float,
    look: TableLook,
) -> Turn:
    rows = sum(written.values())
    return Turn(
        rows=rows,
        content_bytes=load.content_bytes * rows // load.records,
        seconds=seconds,
        spark_cpu_seconds=spark_cpu_seconds,
        broker_cpu_seconds=broker_cpu_seconds,
        files=look.files,
        file_bytes=look.file_bytes,
    )
