"""Moving commits from the write-ahead log into the database file, beside the commits and not inside one.

A PASSIVE checkpoint blocks nobody, but beside a writer that never rests it never catches up entirely, and only a
log that was moved entirely is begun anew. So when the log has grown far past the usual, a RESTART follows
the PASSIVE one: it holds writers up for the few pages that came in between.
"""

import asyncio
from collections.abc import Callable

import apsw

from headrace.runtime.executor import Executor

CHECKPOINT_PAGES = 1_000
"""A checkpoint begins when the log has grown by this many pages (of 4 KiB) since the last one."""

RESTART_PAGES = 2_000
"""A log of this many pages is begun anew, even if writers have to wait for a moment. A short log is worth it: to sync
pages that are written over costs half of what it costs to sync a file that grows."""

CHECKPOINT_BUSY_LIMIT_S = 0.02
"""How long a RESTART waits for readers. Writers wait with it, so it gives up soon and tries again later."""


class Checkpointer:
    """Runs checkpoints on a connection and a thread of their own, one at a time."""

    def __init__(
        self, connection: apsw.Connection, executor: Executor, on_error: Callable[[apsw.Error], None]
    ) -> None:
        self._connection = connection
        self._executor = executor
        self._on_error = on_error
        self._running: asyncio.Task[None] | None = None
        self._begin_at_pages = CHECKPOINT_PAGES
        self._last_pages = 0

    def note_pages(self, pages: int) -> None:
        """Begin a checkpoint if the log has become long enough; return at once."""
        if pages < self._last_pages:
            self._begin_at_pages = CHECKPOINT_PAGES  # The log was begun anew.
        self._last_pages = pages
        is_running = self._running is not None and not self._running.done()
        if pages >= self._begin_at_pages and not is_running:
            self._begin_at_pages = pages + CHECKPOINT_PAGES
            self._running = asyncio.get_running_loop().create_task(self._executor.run(self._checkpoint))

    async def close(self) -> None:
        """Wait for a checkpoint under way."""
        if self._running is not None:
            await asyncio.wait([self._running])
        self._connection.close()

    def _checkpoint(self) -> None:
        try:
            pages, _ = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if pages >= RESTART_PAGES:
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except (apsw.BusyError, apsw.LockedError):
            return  # Another process runs one, or readers did not go away: the next commit asks again.
        except apsw.Error as error:
            self._on_error(error)
