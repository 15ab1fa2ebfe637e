"""Show and keep what came out: both sides' rounds, and the ratios beside their aim."""

import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.spark_source_beside_kafka.turns import Round, Turn

RESULTS = Path(__file__).parents[1] / "results"
AIM = 3.0
SIDES = ("Headrace", "Kafka source")

Row = tuple[str, float, str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one way of reading: the rounds as (Headrace, Spark's Kafka source)."""

    title: str
    rounds: Sequence[tuple[Round, Round]]
    load_average: float

    @property
    def rate_ratio(self) -> float:
        """How many times more rows per second of the large topic; the median of the rounds."""
        return self._ratio(lambda one: one.large.rows_per_second)

    @property
    def core_ratio(self) -> float:
        """How many times more rows per second and core, brokers and the start of the read included."""
        return self._ratio(lambda one: one.large.rows_per_second_and_core)

    @property
    def further_ratio(self) -> float:
        """How many times more further rows per second and core: what the large topic has more than the small one."""
        return self._ratio(lambda one: one.further_rows_per_cpu_second)

    def _ratio(self, rate: Callable[[Round], float]) -> float:
        return statistics.median(rate(ours) / rate(theirs) for ours, theirs in self.rounds)


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return the figures of the common report."""
    rows: list[Row] = []
    for outcome in outcomes:
        for number, name in enumerate(SIDES):
            rounds = [pair[number] for pair in outcome.rounds]
            figures = (
                ("rows per core", "/s", [one.large.rows_per_second_and_core for one in rounds]),
                ("CPU", "CPU-s/GB", [one.large.cpu_seconds_per_gb for one in rounds]),
                ("further rows per core", "/s", [one.further_rows_per_cpu_second for one in rounds]),
                ("further CPU", "CPU-s/GB", [one.further_cpu_seconds_per_gb for one in rounds]),
                ("start", "CPU-s", [one.start_cpu_seconds for one in rounds]),
            )
            rows += [
                (f"{outcome.title}: {name}, {what}", statistics.median(values), unit, None)
                for what, unit, values in figures
            ]
        rows.append((f"{outcome.title}: rows per second, times better", outcome.rate_ratio, "x", AIM))
        rows.append((f"{outcome.title}: rows per second and core, times better", outcome.core_ratio, "x", AIM))
        rows.append((f"{outcome.title}: further rows per core, times better", outcome.further_ratio, "x", AIM))
    return rows


def print_outcomes(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print every round of both sides."""
    table = Table(
        *("", "rows", "k rows/s", "k rows/s per core", "s", "CPU-s/GB", "CPU-s: Spark", "broker"),
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for outcome in outcomes:
        table.add_row(Text(f"{outcome.title} (load average {outcome.load_average:.1f})", style="bold"))
        for number, pair in enumerate(outcome.rounds, start=1):
            for name, one in zip(SIDES, pair, strict=True):
                table.add_row(f"  round {number}: {name}", *_cells(one.small))
                table.add_row("", *_cells(one.large))
    console.print(table)
    for row in rows_of(outcomes):
        console.print(f"{row[0]}: {row[1]:,.1f} {row[2]}" + (f" (aim {AIM:g})" if row[3] else ""), highlight=False)


def keep(outcomes: Sequence[Outcome], name: str) -> Path:
    """Write all rounds as JSON, and return where."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    cells = [
        {
            **asdict(outcome),
            "rate_ratio": outcome.rate_ratio,
            "core_ratio": outcome.core_ratio,
            "further_ratio": outcome.further_ratio,
        }
        for outcome in outcomes
    ]
    path.write_text(json.dumps({"cores": os.cpu_count(), "cells": cells}, indent=2) + "\n", encoding="utf-8")
    return path


def _cells(turn: Turn) -> list[str]:
    return [
        f"{turn.rows:,}",
        f"{turn.rows_per_second / 1e3:,.0f}",
        f"{turn.rows_per_second_and_core / 1e3:,.0f}",
        f"{turn.seconds:.1f}",
        f"{turn.cpu_seconds_per_gb:.1f}",
        f"{turn.spark_cpu_seconds:.1f}",
        f"{turn.broker_cpu_seconds:.1f}",
    ]
