"""Time, as a thing that is handed over.

Two kinds, never mixed: `now_ms` is wall time, which is written into data and may jump; `monotonic`
only ever grows, and is the one that deadlines and leases are counted with.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits."""

    def now_ms(self) -> int:
        """Return wall time in milliseconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some fixed moment of this host."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""
        ...


class SystemClock:
    """The real one."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
