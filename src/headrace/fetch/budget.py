"""How many reads, and how many bytes of them, may be under way at once, first come, first served.

Readers far behind have a budget of their own, so that a backfill takes its turn with other backfills and never
stands in the way of producers or of readers at the tail: neither for memory nor for the threads that read.
"""

import asyncio
from collections import deque
from types import TracebackType


class ReadBudget:
    """A number of bytes that is lent out, to a number of reads."""

    def __init__(self, max_bytes: int, *, max_reads: int) -> None:
        self._max_bytes = max_bytes
        self._max_reads = max_reads
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self.lent_bytes = 0
        self.reads = 0

    @property
    def waiting_count(self) -> int:
        """How many reads wait for their turn."""
        return len(self._waiting)

    @property
    def is_free(self) -> bool:
        """Whether nobody waits and half of it is free: what nobody has asked for yet may be read, too."""
        return not self._waiting and self.lent_bytes * 2 < self._max_bytes and self.reads * 2 <= self._max_reads

    def lend(self, size_bytes: int) -> "_Loan":
        """Return a context that holds the bytes. One read larger than the budget waits until it is alone."""
        return _Loan(self, min(size_bytes, self._max_bytes))

    async def _take(self, size_bytes: int) -> None:
        if not self._waiting and self._fits(size_bytes):
            self.lent_bytes += size_bytes
            self.reads += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size_bytes))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give_back(size_bytes)  # the turn came together with the cancellation
            self._grant()  # whoever waited behind this one may fit
            raise

    def _give_back(self, size_bytes: int) -> None:
        self.lent_bytes -= size_bytes
        self.reads -= 1
        self._grant()

    def _fits(self, size_bytes: int) -> bool:
        return self.lent_bytes + size_bytes <= self._max_bytes and self.reads < self._max_reads

    def _grant(self) -> None:
        while self._waiting:
            turn, size_bytes = self._waiting[0]
            if not turn.done():  # else its reader was cancelled
                if not self._fits(size_bytes):
                    return
                self.lent_bytes += size_bytes
                self.reads += 1
                turn.set_result(None)
            self._waiting.popleft()


class _Loan:
    __slots__ = ("_budget", "_size_bytes")

    def __init__(self, budget: ReadBudget, size_bytes: int) -> None:
        self._budget = budget
        self._size_bytes = size_bytes

    async def __aenter__(self) -> None:
        await self._budget._take(self._size_bytes)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget._give_back(self._size_bytes)
