"""The engines that the suite runs against. Another one is a function here and its name in `ENGINES`.

A test gets an `Engine`: one store's worth of data, which it opens as often as it likes. Each handle stands for
one process; where real processes can share the data, `url` tells them how.
"""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.open import open_metadata
from headrace.metadata.port import MetadataStore
from headrace.runtime.clock import SystemClock
from headrace.runtime.rng import seeded_rng, system_rng
from tests.servers.postgres import PostgresServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One store's data. `url` is `None` when it lives and dies with the test's process."""

    open: Callable[[], Awaitable[MetadataStore]]
    url: str | None


def memory(request: pytest.FixtureRequest, directory: Path) -> Engine:
    store = MemoryMetadata(seeded_rng(1))

    async def open_same() -> MetadataStore:
        return store

    return Engine(open=open_same, url=None)


def sqlite(request: pytest.FixtureRequest, directory: Path) -> Engine:
    return _by_url(f"sqlite:{directory / 'meta.db'}")


def postgres(request: pytest.FixtureRequest, directory: Path) -> Engine:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return _by_url(server.url_of(f"t{uuid.uuid4().hex}"))


ENGINES = {"memory": memory, "sqlite": sqlite, "postgres": postgres}
SHARED = [name for name in ENGINES if name != "memory"]
"""Those whose data outlives a process, and which several processes can share."""


def _by_url(url: str) -> Engine:
    def open_anew() -> Awaitable[MetadataStore]:
        return open_metadata(url, clock=SystemClock(), rng=system_rng())

    return Engine(open=open_anew, url=url)
