"""One turn of a side: a read, its time, and the CPU seconds of its driver, its executors and its broker."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.beside_kafka import process_cost
from benchmarks.tables_beside_spark.load import KEY_BYTES, Load
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
class Round:
    """Both topics, read by one side."""

    small: Turn
    large: Turn

    @property
    def further_rows_per_cpu_second(self) -> float:
        """Rows that the large topic has more than the small one, by the CPU seconds that it took more."""
        return (self.large.rows - self.small.rows) / self.further_cpu_seconds

    @property
    def further_cpu_seconds_per_gb(self) -> float:
        return self.further_cpu_seconds / ((self.large.content_bytes - self.small.content_bytes) / GB)

    @property
    def further_cpu_seconds(self) -> float:
        return self.large.cpu_seconds - self.small.cpu_seconds

    @property
    def start_cpu_seconds(self) -> float:
        """What a read takes before its first row, if all rows cost the same."""
        return self.small.cpu_seconds - self.small.rows / self.further_rows_per_cpu_second


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
        began = [process_cost.spent_by(pid) for pid in pids]
        answer = self.process.ask(do=mode, format=self.source, options={**self.options, "subscribe": topic})
        time.sleep(SETTLE_SECONDS)
        spark, broker = (
            process_cost.seconds_between(start, process_cost.spent_by(pid))
            for pid, start in zip(pids, began, strict=True)
        )
        rows = sum(written.values())
        wanted = [
            rows,
            rows * KEY_BYTES,
            rows * load.record_bytes,
            sum(end * (end - 1) // 2 for end in written.values()),
            sum(partition * count for partition, count in written.items()),
            rows * len(topic),
        ]
        assert answer["sums"] == wanted, f"{self.name} read {answer['sums']} instead of {wanted}"
        return Turn(
            rows=rows,
            content_bytes=load.content_bytes * rows // load.records,
            seconds=answer["seconds"],
            spark_cpu_seconds=spark,
            broker_cpu_seconds=broker,
        )
