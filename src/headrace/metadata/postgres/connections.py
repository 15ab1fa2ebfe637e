"""Connections to PostgreSQL: their settings, and the pool.

Must stay true: every wait has a limit that the *server* keeps, so a process that is paused in the middle of a
transaction loses its locks instead of holding the cluster.
"""

from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from headrace.errors import Unsupported

DEFAULT_SCHEMA = "headrace"

RENEWAL_TRIES_PER_TIMEOUT = 4
"""One try to renew a session takes at most this fraction of the session's timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresLimits:
    """How many connections, and how long anything may take.

    The time-outs stand in proportion to the session's, 5 s: who waits for a lock gives up (1.5 s) before the server
    takes the lock from a paused holder (2 s), and both happen in less than half a session.
    """

    pool_size: int = 10
    lock_timeout_ms: int = 1_500
    idle_in_transaction_timeout_ms: int = 2_000
    statement_timeout_ms: int = 15_000
    client_check_ms: int = 250
    connect_timeout_s: float = 10.0

    def for_renewals(self, timeout_ms: int) -> "PostgresLimits":
        """Return the limits of a connection that renews: a try that hangs ends while there is time for another."""
        try_ms = max(1, timeout_ms // RENEWAL_TRIES_PER_TIMEOUT)
        return replace(self, lock_timeout_ms=try_ms, statement_timeout_ms=try_ms, connect_timeout_s=try_ms / 1000)

    @property
    def answer_timeout_s(self) -> float:
        """How long to wait for a server that may have gone: somewhat longer than it may take itself."""
        return self.statement_timeout_ms / 1000 + 5


def split_url(url: str) -> tuple[str, str]:
    """Return the URL for the driver, and the schema that its `schema` parameter names."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    schema = query.pop("schema", DEFAULT_SCHEMA)
    return urlunsplit(parts._replace(query=urlencode(query))), schema


def connect_arguments(url: str, limits: PostgresLimits, *, is_durable: bool = True) -> dict[str, Any]:
    """Return what `asyncpg` needs to open a connection as we want it; one that is not durable only notifies."""
    return {
        "dsn": url,
        "timeout": limits.connect_timeout_s,
        "command_timeout": limits.answer_timeout_s,
        "server_settings": {
            "application_name": "headrace",
            "default_transaction_isolation": "read committed",
            **({} if is_durable else {"synchronous_commit": "off"}),
            "lock_timeout": str(limits.lock_timeout_ms),
            "idle_in_transaction_session_timeout": str(limits.idle_in_transaction_timeout_ms),
            "statement_timeout": str(limits.statement_timeout_ms),
            # Without this a backend that waits for a lock does so for a caller that was cancelled or killed, too, and
            # callers who come and go would use up the connections of the server.
            "client_connection_check_interval": str(limits.client_check_ms),
            # Every statement finds its rows by key; a plan made while the table was small must not scan it later.
            "enable_seqscan": "off",
            "plan_cache_mode": "force_generic_plan",
            "jit": "off",
        },
    }


async def open_pool(url: str, limits: PostgresLimits) -> "asyncpg.Pool[asyncpg.Record]":
    """Open a pool with one connection; the others follow when they are needed."""
    return await asyncpg.create_pool(
        **connect_arguments(url, limits), min_size=1, max_size=limits.pool_size, init=_prepare, reset=_leave
    )


async def _prepare(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Refuse a server that would forget what it has acknowledged."""
    if await connection.fetchval("SELECT current_setting('fsync')") != "on":
        raise Unsupported("this PostgreSQL runs with fsync=off and may lose commits: turn it on")
    if await connection.fetchval("SELECT current_setting('synchronous_commit')") == "off":
        await connection.execute("SET synchronous_commit = on")


async def _leave(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Hand a connection back as it is: we change no setting of it, and asyncpg's own reset is a round trip."""
