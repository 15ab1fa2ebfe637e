"""Consumer groups of Headrace and Apache Kafka side by side: what holding them costs, and how fast they hand over.

Both brokers run as processes on the same disk. Each scenario is played on one and then on the other, and who begins
alternates. One process plays all members of all groups. `docs/benchmarks.md` says how it is measured.
"""

import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.beside_kafka.brokers import Contestant
from benchmarks.beside_kafka.figures import Measure, Reading, gather
from benchmarks.beside_kafka.show import keep, make_console, print_measures, rows
from benchmarks.groups_beside_kafka.brokers import HEADRACE, KAFKA, NAMES, running
from benchmarks.groups_beside_kafka.plan import Plan, full_plan, quick_plan
from benchmarks.groups_beside_kafka.scenarios import Scenario
from benchmarks.groups_beside_kafka.show import print_readings
from tests.servers.kafka_jars import BUILD, KAFKA_VERSION

NAME = "groups_beside_kafka"
HAS_QUICK_FORM = True

Played = tuple[str, dict[str, list[Reading]]]


def run(*, is_quick: bool = False) -> list[tuple[str, float, str, float | None]]:
    """Compare the two, print and keep the figures, and return how the promises stand."""
    return compare(quick_plan() if is_quick else full_plan(), name=NAME + ("_quick" if is_quick else ""))


def compare(plan: Plan, *, name: str, is_null_run: bool = False) -> list[tuple[str, float, str, float | None]]:
    """Play a plan. A null run has Apache Kafka play both parts: its ratios show the noise of the machine."""
    console = make_console()
    began = time.monotonic()
    measures: list[Measure] = []
    for title, readings in play(plan, NAMES, console, is_null_run=is_null_run):
        measures += gather(title, [(readings[HEADRACE], readings[KAFKA])])
    print_measures(measures, console)
    title = f"Groups: {KAFKA if is_null_run else HEADRACE} beside {KAFKA} {KAFKA_VERSION}"
    kept = keep(measures, name=name, title=title)
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    names = " and ".join(path.name for path in kept)
    console.print(
        f"\nchart and figures in benchmarks/results: {names}; took {minutes} min {seconds} s", highlight=False
    )
    return rows(measures)


def play_alone(plan: Plan, name: str) -> None:
    """Play a plan on one broker and print its readings. Nothing is kept."""
    console = make_console()
    turns = [(title, readings[name]) for title, readings in play(plan, (name,), console)]
    print_readings(name, turns, console)


def play(plan: Plan, names: tuple[str, ...], console: Console, *, is_null_run: bool = False) -> Iterator[Played]:
    """Play the scenarios in order, each on all brokers in turn; yield its title and the readings by broker."""
    BUILD.mkdir(exist_ok=True)
    numbers = itertools.count()
    # Not the system's temporary folder, which may live in memory, where nothing is ever written to a disk.
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="groups-beside-kafka-") as directory:
        for settings, scenarios in _by_settings(plan.scenarios):
            folder = Path(directory) / str(next(numbers))
            with running(folder, names, settings, is_null_run=is_null_run) as contestants:
                for scenario in plan.warm_up:
                    if scenario.settings == settings:
                        _turns(scenario, contestants, console, is_warm_up=True)
                for place, scenario in enumerate(scenarios):
                    order = contestants if place % 2 == 0 else contestants[::-1]
                    yield scenario.title, _turns(scenario, order, console, is_warm_up=False)


def _by_settings(scenarios: Sequence[Scenario]) -> Iterator[tuple[Mapping[str, str], list[Scenario]]]:
    for settings, some in itertools.groupby(scenarios, key=lambda scenario: scenario.settings):
        yield settings, list(some)


def _turns(
    scenario: Scenario, order: Sequence[Contestant], console: Console, *, is_warm_up: bool
) -> dict[str, list[Reading]]:
    console.print(f"{'warm-up: ' if is_warm_up else ''}{scenario.title}", style="dim", highlight=False)
    found = {}
    for contestant in order:
        began = time.monotonic()
        turn = scenario.turn(contestant)
        found[contestant.name] = turn.readings
        if not is_warm_up:
            took = f"{time.monotonic() - began:.0f} s"
            console.print(f"  {contestant.name}: {took}, {turn.remark}", style="dim", highlight=False)
    return found
