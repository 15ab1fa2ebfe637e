"""What a benchmark says, whether it meets its target, and how the figures are shown and kept."""

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

AT_MOST_UNITS = frozenset({"s", "ms", "µs", "ns"})
"""Less is better where time is measured; for rates, ratios and everything else more is."""

UNITS_WITH_PREFIX = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure. `target` is `None` where nothing was promised."""

    benchmark: str
    what: str
    value: float
    unit: str
    target: float | None

    @property
    def is_met(self) -> bool | None:
        """Tell whether the target is met; `None` without one."""
        if self.target is None:
            return None
        return self.value <= self.target if self.unit in AT_MOST_UNITS else self.value >= self.target


def figures_of(name: str, rows: Iterable[tuple[str, float, str, float | None]]) -> list[Figure]:
    """Return what a benchmark's `run` returned, as figures."""
    return [
        Figure(benchmark=name, what=what, value=value, unit=unit, target=target) for what, value, unit, target in rows
    ]


def show(figures: Sequence[Figure], console: Console) -> None:
    """Print the figures as a table with a mark for each target."""
    table = Table("benchmark", "what", "figure", "target", "", box=None, pad_edge=False, header_style="bold")
    last = ""
    for figure in figures:
        mark = {True: Text("ok", style="green"), False: Text("short", style="bold red"), None: Text("")}[
            figure.is_met
        ]
        table.add_row(
            Text(figure.benchmark if figure.benchmark != last else ""),
            Text(figure.what),
            Text(readable(figure.value, figure.unit), justify="right"),
            Text(_target(figure)),
            mark,
        )
        last = figure.benchmark
    console.print(table)


def readable(value: float, unit: str) -> str:
    """Return a figure with three digits that matter: `15.2 M/s`, `0.18 ms`, `1,234 x`."""
    if unit.startswith("/"):
        for size, prefix in UNITS_WITH_PREFIX:
            if abs(value) >= size:
                return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.3g} {unit}"


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    sign = "≤" if figure.unit in AT_MOST_UNITS else "≥"
    return f"{sign} {readable(figure.target, figure.unit)}"


def save(figures: Sequence[Figure], path: Path) -> None:
    """Keep the figures as JSON, with the machine they were measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "figures": [{**asdict(figure), "is_met": figure.is_met} for figure in figures],
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
