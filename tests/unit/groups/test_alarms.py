"""Sleepers are woken when they asked for it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.groups.alarms import Alarms
from headrace.testing.clock import ManualClock


class Sleeper:
    def __init__(self, *, then: int | None = None) -> None:
        self.woken: list[int] = []
        self._then = then

    def wake(self, now_ms: int) -> int | None:
        self.woken.append(now_ms)
        then, self._then = self._then, None
        return then


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def alarms(clock: ManualClock) -> AsyncIterator[Alarms]:
    made = Alarms(clock)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.wait([running])


async def test_each_is_woken_at_its_moment_and_again_when_it_wants(alarms: Alarms, clock: ManualClock) -> None:
    late, soon = Sleeper(), Sleeper(then=3_000)
    alarms.set(late, 2_000)
    alarms.set(soon, 1_000)
    await clock.advance(0.9)
    assert not soon.woken and not late.woken
    await clock.advance(9)
    assert soon.woken == [1_000, 3_000]
    assert late.woken == [2_000]


async def test_an_earlier_moment_counts_and_a_later_one_does_not(alarms: Alarms, clock: ManualClock) -> None:
    sleeper = Sleeper()
    alarms.set(sleeper, 5_000)
    await clock.advance(0.1)
    alarms.set(sleeper, 1_000)
    alarms.set(sleeper, 4_000)
    await clock.advance(10)
    assert sleeper.woken == [1_000]


async def test_who_is_forgotten_sleeps_on(alarms: Alarms, clock: ManualClock) -> None:
    sleeper = Sleeper()
    alarms.set(sleeper, 1_000)
    alarms.forget(sleeper)
    await clock.advance(2)
    assert sleeper.woken == []


async def test_a_sleeper_that_wants_to_be_woken_at_once_does_not_keep_others_waiting(
    alarms: Alarms, clock: ManualClock
) -> None:
    sleeper, other = Sleeper(then=0), Sleeper()
    alarms.set(sleeper, 1_000)
    alarms.set(other, 1_000)
    await clock.advance(1.0)
    assert other.woken == [1_000] and sleeper.woken == [1_000]
    await clock.advance(0.01)
    assert sleeper.woken == [1_000, 1_001]
