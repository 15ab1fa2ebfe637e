"""Gives every test a fresh engine of each kind, and handles on it that are closed in the end."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace.metadata.port import MetadataStore
from tests.contract.metadata.engines import ENGINES, Engine
from tests.servers.postgres import PostgresServer, shared_postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with shared_postgres() as server:
        yield server


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return ENGINES[request.param](request, tmp_path)


@pytest.fixture
def url(engine: Engine) -> str:
    """Where other processes find the engine's data; for tests of `SHARED` engines."""
    assert engine.url is not None
    return engine.url


@pytest.fixture
async def store(engine: Engine) -> AsyncIterator[MetadataStore]:
    """The store as one process has it open."""
    opened = await engine.open()
    yield opened
    await opened.close()


@pytest.fixture
async def other(engine: Engine, store: MetadataStore) -> AsyncIterator[MetadataStore]:
    """The same store as another process has it open."""
    opened = await engine.open()
    yield opened
    await opened.close()
