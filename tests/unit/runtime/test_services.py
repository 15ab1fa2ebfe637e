"""Background services under a clock that only the test moves."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable

import pytest

from headrace.errors import (
    Corrupt,
    Exists,
    Fenced,
    HeadraceError,
    Invalid,
    Missing,
    OutcomeUnknown,
    Retryable,
    Throttled,
    Unsupported,
    Unusable,
)
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import seeded_rng
from headrace.runtime.services import (
    FOLLOW_AGAIN_S,
    FOLLOW_WELL_S,
    JITTER,
    MAX_BACKOFF_S,
    ROUND_PAUSE_S,
    Follower,
    Services,
    Ticker,
    TickMetrics,
    backoff_s,
)
from headrace.testing.clock import ManualClock

INTERVAL_MS = 1000

EXPECTED = [
    kind("for once")
    for kind in (
        HeadraceError,
        Retryable,
        Throttled,
        OutcomeUnknown,
        Fenced,
        Invalid,
        Missing,
        Exists,
        Corrupt,
        Unsupported,
    )
]


def is_explained(line: dict[str, object], error: BaseException) -> bool:
    """Say whether a line tells what to do about an expected error, or where a mistake of ours is."""
    is_expected = isinstance(error, HeadraceError)
    return ("traceback" in line) is not is_expected and bool(line.get("advice")) is is_expected


class Bench:
    """A clock, a log and metrics, and tickers on top of them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stream = io.StringIO()
        self.log = open_log(self.stream, clock=self.clock, format="json")
        self.metrics = Metrics()
        self._tick_metrics = TickMetrics(self.metrics)
        self.ticked_at: list[float] = []
        self.failures: list[BaseException] = []
        self.gate: asyncio.Event | None = None

    async def tick(self) -> None:
        self.ticked_at.append(self.clock.monotonic())
        if self.failures:
            raise self.failures.pop(0)
        if self.gate is not None:
            await self.gate.wait()

    def ticker(self, *, breaks_off: bool = False, goes_on: Callable[[], bool] = lambda: False) -> Ticker:
        return Ticker(
            "folder",
            self.tick,
            interval_ms=INTERVAL_MS,
            clock=self.clock,
            rng=seeded_rng(1),
            log=self.log,
            metrics=self._tick_metrics,
            breaks_off=breaks_off,
            goes_on=goes_on,
        )

    def follower(self, follow: Callable[[], Awaitable[object]]) -> Follower:
        return Follower("folder", follow, clock=self.clock, log=self.log, metrics=self._tick_metrics)

    def logged(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def count(self, outcome: str) -> float:
        wanted = f'headrace_service_ticks_total{{outcome="{outcome}",service="folder"}} '
        lines = self.metrics.render().decode().splitlines()
        return next(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_ticks_come_at_the_interval_with_jitter(bench: Bench) -> None:
    ticker = bench.ticker()
    await ticker.start()
    await bench.clock.advance(20)
    await ticker.stop()
    pauses = [b - a for a, b in zip([0.0, *bench.ticked_at], bench.ticked_at, strict=False)]
    assert 0 <= pauses[0] <= 1, "the first pause is a part of the interval"
    assert all(1 - JITTER <= pause <= 1 + JITTER for pause in pauses[1:])
    assert len(set(pauses)) == len(pauses) >= 18
    assert bench.count("ok") == len(pauses)


@pytest.mark.parametrize("error", EXPECTED)
async def test_a_failed_tick_is_logged_and_counted_and_the_next_one_comes(bench: Bench, error: HeadraceError) -> None:
    bench.failures.append(error)
    ticker = bench.ticker()
    await ticker.start()
    await bench.clock.advance(5)
    await ticker.stop()
    assert len(bench.ticked_at) >= 4
    assert bench.count("failed") == 1
    assert bench.count("ok") == len(bench.ticked_at) - 1
    [line] = bench.logged()
    assert line["level"] == "warning" and line["service"] == "folder" and str(error) in str(line["error"])
    assert line["advice"] and "traceback" not in line
    await ticker.wait()


@pytest.mark.parametrize("error", [Unusable("disk"), KeyError("our mistake"), AssertionError("ours")])
async def test_an_error_that_the_shape_cannot_answer_for_ends_the_service_loudly(
    bench: Bench, error: Exception
) -> None:
    bench.failures.append(error)
    ticker = bench.ticker()
    await ticker.start()
    await bench.clock.advance(5)
    assert len(bench.ticked_at) == 1
    assert bench.count("ended") == 1
    [line] = bench.logged()
    assert line["level"] == "error" and is_explained(line, error)
    with pytest.raises(type(error)):
        await ticker.wait()
    await ticker.drain()
    await ticker.stop()


def test_pauses_grow_while_failures_go_on_and_have_a_limit() -> None:
    assert [backoff_s(1, failures) for failures in (1, 2, 3, 4)] == [1, 2, 4, MAX_BACKOFF_S]
    assert backoff_s(1, 1000) == MAX_BACKOFF_S <= 5, "a fault that has passed is noticed within seconds"
    assert backoff_s(600, 5) == 600, "an interval that is longer than any back-off stays what it is"


async def test_ticks_that_go_on_failing_come_less_and_less_often_until_one_succeeds(bench: Bench) -> None:
    bench.failures += [Fenced("taken over")] * 4
    ticker = bench.ticker()
    await ticker.start()
    await bench.clock.advance(30)
    await ticker.stop()
    pauses = [b - a for a, b in zip(bench.ticked_at, bench.ticked_at[1:], strict=False)]
    for pause, planned in zip(pauses[:5], [1, 2, 4, MAX_BACKOFF_S, 1], strict=True):
        assert planned * (1 - JITTER) <= pause <= planned * (1 + JITTER)
    assert [line["failures"] for line in bench.logged()] == [1, 2, 4]
    await ticker.wait()


async def test_failures_that_go_on_for_an_hour_have_few_lines_in_the_log(bench: Bench) -> None:
    async def follow() -> None:
        raise Retryable("the store is away")

    follower = bench.follower(follow)
    await follower.start()
    await bench.clock.advance(3600)
    await follower.stop()
    assert bench.count("failed") >= 3600 / MAX_BACKOFF_S, "it goes on trying all the time"
    assert [line["failures"] for line in bench.logged()] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


async def test_a_failure_after_a_success_has_a_line_again(bench: Bench) -> None:
    bench.failures += [Retryable("away")] * 3
    ticker = bench.ticker()
    await ticker.start()
    await bench.clock.advance(20)
    bench.failures += [Retryable("away again")]
    await bench.clock.advance(5)
    await ticker.stop()
    assert [line["failures"] for line in bench.logged()] == [1, 2, 1]


async def test_steps_of_a_round_come_soon_and_the_interval_counts_from_its_end(bench: Bench) -> None:
    ticker = bench.ticker(goes_on=lambda: len(bench.ticked_at) % 3 != 0)  # each round has three steps
    await ticker.start()
    await bench.clock.advance(10)
    await ticker.stop()
    pauses = [b - a for a, b in zip(bench.ticked_at, bench.ticked_at[1:], strict=False)]
    for pause, planned in zip(pauses[:6], 2 * [ROUND_PAUSE_S, ROUND_PAUSE_S, INTERVAL_MS / 1000], strict=True):
        assert planned * (1 - JITTER) <= pause <= planned * (1 + JITTER)


async def test_a_round_that_fails_goes_on_after_growing_pauses(bench: Bench) -> None:
    bench.failures += [Retryable("away")] * 3
    ticker = bench.ticker(goes_on=lambda: True)
    await ticker.start()
    await bench.clock.advance(5)
    await ticker.stop()
    pauses = [b - a for a, b in zip(bench.ticked_at, bench.ticked_at[1:], strict=False)]
    for pause, doublings in zip(pauses[:4], [0, 1, 2, 0], strict=True):
        planned = ROUND_PAUSE_S * 2**doublings
        assert planned * (1 - JITTER) <= pause <= planned * (1 + JITTER)


async def test_follower_that_went_on_for_long_pauses_briefly_after_its_next_failure(bench: Bench) -> None:
    begun: list[float] = []

    async def follow() -> None:
        begun.append(bench.clock.monotonic())
        await bench.clock.sleep(FOLLOW_WELL_S if len(begun) == 3 else 0)
        raise Fenced("taken over")

    follower = bench.follower(follow)
    await follower.start()
    await bench.clock.advance(3 * FOLLOW_AGAIN_S + FOLLOW_WELL_S + FOLLOW_AGAIN_S)
    await follower.stop()
    assert begun[3] - begun[2] == pytest.approx(FOLLOW_WELL_S + FOLLOW_AGAIN_S)


async def test_a_cancellation_that_nobody_asked_for_is_a_failure(bench: Bench) -> None:
    bench.failures.append(asyncio.CancelledError())
    ticker = bench.ticker()
    await ticker.start()
    await bench.clock.advance(5)
    assert bench.count("ended") == 1
    with pytest.raises(Unusable, match="folder was cancelled"):
        await ticker.wait()


async def test_drain_lets_the_tick_under_way_end_and_begins_no_other(bench: Bench) -> None:
    bench.gate = asyncio.Event()
    ticker = bench.ticker()
    await ticker.start()
    await bench.clock.advance(1)
    draining = asyncio.create_task(ticker.drain())
    await bench.clock.advance(5)
    assert not draining.done()
    bench.gate.set()
    await bench.clock.advance(5)
    assert draining.done()
    assert len(bench.ticked_at) == 1 == bench.count("ok")
    await ticker.wait()


async def test_drain_breaks_off_a_tick_that_loses_nothing(bench: Bench) -> None:
    bench.gate = asyncio.Event()
    ticker = bench.ticker(breaks_off=True)
    await ticker.start()
    await bench.clock.advance(1)
    await ticker.drain()
    await ticker.wait()
    assert len(bench.ticked_at) == 1 and bench.count("ok") == 0 and bench.logged() == []


async def test_drain_of_a_sleeping_ticker_needs_no_time(bench: Bench) -> None:
    ticker = bench.ticker()
    await ticker.start()
    await bench.clock.settle()
    assert bench.clock.sleepers == 1
    await ticker.drain()
    await ticker.wait()
    assert bench.ticked_at == [] and bench.logged() == [] and bench.clock.sleepers == 0


async def test_stop_breaks_off_the_tick_under_way_and_may_be_repeated(bench: Bench) -> None:
    bench.gate = asyncio.Event()
    ticker = bench.ticker()
    await ticker.start()
    await bench.clock.advance(1)
    await ticker.stop()
    await ticker.stop()
    await ticker.wait()
    assert bench.count("ok") == 0 and bench.logged() == []


async def test_a_ticker_that_was_never_started_drains_and_stops(bench: Bench) -> None:
    await bench.ticker().drain()
    await bench.ticker().stop()


class Scripted:
    """A service that writes down what happens to it and fails where it is told to."""

    def __init__(
        self, name: str, history: list[str], *, fail_at: str = "", drain_gate: asyncio.Event | None = None
    ) -> None:
        self.name = name
        self._history = history
        self._fail_at = fail_at
        self._drain_gate = drain_gate
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _step(self, step: str) -> None:
        self._history.append(f"{step} {self.name}")
        if step == self._fail_at:
            raise Retryable(f"{self.name} cannot {step}")

    async def start(self) -> None:
        self._step("start")

    async def drain(self) -> None:
        self._step("drain")
        if self._drain_gate is not None:
            await self._drain_gate.wait()
            self._history.append(f"drained {self.name}")

    async def stop(self) -> None:
        self._step("stop")
        if not self.ended.done():
            self.ended.set_result(None)

    async def wait(self) -> None:
        await asyncio.shield(self.ended)


def _group(bench: Bench, *services: Scripted) -> Services:
    return Services(services, clock=bench.clock, log=bench.log)


async def test_a_group_starts_in_order_and_drains_and_stops_in_reverse(bench: Bench) -> None:
    history: list[str] = []
    group = _group(bench, Scripted("a", history), Scripted("b", history))
    await group.start()
    await group.stop(drain_ms=1000)
    assert history == ["start a", "start b", "drain b", "stop b", "drain a", "stop a"]
    await group.stop(drain_ms=1000)
    assert len(history) == 6, "a second stop has nothing left to do"


async def test_a_group_that_cannot_start_stops_what_it_had_started(bench: Bench) -> None:
    history: list[str] = []
    group = _group(bench, Scripted("a", history), Scripted("b", history, fail_at="start"), Scripted("c", history))
    with pytest.raises(Retryable, match="b cannot start"):
        await group.start()
    assert history == ["start a", "start b", "stop a"]


async def test_draining_ends_at_the_deadline_for_all_together(bench: Bench) -> None:
    history: list[str] = []
    never = asyncio.Event()
    group = _group(bench, Scripted("a", history), Scripted("b", history, drain_gate=never))
    await group.start()
    stopping = asyncio.create_task(group.stop(drain_ms=1000))
    await bench.clock.advance(0.9)
    assert history[2:] == ["drain b"] and not stopping.done()
    await bench.clock.advance(0.2)
    await stopping
    assert history[2:] == ["drain b", "stop b", "stop a"], "no time was left to drain a"
    assert [line["event"] for line in bench.logged()] == ["a service had not drained in time"]
    assert bench.clock.sleepers == 0


async def test_a_service_that_drains_in_time_is_waited_for(bench: Bench) -> None:
    history: list[str] = []
    gate = asyncio.Event()
    group = _group(bench, Scripted("a", history, drain_gate=gate))
    await group.start()
    stopping = asyncio.create_task(group.stop(drain_ms=1000))
    await bench.clock.advance(0.5)
    gate.set()
    await stopping
    assert history == ["start a", "drain a", "drained a", "stop a"]
    assert bench.clock.sleepers == 0


@pytest.mark.parametrize("step", ["drain", "stop"])
async def test_one_failure_does_not_keep_the_others_from_stopping(bench: Bench, step: str) -> None:
    history: list[str] = []
    group = _group(bench, Scripted("a", history), Scripted("b", history, fail_at=step))
    await group.start()
    with pytest.raises(Retryable, match=f"b cannot {step}"):
        await group.stop(drain_ms=1000)
    assert history == ["start a", "start b", "drain b", "stop b", "drain a", "stop a"]


async def test_waiting_for_a_group_raises_the_first_failure(bench: Bench) -> None:
    history: list[str] = []
    services = [Scripted("a", history), Scripted("b", history)]
    group = _group(bench, *services)
    await group.start()
    waiting = asyncio.create_task(group.wait())
    await bench.clock.settle()
    assert not waiting.done()
    services[1].ended.set_exception(Fenced("b is fenced"))
    with pytest.raises(Fenced, match="b is fenced"):
        await waiting


async def test_waiting_for_a_group_returns_when_all_were_stopped(bench: Bench) -> None:
    group = _group(bench, Scripted("a", []), Scripted("b", []))
    await group.start()
    waiting = asyncio.create_task(group.wait())
    await bench.clock.settle()
    await group.stop(drain_ms=0)
    await waiting


# Followers


class Following:
    """A coroutine that goes on for ever, unless the test has it fail."""

    def __init__(self, *failures: BaseException | None) -> None:
        self.failures = list(failures)
        self.begun = 0
        self.cancelled = 0

    async def __call__(self) -> None:
        self.begun += 1
        if self.failures:
            failure = self.failures.pop(0)
            if failure is None:
                return
            raise failure
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def test_follower_goes_on_until_it_is_stopped(bench: Bench) -> None:
    follow = Following()
    follower = bench.follower(follow)
    await follower.start()
    waiting = asyncio.create_task(follower.wait())
    await bench.clock.advance(1000)
    assert not waiting.done()
    await follower.stop()
    await waiting
    await follower.stop()
    assert (follow.begun, follow.cancelled) == (1, 1) and bench.logged() == []


async def test_follower_has_nothing_to_drain(bench: Bench) -> None:
    follow = Following()
    follower = bench.follower(follow)
    await follower.start()
    await bench.clock.settle()
    await follower.drain()
    assert follow.cancelled == 1
    await follower.wait()


@pytest.mark.parametrize("error", EXPECTED)
async def test_follower_that_failed_begins_anew_after_a_pause(bench: Bench, error: HeadraceError) -> None:
    follow = Following(error, error)
    follower = bench.follower(follow)
    await follower.start()
    await bench.clock.settle()
    assert follow.begun == 1
    await bench.clock.advance(FOLLOW_AGAIN_S)
    assert follow.begun == 2
    await bench.clock.advance(FOLLOW_AGAIN_S)
    assert follow.begun == 2, "the second pause is twice as long"
    await bench.clock.advance(FOLLOW_AGAIN_S)
    assert follow.begun == 3 and bench.count("failed") == 2
    assert [line["level"] for line in bench.logged()] == ["warning", "warning"]
    await follower.stop()
    await follower.wait()


@pytest.mark.parametrize("error", [Unusable("disk"), KeyError("our mistake"), AssertionError("ours")])
async def test_follower_ends_loudly_with_what_it_cannot_answer_for(bench: Bench, error: Exception) -> None:
    follower = bench.follower(Following(error))
    await follower.start()
    with pytest.raises(type(error)):
        await follower.wait()
    assert bench.count("ended") == 1
    [line] = bench.logged()
    assert line["level"] == "error" and line["service"] == "folder" and is_explained(line, error)
    await follower.drain()
    await follower.stop()


async def test_store_that_ends_many_services_is_one_line(bench: Bench) -> None:
    followers = [bench.follower(Following(Unusable("the disk"))) for _ in range(5)]
    for follower in followers:
        await follower.start()
        with pytest.raises(Unusable):
            await follower.wait()
    assert bench.count("ended") == 5 and len(bench.logged()) == 1
    another = bench.follower(Following(Unusable("another disk")))
    await another.start()
    with pytest.raises(Unusable):
        await another.wait()
    assert len(bench.logged()) == 2


async def test_follower_that_comes_to_an_end_has_failed(bench: Bench) -> None:
    follower = bench.follower(Following(None))
    await follower.start()
    with pytest.raises(Unusable, match="folder has come to an end"):
        await follower.wait()
    assert bench.count("ended") == 1


async def test_follower_that_nobody_here_cancelled_has_failed(bench: Bench) -> None:
    follower = bench.follower(Following(asyncio.CancelledError()))
    await follower.start()
    with pytest.raises(Unusable, match="folder was cancelled"):
        await follower.wait()
    assert bench.count("ended") == 1


async def test_failure_that_nobody_waited_for_is_logged_all_the_same(bench: Bench) -> None:
    follower = bench.follower(Following(KeyError("ours")))
    await follower.start()
    await bench.clock.settle()
    assert [line["level"] for line in bench.logged()] == ["error"]
    await follower.stop()


async def test_failing_follower_ends_its_group(bench: Bench) -> None:
    healthy, failing = Following(), Following(Retryable("away"), Unusable("the disk"))
    services = Services([bench.follower(healthy), bench.follower(failing)], clock=bench.clock, log=bench.log)
    await services.start()
    waiting = asyncio.create_task(services.wait())
    await bench.clock.advance(FOLLOW_AGAIN_S)
    with pytest.raises(Unusable, match="the disk"):
        await waiting
    await services.stop(drain_ms=1000)
    assert healthy.cancelled == 1
