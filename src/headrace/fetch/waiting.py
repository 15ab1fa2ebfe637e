"""Wait until a stream grows: a fetch that finds too little parks here, without a timer loop.

A waiter listens at the index view. It hears of every commit that this broker makes or follows, adds up what came,
and wakes when that is enough, when a head changes otherwise, or when its time is over. All of a broker wake through
one line, a few per pass of the loop: thousands may wait for the same commit.

Must stay true: a waiter listens from before its fetch looks at the streams until it is left, whatever happens in
between, cancellation included. So nothing is missed, and a client that is gone leaves nothing behind.
"""

import asyncio
from collections.abc import Iterable
from types import TracebackType

from headrace.index.cache import IndexView
from headrace.model.ids import StreamId
from headrace.runtime.clock import Clock
from headrace.runtime.turns import WakeLine


class Waiter:
    """Listens to some streams while its context is open."""

    __slots__ = ("_grown_bytes", "_is_changed", "_is_due", "_line", "_streams", "_view", "_wanted_bytes", "_woken")

    def __init__(self, view: IndexView, streams: Iterable[StreamId], line: WakeLine) -> None:
        self._view = view
        self._line = line
        self._streams = list(streams)
        self._grown_bytes = 0
        self._is_changed = False
        self._is_due = False
        self._wanted_bytes = 0
        self._woken: asyncio.Future[None] | None = None

    def __enter__(self) -> "Waiter":
        for stream in self._streams:
            self._view.listen(stream, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams:
            self._view.unlisten(stream, self)

    def grown(self, size_bytes: int) -> None:
        self._grown_bytes += size_bytes
        self._wake_if_due()

    def changed(self) -> None:
        self._is_changed = True
        self._wake_if_due()

    def begin(self) -> None:
        """Count from here on: the caller is about to look at the streams."""
        self._grown_bytes = 0
        self._is_changed = False

    async def wait(self, clock: Clock, *, wanted_bytes: int, seconds: float) -> None:
        """Wait until that many bytes have come since `begin`, or a head changed, or the time is over."""
        self._wanted_bytes = wanted_bytes
        self._is_due = False
        self._woken = woken = asyncio.get_running_loop().create_future()
        self._wake_if_due()
        timer = asyncio.create_task(clock.sleep(seconds))
        timer.add_done_callback(lambda _: self._line.wake(woken))
        try:
            await woken
        finally:
            self._woken = None
            timer.cancel()

    def _wake_if_due(self) -> None:
        if self._woken is None or self._is_due:
            return
        if self._is_changed or self._grown_bytes >= self._wanted_bytes:
            self._is_due = True
            self._line.wake(self._woken)
