"""Spark writes the same rows to a topic of Headrace and to one of Apache Kafka, in one session, turn by turn.

Ours is `format("headrace")`, straight to storage and exactly once; theirs is `format("kafka")` with its defaults, at
least once. CPU is that of the session (driver, tasks, their Python) and of the broker beside it, which has to bring
the rows in (Kafka) or to notice them (Headrace). Making the rows costs the same on both sides: what a write to
nowhere takes is told, too.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.beside_kafka.process_cost import cpu_seconds
from tests.servers.apache_kafka import running_apache_kafka
from tests.servers.headrace import running_headrace
from tests.servers.kafka_jars import BUILD
from tests.servers.spark_jars import kafka_source_jars
from tests.servers.spark_sessions import running_spark

NAME = "spark_sink_beside_kafka"
HAS_QUICK_FORM = True

PARTITIONS = 6
TASKS = 4
LIMIT_SECONDS = 120.0
GB = 1e9
KEY_BYTES = 12
TARGET_RATIO = 3.0
WARM_UPS = 2
"""How often each side writes before anything counts: the JVM compiles what both need for that long."""

Row = tuple[str, float, str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many rows with values of one size."""

    rows: int
    value_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.rows * (self.value_bytes + KEY_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Where rows go: a broker, and how Spark is told to write there."""

    name: str
    bootstrap: str
    broker_pid: int
    write: Callable[[Any, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one write took."""

    seconds: float
    session_cpu_seconds: float
    broker_cpu_seconds: float

    @property
    def cpu_seconds(self) -> float:
        return self.session_cpu_seconds + self.broker_cpu_seconds


def run(*, is_quick: bool) -> Iterator[Row]:
    """Write each load a few times on every side, by turns, and tell the medians."""
    loads = [Load(rows=200_000, value_bytes=1024), Load(rows=1_000_000, value_bytes=100)]
    if not is_quick:
        loads = [Load(rows=1_000_000, value_bytes=1024), Load(rows=5_000_000, value_bytes=100)]
    rounds = 2 if is_quick else 5
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as place, _sides(Path(place)) as (spark, sides):
        for load in loads:
            yield from _compared(spark, sides, load, rounds)


def _compared(spark: Any, sides: list[Side], load: Load, rounds: int) -> Iterator[Row]:
    label = f"{load.value_bytes} B"
    costs: dict[str, list[Cost]] = {side.name: [] for side in sides}
    nowhere: list[Cost] = []
    for number in range(WARM_UPS + rounds):
        nowhere.append(_cost(sides, None, lambda: _frame(spark, load).write.format("noop").mode("overwrite").save()))
        for side in sides:
            topic = f"bench-{load.value_bytes}-{number}"
            _create(side.bootstrap, topic)
            costs[side.name].append(_cost(sides, side, lambda: side.write(_frame(spark, load), topic)))  # noqa: B023
            found = _count(side.bootstrap, topic)
            assert found == load.rows, f"{side.name} holds {found} of {load.rows} rows"
    for name, all_costs in costs.items():
        measured = all_costs[WARM_UPS:]
        yield f"{name}, {label}", load.rows / median(cost.seconds for cost in measured) / 1000, "k rows/s", None
        yield (
            f"{name}, {label}",
            median(cost.cpu_seconds for cost in measured) / load.size_bytes * GB,
            "CPU-s/GB",
            None,
        )
        brokers = median(cost.broker_cpu_seconds for cost in measured)
        yield f"{name}, {label}, of it the broker", brokers / load.size_bytes * GB, "CPU-s/GB", None
    made = median(cost.cpu_seconds for cost in nowhere[WARM_UPS:])
    yield f"rows to nowhere, {label}", made / load.size_bytes * GB, "CPU-s/GB", None
    ours, theirs = (costs[side.name][WARM_UPS:] for side in sides)
    ratio = median(cost.seconds for cost in theirs) / median(cost.seconds for cost in ours)
    yield f"rows/s beside Kafka, {label}", ratio, "times", TARGET_RATIO
    ratio = median(cost.cpu_seconds for cost in theirs) / median(cost.cpu_seconds for cost in ours)
    yield f"rows per CPU-second beside Kafka, {label}", ratio, "times", TARGET_RATIO


def _frame(spark: Any, load: Load) -> Any:
    value = f"concat(cast(id as string), repeat('v', {load.value_bytes} - length(cast(id as string))))"
    key = f"lpad(cast(id as string), {KEY_BYTES}, '0')"
    return spark.range(0, load.rows, 1, TASKS).selectExpr(f"{key} as key", f"{value} as value")


def _cost(sides: list[Side], side: Side | None, work: Callable[[], None]) -> Cost:
    """Do some work. The brokers are children of this process, as the session is: their part is taken out of its."""
    before = {one.name: cpu_seconds(one.broker_pid) for one in sides}
    session, started = cpu_seconds(os.getpid()), time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    session = cpu_seconds(os.getpid()) - session
    brokers = {one.name: cpu_seconds(one.broker_pid) - before[one.name] for one in sides}
    return Cost(
        seconds=seconds,
        session_cpu_seconds=session - sum(brokers.values()),
        broker_cpu_seconds=0.0 if side is None else brokers[side.name],
    )


@contextmanager
def _sides(place: Path) -> Iterator[tuple[Any, list[Side]]]:
    conf = {"spark.driver.memory": "2g"}
    spark_session: AbstractContextManager[Any] = running_spark(
        place / "spark", jars=kafka_source_jars(), settings=conf
    )
    with (
        running_headrace(place / "headrace") as headrace,
        running_apache_kafka(place / "kafka") as kafka,
        spark_session as spark,
    ):

        def to_headrace(frame: Any, topic: str) -> None:
            options = {"dataDir": str(headrace.data_dir), "topic": topic}
            frame.write.format("headrace").mode("append").options(**options).save()

        def to_kafka(frame: Any, topic: str) -> None:
            options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic}
            frame.write.format("kafka").options(**options).save()

        yield (
            spark,
            [
                Side(
                    name="Headrace",
                    bootstrap=headrace.bootstrap,
                    broker_pid=headrace.process.pid,
                    write=to_headrace,
                ),
                Side(
                    name="Apache Kafka",
                    bootstrap=kafka.bootstrap,
                    broker_pid=kafka.process.pid,
                    write=to_kafka,
                ),
            ],
        )


def _create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])[topic].result(
        LIMIT_SECONDS
    )


def _count(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "count"})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, number), LIMIT_SECONDS)
            for number in range(PARTITIONS)
        ]
        return sum(high - low for low, high in ends)
    finally:
        consumer.close()
