"""From a topic to an Iceberg table: Headrace's pipeline beside what a user would do instead, in one run.

The other way is Spark Structured Streaming from Apache Kafka into Iceberg with the official connectors. Both sides
have a warm Spark session on the same cores, the same records, the same columns, zstd level 1 and the same file size.
Rounds alternate, and who begins alternates, too. `docs/benchmarks.md` says how to read it.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.beside_kafka.brokers import Contestant, Running, Stable
from benchmarks.beside_kafka.show import make_console
from benchmarks.tables_beside_spark.digests import check_same
from benchmarks.tables_beside_spark.load import Batch, make_pool
from benchmarks.tables_beside_spark.plan import Cell, full_plan, quick_plan
from benchmarks.tables_beside_spark.processes import running_side
from benchmarks.tables_beside_spark.show import Outcome, Row, keep, print_outcomes, rows_of
from benchmarks.tables_beside_spark.sides import PipelineSide, StreamingSide, Turn
from benchmarks.tables_beside_spark.task_profile import profile_task
from tests.servers.headrace import HeadraceProcess, start_headrace
from tests.servers.kafka_jars import BUILD

NAME = "tables_beside_spark"
HAS_QUICK_FORM = True

Pair = tuple[PipelineSide, StreamingSide]


def run(*, is_quick: bool = False) -> list[Row]:
    """Compare the two, print and keep the rounds, and return the figures with their aims."""
    return compare(quick_plan() if is_quick else full_plan(), name=NAME + ("_quick" if is_quick else ""))


def compare(cells: Sequence[Cell], *, name: str) -> list[Row]:
    """Play the cells one after the other."""
    console = make_console()
    BUILD.mkdir(exist_ok=True)
    outcomes: list[Outcome] = []
    # Not the system's temporary folder, which may live in memory, where nothing is ever written to a disk.
    with (
        tempfile.TemporaryDirectory(dir=BUILD, prefix="tables-beside-spark-") as directory,
        running_pair(Path(directory)) as pair,
    ):
        for cell in cells:
            pool = make_pool(cell.load.record_bytes, cell.load.partitions)
            console.print(f"{cell.title}: {cell.warm_ups} warm-up, {cell.rounds} rounds", style="dim")
            rounds = [play(pair, cell, pool, number) for number in range(cell.warm_ups + cell.rounds)]
            outcomes.append(
                Outcome(
                    title=cell.title,
                    rounds=rounds[cell.warm_ups :],
                    task_seconds=profile_task(Path(directory) / "profile", pool, size_bytes=cell.profile_bytes),
                    load_average=os.getloadavg()[1],
                )
            )
    print_outcomes(outcomes, console)
    console.print(f"\nall rounds in benchmarks/results: {keep(outcomes, name).name}", highlight=False)
    return rows_of(outcomes)


def play(pair: Pair, cell: Cell, pool: Sequence[Batch], number: int) -> tuple[Turn, Turn]:
    """Play one round on both sides in turn, and compare the two tables row by row."""
    ours, theirs = pair
    if number % 2:
        their_turn, their_look = theirs.turn(cell.load, pool)
        our_turn, our_look = ours.turn(cell.load, pool)
    else:
        our_turn, our_look = ours.turn(cell.load, pool)
        their_turn, their_look = theirs.turn(cell.load, pool)
    check_same(our_look, their_look)
    return our_turn, their_turn


@contextlib.contextmanager
def running_pair(directory: Path) -> Iterator[Pair]:
    """Start both brokers and both sides' Spark sessions."""
    stable = Stable(directory)
    data_dir, peer_dir = directory / "headrace", directory / "peer"
    with contextlib.ExitStack() as stack:
        kafka = stable.start_kafka()
        stack.callback(kafka.stop)
        broker = start_headrace(data_dir)
        stack.callback(broker.kill)
        side = "benchmarks.tables_beside_spark"
        streaming = stack.enter_context(running_side(f"{side}.streaming_side", {"directory": str(peer_dir)}))
        pipeline = stack.enter_context(running_side(f"{side}.pipeline_side", {"data_dir": str(data_dir)}))
        yield (
            PipelineSide(
                broker=Contestant("Headrace", _running(broker), stable.start_headrace),
                process=pipeline,
                data_dir=data_dir,
            ),
            StreamingSide(
                broker=Contestant("Apache Kafka", kafka, stable.start_kafka), process=streaming, directory=peer_dir
            ),
        )


def _running(broker: HeadraceProcess) -> Running:
    return Running(bootstrap=broker.bootstrap, pid=broker.process.pid, ready_after_seconds=0.0, stop=broker.kill)
