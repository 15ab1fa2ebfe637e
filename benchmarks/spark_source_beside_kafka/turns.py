"""One turn of a side: a read, its time, and the CPU seconds of its driver, its executors and its broker."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.beside_kafka import process_cost
from benchmarks.tables_beside_spark.load import Load
from benchmarks.tables_beside_spark.processes import SideProcess

SETTLE_SECONDS = 0.5
GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one read took. `content_bytes` are those of keys, values and headers."""

    rows: int
    content_bytes: int
    seconds: float
    spark_cpu_seconds: float
    broker_cpu_seconds: float

    @property
    def cpu_seconds(self) -> float:
        return self.spark_cpu_seconds + self.broker_cpu_seconds

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    @property
    def rows_per_second_and_core(self) -> float:
        """Rows per second of one core that did nothing else: what a cluster of such cores is paid for."""
        return self.rows / self.cpu_seconds

    @property
    def cpu_seconds_per_gb(self) -> float:
        return self.cpu_seconds / (self.content_bytes / GB)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingSide:
    """A session, the source it reads with, and the broker that serves it or stands by."""

    name: str
    process: SideProcess
    broker_pid: int
    source: str
    options: Mapping[str, str]

    def turn(self, load: Load, topic: str, written: Mapping[int, int], *, mode: str) -> Turn:
        """Read a topic, check that all of it came, and tell what it took. Raises `AssertionError`."""
        os.sync()  # what others left to the kernel is not to be written while this side is measured
        pids = self.process.pid, self.broker_pid
        began = [process_cost.cpu_seconds(pid) for pid in pids]
        answer = self.process.ask(do=mode, format=self.source, options={**self.options, "subscribe": topic})
        time.sleep(SETTLE_SECONDS)
        spark, broker = (process_cost.cpu_seconds(pid) - start for pid, start in zip(pids, began, strict=True))
        rows = sum(written.values())
        assert answer["sums"][0] == rows, f"{self.name} read {answer['sums'][0]} rows of {rows}"
        assert answer["sums"][2] == rows * load.record_bytes, f"{self.name} read other values"
        assert answer["sums"][3] == sum(end * (end - 1) // 2 for end in written.values()), "other offsets"
        return Turn(
            rows=rows,
            content_bytes=load.content_bytes * rows // load.records,
            seconds=answer["seconds"],
            spark_cpu_seconds=spark,
            broker_cpu_seconds=broker,
        )
