"""Threads, behind a port: blocking work leaves the event loop here, and only here.

The simulation runs the same code with `InlineExecutor`, so that no thread makes a history unrepeatable.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

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
    """Runs work on its own small pool of named threads."""

    def __init__(self, name: str, *, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"headrace-{name}")

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class InlineExecutor:
    """Runs work at once, on the caller's thread: for tests and the simulation."""

    async def run(self, work: Callable[[], T]) -> T:
        return work()

    def close(self) -> None:
        return None
