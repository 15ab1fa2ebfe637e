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


# On Linux CLOCK_MONOTONIC stands still while the host is suspended, and a lease that has run out meanwhile would look
# alive. The boot clock counts that time, too.
_MONOTONIC_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The real one."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.clock_gettime(_MONOTONIC_CLOCK)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
