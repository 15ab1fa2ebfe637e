"""Taking turns inside one process, before the server is asked for its locks.

Callers that want the same unit could all wait in the server, but each would hold a connection of the pool while it
waits: a unit that another host holds would then keep everybody from everything, the renewal of the session included.
So per unit one transaction works, one waits in the server, and all others wait here, where it costs nothing.

Groups are many, and each is a unit of its own. A thousand that commit at once would take every connection as it comes
free, and a producer's commit would wait behind all of them. So transactions of groups alone are a *crowd*: they leave
`ABREAST` connections to all others.

Must stay true: a transaction takes all its turns before it takes a connection, and in one order for everybody. So
whoever holds a connection waits for the server alone, and nobody waits in a circle.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from weakref import WeakValueDictionary

from headrace.errors import Retryable
from headrace.metadata.keys import is_group_unit
from headrace.metadata.port import Unit

ABREAST = 2
"""The second one has begun and asked for the lock when the first one commits. With 1 that round trip came on top:
a fifth fewer transactions per second at 2 ms; with more than 2 none are won."""


class Turns:
    """Lets the transactions of one process that share a unit go to the server, first come, first served."""

    def __init__(self, *, limit_s: float, pool_size: int) -> None:
        self._limit_s = limit_s
        self._crowd = asyncio.Semaphore(max(1, pool_size - ABREAST))
        # A turn lives as long as somebody has it or waits for it: units come and go, with groups and sessions.
        self._turns: WeakValueDictionary[Unit, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def take(self, units: Sequence[Unit]) -> AsyncIterator[None]:
        """Wait for the turns of all units, and give them back in the end. Raises `Retryable` after the limit."""
        wanted = [self._turns.setdefault(unit, asyncio.Semaphore(ABREAST)) for unit in sorted(set(units))]
        if all(map(is_group_unit, units)):
            wanted.append(self._crowd)  # Last: whoever holds it waits for the server alone.
        async with contextlib.AsyncExitStack() as taken:
            try:
                async with asyncio.timeout(self._limit_s):
                    for turn in wanted:
                        await taken.enter_async_context(turn)
            except TimeoutError as error:
                raise Retryable(
                    f"others in this process keep {', '.join(units)} busy for {self._limit_s} s, nothing was written"
                ) from error
            yield
