"""Virtual time, order, and what happens when nothing can happen."""

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence

import pytest

from headrace.testing.simulation.loop import SimLoop, SimulationStuck, run_simulation
from headrace.testing.simulation.process import SimClock


def test_time_jumps_to_the_next_timer() -> None:
    async def main(loop: SimLoop) -> float:
        clock = SimClock(loop)
        began = clock.monotonic()
        await clock.sleep(3600)
        await asyncio.sleep(0.5)
        return clock.monotonic() - began

    assert run_simulation(1, main) == 3600.5


def test_ready_callbacks_run_first_come_first_served() -> None:
    async def main(loop: SimLoop) -> list[int]:
        seen: list[int] = []
        for number in range(50):
            loop.call_soon(seen.append, number)
        await asyncio.sleep(0)
        return seen

    assert run_simulation(1, main) == list(range(50))


def order_of_equal_timers(seed: int) -> list[int]:
    async def main(loop: SimLoop) -> list[int]:
        seen: list[int] = []
        for number in range(20):
            loop.call_later(1, seen.append, number)
        await asyncio.sleep(2)
        return seen

    return run_simulation(seed, main)


def test_timers_of_one_instant_are_shuffled_by_the_seed() -> None:
    assert sorted(order_of_equal_timers(1)) == list(range(20))
    assert order_of_equal_timers(1) == order_of_equal_timers(1)
    assert order_of_equal_timers(1) != order_of_equal_timers(2)


def test_timers_run_in_the_order_of_their_times() -> None:
    async def main(loop: SimLoop) -> list[int]:
        seen: list[int] = []
        for number in (3, 1, 2, 5, 4):
            loop.call_later(number, seen.append, number)
        await asyncio.sleep(10)
        return seen

    assert run_simulation(1, main) == [1, 2, 3, 4, 5]


def test_a_cancelled_timer_never_runs_and_does_not_move_time() -> None:
    async def main(loop: SimLoop) -> float:
        timers = [loop.call_later(1 + number, pytest.fail) for number in range(3000)]
        for timer in timers:
            timer.cancel()
        began = loop.time()
        await asyncio.sleep(0.25)
        assert timers[0].cancelled()
        return loop.time() - began

    assert run_simulation(1, main) == 0.25


async def test_asyncio_timeouts_count_virtual_time() -> None:
    async def main(loop: SimLoop) -> float:
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await loop.create_future()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 5)
        return loop.time() - began

    assert await asyncio.to_thread(run_simulation, 1, main) == 35


def test_asyncio_primitives_work() -> None:
    async def main(loop: SimLoop) -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        lock, done = asyncio.Lock(), asyncio.Event()

        async def produce() -> None:
            for number in range(5):
                async with lock:
                    await queue.put(number)
            done.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            found = [await queue.get() for _ in range(5)]
            await done.wait()
        return found

    assert run_simulation(1, main) == [0, 1, 2, 3, 4]


def test_waiting_for_what_cannot_happen_is_reported_with_who_waits_where() -> None:
    async def nobody_answers(loop: SimLoop) -> None:
        await loop.create_future()

    with pytest.raises(SimulationStuck, match=r"(?s)seed 7.*everybody waits.*nobody_answers"):
        run_simulation(7, nobody_answers)


def test_a_loop_that_never_ends_runs_into_the_time_limit() -> None:
    async def main(loop: SimLoop) -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(SimulationStuck, match="the limit of 100 s is over"):
        run_simulation(1, main, time_limit_seconds=100)


def test_a_loop_that_never_waits_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.testing.simulation.loop.MAX_CALLBACKS_PER_INSTANT", 500)

    async def main(loop: SimLoop) -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimulationStuck, match="time stood still"):
        run_simulation(1, main)


def test_a_failure_brings_its_seed_and_the_last_events() -> None:
    async def main(loop: SimLoop) -> None:
        loop.note("something odd")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        run_simulation("seed-9", main)
    (note,) = caught.value.__notes__
    assert "seed-9" in note
    assert "something odd" in note


def test_a_callback_that_raises_ends_the_simulation() -> None:
    async def main(loop: SimLoop) -> None:
        loop.call_soon([].pop)
        await asyncio.sleep(1)

    with pytest.raises(IndexError):
        run_simulation(1, main)


def test_what_is_left_at_the_end_is_unwound() -> None:
    unwound: list[str] = []

    async def stubborn(name: str) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            try:
                await asyncio.sleep(1000)
            finally:
                unwound.append(name)

    async def main(loop: SimLoop) -> Sequence[asyncio.Task[None]]:
        tasks = [loop.create_task(stubborn(name)) for name in "ab"]
        await asyncio.sleep(1)
        return tasks

    tasks = run_simulation(1, main)
    assert unwound == ["a", "b"]
    assert all(task.cancelled() for task in tasks)


def test_an_async_generator_that_is_dropped_half_way_runs_its_finally() -> None:
    async def main(loop: SimLoop) -> list[str]:
        closed: list[str] = []

        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
                yield 2
            finally:
                await asyncio.sleep(1)
                closed.append("closed")

        async def take_one() -> None:
            async for _ in numbers():
                break

        await take_one()
        await asyncio.sleep(2)
        return closed

    assert run_simulation(1, main) == ["closed"]


def test_sets_of_tasks_have_the_same_order_in_every_run() -> None:
    async def main(loop: SimLoop) -> list[str]:
        order: list[str] = []

        async def wait_for_the_end(name: str) -> None:
            try:
                await loop.create_future()
            finally:
                order.append(name)

        async def fail() -> None:
            await asyncio.sleep(1)
            raise ValueError

        with pytest.raises(ExceptionGroup):
            # A task group keeps its tasks in a set, and cancels them in the order of that set.
            async with asyncio.TaskGroup() as group:
                for number in range(100):
                    group.create_task(wait_for_the_end(f"{number}"))
                group.create_task(fail())
        return order

    first = run_simulation(1, main)
    garbage = [object() for _ in range(10_000)]  # Moves the addresses of what comes next.
    assert run_simulation(1, main) == first
    assert len(garbage) == 10_000


def test_the_garbage_collector_rests_during_a_simulation() -> None:
    async def main(loop: SimLoop) -> bool:
        return gc.isenabled()

    assert run_simulation(1, main) is False
    assert gc.isenabled()


def test_each_name_has_its_own_chance() -> None:
    async def main(loop: SimLoop) -> list[float]:
        return [loop.rng("a").random(), loop.rng("b").random(), loop.rng("a").random()]

    a, b, again = run_simulation(1, main)
    assert a == again != b
    assert run_simulation(2, main)[0] != a


def test_clocks_of_two_hosts_disagree() -> None:
    async def main(loop: SimLoop) -> None:
        right = SimClock(loop)
        wrong = SimClock(loop, wall_offset_ms=3_600_000, rate=2.0, monotonic_base=50.0)
        right_began, wrong_began, began_ms = right.monotonic(), wrong.monotonic(), right.now_ms()
        await wrong.sleep(10)
        assert right.monotonic() - right_began == 5
        assert wrong.monotonic() - wrong_began == 10
        assert right.now_ms() - began_ms == 5000
        assert wrong.now_ms() - right.now_ms() > 3_600_000
        before_ms, before = wrong.now_ms(), wrong.monotonic()
        wrong.jump_wall(-10_000)
        assert (wrong.now_ms(), wrong.monotonic()) == (before_ms - 10_000, before)

    run_simulation(1, main)
