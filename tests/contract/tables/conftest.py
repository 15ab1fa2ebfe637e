"""The catalogs that the suite runs against: SQL on SQLite with local disk, REST with S3."""

import io
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace.runtime.clock import SystemClock
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.logs import open_log
from headrace.runtime.rng import seeded_rng
from tests.contract.tables.kit import Place
from tests.servers.seaweedfs import SeaweedFs, running_seaweedfs

WAREHOUSE = "warehouse"


@pytest.fixture(scope="session")
def seaweedfs_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFs]:
    with running_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        server.create_table_bucket(WAREHOUSE)
        yield server


def place_on_sqlite(directory: Path, executor: ThreadExecutor) -> Place:
    """Return an embedded catalog in a directory."""
    return Place(
        url=f"sqlite:{directory}/catalog.db",
        objects_url=f"file:{directory}/objects",
        warehouse=None,
        rng=seeded_rng(uuid.uuid4().hex),
        log=open_log(io.StringIO(), clock=SystemClock()),
        executor=executor,
    )


def place_on_rest(server: SeaweedFs, executor: ThreadExecutor, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a REST catalog whose tables lie in its own S3 bucket, which takes unsigned requests."""
    for name, value in (
        ("AWS_ENDPOINT", server.endpoint),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_SKIP_SIGNATURE", "true"),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    return Place(
        url=server.catalog_url,
        objects_url=f"s3://{WAREHOUSE}",
        warehouse=f"s3://{WAREHOUSE}",
        rng=seeded_rng(uuid.uuid4().hex),
        log=open_log(io.StringIO(), clock=SystemClock()),
        executor=executor,
    )


@pytest.fixture
def catalog_executor() -> Iterator[ThreadExecutor]:
    executor = ThreadExecutor("catalog", threads=2)
    yield executor
    executor.close()


@pytest.fixture(params=["sqlite", "rest"])
async def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    catalog_executor: ThreadExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Place]:
    if request.param == "sqlite":
        made = place_on_sqlite(tmp_path, catalog_executor)
    else:
        made = place_on_rest(request.getfixturevalue("seaweedfs_catalog"), catalog_executor, monkeypatch)
    yield made
    for catalog in made.opened:
        await catalog.close()


@pytest.fixture
async def local_place(tmp_path: Path, catalog_executor: ThreadExecutor) -> AsyncIterator[Place]:
    made = place_on_sqlite(tmp_path, catalog_executor)
    yield made
    for catalog in made.opened:
        await catalog.close()
