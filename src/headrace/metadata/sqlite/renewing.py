"""Renewing sessions on a connection of its own, so that a renewal never queues behind this process's own commits.

Must stay true: SQLite's lock is the one that counts. `Turnstile` is a courtesy between the two writers of one
process: without it, a writer that begins again right after each commit would leave the other only a gap.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

from headrace.metadata import keys
from headrace.metadata.session_records import ended
from headrace.metadata.sqlite.writer import Failed, GroupWriter, Job, WriteTransaction
from headrace.model.ids import SessionId

RENEWAL_BUSY_LIMIT_S = 0.25
"""How long one try waits for the lock of another process; the keeper tries again until its session's deadline."""

TURN_LIMIT_S = 0.1
"""How long a writer waits for the other one of its process before it asks SQLite itself."""


class Turnstile:
    """Lets two threads write by turns: who has asked goes next, however quickly the other comes back."""

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._working = threading.Lock()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, though not for long."""
        is_next = self._next.acquire(timeout=TURN_LIMIT_S)
        has_turn = self._working.acquire(timeout=TURN_LIMIT_S)
        if is_next:
            self._next.release()
        try:
            yield
        finally:
            if has_turn:
                self._working.release()


def renewal(session: SessionId) -> Job:
    """Return the job that renews a session. It raises `Fenced` if the session has ended."""
    key = keys.session(session)

    def job(transaction: WriteTransaction) -> None:
        found = transaction.read_keys((key,))
        if not found:
            raise ended(session)
        transaction.write([keys.unit_of(key)], puts={key: found[key].value})

    return job


class SqliteRenewals:
    """See `port.Renewals`. The connection is opened by the thread that uses it, with the first renewal."""

    def __init__(
        self,
        open_writer: Callable[[], GroupWriter],
        turnstile: Turnstile,
        *,
        check_usable: Callable[[], None],
        on_written: Callable[[GroupWriter, int], None],
    ) -> None:
        self._open_writer = open_writer
        self._turnstile = turnstile
        self._check_usable = check_usable
        self._on_written = on_written
        self._writer: GroupWriter | None = None

    async def renew(self, session: SessionId) -> None:
        self._check_usable()
        if self._writer is None:
            self._writer = self._open_writer()
        with self._turnstile.turn():
            outcome = self._writer.run([renewal(session)])
        self._on_written(self._writer, outcome.wal_pages)
        [answer] = outcome.answers
        if isinstance(answer, Failed):
            raise answer.error

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
