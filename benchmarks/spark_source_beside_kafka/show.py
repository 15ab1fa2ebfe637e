"""Show and keep what came out: both sides' rounds, and the ratios beside their aim."""

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.spark_source_beside_kafka.turns import Turn

RESULTS = Path(__file__).parents[1] / "results"
AIM = 3.0
SIDES = ("Headrace", "Kafka source")

Row = tuple[str, float, str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one way of reading: the rounds as (Headrace, Spark's Kafka source)."""

    title: str
    rounds: Sequence[tuple[Turn, Turn]]
    load_average: float

    @property
    def rate_ratio(self) -> float:
        """How many times more rows per second; the median of the rounds."""
        return statistics.median(ours.rows_per_second / theirs.rows_per_second for ours, theirs in self.rounds)

    @property
    def core_ratio(self) -> float:
        """How many times more rows per second and core, brokers included."""
        return statistics.median(
            ours.rows_per_second_and_core / theirs.rows_per_second_and_core for ours, theirs in self.rounds
        )


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return the figures of the common report."""
    rows: list[Row] = []
    for outcome in outcomes:
        for number, name in enumerate(SIDES):
            turns = [pair[number] for pair in outcome.rounds]
            rate = statistics.median(turn.rows_per_second_and_core for turn in turns)
            cost = statistics.median(turn.cpu_seconds_per_gb for turn in turns)
            rows.append((f"{outcome.title}: {name}, rows per core", rate, "/s", None))
            rows.append((f"{outcome.title}: {name}, CPU", cost, "CPU-s/GB", None))
        rows.append((f"{outcome.title}: rows per second, times better", outcome.rate_ratio, "x", AIM))
        rows.append((f"{outcome.title}: rows per second and core, times better", outcome.core_ratio, "x", AIM))
    return rows


def print_outcomes(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print every round of both sides."""
    table = Table(
        *("", "k rows/s", "k rows/s per core", "s", "CPU-s/GB", "CPU-s: Spark", "broker"),
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for outcome in outcomes:
        table.add_row(Text(f"{outcome.title} (load average {outcome.load_average:.1f})", style="bold"))
        for number, pair in enumerate(outcome.rounds, start=1):
            for name, turn in zip(SIDES, pair, strict=True):
                table.add_row(f"  round {number}: {name}", *_cells(turn))
    console.print(table)
    for outcome in outcomes:
        console.print(
            f"{outcome.title}: {outcome.rate_ratio:.1f} x rows/s, {outcome.core_ratio:.1f} x rows/s per core "
            f"(aim {AIM:g})",
            highlight=False,
        )


def keep(outcomes: Sequence[Outcome], name: str) -> Path:
    """Write all rounds as JSON, and return where."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    cells = [
        {**asdict(outcome), "rate_ratio": outcome.rate_ratio, "core_ratio": outcome.core_ratio}
        for outcome in outcomes
    ]
    path.write_text(json.dumps({"cores": os.cpu_count(), "cells": cells}, indent=2) + "\n", encoding="utf-8")
    return path


def _cells(turn: Turn) -> list[str]:
    return [
        f"{turn.rows_per_second / 1e3:,.0f}",
        f"{turn.rows_per_second_and_core / 1e3:,.0f}",
        f"{turn.seconds:.1f}",
        f"{turn.cpu_seconds_per_gb:.1f}",
        f"{turn.spark_cpu_seconds:.1f}",
        f"{turn.broker_cpu_seconds:.1f}",
    ]
