"""Watches across hosts: LISTEN on a connection of its own.

Must stay true:
- Whatever may have been missed while the connection was down is made good by a signal that says so, sent after LISTEN
  has taken effect.
- A notification comes after the commit that it reports (`notifying.py`), so a process that dies between the two
  reports nothing. Therefore every watch is signalled by the clock, too: a commit is unseen for `REREAD_S` at most.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from headrace.metadata.postgres.failures import ERRORS
from headrace.metadata.watching import WatchHub
from headrace.runtime.clock import Clock

MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0
REREAD_S = 5.0
"""How often every watch is signalled, whatever was heard: a commit whose process died is then seen.
The connection is asked first whether it is still there: a peer that vanished does not say so."""

SERVER = (
    "SELECT system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) FROM pg_control_system()"
)
"""Names the cluster of databases and its timeline, which is another one after a fail-over or a restore."""

Connect = Callable[[], Awaitable["asyncpg.Connection[asyncpg.Record]"]]


class Listener:
    """Keeps one listening connection open while somebody watches, and tells the hub what it hears."""

    def __init__(
        self,
        channel: str,
        *,
        connect: Connect,
        hub: WatchHub,
        clock: Clock,
        is_own: Callable[[int], bool] = lambda pid: False,
        on_server: Callable[[str], None] = lambda server: None,
        reread_s: float = REREAD_S,
    ) -> None:
        self._channel = channel
        self._connect = connect
        self._hub = hub
        self._clock = clock
        self._is_own = is_own
        self._on_server = on_server
        self._reread_s = reread_s
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen until `close`."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._listen_for_ever())

    async def close(self) -> None:
        """Stop listening."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _listen_for_ever(self) -> None:
        backoff_s = MIN_BACKOFF_S
        while True:
            if await self._listen():
                backoff_s = MIN_BACKOFF_S
            await self._clock.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _listen(self) -> bool:
        """Listen until the connection is lost, and return whether it came to listening at all."""
        has_listened = False
        with contextlib.suppress(*ERRORS):
            connection = await self._connect()
            try:
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _: lost.set())
                await connection.add_listener(self._channel, self._hear)
                has_listened = True
                self._hub.signal_lost()
                await self._ask_which_server(connection)
                await self._reread(connection, lost)
            finally:
                connection.terminate()
        return has_listened

    async def _ask_which_server(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        # Services that only speak PostgreSQL's protocol may not know, or not tell. What is read shows a rewind, too.
        with contextlib.suppress(asyncpg.PostgresError):
            self._on_server(str(await connection.fetchval(SERVER)))

    async def _reread(self, connection: "asyncpg.Connection[asyncpg.Record]", lost: asyncio.Event) -> None:
        """Signal by the clock. Return, or raise what the driver raises, once the connection is lost."""
        while not lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._reread_s):
                    await lost.wait()
            await connection.execute("SELECT")
            self._hub.signal_lost()

    def _hear(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        if self._is_own(pid):
            return  # The hub was told at once.
        unit, _, revision = str(payload).rpartition(" ")
        self._hub.signal([unit], int(revision))
