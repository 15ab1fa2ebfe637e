"""Processes that die, stop and go on."""

import asyncio

import pytest

from headrace.errors import OutcomeUnknown, Retryable
from headrace.runtime.crash_points import CrashPoint
from headrace.testing.simulation.loop import SimLoop, SimulationFailed, SimulationStuck, run_simulation
from headrace.testing.simulation.process import CrashAt, SimCrashPoints, SimProcess, SimulatedCrash


async def tick(seen: list[str], name: str) -> None:
    try:
        while True:
            seen.append(name)
            await asyncio.sleep(1)
    finally:
        seen.append(f"{name} finally")


def test_after_a_crash_nothing_of_the_process_runs() -> None:
    async def main(loop: SimLoop) -> tuple[list[str], list[str]]:
        seen: list[str] = []
        process, other = SimProcess("broker", loop), SimProcess("other", loop)
        process.spawn(tick(seen, "dead"))
        other.spawn(tick(seen, "alive"))
        await asyncio.sleep(2.5)
        process.crash()
        at_crash = list(seen)
        await asyncio.sleep(2)
        return at_crash, list(seen)

    before, after = run_simulation(1, main)
    assert after == [*before, "alive", "alive"]


def test_what_a_process_starts_dies_with_it() -> None:
    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []

        async def parent() -> None:
            loop.call_later(10, seen.append, "timer")
            asyncio.create_task(tick(seen, "child")).add_done_callback(lambda _: seen.append("callback"))
            async with asyncio.TaskGroup() as group:
                group.create_task(tick(seen, "grandchild"))

        process = SimProcess("broker", loop)
        process.spawn(parent())
        await asyncio.sleep(0.5)
        process.crash()
        await asyncio.sleep(100)
        return list(seen)

    assert sorted(run_simulation(1, main)) == ["child", "grandchild"]


def test_a_task_that_was_about_to_run_does_not() -> None:
    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []
        woken = asyncio.Event()

        async def wait() -> None:
            await woken.wait()
            seen.append("woken")

        process = SimProcess("broker", loop)
        process.spawn(wait())
        await asyncio.sleep(1)
        woken.set()
        process.crash()
        await asyncio.sleep(1)
        return seen

    assert run_simulation(1, main) == []


def test_a_paused_process_does_nothing_while_time_goes_on() -> None:
    async def main(loop: SimLoop) -> None:
        seen: list[str] = []
        process = SimProcess("broker", loop)
        process.spawn(tick(seen, "tick"))
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(100)
        assert seen == ["tick"] * 2
        process.resume()
        await asyncio.sleep(1.5)
        # One tick was due during the pause, the next one comes a second after that one has run.
        assert seen == ["tick"] * 4

    run_simulation(1, main)


def test_what_came_up_during_a_pause_runs_in_its_order() -> None:
    async def main(loop: SimLoop) -> list[int]:
        seen: list[int] = []

        async def set_timers() -> None:
            for number in range(10):
                loop.call_later(1 + number, seen.append, number)

        process = SimProcess("broker", loop)
        await process.spawn(set_timers())
        process.pause()
        await asyncio.sleep(100)
        assert seen == []
        process.resume()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return seen

    assert run_simulation(1, main) == list(range(10))


def test_a_process_can_die_while_it_is_paused() -> None:
    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []
        process = SimProcess("broker", loop)
        process.spawn(tick(seen, "tick"))
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(5)
        process.crash()
        process.resume()
        await asyncio.sleep(5)
        return list(seen)

    assert run_simulation(1, main) == ["tick"]


def test_a_caller_hears_that_the_process_died() -> None:
    async def main(loop: SimLoop) -> None:
        process = SimProcess("broker", loop)
        calling = asyncio.ensure_future(process.call(asyncio.sleep(10, "answer")))
        await asyncio.sleep(1)
        process.crash()
        with pytest.raises(OutcomeUnknown, match="broker died"):
            await calling
        with pytest.raises(Retryable, match="broker is dead"):
            await process.call(asyncio.sleep(10))

    run_simulation(1, main)


def test_a_caller_gets_the_answer_or_the_error() -> None:
    async def fail() -> None:
        raise ValueError("no")

    async def main(loop: SimLoop) -> None:
        process = SimProcess("broker", loop)
        assert await process.call(asyncio.sleep(1, "answer")) == "answer"
        with pytest.raises(ValueError, match="no"):
            await process.call(fail())

    run_simulation(1, main)


def test_work_goes_on_when_its_caller_gives_up() -> None:
    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []

        async def work() -> None:
            await asyncio.sleep(10)
            seen.append("done")

        process = SimProcess("broker", loop)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.call(work()), 1)
        await asyncio.sleep(20)
        return seen

    assert run_simulation(1, main) == ["done"]


def test_a_crash_point_kills_at_the_arrival_that_was_named() -> None:
    async def main(loop: SimLoop) -> tuple[list[str], dict[CrashPoint, int]]:
        seen: list[str] = []
        process = SimProcess("broker", loop)
        crash_points = SimCrashPoints(process, [CrashAt(CrashPoint.WRITER_AFTER_WRITE, 3)])

        async def write() -> None:
            while True:
                crash_points.reach(CrashPoint.WRITER_AFTER_STAGE)
                await asyncio.sleep(1)
                crash_points.reach(CrashPoint.WRITER_AFTER_WRITE)
                seen.append("written")

        process.spawn(write())
        process.spawn(tick(seen, "tick"))
        await asyncio.sleep(10)
        assert process.is_dead
        return seen[:], crash_points.arrivals

    seen, arrivals = run_simulation(1, main)
    assert seen.count("written") == 2
    assert 3 <= seen.count("tick") <= 4
    assert arrivals == {CrashPoint.WRITER_AFTER_STAGE: 3, CrashPoint.WRITER_AFTER_WRITE: 3}


def test_code_on_the_stack_of_a_crash_can_clean_up_but_never_waits_again() -> None:
    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []
        process = SimProcess("broker", loop)

        async def work() -> None:
            try:
                process.crash()
            except SimulatedCrash:
                seen.append("unwinding")
                await asyncio.sleep(1)
                seen.append("too late")

        process.spawn(work())
        await asyncio.sleep(10)
        return seen[:]

    assert run_simulation(1, main) == ["unwinding"]


def test_a_crash_in_a_plain_callback_ends_that_process_only() -> None:
    async def main(loop: SimLoop) -> bool:
        process = SimProcess("broker", loop)

        async def set_timer() -> None:
            loop.call_later(1, process.crash)

        await process.spawn(set_timer())
        await asyncio.sleep(2)
        return process.is_dead

    assert run_simulation(1, main)


def test_a_task_that_fails_unseen_fails_the_simulation() -> None:
    async def fail() -> None:
        raise ValueError("background")

    async def main(loop: SimLoop) -> None:
        SimProcess("broker", loop).spawn(fail())
        await asyncio.sleep(1)

    with pytest.raises(SimulationFailed, match=r"broker/.*fail.*background"):
        run_simulation(1, main)


def test_a_task_that_fails_and_is_looked_at_is_fine() -> None:
    async def fail() -> None:
        raise ValueError("seen")

    async def main(loop: SimLoop) -> None:
        with pytest.raises(ValueError, match="seen"):
            await SimProcess("broker", loop).spawn(fail())

    run_simulation(1, main)


def test_waiting_for_a_dead_process_is_a_deadlock() -> None:
    async def main(loop: SimLoop) -> None:
        process = SimProcess("broker", loop)
        task = process.spawn(asyncio.sleep(10))
        await asyncio.sleep(1)
        process.crash()
        await task

    with pytest.raises(SimulationStuck, match="broker/sleep"):
        run_simulation(1, main)
