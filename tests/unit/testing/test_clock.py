"""The clock that tests move."""

import asyncio

import pytest

from headrace.testing.clock import ManualClock


async def test_sleepers_wake_in_order_and_each_at_its_own_time() -> None:
    clock, woken = ManualClock(), list[tuple[str, float]]()

    async def sleep(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    tasks = [
        asyncio.create_task(sleep(name, seconds)) for name, seconds in [("late", 2), ("soon", 1), ("also soon", 1)]
    ]
    await clock.advance(1.5)
    assert woken == [("soon", 1), ("also soon", 1)]
    assert clock.sleepers == 1
    await clock.advance(1)
    await asyncio.gather(*tasks)
    assert [name for name, _ in woken][-1] == "late"
    assert clock.monotonic() == 2.5


async def test_a_sleeper_that_sleeps_again_wakes_again_within_one_advance() -> None:
    clock, woken = ManualClock(), list[float]()

    async def sleep() -> None:
        for _ in range(3):
            await clock.sleep(1)
            woken.append(clock.monotonic())

    task = asyncio.create_task(sleep())
    await clock.advance(10)
    assert task.done() and woken == [1, 2, 3]


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(1))
    await clock.settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.sleepers == 0
    await clock.advance(2)


async def test_no_sleep_at_all_needs_no_advance() -> None:
    await ManualClock().sleep(0)


async def test_wall_time_moves_with_monotonic_time_and_may_jump_alone() -> None:
    clock = ManualClock(now_ms=1000)
    await clock.advance(1.5)
    assert clock.now_ms() == 2500
    clock.jump_wall(-2000)
    assert clock.now_ms() == 500 and clock.monotonic() == 1.5
