"""Watches inside one process: every engine tells the hub which units changed, the hub wakes who waits.

Must stay true: a watch remembers that it was signalled until its reader has been told, so neither a slow
reader nor a cancelled `wait` loses the last change. All of this runs on the event loop's thread.
"""

import asyncio
from collections.abc import Callable, Iterable

from headrace.errors import Invalid
from headrace.metadata.port import Signal

LOST = 0
"""The revision of a signal that says: signals may have been lost, trust nothing that was read before."""

REWOUND = -1
"""The revision of a signal that says: the store may have been taken back to an earlier state."""


class HubWatch:
    """One reader's watch; see `port.Watch`."""

    __slots__ = ("_forget", "_is_closed", "_pending", "_waiter", "prefix")

    def __init__(self, prefix: str, forget: Callable[["HubWatch"], None]) -> None:
        self.prefix = prefix
        self._forget = forget
        self._pending: int | None = LOST
        self._waiter: asyncio.Future[None] | None = None
        self._is_closed = False

    async def wait(self) -> Signal:
        """Wait until something under the prefix may have changed since the last `wait` returned."""
        if self._waiter is not None:
            raise Invalid(f"two tasks wait on one watch of {self.prefix}: open a watch for each")
        while self._pending is None and not self._is_closed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._is_closed or self._pending is None:
            raise asyncio.CancelledError(f"the watch of {self.prefix} was closed")
        revision, self._pending = self._pending, None
        return Signal(self.prefix, revision)

    def close(self) -> None:
        """Stop watching; a waiter is woken with `asyncio.CancelledError`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._forget(self)
        self._wake()

    def signal(self, revision: int) -> None:
        """Note a change and wake the reader. A lost signal outweighs every revision, and a rewind outweighs both."""
        if self._pending is None:
            self._pending = revision
        elif min(self._pending, revision) <= LOST:
            self._pending = min(self._pending, revision)
        else:
            self._pending = max(self._pending, revision)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class WatchHub:
    """All watches of one store in one process."""

    def __init__(self) -> None:
        # A dict, because it keeps the order in which watches were opened: one seed, one history.
        self._watches: dict[HubWatch, None] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, prefix: str) -> HubWatch:
        """Open a watch. It begins signalled, so that its reader starts with a read."""
        watch = HubWatch(prefix, self._forget)
        if self._is_closed:
            watch.close()
        else:
            self._watches[watch] = None
        return watch

    def signal(self, units: Iterable[str], revision: int) -> None:
        """Wake every watch whose prefix lies in a changed unit, or holds one."""
        if not self._watches:
            return
        for unit in units:
            for watch in self._watches:
                if unit.startswith(watch.prefix) or watch.prefix.startswith(unit):
                    watch.signal(revision)

    def signal_lost(self) -> None:
        """Tell every watch that signals may have been lost."""
        for watch in self._watches:
            watch.signal(LOST)

    def signal_rewound(self) -> None:
        """Tell every watch that the store may have been taken back to an earlier state."""
        for watch in self._watches:
            watch.signal(REWOUND)

    def close(self) -> None:
        """Close every watch, now and to come."""
        self._is_closed = True
        for watch in list(self._watches):
            watch.close()

    def _forget(self, watch: HubWatch) -> None:
        self._watches.pop(watch, None)
