"""The benchmark report: targets, figures, and what is kept."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.__main__ import main
from benchmarks.report import Figure, figures_of, readable, save, show


def _figure(value: float, unit: str, target: float | None) -> Figure:
    [figure] = figures_of("append", [("4 KiB", value, unit, target)])
    return figure


@pytest.mark.parametrize(
    ("value", "unit", "target", "is_met"),
    [
        (10e6, "/s", 10e6, True),
        (9.9e6, "/s", 10e6, False),
        (0.59, "x", 0.6, False),
        (5.1, "GB/s", 5, True),
        (0.3, "ms", 0.2, False),
        (0.2, "ms", 0.2, True),
        (3.0, "µs", None, None),
    ],
)
def test_times_are_to_stay_below_their_target_and_everything_else_above(
    value: float, unit: str, target: float | None, is_met: bool | None
) -> None:
    assert _figure(value, unit, target).is_met is is_met


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (15_234_000, "/s", "15.2 M/s"),
        (0.1834, "ms", "0.183 ms"),
        (1234.5, "x", "1,234 x"),
        (5.25e9, "/s", "5.25 G/s"),
    ],
)
def test_figures_are_readable(value: float, unit: str, shown: str) -> None:
    assert readable(value, unit) == shown


def test_the_table_marks_what_falls_short(tmp_path: Path) -> None:
    figures = [_figure(2, "x", 1), _figure(1, "x", 2), _figure(1, "x", None)]
    printed = io.StringIO()
    show(figures, Console(file=printed, width=100))
    marks = [line.split()[-1] for line in printed.getvalue().splitlines()[1:]]
    assert marks[:2] == ["ok", "short"] and marks[2] not in ("ok", "short")
    save(figures, tmp_path / "results" / "latest.json")
    kept = json.loads((tmp_path / "results" / "latest.json").read_text())
    assert [figure["is_met"] for figure in kept["figures"]] == [True, False, None]


def test_an_unknown_benchmark_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-benchmark"]) == 2
    assert "no-such-benchmark" in capsys.readouterr().err
