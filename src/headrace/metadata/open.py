"""From a URL to a metadata store.

memory:                                           forgotten with the process
sqlite:data/meta.db   sqlite:///var/lib/meta.db   one host, any number of processes
postgres://user@host/database?schema=headrace     any number of hosts
"""

from collections.abc import Mapping
from urllib.parse import unquote

from headrace.errors import Invalid, Unsupported
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import MetadataStore
from headrace.metadata.sqlite.connections import BUSY_LIMIT_S
from headrace.metadata.sqlite.queue import LINGER_S
from headrace.metadata.sqlite.store import ExecutorFactory, SqliteMetadata
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoints, NoCrashes
from headrace.runtime.executor import Executor, ThreadExecutor
from headrace.runtime.logs import Log
from headrace.runtime.rng import Rng


def thread_executor(name: str, threads: int) -> Executor:
    """Make an executor with threads of its own."""
    return ThreadExecutor(name, threads=threads)


async def open_metadata(
    url: str,
    *,
    clock: Clock,
    rng: Rng,
    make_executor: ExecutorFactory = thread_executor,
    writer_linger_s: float = LINGER_S,
    crash_points: CrashPoints | None = None,
    busy_limit_s: float = BUSY_LIMIT_S,
    postgres_pool_size: int | None = None,
    postgres_lock_timeout_ms: int | None = None,
    log: Log | None = None,
) -> MetadataStore:
    """Open the store that a URL names. Raises `Invalid` for a URL that names none.

    `make_executor` gives SQLite its threads; where it works inline, `writer_linger_s` must be 0. `busy_limit_s` is
    how long SQLite waits for another process, and `log` hears of long waits; those of PostgreSQL have defaults of the
    engine's own.
    """
    crash_points = crash_points or NoCrashes()
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        return MemoryMetadata(rng)
    if scheme == "sqlite" and rest.strip("/"):
        return await SqliteMetadata.open(
            sqlite_path(url),
            clock=clock,
            rng=rng,
            crash_points=crash_points,
            make_executor=make_executor,
            busy_limit_s=busy_limit_s,
            linger_s=writer_linger_s,
            log=log,
        )
    if scheme in ("postgres", "postgresql"):
        given = {"pool_size": postgres_pool_size, "lock_timeout_ms": postgres_lock_timeout_ms}
        chosen = {name: value for name, value in given.items() if value is not None}
        return await _open_postgres(url, clock, rng, crash_points, chosen)
    raise Invalid(
        f"not a metadata URL: {url!r}; use memory:, sqlite:PATH, sqlite:///PATH or postgres://USER@HOST/DATABASE"
    )


def sqlite_path(url: str) -> str:
    """Return the path of an `sqlite:` URL: `sqlite:a/b` is relative, `sqlite:/a/b` and `sqlite:///a/b` are not."""
    rest = url.removeprefix("sqlite:")
    return unquote(rest.removeprefix("//"))


async def _open_postgres(
    url: str, clock: Clock, rng: Rng, crash_points: CrashPoints, limits: Mapping[str, int]
) -> MetadataStore:
    try:
        from headrace.metadata.postgres.connections import PostgresLimits
        from headrace.metadata.postgres.store import PostgresMetadata
    except ImportError as error:
        raise Unsupported("PostgreSQL needs its driver: pip install 'headrace[postgres]'") from error
    return await PostgresMetadata.open(
        url, clock=clock, rng=rng, crash_points=crash_points, limits=PostgresLimits(**limits)
    )
