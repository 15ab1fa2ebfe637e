"""Renewing sessions on a connection of its own, so that a renewal never waits for the pool.

Must stay true: a renewal takes the lock of the session's unit in shared mode, as transactions in the session do. So
it waits for none of them, however long they wait for their domain, and only ending the session excludes it. Whom to
tell of it is left to the store's own thread: a renewal must not wait for that either.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import asyncpg

from headrace.metadata import keys
from headrace.metadata.postgres.failures import translated
from headrace.metadata.postgres.statements import Statements
from headrace.metadata.session_records import ended
from headrace.model.ids import SessionId

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"


async def renew_on(connection: Connection, sql: Statements, session: SessionId) -> int:
    """Renew a session in one statement, which is a transaction; return its revision.

    Raises `Fenced` if the session has ended.
    """
    key = keys.session(session)
    with translated(is_commit=True):
        revision = await connection.fetchval(sql.renew, sql.lock_id(keys.unit_of(key)), key)
    if revision is None:
        raise ended(session)
    return int(revision)


class PostgresRenewals:
    """See `port.Renewals`. A connection that failed is replaced with the next renewal."""

    def __init__(
        self,
        connect: "Callable[[], Awaitable[asyncpg.Connection[asyncpg.Record]]]",
        sql: Statements,
        *,
        check_open: Callable[[], None],
        tell: Callable[[SessionId, int], None],
    ) -> None:
        self._connect = connect
        self._sql = sql
        self._check_open = check_open
        self._tell = tell
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def renew(self, session: SessionId) -> None:
        self._check_open()
        try:
            if self._connection is None:
                with translated():
                    self._connection = await self._connect()
            self._tell(session, await renew_on(self._connection, self._sql, session))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(asyncpg.InterfaceError):
                self._connection.terminate()
            self._connection = None
