"""Show and keep what came out: a table, closing lines, a chart and JSON."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.beside_kafka.chart import draw
from benchmarks.beside_kafka.figures import Kind, Measure, closing_lines

TABLE_WIDTH = 150
RESULTS = Path(__file__).parents[1] / "results"
MB = 1_000_000


def make_console() -> Console:
    """Return a console on which a line of the table has room, also where the output goes to a file."""
    console = Console()
    return console if console.is_terminal else Console(width=TABLE_WIDTH)


def print_measures(measures: Sequence[Measure], console: Console) -> None:
    """Print one line per measure, and how many promises are kept."""
    table = Table("", "Headrace", "Apache Kafka", "ratio", "", box=None, pad_edge=False, header_style="bold")
    last = ""
    for measure in measures:
        if measure.group != last:
            table.add_row(Text(measure.group, style="bold"))
            last = measure.group
        table.add_row(
            Text(f"  {measure.what}"),
            Text(spread(measure.headrace, measure), justify="right"),
            Text(spread(measure.kafka, measure), justify="right"),
            Text(f"{measure.ratio:.2f} x ({min(measure.ratios):.2f}–{max(measure.ratios):.2f})", justify="right"),
            verdict(measure),
        )
    console.print(table)
    console.print(
        "medians of the rounds, lowest–highest in brackets; a ratio above 1 favours Headrace\n", style="dim"
    )
    for line in closing_lines(measures):
        console.print(line, highlight=False)


def spread(values: Sequence[float], measure: Measure) -> str:
    """Return median, lowest and highest, and for a rate of bytes that of records."""
    text = f"{number(statistics.median(values))} ({number(min(values))}–{number(max(values))}) {measure.kind.unit}"
    if measure.record_bytes is None:
        return text
    return f"{text}, {statistics.median(values) * MB / measure.record_bytes / 1000:,.0f} k rec/s"


def number(value: float) -> str:
    """Return a number with three digits that matter."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def verdict(measure: Measure) -> Text:
    """Return whether what was promised is kept; nothing where nothing was."""
    verdicts = [kept for kept in (measure.matches_kafka, measure.keeps_limit) if kept is not None]
    if not verdicts:
        return Text("")
    return Text("ok", style="green") if all(verdicts) else Text("short", style="bold red")


def keep(measures: Sequence[Measure], *, name: str, title: str) -> list[Path]:
    """Write the chart and the figures, and return where."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    chart, figures = RESULTS / f"{name}.svg", RESULTS / f"{name}.json"
    subtitle = f"{os.cpu_count()} cores shared by brokers and clients; bars: median ratio, thin lines: all rounds"
    chart.write_text(draw(measures, title=title, subtitle=subtitle), encoding="utf-8")
    document = {
        "title": title,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "measures": [as_json(measure) for measure in measures],
        "closing": closing_lines(measures),
    }
    figures.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return [chart, figures]


def as_json(measure: Measure) -> dict[str, object]:
    """Return a measure with all its rounds and what follows from them."""
    return {
        **asdict(measure),
        "ratios": measure.ratios,
        "ratio": measure.ratio,
        "matches_kafka": measure.matches_kafka,
        "keeps_limit": measure.keeps_limit,
    }


def rows(measures: Sequence[Measure]) -> list[tuple[str, float, str, float | None]]:
    """Return the promises as rows of the common report: cells at Kafka's level, and each absolute limit as room."""
    promised = [measure for measure in measures if measure.matches_kafka is not None]
    found: list[tuple[str, float, str, float | None]] = []
    if promised:
        met = sum(measure.matches_kafka is True for measure in promised)
        found.append((f"share of {len(promised)} cells as good as Apache Kafka", met / len(promised), "", 1.0))
    return found + [_room(measure, measure.kind) for measure in measures if measure.kind.at_most is not None]


def _room(measure: Measure, kind: Kind) -> tuple[str, float, str, float | None]:
    assert kind.at_most is not None
    median = statistics.median(measure.headrace)
    name = f"{measure.group}: {measure.what}: room below {kind.at_most:g} {kind.unit}"
    return name, kind.at_most / median, "x", 1.0
