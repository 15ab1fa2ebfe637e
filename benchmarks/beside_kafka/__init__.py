"""Headrace and Apache Kafka side by side: the same clients, the same machine, the same minutes.

Both brokers run as processes with their default settings on the same disk. The rounds alternate between them, and who
begins alternates, too, so that a noisy neighbour or a drift hits both. `docs/benchmarks.md` says how to read it.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.beside_kafka.brokers import Contestant, running_pair
from benchmarks.beside_kafka.figures import Measure, Reading, gather
from benchmarks.beside_kafka.plan import Plan, Step, full_plan, quick_plan
from benchmarks.beside_kafka.show import keep, make_console, print_measures, rows
from tests.servers.kafka_jars import BUILD, KAFKA_VERSION

NAME = "beside_kafka"
HAS_QUICK_FORM = True

Pair = tuple[Contestant, Contestant]


def run(*, is_quick: bool = False) -> list[tuple[str, float, str, float | None]]:
    """Compare the two, print and keep the figures, and return how the promises stand."""
    return compare(quick_plan() if is_quick else full_plan(), name=NAME + ("_quick" if is_quick else ""))


def compare(plan: Plan, *, name: str, is_null_run: bool = False) -> list[tuple[str, float, str, float | None]]:
    """Play a plan. A null run has Apache Kafka play both parts: its ratios show the noise of the machine."""
    console = make_console()
    began = time.monotonic()
    BUILD.mkdir(exist_ok=True)
    # Not the system's temporary folder, which may live in memory, where nothing is ever written to a disk.
    with (
        tempfile.TemporaryDirectory(dir=BUILD, prefix="beside-kafka-") as directory,
        running_pair(Path(directory), is_null_run=is_null_run) as pair,
    ):
        for step in plan.warm_up:
            console.print(f"warm-up: {step.scenario.title}", style="dim")
            play(step, pair)
        measures: list[Measure] = []
        for step in plan.steps:
            console.print(f"{step.rounds} rounds: {step.scenario.title}", style="dim")
            measures += play(step, pair)
    print_measures(measures, console)
    title = f"{'Apache Kafka' if is_null_run else 'Headrace'} beside Apache Kafka {KAFKA_VERSION}"
    kept = keep(measures, name=name, title=title)
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    names = " and ".join(path.name for path in kept)
    console.print(
        f"\nchart and figures in benchmarks/results: {names}; took {minutes} min {seconds} s", highlight=False
    )
    return rows(measures)


def play(step: Step, pair: Pair) -> list[Measure]:
    """Play the rounds of one scenario on both brokers in turn, and gather their readings."""
    rounds: list[tuple[Sequence[Reading], Sequence[Reading]]] = []
    for number in range(step.rounds):
        order = pair if number % 2 == 0 else pair[::-1]
        readings = {contestant.name: step.scenario.turn(contestant) for contestant in order}
        rounds.append((readings[pair[0].name], readings[pair[1].name]))
    return gather(step.scenario.title, rounds)
