"""The backends that the suite runs against. Another one is a function here and its name in `BACKENDS`."""

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from obstore.store import MemoryStore, S3Store

from headrace.objects.local import LocalObjects
from headrace.objects.memory import MemoryObjects
from headrace.objects.port import ObjectStore
from headrace.objects.remote import RemoteObjects
from headrace.objects.retrying import RetryingObjects
from headrace.runtime.clock import SystemClock
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.rng import seeded_rng
from tests.servers.seaweedfs import SeaweedFs, running_seaweedfs

Backend = Callable[[pytest.FixtureRequest, Path], AbstractAsyncContextManager[ObjectStore]]


@asynccontextmanager
async def memory(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[ObjectStore]:
    yield MemoryObjects(SystemClock())


@asynccontextmanager
async def local(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[ObjectStore]:
    executor = ThreadExecutor("objects", threads=4)
    store = LocalObjects(directory / "objects", executor=executor)
    yield store
    await store.close()
    executor.close()


@asynccontextmanager
async def obstore_memory(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[ObjectStore]:
    yield RemoteObjects(MemoryStore())


@asynccontextmanager
async def retrying(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[ObjectStore]:
    clock = SystemClock()
    yield RetryingObjects(MemoryObjects(clock), clock=clock, rng=seeded_rng(1))


@asynccontextmanager
async def seaweedfs(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[ObjectStore]:
    server: SeaweedFs = request.getfixturevalue("seaweedfs_server")
    # Every test has a prefix of its own in the one bucket.
    handle = S3Store(
        "contract",
        prefix=uuid.uuid4().hex,
        endpoint=server.endpoint,
        region="us-east-1",
        access_key_id="any",
        secret_access_key="any",
        client_options={"allow_http": True, "timeout": "60s"},
        retry_config={"max_retries": 0},
    )
    yield RemoteObjects(handle, lists_by_key=False)


BACKENDS: dict[str, Backend] = {
    "memory": memory,
    "local": local,
    "obstore-memory": obstore_memory,
    "retrying": retrying,
    "seaweedfs": seaweedfs,
}
WITH_SEGMENTS = ("memory", "local", "retrying")


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFs]:
    with running_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        server.create_bucket("contract")
        yield server


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    async with BACKENDS[request.param](request, tmp_path) as opened:
        yield opened


@pytest.fixture(params=WITH_SEGMENTS)
async def appending_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    async with BACKENDS[request.param](request, tmp_path) as opened:
        yield opened
