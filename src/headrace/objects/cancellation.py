"""What becomes of a thread's result when nobody waits for it any more.

Cancelling a caller does not stop the thread that works for it. A file that such a thread opens belongs to nobody, and
would stay open for as long as the process lives.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from headrace.runtime.executor import Executor

T = TypeVar("T")


async def run_or_undo(executor: Executor, work: Callable[[], T], undo: Callable[[T], None]) -> T:
    """Run `work` and return its result; if the caller is cancelled meanwhile, `undo` gets the result when it comes.

    `undo` runs on the event loop, so it takes no longer than closing a file does.
    """

    def undo_result(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            undo(done.result())

    running = asyncio.ensure_future(executor.run(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        running.add_done_callback(undo_result)
        raise
