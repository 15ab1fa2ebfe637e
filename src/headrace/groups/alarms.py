"""One alarm clock for all groups of a broker: each sets the moment at which it wants to be woken.

Must stay true: nobody is woken later than asked for, but for what the event loop is late itself. To be woken too
early is harmless: a deadline that moved on is found out then, and not at every heartbeat that moved it.
"""

import asyncio
import heapq
from typing import Protocol

from headrace.runtime.clock import Clock

ROUNDING_MS = 0.001
"""A moment that was waited for may come out a hair too early, as a sum of fractions: it counts as reached."""


def monotonic_ms(clock: Clock) -> int:
    """Return monotonic time in whole milliseconds, the way all deadlines of groups are counted."""
    return int(clock.monotonic() * 1000 + ROUNDING_MS)


class Sleeper(Protocol):
    """Somebody who can be woken."""

    def wake(self, now_ms: int) -> int | None:
        """Do what is due, and return when to be woken next (monotonic milliseconds), or `None`."""
        ...


class Alarms:
    """A heap of moments and sleepers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Sleeper]] = []
        self._set_for: dict[Sleeper, int] = {}
        self._number = 0
        self._is_sooner = asyncio.Event()

    def set(self, sleeper: Sleeper, at_ms: int) -> None:
        """Wake the sleeper at this moment, unless it will be woken earlier anyway."""
        known = self._set_for.get(sleeper)
        if known is not None and known <= at_ms:
            return
        self._set_for[sleeper] = at_ms
        self._number += 1
        heapq.heappush(self._heap, (at_ms, self._number, sleeper))
        if self._heap[0][1] == self._number:
            self._is_sooner.set()

    def forget(self, sleeper: Sleeper) -> None:
        """Wake the sleeper no more."""
        self._set_for.pop(sleeper, None)

    async def run(self) -> None:
        """Wake sleepers until cancelled."""
        while True:
            self._is_sooner.clear()
            self._ring()
            if not self._heap:
                await self._is_sooner.wait()
                continue
            await self._wait(self._heap[0][0])

    async def _wait(self, at_ms: int) -> None:
        """Wait for a moment, or until an earlier one is set."""
        left_s = at_ms / 1000 - self._clock.monotonic()
        timer = asyncio.create_task(self._clock.sleep(max(0.0, left_s)))
        sooner = asyncio.create_task(self._is_sooner.wait())
        try:
            await asyncio.wait([timer, sooner], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            sooner.cancel()

    def _ring(self) -> None:
        now_ms = monotonic_ms(self._clock)
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, sleeper = heapq.heappop(self._heap)
            if self._set_for.get(sleeper) != at_ms:
                continue  # it was forgotten, or is set for an earlier moment that has passed
            del self._set_for[sleeper]
            next_ms = sleeper.wake(now_ms)
            if next_ms is not None:
                self.set(sleeper, max(next_ms, now_ms + 1))
