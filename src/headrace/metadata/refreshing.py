"""Keeping what a process remembers of the store fresh: on demand, and for ever.

Must stay true: a refresh proves something only for those who asked before it began. Whoever asks while one is under
way waits for the next one, together with all others who do.
"""

import asyncio
from collections.abc import Awaitable, Callable

from headrace.errors import OutcomeUnknown, Retryable
from headrace.metadata.port import MetadataStore
from headrace.runtime.clock import Clock

RETRY_S = 0.2
"""When to read again after the store could not be reached."""


class SharedRefresh:
    """Runs one reading function for many who ask at once."""

    def __init__(self, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._catch_up = catch_up
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Return after a reading that began after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._run_after(self._running))
            self._next.add_done_callback(_look_at)
        await asyncio.shield(self._next)

    async def _run_after(self, previous: "asyncio.Task[None] | None") -> None:
        if previous is not None:
            await asyncio.wait([previous])
        self._running, self._next = self._next, None
        await self._catch_up()


def _look_at(done: "asyncio.Task[None]") -> None:
    """Whoever waits raises what went wrong; where all have gone meanwhile, it is of no use to anybody."""
    if not done.cancelled():
        done.exception()


async def follow(store: MetadataStore, prefix: str, refresh: Callable[[], Awaitable[None]], *, clock: Clock) -> None:
    """Refresh whenever something under the prefix may have changed; try again while the store cannot be reached."""
    watch = store.watch(prefix)
    try:
        while True:
            await watch.wait()
            while not await _could(refresh):
                await clock.sleep(RETRY_S)
    finally:
        watch.close()


async def _could(refresh: Callable[[], Awaitable[None]]) -> bool:
    try:
        await refresh()
    except (Retryable, OutcomeUnknown):
        return False
    return True
