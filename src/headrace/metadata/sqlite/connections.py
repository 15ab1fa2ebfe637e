"""Opening `meta.db`: settings of a connection, the busy handler, the schema.

Must stay true: the file is opened by `apsw` alone, in WAL mode with `synchronous=FULL`. Another library in
this process that opens and closes the same file would drop the POSIX locks that SQLite holds on it.
"""

import threading
from collections.abc import Callable

import apsw

from headrace.errors import Unsupported
from headrace.metadata.sqlite.rows import SCHEMA, SCHEMA_VERSION
from headrace.runtime.clock import Clock

BUSY_LIMIT_S = 5.0
"""How long a connection waits for the lock of another process before it gives up."""

LONG_WAIT_S = 1.0
"""How long the lock of another process is waited for before that is logged: no transaction of ours takes so long."""

BUSY_NAP_S = 0.0002
"""How long it sleeps between two looks at the lock. SQLite's own handler sleeps up to 100 ms."""

CACHE_KIB = 32 * 1024
_APPLICATION_ID = 0x48454144  # "HEAD"
_STATEMENTS_CACHED = 200


class BusyHandler:
    """Waits for a lock that another process holds, in naps well below a millisecond, up to a limit."""

    def __init__(
        self,
        clock: Clock,
        stop: threading.Event,
        *,
        limit_s: float,
        on_long_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_long_wait` is called once per wait, on the thread that waits."""
        self._clock = clock
        self._stop = stop
        self._limit_s = limit_s
        self._on_long_wait = on_long_wait
        self._give_up_at = 0.0
        self._report_at: float | None = None

    def __call__(self, prior_calls: int) -> bool:
        """Return whether SQLite shall try again."""
        now = self._clock.monotonic()
        if prior_calls == 0:
            self._give_up_at = now + self._limit_s
            self._report_at = now + LONG_WAIT_S
        if self._report_at is not None and now >= self._report_at:
            self._report_at = None
            self._on_long_wait()
        if now >= self._give_up_at:
            return False
        # Closing the store sets the event and so ends the nap at once.
        return not self._stop.wait(BUSY_NAP_S)


def connect(path: str, busy_handler: Callable[[int], bool] | None) -> apsw.Connection:
    """Open one connection. Without a busy handler a lock held elsewhere is an error at once."""
    connection = apsw.Connection(path, statementcachesize=_STATEMENTS_CACHED)
    connection.set_busy_handler(busy_handler)
    connection.wal_autocheckpoint(0)
    connection.pragma("synchronous", "FULL")
    connection.pragma("cache_size", -CACHE_KIB)
    return connection


def prepare_file(path: str, busy_handler: Callable[[int], bool]) -> apsw.Connection:
    """Open the first connection, and create the schema if the file is new. Two processes may do so at once."""
    _check_library()
    connection = connect(path, busy_handler)
    _use_wal(connection, busy_handler)
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.pragma("user_version")
        if version == 0:
            connection.execute(SCHEMA)
            connection.pragma("application_id", _APPLICATION_ID)
            connection.pragma("user_version", SCHEMA_VERSION)
        elif version > SCHEMA_VERSION:
            raise Unsupported(f"{path} has schema {version}, this release knows up to {SCHEMA_VERSION}: upgrade it")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: apsw.Connection, busy_handler: Callable[[int], bool]) -> None:
    # SQLite asks no busy handler when two processes change the journal mode of a new file at once.
    prior_calls = 0
    while True:
        try:
            mode = connection.pragma("journal_mode", "wal")
            break
        except apsw.BusyError:
            if not busy_handler(prior_calls):
                raise
            prior_calls += 1
    if mode != "wal":
        raise Unsupported(f"{connection.filename} lies on a file system without WAL mode ({mode}): use a local disk")


def _check_library() -> None:
    if "ENABLE_CARRAY" not in apsw.compile_options:
        raise Unsupported("this build of apsw has no carray: install the wheel from the Python package index")
