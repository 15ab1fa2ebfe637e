"""Opens PostgreSQL stores, each test in a schema of its own."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeAlias

import asyncpg
import pytest

from headrace.metadata.postgres.connections import PostgresLimits
from headrace.metadata.postgres.store import PostgresMetadata
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.rng import system_rng
from tests.servers.postgres import PostgresServer, shared_postgres

OpenStore = Callable[..., Awaitable[PostgresMetadata]]
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with shared_postgres() as running:
        yield running


@pytest.fixture
def schema() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
async def open_store(server: PostgresServer, schema: str) -> AsyncIterator[OpenStore]:
    opened: list[PostgresMetadata] = []

    async def open_one(*, limits: PostgresLimits | None = None, user: str = "postgres") -> PostgresMetadata:
        store = await PostgresMetadata.open(
            server.url_of(schema).replace("//postgres:", f"//{user}:"),
            clock=SystemClock(),
            rng=system_rng(),
            crash_points=NoCrashes(),
            limits=limits,
        )
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def admin(server: PostgresServer) -> AsyncIterator[Connection]:
    """A connection of an administrator, outside of any store."""
    connection = await asyncpg.connect(server.url)
    yield connection
    await connection.close()
