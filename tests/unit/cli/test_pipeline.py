import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from headrace.cli.main import run
from headrace.cli.pipeline_progress import BarProgress, Counted, LinesAbove, LoggedProgress, shown_bar
from headrace.runtime.logs import open_log
from headrace.settings import HeadraceConfiguration
from headrace.testing.clock import ManualClock


@pytest.mark.parametrize("options", [[], ["--once", "--loop"]])
def test_it_must_be_said_whether_to_end(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "run", *options]) == 2
    assert "say --once to bring in what is there and end, or --loop to go on" in capsys.readouterr().err


def test_the_exit_code_and_the_settings_are_handed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[tuple[HeadraceConfiguration, bool, bool]] = []

    def run_pipeline(configuration: HeadraceConfiguration, *, once: bool, supervised: bool) -> int:
        given.append((configuration, once, supervised))
        return 75

    monkeypatch.setattr("headrace.cli.pipeline_process.run_pipeline", run_pipeline)
    words = ["--loop", "--supervised", "--master", "spark://host:7077", "--data-dir", str(tmp_path)]
    assert run(["pipeline", "run", *words]) == 75
    ((configuration, once, supervised),) = given
    assert (once, supervised) == (False, True)
    assert configuration.tree.pipeline.spark_master == "spark://host:7077"
    assert configuration.tree.broker.data_dir == tmp_path


def test_elsewhere_a_run_is_two_lines() -> None:
    lines, clock, counted = io.StringIO(), ManualClock(), Counted()
    progress = LoggedProgress(open_log(lines, clock=clock, format="json"), counted)
    progress.planned("orders", files=2, size_bytes=1000)
    progress.moved("orders", "written")
    progress.ended("orders", rows=10, problem=None)
    progress.ended("broken", rows=0, problem="it is told by whoever runs it")
    assert len(lines.getvalue().splitlines()) == 2
    assert (counted.runs, counted.rows, counted.topics) == (1, 10, {"orders"})


def test_in_a_terminal_a_bar_grows_with_the_bytes_that_are_written() -> None:
    bar = Progress(console=Console(file=io.StringIO()))
    progress = BarProgress(bar, Counted())
    progress.planned("orders", files=2, size_bytes=1000)
    progress.planned("other", files=1, size_bytes=500)
    (task,) = bar.tasks
    assert (task.completed, task.total) == (0, 1500)
    progress.moved("orders", "written")
    assert task.completed == 1000
    progress.moved("orders", "in table")
    progress.ended("orders", rows=3, problem=None)
    assert task.completed == 1000
    progress.ended("other", rows=0, problem="no")
    assert task.completed == 1500
    assert task.description == "1 topics, 3 files; other: failed"


def test_lines_of_the_log_stand_above_the_bar() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    log = open_log(LinesAbove(console, screen), clock=ManualClock(), format="json")  # type: ignore[arg-type]
    with shown_bar(console, Counted()) as progress:
        progress.planned("orders", files=1, size_bytes=10)
        log.info("[bold]not markup[/bold]")
    assert "[bold]not markup[/bold]" in screen.getvalue()
