"""Show and keep what came out: both sides' rounds, the ratios beside their aims, and what limits a task."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.tables_beside_spark.sides import Turn
from benchmarks.tables_beside_spark.task_profile import ZSTD

RESULTS = Path(__file__).parents[1] / "results"
RATE_AIM = 4.0
CPU_AIM = 6.0

Row = tuple[str, float, str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a cell: the rounds as (Headrace, Structured Streaming), and where a task's seconds go."""

    title: str
    rounds: Sequence[tuple[Turn, Turn]]
    task_seconds: Mapping[str, float]
    load_average: float

    @property
    def rate_ratio(self) -> float:
        """How many times more rows per second Headrace brings into the table; the median of the rounds."""
        return statistics.median(ours.rows_per_second / theirs.rows_per_second for ours, theirs in self.rounds)

    @property
    def cpu_ratio(self) -> float:
        """How many times more rows per CPU second, brokers included."""
        return statistics.median(
            ours.rows_per_cpu_second / theirs.rows_per_cpu_second for ours, theirs in self.rounds
        )


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return the figures of the common report."""
    rows: list[Row] = []
    for outcome in outcomes:
        for name, number in (("Headrace", 0), ("Structured Streaming", 1)):
            turns = [pair[number] for pair in outcome.rounds]
            rate = statistics.median(turn.rows_per_second for turn in turns)
            cost = statistics.median(turn.cpu_seconds_per_gb for turn in turns)
            rows.append((f"{outcome.title}: {name}, rows", rate, "/s", None))
            rows.append((f"{outcome.title}: {name}, CPU", cost, "CPU-s/GB", None))
        rows.append((f"{outcome.title}: rows per second, times better", outcome.rate_ratio, "x", RATE_AIM))
        rows.append((f"{outcome.title}: rows per CPU second, times better", outcome.cpu_ratio, "x", CPU_AIM))
    return rows


def print_outcomes(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print every round of both sides, and a task's profile."""
    table = Table(
        *("", "k rows/s", "s", "CPU-s/GB", "CPU-s: Spark", "broker", "files", "MB"),
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for outcome in outcomes:
        table.add_row(Text(f"{outcome.title} (load average {outcome.load_average:.1f})", style="bold"))
        for number, pair in enumerate(outcome.rounds, start=1):
            for name, turn in zip(("Headrace", "Structured Streaming"), pair, strict=True):
                table.add_row(f"  round {number}: {name}", *_cells(turn))
    console.print(table)
    for outcome in outcomes:
        console.print(
            f"{outcome.title}: {outcome.rate_ratio:.1f} x rows/s (aim {RATE_AIM:g}), "
            f"{outcome.cpu_ratio:.1f} x rows per CPU second (aim {CPU_AIM:g})",
            highlight=False,
        )
        console.print(f"  a task's time: {profile_line(outcome.task_seconds)}", highlight=False)


def profile_line(seconds: Mapping[str, float]) -> str:
    """Return the parts of a task as shares of its time, the largest first; zstd is a part of Parquet."""
    whole = sum(value for part, value in seconds.items() if part != ZSTD)
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{part} {value / whole:.0%}" for part, value in ordered)


def keep(outcomes: Sequence[Outcome], name: str) -> Path:
    """Write all rounds as JSON, and return where."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "cores": os.cpu_count(),
        "cells": [
            {**asdict(outcome), "rate_ratio": outcome.rate_ratio, "cpu_ratio": outcome.cpu_ratio}
            for outcome in outcomes
        ],
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def _cells(turn: Turn) -> list[str]:
    return [
        f"{turn.rows_per_second / 1e3:,.0f}",
        f"{turn.seconds:.1f}",
        f"{turn.cpu_seconds_per_gb:.1f}",
        f"{turn.spark_cpu_seconds:.1f}",
        f"{turn.broker_cpu_seconds:.1f}",
        str(turn.files),
        f"{turn.file_bytes / 1e6:,.0f}",
    ]
