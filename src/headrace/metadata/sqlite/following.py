"""Following the commits of other processes, for watches.

After its COMMIT a process opens and closes `meta.db-watch` for writing, which inotify reports everywhere without
anything being written. Between the two it may be killed, so the write-ahead log is watched too. That event alone is
too early: SQLite writes the log first, then syncs, and only then do readers see the commit. Therefore:

1. Whenever something happened, read which units changed.
2. When nothing has happened for `SETTLE_S`, look once more, at a moment at which nobody holds the write lock.
3. Only then sleep until the next event, at no cost.

Must stay true: after the last commit of any process there is a look at the units that sees it.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.metadata.sqlite.inotify import IN_CLOSE_WRITE, IN_MODIFY, IN_ONESHOT, Inotify
from headrace.metadata.watching import WatchHub
from headrace.runtime.clock import Clock

SETTLE_S = 0.05
POLL_S = 0.01
"""How often to look where there is no inotify, as long as somebody watches."""

MIN_GAP_S = 0.004
MAX_GAP_S = 0.05
"""Between two looks: a process that commits a thousand times a second wakes itself and others this often. As long as
looks find nothing but this process's own commits, the gap grows from one to the other."""


def watch_file(path: str) -> Path:
    """Return the file that a process touches after a commit."""
    return Path(path + "-watch")


def touch(path: Path) -> None:
    """Tell other processes that a commit has become visible; nothing is written to disk."""
    # Without a file descriptor left, others still learn of the commit through the log.
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


class Follower:
    """Looks for commits of other processes while somebody watches, and tells the hub."""

    def __init__(
        self,
        path: str,
        *,
        hub: WatchHub,
        clock: Clock,
        changed_since: Callable[[int], Awaitable[list[tuple[str, int]]]],
        is_write_locked: Callable[[], Awaitable[bool]],
        revision: int,
    ) -> None:
        self._wal = Path(path + "-wal")
        self._watch_file = watch_file(path)
        self._hub = hub
        self._clock = clock
        self._changed_since = changed_since
        self._is_write_locked = is_write_locked
        self._revision = revision
        self._inotify = self._open_inotify()
        self._running: asyncio.Task[None] | None = None

    @property
    def polls(self) -> bool:
        """Whether it looks by the clock, for want of inotify."""
        return self._inotify is None

    def note_revision(self, revision: int) -> None:
        """Skip changes that the hub has been told of already."""
        self._revision = max(self._revision, revision)

    def start(self) -> None:
        """Follow until nobody watches any more."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Stop following."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        if self._inotify is not None:
            self._inotify.close()

    async def _follow(self) -> None:
        was_quiet = False
        gap_s = MIN_GAP_S
        while len(self._hub):
            self._arm()
            is_settled = was_quiet and not await self._is_write_locked()
            gap_s = MIN_GAP_S if await self._look() or was_quiet else min(2 * gap_s, MAX_GAP_S)
            await self._clock.sleep(gap_s)
            was_quiet = not await self._wait(None if is_settled else SETTLE_S)

    async def _look(self) -> bool:
        """Tell the hub what changed since the last look; say whether something did."""
        try:
            changed = await self._changed_since(self._revision)
        except HeadraceError:
            # Whoever reads gets the error; a watch only has to make sure that somebody does.
            self._hub.signal_lost()
            return False
        for unit, revision in changed:
            self._hub.signal([unit], revision)
            self.note_revision(revision)
        return bool(changed)

    async def _wait(self, timeout_s: float | None) -> bool:
        """Wait for an event and return whether there was one."""
        if self._inotify is None:
            await self._clock.sleep(POLL_S)
            return True
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._inotify.fileno(), readable.set)
        try:
            async with asyncio.timeout(timeout_s):
                await readable.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._inotify.fileno())
        self._inotify.drain()
        return True

    def _arm(self) -> None:
        if self._inotify is None:
            return
        try:
            # One event of the log is enough to look twice; without ONESHOT every page of a commit would be one.
            self._inotify.watch(self._wal, IN_MODIFY | IN_ONESHOT)
            self._inotify.watch(self._watch_file, IN_CLOSE_WRITE)
        except OSError:
            self._inotify.close()  # No watch left on this system, or the file was moved away: look by the clock.
            self._inotify = None

    def _open_inotify(self) -> Inotify | None:
        touch(self._watch_file)
        try:
            return Inotify()
        except OSError:
            return None
