"""Reading a topic with Spark: `format("headrace")` from storage beside `format("kafka")` from Apache Kafka.

All in one run: both sides have a warm session of their own, the same records and the same work behind the source.
Headrace is read from the log as it was written, and once more from the table that the pipeline made of it. Rounds
alternate, and who begins alternates, too. `docs/benchmarks.md` says how to read it.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.beside_kafka.brokers import Contestant, Running, Stable
from benchmarks.beside_kafka.show import make_console
from benchmarks.spark_source_beside_kafka.plan import Cell, Place, full_plan, quick_plan
from benchmarks.spark_source_beside_kafka.show import Outcome, Row, keep, print_outcomes, rows_of
from benchmarks.spark_source_beside_kafka.turns import ReadingSide, Round
from benchmarks.tables_beside_spark.load import Batch, Load, make_pool, write_load
from benchmarks.tables_beside_spark.processes import running_side
from tests.servers.headrace import start_headrace
from tests.servers.kafka_jars import BUILD
from tests.spark.table_cluster import run_pipeline_here

NAME = "spark_source_beside_kafka"
HAS_QUICK_FORM = True


def run(*, is_quick: bool = False) -> list[Row]:
    """Compare the two, print and keep the rounds, and return the figures with their aims."""
    return compare(quick_plan() if is_quick else full_plan(), name=NAME + ("_quick" if is_quick else ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both sides with their brokers, and where our data lies."""

    ours: ReadingSide
    theirs: ReadingSide
    brokers: tuple[Contestant, Contestant]
    data_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """The same load in a topic of each side, and how many records each partition got."""

    load: Load
    names: tuple[str, str]
    written: tuple[Mapping[int, int], Mapping[int, int]]


def compare(cells: Sequence[Cell], *, name: str) -> list[Row]:
    """Play the cells one after the other."""
    console = make_console()
    BUILD.mkdir(exist_ok=True)
    outcomes: list[Outcome] = []
    # Not the system's temporary folder, which may live in memory, where nothing is ever written to a disk.
    with (
        tempfile.TemporaryDirectory(dir=BUILD, prefix="spark-source-beside-kafka-") as directory,
        running_pair(Path(directory)) as pair,
    ):
        for cell in cells:
            pool = make_pool(cell.large.record_bytes, cell.large.partitions)
            small, large = (filled(pair, load, pool) for load in (cell.small, cell.large))
            for place, mode in ((Place.WAL, "batch"), (Place.WAL, "stream"), (Place.TABLE, "batch")):
                if place is Place.TABLE:
                    report = run_pipeline_here(pair.data_dir)
                    assert not report.problems, report.problems
                title = f"{cell.title}, {mode}" + (", from the table" if place is Place.TABLE else "")
                console.print(f"{title}: {cell.warm_ups} warm-up, {cell.rounds} rounds", style="dim")
                rounds = [
                    play(pair, small, large, mode=mode, number=number)
                    for number in range(cell.warm_ups + cell.rounds)
                ]
                outcomes.append(Outcome(title=title, rounds=rounds[cell.warm_ups :], load_average=os.getloadavg()[1]))
    print_outcomes(outcomes, console)
    console.print(f"\nall rounds in benchmarks/results: {keep(outcomes, name).name}", highlight=False)
    return rows_of(outcomes)


def filled(pair: Pair, load: Load, pool: Sequence[Batch]) -> Topics:
    """Create a topic on each side and write the load into it."""
    names = [broker.create_topic(load.partitions) for broker in pair.brokers]
    written = [
        write_load(broker.bootstrap, topic, load, pool) for broker, topic in zip(pair.brokers, names, strict=True)
    ]
    return Topics(load=load, names=(names[0], names[1]), written=(written[0], written[1]))


def play(pair: Pair, small: Topics, large: Topics, *, mode: str, number: int) -> tuple[Round, Round]:
    """Read on both sides in turn."""
    rounds: dict[int, Round] = {}
    for side in (1, 0) if number % 2 else (0, 1):
        reader = (pair.ours, pair.theirs)[side]
        first, second = (
            reader.turn(topics.load, topics.names[side], topics.written[side], mode=mode) for topics in (small, large)
        )
        rounds[side] = Round(small=first, large=second)
    return rounds[0], rounds[1]


@contextlib.contextmanager
def running_pair(directory: Path) -> Iterator[Pair]:
    """Start both brokers and both sides' Spark sessions."""
    stable = Stable(directory)
    data_dir = directory / "headrace"
    with contextlib.ExitStack() as stack:
        kafka = stable.start_kafka()
        stack.callback(kafka.stop)
        broker = start_headrace(data_dir)
        stack.callback(broker.kill)
        side = "benchmarks.spark_source_beside_kafka.reading_side"
        ours, theirs = (
            stack.enter_context(running_side(side, {"directory": str(directory / name)}))
            for name in ("ours", "theirs")
        )
        running = Running(
            bootstrap=broker.bootstrap, pid=broker.process.pid, ready_after_seconds=0.0, stop=broker.kill
        )
        yield Pair(
            ours=ReadingSide(
                name="Headrace",
                process=ours,
                broker_pid=broker.process.pid,
                source="headrace",
                options={"dataDir": str(data_dir)},
            ),
            theirs=ReadingSide(
                name="Spark's Kafka source",
                process=theirs,
                broker_pid=kafka.pid,
                source="kafka",
                options={"kafka.bootstrap.servers": kafka.bootstrap},
            ),
            brokers=(
                Contestant("Headrace", running, stable.start_headrace),
                Contestant("Apache Kafka", kafka, stable.start_kafka),
            ),
            data_dir=data_dir,
        )
