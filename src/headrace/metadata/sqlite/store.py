"""The metadata store on SQLite: writes in groups on one thread, reads on others, checkpoints on their own.

Must stay true: nothing here blocks the event loop, and all state that the loop sees changes on the loop's thread.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import apsw

from headrace.errors import Unusable
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
from headrace.metadata.session_records import encode_session, ended, new_session_id, session_state
from headrace.metadata.sqlite import rows
from headrace.metadata.sqlite.checkpoints import CHECKPOINT_BUSY_LIMIT_S, Checkpointer
from headrace.metadata.sqlite.connections import BUSY_LIMIT_S, BusyHandler, connect, prepare_file
from headrace.metadata.sqlite.failures import translate
from headrace.metadata.sqlite.following import Follower, touch, watch_file
from headrace.metadata.sqlite.lock_holders import LongWaits
from headrace.metadata.sqlite.queue import LINGER_S, WriteQueue
from headrace.metadata.sqlite.renewing import RENEWAL_BUSY_LIMIT_S, SqliteRenewals, Turnstile, renewal
from headrace.metadata.sqlite.writer import GroupOutcome, GroupWriter, WriteTransaction
from headrace.metadata.watching import WatchHub
from headrace.model.ids import SessionId
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoints
from headrace.runtime.executor import Executor
from headrace.runtime.logs import Log
from headrace.runtime.rng import Rng

READERS = 2
MAX_SESSIONS = 2**31

T = TypeVar("T")
ExecutorFactory = Callable[[str, int], Executor]
"""Makes an executor from a name and a number of threads."""


class SqliteMetadata:
    """The embedded engine; see `port.MetadataStore`. `open` makes one."""

    def __init__(
        self,
        path: str,
        *,
        clock: Clock,
        rng: Rng,
        crash_points: CrashPoints,
        make_executor: ExecutorFactory,
        busy_limit_s: float,
        linger_s: float,
        log: Log | None,
    ) -> None:
        """Open the file, blocking; `open` does so on a thread."""
        self._path = path
        self._rng = rng
        self._make_executor = make_executor
        self._stop = threading.Event()
        waits = LongWaits(path, clock=clock, log=log)

        def handler(limit_s: float) -> BusyHandler:
            # Each connection has its own: the handler remembers since when it waits.
            return BusyHandler(clock, self._stop, limit_s=limit_s, on_long_wait=waits.note)

        signal_path = watch_file(path)

        def writer(connection: apsw.Connection, *, reports_others: bool) -> GroupWriter:
            return GroupWriter(
                connection,
                path,
                crash_points=crash_points,
                on_committed=lambda: touch(signal_path),
                reports_others=reports_others,
            )

        def renewal_writer() -> GroupWriter:
            try:
                return writer(connect(path, handler(RENEWAL_BUSY_LIMIT_S)), reports_others=False)
            except apsw.Error as error:
                raise translate(error, path) from error

        self._writer = writer(prepare_file(path, handler(busy_limit_s)), reports_others=True)
        self._open_renewal_writer = renewal_writer
        self._turnstile = Turnstile()
        # Without threads, as in the simulation, renewals are jobs like all others.
        self._has_threads = linger_s > 0
        self._readers = [connect(path, handler(busy_limit_s)) for _ in range(READERS)]
        self._probe = connect(path, None)
        self._executors = [make_executor(f"metadata-{name}", threads) for name, threads in _EXECUTORS]
        write_executor, self._read_executor, checkpoint_executor = self._executors
        self._checkpointer = Checkpointer(
            connect(path, handler(CHECKPOINT_BUSY_LIMIT_S)), checkpoint_executor, self._note_bad_checkpoint
        )
        self._queue = WriteQueue(
            self._writer, write_executor, linger_s=linger_s, turnstile=self._turnstile, on_outcome=self._on_outcome
        )
        self._hub = WatchHub()
        self._follower = Follower(
            path,
            hub=self._hub,
            clock=clock,
            changed_since=self._changed_since,
            is_write_locked=self._is_write_locked,
            revision=self._writer.known_revision,
        )
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        path: str,
        *,
        clock: Clock,
        rng: Rng,
        crash_points: CrashPoints,
        make_executor: ExecutorFactory,
        busy_limit_s: float = BUSY_LIMIT_S,
        linger_s: float = LINGER_S,
        log: Log | None = None,
    ) -> "SqliteMetadata":
        """Open or create a store. With an inline executor `linger_s` must be 0. The log hears of long waits.

        Raises `Unsupported` for a newer schema, `Corrupt` for a damaged file.
        """
        opener = make_executor("metadata-open", 1)
        try:
            return await opener.run(
                lambda: cls(
                    path,
                    clock=clock,
                    rng=rng,
                    crash_points=crash_points,
                    make_executor=make_executor,
                    busy_limit_s=busy_limit_s,
                    linger_s=linger_s,
                    log=log,
                )
            )
        except apsw.Error as error:
            raise translate(error, path) from error
        finally:
            opener.close()

    async def get(self, key: Key) -> Versioned | None:
        keys.check(key)
        return (await self._read(lambda connection: rows.read_keys(connection, (key,)))).get(key)

    async def range(self, range_: Range) -> list[Versioned]:
        check_range(range_)
        return await self._read(lambda connection: rows.read_range(connection, range_))

    async def transact(
        self,
        units: Sequence[Unit],
        reads: Reads,
        decide: Callable[[Seen], Decision[T]],
        *,
        session: SessionId | None = None,
    ) -> Committed[T]:
        check_reads(units, reads)

        def job(transaction: WriteTransaction) -> Committed[T]:
            if session is not None and not transaction.read_keys((keys.session(session),)):
                raise ended(session)
            values = transaction.read_keys(reads.keys)
            decision = decide(Seen(values, [transaction.read_range(range_) for range_ in reads.ranges]))
            check_decision(units, decision, has_session=session is not None)
            changed = changed_units(units, decision)
            if not changed:
                return Committed(decision.result, 0)
            revision = transaction.write(
                changed,
                puts=decision.puts,
                ephemerals=decision.ephemerals,
                session=session,
                deletes=decision.deletes,
            )
            return Committed(decision.result, revision)

        return await self._queue.run(job)

    def watch(self, prefix: str) -> Watch:
        watch = self._hub.watch(prefix)
        if not self._is_closed:
            self._follower.start()
        return watch

    async def open_session(self, *, timeout_ms: int) -> SessionId:
        value = encode_session(timeout_ms)
        session = new_session_id(self._rng)
        key = keys.session(session)
        await self._queue.run(lambda transaction: transaction.write([keys.unit_of(key)], puts={key: value}))
        return session

    async def renew_session(self, session: SessionId) -> None:
        await self._queue.run(renewal(session))

    def renewals(self, *, timeout_ms: int) -> Renewals | None:
        if not self._has_threads:
            return None
        loop = asyncio.get_running_loop()

        def on_written(writer: GroupWriter, wal_pages: int) -> None:
            # What one writer must not trust the other must not, either.
            self._writer.unusable_because = self._writer.unusable_because or writer.unusable_because
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody checkpoints any more.
                loop.call_soon_threadsafe(self._note_pages, wal_pages)

        return SqliteRenewals(
            self._open_renewal_writer, self._turnstile, check_usable=self._check_usable, on_written=on_written
        )

    async def end_session(self, session: SessionId) -> None:
        await self._queue.run(lambda transaction: _end_session(transaction, session, None))

    async def sessions(self) -> list[SessionState]:
        everyone = keys.prefix_range(keys.SESSIONS, limit=MAX_SESSIONS)
        return [
            session_state(row) for row in await self._read(lambda connection: rows.read_range(connection, everyone))
        ]

    async def expire_session(self, seen: SessionState) -> bool:
        return await self._queue.run(lambda transaction: _end_session(transaction, seen.id, seen.version))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._hub.close()
        self._stop.set()
        await self._follower.close()
        await self._queue.close()
        await self._checkpointer.close()
        closer = self._make_executor("metadata-close", 1)
        try:
            await closer.run(self._close_connections)
        finally:
            closer.close()

    async def _read(self, read: Callable[[apsw.Connection], T]) -> T:
        self._check_usable()

        def work() -> T:
            connection = self._readers.pop()
            try:
                return read(connection)
            except apsw.Error as error:
                raise translate(error, self._path) from error
            finally:
                self._readers.append(connection)

        return await self._read_executor.run(work)

    async def _changed_since(self, revision: int) -> list[tuple[str, int]]:
        return await self._read(lambda connection: rows.changed_since(connection, revision))

    async def _is_write_locked(self) -> bool:
        """Return whether some process is in the middle of a write, by taking the lock for an instant."""

        def work() -> bool:
            try:
                self._probe.execute("BEGIN IMMEDIATE")
                self._probe.execute("ROLLBACK")
            except apsw.Error:
                return True
            return False

        return await self._read_executor.run(work)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise Unusable("this metadata store is closed: open it again")
        reason = self._writer.unusable_because
        if reason is not None:
            raise Unusable(f"{self._path} is not to be trusted: {reason}; stop this process and look at the disk")

    def _on_outcome(self, outcome: GroupOutcome) -> None:
        for unit, revision in outcome.changed:
            self._hub.signal([unit], revision)
        self._follower.note_revision(outcome.last_revision)
        self._checkpointer.note_pages(outcome.wal_pages)

    def _note_pages(self, wal_pages: int) -> None:
        # A broker that is idle writes nothing but renewals, and its log must be checkpointed all the same.
        if not self._is_closed:
            self._checkpointer.note_pages(wal_pages)

    def _note_bad_checkpoint(self, error: apsw.Error) -> None:
        # Pages whose fsync failed may count as clean the next time: a second checkpoint would prove nothing.
        if not isinstance(error, apsw.FullError):
            self._writer.unusable_because = f"a checkpoint failed: {error!r}"

    def _close_connections(self) -> None:
        # Reads under way end first, those of cancelled callers too: until then their connections are in use.
        for executor in self._executors:
            executor.close()
        for connection in (*self._readers, self._probe):
            connection.close()
        self._writer.close()


_EXECUTORS = (("write", 1), ("read", READERS), ("checkpoint", 1))


def _end_session(transaction: WriteTransaction, session: SessionId, version: int | None) -> bool:
    """End a session, if it still has the version that was seen; say whether it ended now."""
    key = keys.session(session)
    row = transaction.read_keys((key,)).get(key)
    if row is None or version not in (None, row.version):
        return False
    deletes = [key, *transaction.read_session_keys(session)]
    transaction.write(sorted({keys.unit_of(deleted) for deleted in deletes}), deletes=deletes)
    return True
