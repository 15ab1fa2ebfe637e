"""Both executors keep the same promise."""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from headrace.errors import Retryable
from headrace.runtime.executor import Executor, InlineExecutor, ThreadExecutor
from tests.unit.circles import Buffer, is_gone, no_collection


@pytest.fixture(params=["thread", "inline"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    executor: Executor = ThreadExecutor("test", threads=1) if request.param == "thread" else InlineExecutor()
    yield executor
    executor.close()


async def test_returns_what_the_work_returns(executor: Executor) -> None:
    assert await executor.run(lambda: 6 * 7) == 42


async def test_raises_what_the_work_raises(executor: Executor) -> None:
    def fail() -> None:
        raise Retryable("away")

    with pytest.raises(Retryable, match="away"):
        await executor.run(fail)


async def test_threads_are_named_and_inline_work_stays_on_the_callers_thread() -> None:
    threads = ThreadExecutor("sqlite", threads=1)
    assert (await threads.run(threading.current_thread)).name.startswith("headrace-sqlite")
    threads.close()
    assert await InlineExecutor().run(threading.current_thread) is threading.current_thread()


async def test_work_that_failed_leaves_nothing_alive_behind_its_error(executor: Executor) -> None:
    def refuse(buffer: Buffer) -> None:
        raise Retryable(f"{type(buffer).__name__} is not taken")

    async def ask() -> "weakref.ref[Buffer]":
        buffer = Buffer()
        with contextlib.suppress(Retryable):
            await executor.run(partial(refuse, buffer))
        return weakref.ref(buffer)

    with no_collection():
        gone = await ask()
        # The thread itself lets go a moment after it has called back: one more turn of its only thread proves it.
        await executor.run(lambda: None)
        assert is_gone(gone)
