"""Both executors keep the same promise."""

import threading
from collections.abc import Iterator

import pytest

from headrace.errors import Retryable
from headrace.runtime.executor import Executor, InlineExecutor, ThreadExecutor


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
