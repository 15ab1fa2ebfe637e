"""A thread with an event loop of its own, for work that must go on while the main loop is stalled.

Must stay true: cancelling the caller cancels the work, and the thread has ended when the caller goes on.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any


async def run_on_thread(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine on a thread and a loop of its own, and return or raise as it does."""
    thread = _LoopThread(name, work)
    try:
        await asyncio.shield(thread.ended)
    except asyncio.CancelledError:
        thread.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await thread.ended
        raise


class _LoopThread:
    def __init__(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._caller = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._caller.create_future()
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(work())
        # A daemon: a process that is told to end at once does not wait for a disk that hangs.
        threading.Thread(target=self._serve, name=f"headrace-{name}", daemon=True).start()

    def cancel(self) -> None:
        """Cancel the work, if it has not ended."""
        with contextlib.suppress(RuntimeError):  # The loop is closed: it has.
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(asyncio.wait([self._task]))
        finally:
            self._loop.close()
            with contextlib.suppress(RuntimeError):  # The caller's loop is closed: nobody waits any more.
                self._caller.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self.ended.done():
            return
        if self._task.cancelled():
            self.ended.cancel()
        elif (error := self._task.exception()) is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)
