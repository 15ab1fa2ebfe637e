"""The watchdog of the event loop: lag, stalls, and the name of what ran."""

import asyncio
import io
import json
import sys
import threading
import types
from typing import Any

import pytest

from headrace.runtime.clock import SystemClock
from headrace.runtime.logs import open_log
from headrace.runtime.loop_watch import BEAT_S, LOOK_S, LOOP_STALL_MS, MAX_LOOKS, LoopWatch, described
from headrace.runtime.metrics import Metrics
from headrace.testing.clock import ManualClock


class Bench:
    """A watch whose beats and looks the test calls."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stream = io.StringIO()
        self.metrics = Metrics()
        self.sights = ["handler produce"]
        self.watch = LoopWatch(
            clock=self.clock,
            log=open_log(self.stream, clock=self.clock, format="json"),
            metrics=self.metrics,
            sight=lambda: self.sights[0] if len(self.sights) == 1 else self.sights.pop(0),
        )
        self.watch.beat()
        self.stream.truncate(0)

    async def late_by(self, seconds: float, *, looks: int = 1) -> None:
        """Let the next beat come late, with looks at the end of the time."""
        await self.clock.advance(BEAT_S + seconds)
        for _ in range(looks):
            self.watch.look()
        self.watch.beat()

    def logged(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def value(self, name: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"headrace_{name} "))


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_beat_in_time_is_measured_and_says_nothing(bench: Bench) -> None:
    await bench.late_by(0)
    assert bench.logged() == []
    assert bench.value("loop_stalls_total") == 0
    assert bench.value("loop_lag_seconds_count") == 2


async def test_a_late_beat_names_what_ran_meanwhile(bench: Bench) -> None:
    await bench.late_by(LOOP_STALL_MS / 1000 + 0.01)
    (line,) = bench.logged()
    assert line["event"] == "the event loop was held up"
    assert line["what"] == "handler produce"
    assert line["lag_ms"] == LOOP_STALL_MS + 10
    assert bench.value("loop_stalls_total") == 1
    assert bench.value("loop_lag_seconds_sum") == pytest.approx(0.26)


async def test_the_line_names_what_was_seen_most_often(bench: Bench) -> None:
    bench.sights = ["handler fetch", "service folder", "service folder", "handler produce"]
    await bench.late_by(1.0, looks=4)
    (line,) = bench.logged()
    assert (line["what"], line["looks"], line["looks_in_all"]) == ("service folder", 2, 4)


async def test_a_stall_has_one_line_and_the_next_beat_begins_anew(bench: Bench) -> None:
    await bench.late_by(5.0, looks=2)
    await bench.late_by(0)
    await bench.late_by(0.3, looks=0)
    assert [line["what"] for line in bench.logged()] == ["handler produce", "not seen"]


async def test_lag_below_the_limit_is_measured_without_a_line(bench: Bench) -> None:
    await bench.late_by(LOOP_STALL_MS / 1000 - 0.01)
    assert bench.logged() == []
    assert bench.value("loop_lag_seconds_sum") == pytest.approx(0.24)


async def test_looks_at_a_loop_in_time_see_nothing(bench: Bench) -> None:
    bench.sights = []
    await bench.clock.advance(BEAT_S)
    bench.watch.look()


async def test_looks_at_one_stall_are_bounded(bench: Bench) -> None:
    await bench.late_by(LOOK_S, looks=MAX_LOOKS + 5)
    await bench.late_by(1, looks=MAX_LOOKS + 5)
    (line,) = bench.logged()
    assert line["looks_in_all"] == MAX_LOOKS


def _stack_of(module: str, source: str, filename: str = "x.py") -> types.FrameType:
    frames: list[types.FrameType] = []
    names: dict[str, object] = {"__name__": module, "look": lambda: frames.append(sys._getframe(1))}
    exec(compile(source, filename, "exec"), names)
    return frames[0]


def test_a_stack_is_named_by_its_handler_and_our_innermost_place() -> None:
    frame = _stack_of("headrace.handlers.metadata", "def build():\n    look()\nbuild()\n")
    assert described(frame, None) == "handler metadata, in headrace.handlers.metadata.build:2"


def test_a_stack_without_a_handler_is_named_by_its_service() -> None:
    frame = _stack_of("headrace.gc.folding", "def fold():\n    look()\nfold()\n")
    assert described(frame, "folder") == "service folder, in headrace.gc.folding.fold:2"


def test_a_generated_parser_is_named_by_its_message() -> None:
    frame = _stack_of("builtins", "def read():\n    look()\nread()\n", "<read ProduceRequest v9>")
    assert described(frame, None) == "neither handler nor service, in <read ProduceRequest v9>"


def test_a_thread_that_is_gone_has_no_place() -> None:
    assert described(None, None) == "neither handler nor service, in code that is not ours"


async def test_a_real_loop_that_is_held_up_is_seen_from_the_thread() -> None:
    stream, seen = io.StringIO(), threading.Event()
    clock = SystemClock()

    class Seeing(LoopWatch):
        def look(self) -> None:
            super().look()
            if self._seen:
                seen.set()

    watch = Seeing(clock=clock, log=open_log(stream, clock=clock, format="json"), metrics=Metrics(), stall_ms=1)
    await watch.start()
    names: dict[str, Any] = {"__name__": "headrace.handlers.sluggish", "seen": seen}
    exec("def hold_up():\n    return seen.wait(60)\n", names)
    assert names["hold_up"](), "nobody looked at a loop that stood still"
    while "sluggish" not in stream.getvalue():
        await asyncio.sleep(0)
    await watch.stop()
    await watch.wait()
    line = next(line for line in map(json.loads, stream.getvalue().splitlines()) if "sluggish" in line["what"])
    assert line["what"].startswith("handler sluggish, in headrace.handlers.sluggish.")
