"""The metadata store on PostgreSQL.

1. Wait for the units among the transactions of this process, without a connection.
2. Begin, and take the advisory lock of each unit, in one order for everybody: so nobody waits in a circle.
3. Read. The statement's snapshot is taken after the locks, so it sees what their last holders wrote.
4. Decide, write, commit.
5. Signal the watches of this process, and let the notifier tell the others.

Row locks would not do: they do not lock rows that are absent, nor ranges. A transaction in a session holds the
lock of the session's unit in shared mode, so that the session cannot end beside it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import asyncpg

from headrace.errors import OutcomeUnknown, Retryable, Unsupported, Unusable
from headrace.metadata import keys
from headrace.metadata.checking import changed_units, check_decision, check_range, check_reads
from headrace.metadata.port import (
    Committed,
    Decision,
    Key,
    Range,
    Reads,
    Renewals,
    Seen,
    SessionState,
    Unit,
    Versioned,
    Watch,
)
from headrace.metadata.postgres.connections import (
    PostgresLimits,
    connect_arguments,
    open_pool,
    split_url,
)
from headrace.metadata.postgres.failures import CONNECTION_ERRORS, ERRORS, translated
from headrace.metadata.postgres.history import History
from headrace.metadata.postgres.listening import Listener
from headrace.metadata.postgres.notifying import Notifier
from headrace.metadata.postgres.renewing import PostgresRenewals, renew_on
from headrace.metadata.postgres.statements import SCHEMA_VERSION, Statements
from headrace.metadata.postgres.turns import Turns
from headrace.metadata.session_records import encode_session, ended, new_session_id, session_state
from headrace.metadata.watching import LOST, WatchHub
from headrace.model.ids import SessionId
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints
from headrace.runtime.rng import Rng

MAX_END_TRIES = 10
MAX_SESSIONS = 2**31 - 1

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"


@dataclass(slots=True)
class Changes:
    """What a transaction has written: until its COMMIT has returned, the revision is not known to be there."""

    units: Sequence[Unit] = ()
    revision: int = LOST


class PostgresMetadata:
    """The engine for many hosts; see `port.MetadataStore`. `open` makes one."""

    def __init__(
        self,
        pool: "asyncpg.Pool[asyncpg.Record]",
        statements: Statements,
        listener: Listener,
        notifier: Notifier,
        history: History,
        *,
        hub: WatchHub,
        rng: Rng,
        crash_points: CrashPoints,
        limits: PostgresLimits,
        dsn: str,
    ) -> None:
        self._pool = pool
        self._sql = statements
        self._listener = listener
        self._notifier = notifier
        self._history = history
        self._hub = hub
        self._rng = rng
        self._crash_points = crash_points
        self._limits = limits
        self._dsn = dsn
        self._acquire_timeout_s = limits.connect_timeout_s
        self._turns = Turns(limit_s=limits.answer_timeout_s, pool_size=limits.pool_size)
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock,
        rng: Rng,
        crash_points: CrashPoints,
        limits: PostgresLimits | None = None,
    ) -> "PostgresMetadata":
        """Connect, and create the schema if it is missing. Raises `Retryable` while the server cannot be reached."""
        limits = limits or PostgresLimits()
        dsn, schema = split_url(url)
        statements = Statements(schema)
        with translated():
            pool = await open_pool(dsn, limits)
        hub = WatchHub()
        history = History(on_rewind=hub.signal_rewound)
        notifier = Notifier(
            schema, connect=lambda: asyncpg.connect(**connect_arguments(dsn, limits, is_durable=False)), clock=clock
        )
        listener = Listener(
            schema,
            connect=lambda: asyncpg.connect(**connect_arguments(dsn, limits)),
            hub=hub,
            clock=clock,
            is_own=lambda pid: pid == notifier.pid,
            on_server=history.note_server,
        )
        try:
            await _create_schema(pool, statements)
        except BaseException:
            pool.terminate()
            raise
        return cls(
            pool,
            statements,
            listener,
            notifier,
            history,
            hub=hub,
            rng=rng,
            crash_points=crash_points,
            limits=limits,
            dsn=dsn,
        )

    async def get(self, key: Key) -> Versioned | None:
        found = await self._fetch(self._sql.read_one, keys.check(key))
        return Versioned(*found[0]) if found else None

    async def range(self, range_: Range) -> list[Versioned]:
        check_range(range_)
        return await self._read_range(range_)

    async def transact(
        self,
        units: Sequence[Unit],
        reads: Reads,
        decide: Callable[[Seen], Decision[T]],
        *,
        session: SessionId | None = None,
    ) -> Committed[T]:
        check_reads(units, reads)

        async def body(connection: Connection, changes: Changes) -> Committed[T]:
            decision = decide(await self._see(connection, reads, session))
            check_decision(units, decision, has_session=session is not None)
            changed = changed_units(units, decision)
            if not changed:
                return Committed(decision.result, 0)
            changes.units = changed
            changes.revision = await self._write(connection, decision, session)
            return Committed(decision.result, changes.revision)

        shared = () if session is None else (keys.unit_of(keys.session(session)),)
        return await self._transact(units, shared, body)

    def watch(self, prefix: str) -> Watch:
        watch = self._hub.watch(prefix)
        if not self._is_closed:
            self._listener.start()
        return watch

    async def open_session(self, *, timeout_ms: int) -> SessionId:
        value = encode_session(timeout_ms)
        session = new_session_id(self._rng)
        key = keys.session(session)
        unit = keys.unit_of(key)

        async def body(connection: Connection, changes: Changes) -> None:
            changes.units = [unit]
            changes.revision = await self._write(connection, Decision(result=None, puts={key: value}), None)

        await self._transact([unit], (), body)
        return session

    async def renew_session(self, session: SessionId) -> None:
        connection = await self._acquire()
        try:
            revision = await renew_on(connection, self._sql, session)
        finally:
            await self._release(connection)
        self._tell_renewed(session, revision)

    def renewals(self, *, timeout_ms: int) -> Renewals | None:
        # A server that has gone says nothing, so the driver waits no longer than the server may take.
        limits = self._limits.for_renewals(timeout_ms)
        arguments = {**connect_arguments(self._dsn, limits), "command_timeout": limits.statement_timeout_ms / 1000}
        loop = asyncio.get_running_loop()

        def tell(session: SessionId, revision: int) -> None:
            with contextlib.suppress(RuntimeError):  # The store's own thread has ended before this one.
                loop.call_soon_threadsafe(self._tell_renewed, session, revision)

        return PostgresRenewals(
            lambda: asyncpg.connect(**arguments), self._sql, check_open=self._check_open, tell=tell
        )

    async def end_session(self, session: SessionId) -> None:
        await self._end_session(session, None)

    async def sessions(self) -> list[SessionState]:
        everyone = keys.prefix_range(keys.SESSIONS, limit=MAX_SESSIONS)
        return [session_state(row) for row in await self._read_range(everyone)]

    async def expire_session(self, seen: SessionState) -> bool:
        return await self._end_session(seen.id, seen.version)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._hub.close()
        await self._listener.close()
        try:
            await self._pool.close()
        except ERRORS:
            self._pool.terminate()
        await self._notifier.close()  # After the pool: what was under way is committed, and others must hear of it.

    def _tell(self, units: Sequence[Unit], revision: int) -> None:
        """Signal the watches of this process at once, those of others soon."""
        if units:
            self._hub.signal(units, revision)
            self._notifier.note(units, revision)

    def _tell_renewed(self, session: SessionId, revision: int) -> None:
        self._tell([keys.unit_of(keys.session(session))], revision)

    async def _transact(
        self, units: Sequence[Unit], shared: Sequence[Unit], body: Callable[[Connection, Changes], Awaitable[T]]
    ) -> T:
        script = self._sql.begin(
            {self._sql.lock_id(unit) for unit in units}, {self._sql.lock_id(unit) for unit in shared}
        )
        changes, mark = Changes(), self._history.mark()
        try:
            async with self._turns.take(units):
                result = await self._transact_in_turn(script, lambda connection: body(connection, changes))
        except BaseException:
            # The commit may have taken effect all the same, and whoever asked for it may be gone.
            self._tell(changes.units, LOST)
            raise
        if changes.units:
            self._history.note_revision(changes.revision, mark)
        self._tell(changes.units, changes.revision)
        return result

    async def _transact_in_turn(self, script: str, body: Callable[[Connection], Awaitable[T]]) -> T:
        connection = await self._acquire()
        try:
            with translated():
                await connection.execute(script)
            result = await body(connection)
            await self._commit(connection)
        except Exception as error:
            await _roll_back(connection, error)
            raise
        except BaseException:
            _terminate(connection)  # Cancelled: the server rolls back what a closed connection leaves behind.
            raise
        finally:
            await self._release(connection)
        return result

    async def _commit(self, connection: Connection) -> None:
        self._crash_points.reach(CrashPoint.METADATA_BEFORE_COMMIT)
        with translated(is_commit=True):
            status = await connection.execute("COMMIT")
        if status != "COMMIT":
            raise Retryable(f"PostgreSQL rolled back where we asked it to commit: {status}")
        self._crash_points.reach(CrashPoint.METADATA_AFTER_COMMIT)

    async def _see(self, connection: Connection, reads: Reads, session: SessionId | None) -> Seen:
        session_key = None if session is None else keys.session(session)
        wanted = list(reads.keys) if session_key is None else [*reads.keys, session_key]
        with translated():
            if reads.ranges:
                found = await connection.fetch(self._sql.read_all, wanted, *_range_arguments(reads.ranges))
            elif wanted:
                found = await connection.fetch(self._sql.read_keys, wanted)
            else:
                found = []
        values: dict[Key, Versioned] = {}
        numbered: dict[int, list[Versioned]] = {}
        for number, key, value, version in found:
            row = Versioned(key, value, version)
            if number == 0:
                values[key] = row
            else:
                numbered.setdefault(number, []).append(row)
        if session is not None and session_key is not None:
            if session_key not in values:
                raise ended(session)
            if session_key not in reads.keys:
                del values[session_key]
        return Seen(values, [_in_order(numbered.get(number, []), number) for number in _numbers(reads.ranges)])

    async def _write(self, connection: Connection, decision: Decision[Any], session: SessionId | None) -> int:
        # In key order: folding puts thousands of keys at the ends of a hundred runs, and run by run they take less.
        puts, ephemerals = dict(sorted(decision.puts.items())), decision.ephemerals
        with translated():
            return int(
                await connection.fetchval(
                    self._sql.write,
                    list(puts),
                    list(puts.values()),
                    list(ephemerals),
                    list(ephemerals.values()),
                    session,
                    list(decision.deletes),
                )
            )

    async def _end_session(self, session: SessionId, version: int | None) -> bool:
        """End a session, if it still has the version that was seen; say whether it ended now."""
        key = keys.session(session)

        for _ in range(MAX_END_TRIES):
            owned = [found for (found,) in await self._fetch(self._sql.read_session_keys, session)]
            units = sorted({keys.unit_of(found) for found in (key, *owned)})
            body = partial(self._end_locked, session, version, units)
            has_ended = await self._transact(units, (), body)
            if has_ended is not None:
                return has_ended
        raise Retryable(f"session {session} got ephemeral keys faster than it could be ended: try again")

    async def _end_locked(
        self,
        session: SessionId,
        version: int | None,
        units: Sequence[Unit],
        connection: Connection,
        changes: Changes,
    ) -> bool | None:
        """Return `None` if the session got keys in other units before its own unit was locked."""
        key = keys.session(session)
        row = (await self._see(connection, Reads(keys=[key]), None)).values.get(key)
        if row is None or version not in (None, row.version):
            return False
        with translated():
            owned = [found for (found,) in await connection.fetch(self._sql.read_session_keys, session)]
        if not {keys.unit_of(found) for found in owned} <= set(units):
            return None
        changes.units = units
        changes.revision = await self._write(connection, Decision(result=None, deletes=[key, *owned]), None)
        return True

    async def _fetch(self, statement: str, *arguments: object) -> list[Any]:
        connection = await self._acquire()
        try:
            with translated():
                return await connection.fetch(statement, *arguments)
        finally:
            await self._release(connection)

    async def _read_range(self, range_: Range) -> list[Versioned]:
        statement = self._sql.read_reverse if range_.reverse else self._sql.read_range
        return [Versioned(*row) for row in await self._fetch(statement, range_.start, range_.end, range_.limit)]

    async def _acquire(self) -> Connection:
        self._check_open()
        try:
            with translated():
                connection = await self._pool.acquire(timeout=self._acquire_timeout_s)
        except Retryable:
            # The pool refuses whoever comes while it closes; only a closed store is not worth another try.
            self._check_open()
            raise
        if self._is_closed:
            # The pool serves whoever was waiting already, and closes the connection under their hands.
            await self._release(connection)
            self._check_open()
        return connection

    async def _release(self, connection: Connection) -> None:
        # A connection that broke is replaced by the pool; whoever used it has been told already.
        with contextlib.suppress(*ERRORS):
            await self._pool.release(connection)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unusable("this metadata store is closed: open it again")


async def _create_schema(pool: "asyncpg.Pool[asyncpg.Record]", statements: Statements) -> None:
    """Create the schema if it is missing, and touch nothing if it is there.

    It may belong to a newer release; and a change of a table, however small, waits for everybody who reads it,
    a backup for instance, while all others wait behind it.
    """
    with translated():
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(statements.lock_schema)
            if not await connection.fetchval(statements.has_schema):
                await connection.execute(statements.create())
            version = await connection.fetchval(statements.read_schema_version)
    if version > SCHEMA_VERSION:
        raise Unsupported(
            f"schema {statements.schema} has version {version}, this release knows up to {SCHEMA_VERSION}: upgrade it"
        )


async def _roll_back(connection: Connection, error: Exception) -> None:
    """Make a connection fit for the next transaction, or close it: the server then rolls back by itself."""
    if isinstance(error, OutcomeUnknown) or isinstance(error.__cause__, CONNECTION_ERRORS):
        _terminate(connection)
        return
    try:
        await connection.execute("ROLLBACK")
    except ERRORS:
        _terminate(connection)


def _terminate(connection: Connection) -> None:
    # A connection that broke by itself is the pool's again already, and says so.
    with contextlib.suppress(asyncpg.InterfaceError):
        connection.terminate()


def _range_arguments(ranges: Sequence[Range]) -> list[list[Any]]:
    forward = [range_ for range_ in ranges if not range_.reverse]
    reverse = [range_ for range_ in ranges if range_.reverse]
    return [
        column
        for group in (forward, reverse)
        for column in ([one.start for one in group], [one.end for one in group], [one.limit for one in group])
    ]


def _numbers(ranges: Sequence[Range]) -> list[int]:
    """Return the number that the rows of each range carry: see `statements.read_all`."""
    counts = {False: 0, True: 0}
    numbers = []
    for range_ in ranges:
        counts[range_.reverse] += 1
        numbers.append(-counts[True] if range_.reverse else counts[False])
    return numbers


def _in_order(rows: list[Versioned], number: int) -> list[Versioned]:
    # UNION ALL promises no order, even if it keeps one; sorting what is sorted costs next to nothing.
    return sorted(rows, key=lambda row: row.key, reverse=number < 0)
