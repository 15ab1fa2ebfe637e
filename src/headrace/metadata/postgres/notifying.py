"""Telling other processes which units changed: after the commit, on a connection of its own.

PostgreSQL lets transactions with a NOTIFY commit one at a time, in the whole database, and each one takes its full
flush. So no transaction that has something to flush notifies. Each store handle has one notifier instead:

1. It gathers which units were changed by transactions that have just been committed, and the newest revision of each.
2. It sends all of them in one statement, and goes on gathering meanwhile.
3. What could not be sent is sent again, together with what came since.

Must stay true: nothing that was noted is forgotten while the process lives. If the process dies between its commit
and its notification, others learn of the commit when they read again by the clock: see `listening.REREAD_S`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice

import asyncpg

from headrace.metadata.postgres.failures import ERRORS
from headrace.metadata.watching import LOST
from headrace.runtime.clock import Clock

MAX_UNITS_PER_SEND = 1_000
"""How many units one statement names: more of them go with the next one."""

MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0
CLOSE_LIMIT_S = 2.0
"""How long closing waits for the last notifications to be sent."""

Connect = Callable[[], Awaitable["asyncpg.Connection[asyncpg.Record]"]]


class Notifier:
    """Sends what was noted, on the event loop's thread and in the order in which units were first noted."""

    def __init__(self, channel: str, *, connect: Connect, clock: Clock) -> None:
        self._channel = channel
        self._connect = connect
        self._clock = clock
        self._pending: dict[str, int] = {}
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._running: asyncio.Task[None] | None = None
        self._has_news = asyncio.Event()
        self._is_closing = False
        self.pid: int | None = None
        """The server's process for our connection: what comes from there is our own news."""

    def note(self, units: Iterable[str], revision: int) -> None:
        """Take note that a commit changed units. `LOST` says that it may have, and outweighs every revision."""
        for unit in units:
            known = self._pending.get(unit, revision)
            self._pending[unit] = LOST if LOST in (known, revision) else max(known, revision)
        if self._pending:
            self._has_news.set()
            if self._running is None and not self._is_closing:
                self._running = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Send what is left, if the server takes it in time, and free the connection."""
        self._is_closing = True
        self._has_news.set()
        if self._running is not None:
            await asyncio.wait([self._running], timeout=CLOSE_LIMIT_S)
            self._running.cancel()
            await asyncio.wait([self._running])
        self._disconnect()

    async def _run(self) -> None:
        backoff_s = MIN_BACKOFF_S
        while self._pending or not self._is_closing:
            if not self._pending:
                self._has_news.clear()
                await self._has_news.wait()
                continue
            if await self._could_send():
                backoff_s = MIN_BACKOFF_S
            else:
                await self._clock.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _could_send(self) -> bool:
        """Send what is pending, or note it again if that failed: then it may be sent twice, which does no harm."""
        sent = {unit: self._pending.pop(unit) for unit in list(islice(self._pending, MAX_UNITS_PER_SEND))}
        try:
            await self._send([f"{unit} {revision}" for unit, revision in sent.items()])
        except ERRORS:
            self._disconnect()
            for unit, revision in sent.items():
                self.note([unit], revision)
            return False
        return True

    async def _send(self, payloads: list[str]) -> None:
        if self._connection is None:
            self._connection = await self._connect()
            self.pid = self._connection.get_server_pid()
        await self._connection.execute(
            "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload", self._channel, payloads
        )

    def _disconnect(self) -> None:
        connection, self._connection, self.pid = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(asyncpg.InterfaceError):
                connection.terminate()
