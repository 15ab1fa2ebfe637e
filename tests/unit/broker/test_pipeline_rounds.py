import asyncio
import io
from collections.abc import Sequence

import pytest

from headrace.broker.pipeline_rounds import (
    FINISH_LIMIT_S,
    IDLE_ROUNDS,
    MEMORY_LOOK_S,
    Interrupted,
    LoopLimits,
    run_on_and_on,
    run_until_caught_up,
    unless_stopped,
)
from headrace.errors import Fenced, HeadraceError, Retryable
from headrace.pipeline.runner import RunReport
from headrace.runtime.logs import open_log
from headrace.testing.clock import ManualClock

INTERVAL_S = 1.0


class Script:
    """A host whose rounds are written down; the last one is repeated. `left` has what each round leaves behind."""

    def __init__(self, rounds: Sequence[RunReport | HeadraceError], left: Sequence[list[str]] = ([],)) -> None:
        self._rounds = list(rounds)
        self._left = list(left)
        self.made = 0
        self.forced = 0

    async def goal(self) -> None:
        return None

    async def round(self, *, force: bool = False) -> RunReport:
        found = self._rounds[min(self.made, len(self._rounds) - 1)]
        self.made += 1
        self.forced += force
        if isinstance(found, HeadraceError):
            raise found
        return found

    async def left_of(self, _goal: None) -> list[str]:
        return self._left[min(self.made - 1, len(self._left) - 1)]


class Loop:
    """A loop under way, on a clock that the test moves."""

    def __init__(self, host: Script, *, held: int | None = None, **limits: int) -> None:
        self.clock = ManualClock()
        self.stopping = asyncio.Event()
        self.lines = io.StringIO()
        self.task = asyncio.create_task(
            run_on_and_on(
                host,
                clock=self.clock,
                log=open_log(self.lines, clock=self.clock, format="json"),
                limits=LoopLimits(interval_ms=1000, max_backoff_ms=4000, **limits),
                stopping=self.stopping,
                memory=lambda: held,
            )
        )


async def once(host: Script) -> dict[str, str]:
    clock = ManualClock()
    task = asyncio.create_task(run_until_caught_up(host, clock=clock, interval_ms=1000, stopping=asyncio.Event()))
    while not task.done():
        await clock.advance(INTERVAL_S)
    return task.result()


async def test_once_goes_on_until_the_tables_have_what_was_there() -> None:
    host = Script([RunReport(runs=1), RunReport(runs=2), RunReport()], left=[["a", "b"], ["a"], []])
    assert await once(host) == {}
    assert (host.made, host.forced) == (3, 3)


async def test_once_ends_when_all_that_is_left_has_failed() -> None:
    host = Script(
        [RunReport(runs=1, problems={"a": "no"}), RunReport(problems={"a": "no"})], left=[["a", "b"], ["a"]]
    )
    assert await once(host) == {"a": "no"}
    assert host.made == 2


async def test_once_tells_a_failure_also_of_a_topic_that_is_where_it_should_be() -> None:
    assert await once(Script([RunReport(problems={"gone": "its table could not be dropped"})])) != {}


async def test_once_gives_up_on_what_does_not_move() -> None:
    host = Script([RunReport()], left=[["a"]])
    assert list(await once(host)) == ["a"]
    assert host.made == IDLE_ROUNDS


async def test_once_waits_for_a_topic_that_another_pipeline_holds() -> None:
    busy = [RunReport(busy=1)] * (2 * IDLE_ROUNDS)
    host = Script([*busy, RunReport()], left=[*([["a"]] * len(busy)), []])
    assert await once(host) == {}


async def test_a_loop_pauses_where_nothing_was_to_be_done_and_goes_straight_on_where_something_was() -> None:
    host = Script([RunReport(runs=1), RunReport(runs=1), RunReport()])
    loop = Loop(host)
    await loop.clock.settle()
    assert host.made == 3
    await loop.clock.advance(INTERVAL_S)
    assert host.made == 4
    loop.stopping.set()
    assert await loop.task is False


async def test_a_round_that_fails_is_made_again_after_a_growing_pause() -> None:
    host = Script([Retryable("the store is away"), Fenced("the session is gone"), Retryable("away"), RunReport()])
    loop = Loop(host)
    for made, pause_s in ((1, 2.0), (2, 4.0), (3, 4.0)):
        await loop.clock.settle()
        assert host.made == made
        await loop.clock.advance(pause_s - 0.01)
        assert host.made == made
        await loop.clock.advance(0.01)
    assert host.made == 4
    loop.stopping.set()
    assert await loop.task is False


async def test_a_process_asks_for_another_after_enough_rounds_that_did_something() -> None:
    loop = Loop(Script([RunReport(), RunReport(runs=1), RunReport(), RunReport(runs=1)]), max_rounds=2)
    await loop.clock.advance(10 * INTERVAL_S)
    assert await loop.task is True


@pytest.mark.parametrize(("held", "ends"), [(101, True), (100, False), (None, False)])
async def test_a_process_asks_for_another_when_it_holds_too_much(held: int | None, ends: bool) -> None:
    loop = Loop(Script([RunReport()]), held=held, max_memory_bytes=100)
    await loop.clock.advance(MEMORY_LOOK_S - INTERVAL_S)
    assert not loop.task.done()
    await loop.clock.advance(2 * INTERVAL_S)
    assert loop.task.done() is ends
    loop.stopping.set()
    await loop.task


async def test_what_is_under_way_gets_a_moment_to_end() -> None:
    clock, stopping, done = ManualClock(), asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(unless_stopped(done.wait, stopping, clock))
    await clock.settle()
    stopping.set()
    await clock.advance(FINISH_LIMIT_S - 1)
    done.set()
    assert await task is True


async def test_what_does_not_end_in_time_is_broken_off() -> None:
    clock, stopping = ManualClock(), asyncio.Event()
    broken_off = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            broken_off.set()

    task = asyncio.create_task(unless_stopped(work, stopping, clock))
    await clock.settle()
    stopping.set()
    await clock.advance(FINISH_LIMIT_S)
    with pytest.raises(Interrupted):
        await task
    assert broken_off.is_set()


async def test_nothing_is_begun_after_the_end_was_told() -> None:
    stopping = asyncio.Event()
    stopping.set()
    begun: list[int] = []

    async def work() -> None:
        begun.append(1)

    with pytest.raises(Interrupted):
        await unless_stopped(work, stopping, ManualClock())
    assert begun == []
