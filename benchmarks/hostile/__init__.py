"""Everything that clients do by mistake or on purpose, at full speed, against one broker; beside one who behaves.

One `headrace serve` on embedded defaults, some processes that are hostile in every way that `kinds.py` knows, and a
librdkafka producer and consumer whose records are all looked at. Every answer has to be the expected one. No ordinary
record may be lost, doubled or changed. Memory stays flat after a warm-up. When all have left, nothing of them stays.

    python -m benchmarks hostile [--quick | --minutes N] [--without KIND]… [--only KIND]… [--seed N]

The exit code is 1 if something was wrong.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.beside_kafka.show import make_console
from benchmarks.hostile import judging
from benchmarks.hostile.judging import DAY_SECONDS, Course
from benchmarks.hostile.kinds import KINDS
from benchmarks.hostile.plan import (
    BACKLOG,
    BACKLOG_BATCH_BYTES,
    BACKLOG_BATCHES,
    DRIVERS,
    FULL_MINUTES,
    MIB,
    ORDINARY,
    ORDINARY_PARTITIONS,
    QUICK_MINUTES,
    TOPICS,
    HostilePlan,
    plan_of,
)
from benchmarks.hostile.watching import Sample, Watcher
from tests.integration.wire.batches import batch
from tests.integration.wire.raw import RawClient
from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.servers.kafka_jars import BUILD

NAME = "hostile"
HAS_QUICK_FORM = True

END_LIMIT_SECONDS = 180.0
"""How long processes may take to end after their time: the last turn of a driver, the last records of a reader."""

Row = tuple[str, float, str, float | None]


class HostileFailed(Exception):
    """The broker answered otherwise than it should, lost something, or kept what it should not."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of a soak."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    acknowledged: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    stalls: list[str] = field(default_factory=list)
    course: Course | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def events(self) -> int:
        return sum(self.answers.values())


def run(*, is_quick: bool = False) -> list[Row]:
    """Soak, and return the figures. Raises `HostileFailed`."""
    plan = plan_of(QUICK_MINUTES if is_quick else FULL_MINUTES)
    outcome = soak(plan)
    show(outcome, plan, make_console())
    if outcome.problems:
        raise HostileFailed("\n".join(outcome.problems))
    return rows_of(outcome)


def main(arguments: Sequence[str]) -> int:
    """Soak as the command line says; return 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks hostile", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MINUTES:g} minutes")
    parser.add_argument("--minutes", type=float, default=FULL_MINUTES, help=f"how long, {FULL_MINUTES:g} by default")
    parser.add_argument("--without", action="append", default=[], choices=sorted(KINDS), help="leave a kind out")
    parser.add_argument("--only", action="append", default=[], choices=sorted(KINDS), help="leave all others out")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    without = frozenset(given.without) | (KINDS.keys() - given.only if given.only else frozenset())
    plan = plan_of(QUICK_MINUTES if given.quick else given.minutes, without=without, seed=given.seed)
    outcome = soak(plan)
    show(outcome, plan, make_console())
    return 1 if outcome.problems else 0


def soak(plan: HostilePlan) -> Outcome:
    """Go through a plan and judge what came of it."""
    BUILD.mkdir(exist_ok=True)
    outcome = Outcome()
    with (
        tempfile.TemporaryDirectory(dir=BUILD, prefix="hostile-") as directory,
        running_headrace(Path(directory)) as broker,
    ):
        _prepare(broker)
        watcher = Watcher(broker)
        first = watcher.look()
        with _running(_commands(broker, plan)) as helpers:
            while any(one.process.poll() is None for one in helpers):
                if watcher.look().at_s > plan.seconds + END_LIMIT_SECONDS:
                    raise HostileFailed(f"a process did not end within {END_LIMIT_SECONDS:.0f} s after its time")
                time.sleep(plan.sample_seconds)
            for helper in helpers:
                _collect(helper, outcome)
        outcome.samples = list(watcher.samples)
        last = _settle(watcher, plan)
        outcome.samples.append(last)
        outcome.stalls = watcher.stalls()
        _judge(outcome, plan, first, last)
        outcome.problems += [f"the log says: {line}" for line in watcher.mistakes()[: judging.MAX_SHOWN]]
    return outcome


def rows_of(outcome: Outcome) -> list[Row]:
    """Return the figures of a soak."""
    course = outcome.course
    return [
        ("hostile events", float(outcome.events), "", None),
        ("ordinary records, each read once", float(outcome.acknowledged), "", None),
        ("their way, median", judging.percentile(outcome.latencies_ms, 0.5), "ms", None),
        ("their way, 99 of 100", judging.percentile(outcome.latencies_ms, 0.99), "ms", None),
        ("their way, longest", judging.percentile(outcome.latencies_ms, 1.0), "ms", None),
        ("memory after the warm-up", (course.warm_bytes if course else 0.0) / MIB, "MiB", None),
        ("memory in the last quarter", (course.late_bytes if course else 0.0) / MIB, "MiB", None),
        ("memory at most", (course.peak_bytes if course else 0.0) / MIB, "MiB", None),
        ("stalls of the loop", float(outcome.samples[-1].stalls) if outcome.samples else 0.0, "", None),
    ]


def show(outcome: Outcome, plan: HostilePlan, console: Console) -> None:
    """Print what was answered to what, how memory went, and what was wrong."""
    table = Table("kind", "answer", "times", box=None, pad_edge=False, header_style="bold")
    last_kind = ""
    for (kind, answer), count in sorted(outcome.answers.items()):
        table.add_row(kind if kind != last_kind else "", answer, f"{count:,}")
        last_kind = kind
    console.print(table)
    for title, values in (
        ("resident memory", [one.resident_bytes / MIB for one in outcome.samples]),
        ("without caches", [one.working_bytes / MIB for one in outcome.samples]),
        ("connections", [one.gauges["kafka_connections"] for one in outcome.samples]),
        ("open files", [float(one.open_files) for one in outcome.samples]),
    ):
        if values:
            console.print(
                f"{title:16} {judging.picture(values)} {values[0]:,.0f} → {values[-1]:,.0f}, most {max(values):,.0f}"
            )
    for what, value, unit, _ in rows_of(outcome):
        console.print(f"{what:40} {value:,.1f} {unit}", highlight=False)
    if outcome.course is not None:
        console.print(
            f"slope after the warm-up {outcome.course.slope_bytes_per_hour / MIB:+,.1f} MiB/h", highlight=False
        )
    console.print(
        f"{outcome.events:,} events in {plan.seconds:.0f} s: a day with one every "
        f"{DAY_SECONDS / max(1, outcome.events):.2g} s",
        highlight=False,
    )
    for stall in outcome.stalls:
        console.print(f"the loop was held up for {stall}", highlight=False, markup=False)
    for problem in outcome.problems:
        console.print(problem, style="bold red", highlight=False, markup=False)
    console.print("nothing is wrong" if not outcome.problems else f"{len(outcome.problems)} problems", style="bold")


def _prepare(broker: HeadraceProcess) -> None:
    """Create the topics and write the backlog that slow readers ask for."""
    with RawClient(broker.kafka_port) as client:
        for name, configs in TOPICS.items():
            partitions = ORDINARY_PARTITIONS if name == ORDINARY else 1
            client.create_topic(name, partitions=partitions, configs=configs)
        records = batch([bytes(BACKLOG_BATCH_BYTES)])
        for _ in range(BACKLOG_BATCHES):
            answer = client.produce(BACKLOG, {0: records})[0]
            if answer.code:
                raise HostileFailed(f"the backlog was refused: {answer}")


def _commands(broker: HeadraceProcess, plan: HostilePlan) -> list[list[str]]:
    kinds = ",".join(kind for kind in KINDS if kind not in plan.without)
    module = [sys.executable, "-m"]
    ordinary = [broker.bootstrap, str(plan.seconds), str(plan.records_per_second)]
    drivers = [
        [str(broker.kafka_port), str(plan.seconds), str(plan.seed * DRIVERS + number), kinds]
        for number in range(DRIVERS)
    ]
    return [
        [*module, "benchmarks.hostile.ordinary", *ordinary],
        *([*module, "benchmarks.hostile.driver", *driver] for driver in drivers),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Helper:
    """A process of the soak, and the file that it prints to: a pipe that nobody reads could hold it up."""

    process: "subprocess.Popen[str]"
    printed: Path


@contextlib.contextmanager
def _running(commands: Sequence[Sequence[str]]) -> Iterator[list[_Helper]]:
    helpers: list[_Helper] = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            for number, command in enumerate(commands):
                printed = Path(directory) / str(number)
                with printed.open("w") as out:
                    process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True)
                helpers.append(_Helper(process=process, printed=printed))
            yield helpers
        finally:
            for helper in helpers:
                if helper.process.poll() is None:
                    helper.process.kill()
                helper.process.wait()


def _collect(helper: _Helper, outcome: Outcome) -> None:
    """Take what a process has printed in the end."""
    printed = helper.printed.read_text()
    if helper.process.returncode != 0:
        outcome.problems.append(f"a process ended with {helper.process.returncode}: {printed[-2000:]}")
        return
    told = json.loads(printed.splitlines()[-1])
    if "answers" in told:
        for kind, answer, count in told["answers"]:
            outcome.answers[kind, answer] += count
        outcome.problems += told["surprises"]
    else:
        outcome.acknowledged = told["acknowledged"]
        outcome.latencies_ms = told["latencies_ms"]
        outcome.problems += [f"ordinary: {problem}" for problem in told["problems"]]


def _settle(watcher: Watcher, plan: HostilePlan) -> Sample:
    """Wait until nothing of the clients is left, or they had their time."""
    deadline = time.monotonic() + plan.settle_seconds
    while not judging.is_settled(sample := watcher.look(), plan.bounds) and time.monotonic() < deadline:
        time.sleep(plan.sample_seconds)
    return sample


def _judge(outcome: Outcome, plan: HostilePlan, first: Sample, last: Sample) -> None:
    course = judging.course_of(outcome.samples[:-1], warm_up_s=plan.warm_up_seconds)
    outcome.course = course
    outcome.problems += judging.problems_of_memory(course, plan.bounds)
    outcome.problems += judging.problems_of_end(first, last, course, plan.bounds)
    longest_ms = judging.percentile(outcome.latencies_ms, 1.0)
    if longest_ms > plan.bounds.worst_ms:
        outcome.problems.append(
            f"an ordinary record took {longest_ms:,.0f} ms, {plan.bounds.worst_ms:,.0f} are allowed"
        )
    if not outcome.acknowledged:
        outcome.problems.append("no ordinary record was acknowledged")
