import asyncio
import threading

import pytest

from headrace.objects.cancellation import run_or_undo
from headrace.runtime.executor import InlineExecutor, ThreadExecutor


async def test_the_result_is_returned_and_nothing_undone() -> None:
    undone: list[int] = []
    assert await run_or_undo(InlineExecutor(), lambda: 7, undone.append) == 7
    assert undone == []


async def test_a_failure_is_raised_and_nothing_undone() -> None:
    undone: list[float] = []
    with pytest.raises(ZeroDivisionError):
        await run_or_undo(InlineExecutor(), lambda: 1 / 0, undone.append)
    assert undone == []


@pytest.mark.parametrize("fails", [False, True])
async def test_a_result_that_comes_after_the_caller_went_is_undone(fails: bool) -> None:
    executor, started, go = ThreadExecutor("late", threads=2), threading.Event(), threading.Event()
    undone = asyncio.Event()

    def work() -> float:
        started.set()
        go.wait()
        return 1 / (0 if fails else 1)

    waiting = asyncio.create_task(run_or_undo(executor, work, lambda _: undone.set()))
    await executor.run(started.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not undone.is_set()
    go.set()
    if not fails:
        await undone.wait()
    executor.close()
