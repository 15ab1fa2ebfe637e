"""Turns on the loop: one slice of long work per pass."""

import asyncio
from collections import Counter

from headrace.runtime.turns import LoopTurns, WakeLine


class Probe:
    """Counts the passes of the loop."""

    def __init__(self) -> None:
        self.passes = 0
        self._task = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.passes += 1

    def end(self) -> None:
        self._task.cancel()


async def _work(name: str, slices: int, turns: LoopTurns, done: list[str]) -> None:
    for _ in range(slices):
        done.append(name)
        await turns.next()


async def test_others_run_between_two_slices() -> None:
    turns, probe = LoopTurns(), Probe()
    await _work("a", 10, turns, [])
    assert probe.passes >= 9
    probe.end()


async def test_of_many_long_works_one_slice_runs_per_pass() -> None:
    turns, probe, done = LoopTurns(), Probe(), list[str]()
    works = [asyncio.create_task(_work(str(n), 5, turns, done)) for n in range(20)]
    await asyncio.sleep(0)
    begun, passes = len(done), probe.passes
    await asyncio.gather(*works)
    assert len(done) == 100
    assert probe.passes - passes >= 100 - begun, "several slices ran in one pass"
    probe.end()


async def test_turns_are_given_in_the_order_of_asking() -> None:
    turns, done = LoopTurns(), list[str]()
    await asyncio.gather(*(_work(name, 3, turns, done) for name in "abc"))
    assert "".join(done) == "abcabcabc"


async def test_one_that_is_cancelled_in_the_line_holds_nobody_up() -> None:
    turns, done = LoopTurns(), list[str]()
    works = [asyncio.create_task(_work(name, 2, turns, done)) for name in "abc"]
    await asyncio.sleep(0)
    works[0].cancel()
    works[1].cancel()
    await asyncio.wait(works)
    assert done == ["a", "b", "c", "c"]


async def test_a_line_that_was_empty_moves_again() -> None:
    turns = LoopTurns()
    for _ in range(3):
        await turns.next()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


# Waking in slices


class Sleepers:
    """Tasks that wait to be woken; `woken` says who was, by the pass of the loop."""

    def __init__(self, count: int) -> None:
        self.passes = 0
        self.futures = [asyncio.get_running_loop().create_future() for _ in range(count)]
        self.woken: list[tuple[int, int]] = []
        self.tasks = [asyncio.create_task(self._sleep(number)) for number in range(count)]

    async def _sleep(self, number: int) -> None:
        await self.futures[number]
        self.woken.append((self.passes, number))

    async def passed(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self.passes += 1

    def per_pass(self) -> list[int]:
        return list(Counter(at for at, _ in self.woken).values())


async def test_a_few_are_woken_at_once_and_the_rest_pass_by_pass_in_order() -> None:
    sleepers, line = Sleepers(25), WakeLine(per_pass=8)
    await sleepers.passed(1)
    for future in sleepers.futures:
        line.wake(future)
    assert sum(future.done() for future in sleepers.futures) == 8
    await sleepers.passed(10)
    assert sleepers.per_pass() == [8, 8, 8, 1]
    assert [number for _, number in sleepers.woken] == list(range(25))


async def test_what_is_few_in_each_pass_never_waits() -> None:
    line = WakeLine(per_pass=2)
    for _ in range(5):
        sleepers = Sleepers(2)
        for future in sleepers.futures:
            line.wake(future)
            assert future.done()
        await sleepers.passed(1)
        await asyncio.gather(*sleepers.tasks)


async def test_one_who_comes_later_does_not_pass_those_in_the_line() -> None:
    sleepers, line = Sleepers(6), WakeLine(per_pass=2)
    await sleepers.passed(1)
    for future in sleepers.futures[:5]:
        line.wake(future)
    await sleepers.passed(1)
    line.wake(sleepers.futures[5])
    assert not sleepers.futures[5].done()
    await sleepers.passed(5)
    assert [number for _, number in sleepers.woken] == list(range(6))


async def test_those_who_are_gone_take_no_place() -> None:
    sleepers, line = Sleepers(8), WakeLine(per_pass=2)
    await sleepers.passed(1)
    for future in sleepers.futures:
        line.wake(future)
    for task in sleepers.tasks[2:6]:
        task.cancel()
    await sleepers.passed(3)
    assert sleepers.per_pass() == [2, 2]
    line.wake(sleepers.futures[0])  # woken long ago
