"""Opens SQLite stores in a directory of the test, with whatever the test wants to look into."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from headrace.metadata.open import thread_executor
from headrace.metadata.sqlite.store import SqliteMetadata
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import CrashPoints, NoCrashes
from headrace.runtime.rng import system_rng

OpenStore = Callable[..., Awaitable[SqliteMetadata]]


@contextmanager
def foreign_connection(path: str) -> Iterator[apsw.Connection]:
    """Open the file as another process would, and close it in the end, come what may."""
    connection = apsw.Connection(path)
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "meta.db")


@pytest.fixture
async def open_store(path: str) -> AsyncIterator[OpenStore]:
    opened: list[SqliteMetadata] = []

    async def open_one(*, busy_limit_s: float = 60.0, crash_points: CrashPoints | None = None) -> SqliteMetadata:
        store = await SqliteMetadata.open(
            path,
            clock=SystemClock(),
            rng=system_rng(),
            crash_points=crash_points or NoCrashes(),
            make_executor=thread_executor,
            busy_limit_s=busy_limit_s,
        )
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> SqliteMetadata:
    return await open_store()
