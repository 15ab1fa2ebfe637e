"""A clock that stands still until a test moves it."""

import asyncio
import heapq
import itertools

SETTLE_ROUNDS = 50
"""How often the event loop goes round after each sleeper has woken, so that what it started can come to rest."""


class ManualClock:
    """A `Clock` whose time only `advance` moves. Sleepers wake in the order of their deadlines."""

    def __init__(self, *, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return self._now_ms + round(self._monotonic * 1000)

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        if seconds <= 0:
            asyncio.get_running_loop().call_soon(_wake, woken)
        else:
            heapq.heappush(self._sleepers, (self._monotonic + seconds, next(self._order), woken))
        await woken

    @property
    def sleepers(self) -> int:
        """How many are asleep."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Move time forward; wake each sleeper at its own deadline and let the event loop settle in between."""
        await self.settle()
        until = self._monotonic + seconds
        while self._sleepers and self._sleepers[0][0] <= until:
            self._monotonic, _, woken = heapq.heappop(self._sleepers)
            _wake(woken)
            await self.settle()
        self._monotonic = until

    def jump_wall(self, milliseconds: int) -> None:
        """Set the wall clock forward or back, as an administrator would; monotonic time does not notice."""
        self._now_ms += milliseconds

    async def settle(self) -> None:
        """Let everything run that is ready to run, without moving time."""
        loop = asyncio.get_running_loop()
        for _ in range(SETTLE_ROUNDS):
            turn = loop.create_future()
            loop.call_soon(_wake, turn)
            await turn


def _wake(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():  # cancelled in its sleep
        sleeper.set_result(None)
