"""Threads, behind a port: blocking work leaves the event loop here, and only here.

The simulation runs the same code with `InlineExecutor`, so that no thread makes a history unrepeatable.

Must stay true: an error that came back keeps nothing alive once its caller has dealt with it. An error holds its
traceback, the traceback holds the frames it went through, and these hold their locals: often a request's whole
buffer. A frame among them that also holds the error, or a future with it, closes a circle. Only a collection would
break that, and a broker collects seldom.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Executor(Protocol):
    """Runs blocking functions without blocking the caller's event loop."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` and return what it returns or raise what it raises."""
        ...

    def close(self) -> None:
        """Wait for work under way and free the threads."""
        ...


class ThreadExecutor:
    """Runs work on its own small pool of named threads, which start when they are first needed.

    Every flush crosses to a thread and back several times, so the way is short: a queue there, one call back. The
    standard pool does the same with locks, semaphores and a future of its own per call, at twice the cost.
    """

    def __init__(self, name: str, *, threads: int) -> None:
        self._name = name
        self._max_threads = threads
        self._threads: list[threading.Thread] = []
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = 0
        self._is_closed = False
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the executor {self._name} is closed")
            if self._idle > 0:
                self._idle -= 1
            elif len(self._threads) < self._max_threads:
                self._begin_thread()
            self._work.put(_Work(work, loop, done))
        try:
            return await done
        finally:
            del done  # the future holds the error, whose traceback holds this frame

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            threads, self._threads = self._threads, []
        for _ in threads:
            self._work.put(None)
        for thread in threads:
            thread.join()

    def _begin_thread(self) -> None:
        name = f"headrace-{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work.perform()
            # What was worked on must not stay alive until the next work comes: it may hold buffers.
            del work
            with self._lock:
                self._idle += 1


class _Work:
    """One call on its way to a thread and back. Once it is done it refers neither to the call nor to the future."""

    __slots__ = ("_call", "_done", "_loop")

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop, done: "asyncio.Future[Any]") -> None:
        self._call: Callable[[], Any] | None = call
        self._loop = loop
        self._done: asyncio.Future[Any] | None = done

    def perform(self) -> None:
        """Do it, and bring the outcome back to the loop; a loop that is gone has nobody who waits."""
        call, self._call = self._call, None
        assert call is not None, "a call is made once"
        try:
            result = call()
        except BaseException as error:  # It belongs to whoever waits; this thread goes on.
            self._bring_back(None, error)
        else:
            self._bring_back(result, None)

    def _bring_back(self, result: Any, error: BaseException | None) -> None:
        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._settle, result, error)
            except RuntimeError:
                return

    def _settle(self, result: Any, error: BaseException | None) -> None:
        done, self._done = self._done, None
        assert done is not None, "an outcome comes back once"
        if done.done():  # cancelled meanwhile
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)


class InlineExecutor:
    """Runs work at once, on the caller's thread: for tests and the simulation."""

    async def run(self, work: Callable[[], T]) -> T:
        return work()

    def close(self) -> None:
        return None
