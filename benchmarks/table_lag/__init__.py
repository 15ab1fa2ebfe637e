"""How old a row is when it shows, and what a producer notices of the pipeline: both at steady rates.

Lag is counted from the acknowledgement of a record to the first fresh load of the table that shows its row, with
`headrace serve --pipeline` as users run it. `docs/benchmarks.md` says how to read it.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.beside_kafka.figures import percentile
from benchmarks.beside_kafka.show import make_console
from benchmarks.table_lag.backlog import Swapped, measure_swap
from benchmarks.table_lag.pacing import Pace
from benchmarks.table_lag.stages import TARGET_LAG, Lagged, Stream, create_topic, measure_lag, measure_latency
from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.servers.kafka_jars import BUILD

NAME = "table_lag"
HAS_QUICK_FORM = True
RESULTS = Path(__file__).parents[1] / "results"

PIPELINE = ("--pipeline",)
SLOW = Pace(records_per_second=1_000, partitions=6, partitions_per_request=1)
FAST = Pace(records_per_second=50_000, partitions=6, partitions_per_request=6)

Row = tuple[str, float, str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured: stages of streams that run at once, each so many seconds long."""

    stages: Sequence[tuple[Sequence[Stream], float]]
    latency_rounds: int
    latency_seconds: float
    backlog_entries: int


def full_plan() -> Plan:
    """Return all of it; about a quarter of an hour."""
    return Plan(
        stages=(
            ((_stream(SLOW, 5), _stream(SLOW, 60)), 180.0),
            ((_stream(FAST, 5),), 120.0),
            ((_stream(FAST, 60),), 180.0),
        ),
        latency_rounds=3,
        latency_seconds=20.0,
        backlog_entries=90_000,
    )


def quick_plan() -> Plan:
    """Return the parts that stand for the rest, in some three minutes."""
    return Plan(
        stages=(((_stream(SLOW, 5),), 20.0), ((_stream(FAST, 5),), 20.0)),
        latency_rounds=1,
        latency_seconds=10.0,
        backlog_entries=30_000,
    )


def _stream(pace: Pace, target_seconds: int) -> Stream:
    return Stream(pace=pace, target_lag_ms=target_seconds * 1000)


def run(*, is_quick: bool = False) -> list[Row]:
    """Measure, keep the figures, and return them with their aims."""
    return measure(quick_plan() if is_quick else full_plan(), name=NAME + ("_quick" if is_quick else ""))


def measure(plan: Plan, *, name: str) -> list[Row]:
    """Go through the plan."""
    console = make_console()
    rows: list[Row] = []
    BUILD.mkdir(exist_ok=True)
    # Not the system's temporary folder, which may live in memory, where nothing is ever written to a disk.
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="table-lag-") as directory:
        with (
            running_headrace(Path(directory) / "with", options=PIPELINE) as with_pipeline,
            running_headrace(Path(directory) / "without") as without,
        ):
            console.print("the first run of the pipeline, uncounted", style="dim")
            measure_lag(with_pipeline, [_stream(SLOW, 5)], seconds=1.0)
            for streams, seconds in plan.stages:
                console.print(f"{seconds:g} s: {' and '.join(each.title for each in streams)}", style="dim")
                for lagged in measure_lag(with_pipeline, streams, seconds=seconds):
                    rows += lag_rows(lagged)
            console.print("produce latency with the pipeline and without", style="dim")
            rows += measure_both(with_pipeline, without, plan)
        with running_headrace(Path(directory) / "backlog") as broker:
            console.print(f"a backlog of {plan.backlog_entries:,} entries", style="dim")
            rows += swap_rows(measure_swap(broker, entries=plan.backlog_entries))
    RESULTS.mkdir(parents=True, exist_ok=True)
    document = {"cores": os.cpu_count(), "load_average": os.getloadavg(), "figures": rows}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(
        f"load average {os.getloadavg()[1]:.1f}; figures in benchmarks/results/{name}.json", highlight=False
    )
    return rows


def lag_rows(lagged: Lagged) -> list[Row]:
    """Return the lags of one stream; they are to stay within twice the target, a run's own time included."""
    title, target_s = lagged.stream.title, lagged.stream.target_lag_ms / 1000
    return [
        (f"{title}: written", lagged.records_per_second, "/s", None),
        (f"{title}: lag p50", percentile(lagged.lags_ms, 0.5) / 1000, "s", target_s),
        (f"{title}: lag p99", percentile(lagged.lags_ms, 0.99) / 1000, "s", 2 * target_s),
        (f"{title}: lag, longest", max(lagged.lags_ms) / 1000, "s", None),
        (f"{title}: states of the table seen", float(lagged.commits), "", None),
        (f"{title}: acknowledged p99", percentile(lagged.latencies_ms, 0.99), "ms", None),
    ]


def measure_both(with_pipeline: HeadraceProcess, without: HeadraceProcess, plan: Plan) -> list[Row]:
    """Write to both brokers in turn, and compare what acknowledgements take."""
    found: dict[str, list[float]] = {"on": [], "off": []}
    brokers = {"on": with_pipeline, "off": without}
    for number in range(plan.latency_rounds):
        for name in ("on", "off") if number % 2 == 0 else ("off", "on"):
            topic = create_topic(brokers[name], SLOW.partitions, **{TARGET_LAG: "5000"})
            acks = measure_latency(brokers[name], topic, SLOW, seconds=plan.latency_seconds)
            found[name] += [ack.latency_ms for ack in acks]
    return [
        (f"produce at 1,000 records/s, pipeline {name}: {label}", percentile(found[name], share), "ms", None)
        for name in ("on", "off")
        for label, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    ]


def swap_rows(swapped: Swapped) -> list[Row]:
    """Return what a producer took alone and beside the pipeline, and how long the swap was."""
    rows: list[Row] = [(f"{swapped.entries:,} entries: swapped in", swapped.swap_seconds, "s", None)]
    for what, latencies in (
        ("producer alone", swapped.alone_ms),
        ("while files are written", swapped.writing_ms),
        ("while entries are swapped", swapped.swapping_ms),
    ):
        if latencies:
            rows += [
                (f"{what}: p50", percentile(latencies, 0.5), "ms", None),
                (f"{what}: p99", percentile(latencies, 0.99), "ms", None),
                (f"{what}: longest", max(latencies), "ms", None),
            ]
    return rows
