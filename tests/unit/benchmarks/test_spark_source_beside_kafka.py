"""The figures of the source's comparison: what a read's start and its further rows cost."""

import io

import pytest
from rich.console import Console

from benchmarks.beside_kafka.process_cost import Spent, seconds_between
from benchmarks.spark_source_beside_kafka.show import Outcome, print_outcomes, rows_of
from benchmarks.spark_source_beside_kafka.turns import Round, Turn

JVM, DAEMON, WORKER, PLANNER = 10, 20, 21, 30


def turn(rows: int, cpu_seconds: float) -> Turn:
    return Turn(
        rows=rows,
        content_bytes=rows * 1000,
        seconds=2.0,
        spark_cpu_seconds=cpu_seconds - 0.5,
        broker_cpu_seconds=0.5,
    )


def spent(parent: int, own: int, children: int = 0) -> Spent:
    return Spent(parent=parent, own_ticks=own, children_ticks=children)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_CLK_TCK": 100}.__getitem__)


def test_further_rows_cost_what_the_large_topic_takes_more() -> None:
    one = Round(small=turn(1_000_000, 3.0), large=turn(5_000_000, 11.0))
    assert one.further_cpu_seconds == pytest.approx(8.0)
    assert one.further_rows_per_cpu_second == pytest.approx(500_000)
    assert one.further_cpu_seconds_per_gb == pytest.approx(2.0)
    assert one.start_cpu_seconds == pytest.approx(1.0)


def test_every_figure_is_shown_with_both_sides_and_their_ratio() -> None:
    ours = Round(small=turn(1_000_000, 2.0), large=turn(5_000_000, 4.0))
    theirs = Round(small=turn(1_000_000, 3.0), large=turn(5_000_000, 11.0))
    outcome = Outcome(title="100 B values, batch", rounds=[(ours, theirs)], load_average=1.0)
    figures = {name: value for name, value, _, _ in rows_of([outcome])}
    assert figures["100 B values, batch: further rows per core, times better"] == pytest.approx(4.0)
    assert figures["100 B values, batch: rows per second and core, times better"] == pytest.approx(2.75)
    assert figures["100 B values, batch: Headrace, start"] == pytest.approx(1.5)
    shown = io.StringIO()
    print_outcomes([outcome], Console(file=shown, width=160))
    assert "5,000,000" in shown.getvalue()


@pytest.mark.usefixtures("ticks")
def test_a_worker_that_ends_unheard_takes_nothing_off_the_others() -> None:
    before = {JVM: spent(1, 500), DAEMON: spent(JVM, 50), WORKER: spent(DAEMON, 400)}
    after = {JVM: spent(1, 700), DAEMON: spent(JVM, 50)}
    assert seconds_between(before, after) == pytest.approx(2.0)


@pytest.mark.usefixtures("ticks")
def test_a_child_that_ended_counts_from_the_first_look_on() -> None:
    before = {JVM: spent(1, 500), PLANNER: spent(JVM, 100)}
    after = {JVM: spent(1, 500, children=130)}
    assert seconds_between(before, after) == pytest.approx(0.3)


@pytest.mark.usefixtures("ticks")
def test_a_child_that_began_and_ended_between_the_looks_counts_whole() -> None:
    assert seconds_between({JVM: spent(1, 500)}, {JVM: spent(1, 510, children=130)}) == pytest.approx(1.4)
