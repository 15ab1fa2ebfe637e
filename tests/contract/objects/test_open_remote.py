"""A URL and the environment are enough to reach a real S3 server."""

import uuid
from collections.abc import Iterator

import pytest

from headrace.errors import Invalid, Unsupported
from headrace.objects.open import open_objects
from headrace.objects.port import ObjectStore, object_key
from headrace.objects.probe import probe
from headrace.runtime.clock import SystemClock
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.rng import seeded_rng
from tests.servers.seaweedfs import SeaweedFs


@pytest.fixture(autouse=True)
def environment(seaweedfs_server: SeaweedFs, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_ENDPOINT", seaweedfs_server.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    yield


def opened(url: str) -> ObjectStore:
    return open_objects(url, executor=InlineExecutor(), clock=SystemClock(), rng=seeded_rng(1))


async def test_an_s3_url_opens_a_store_below_its_prefix() -> None:
    prefix = uuid.uuid4().hex
    store = opened(f"s3://contract/{prefix}?listing=levels")
    await probe(store, rng=seeded_rng(1))
    await store.put_if_absent(object_key("a/b"), [b"x"])
    upload = await store.upload(object_key("a/c"))
    await upload.write(b"y")
    await upload.complete()
    above = opened("s3://contract?listing=levels")
    found = [info.key async for info in above.list(f"{prefix}/")]
    assert found == [f"{prefix}/a/b", f"{prefix}/a/c"]
    await store.close()


async def test_the_probe_finds_a_server_that_lists_directory_by_directory() -> None:
    with pytest.raises(Unsupported, match="listing=levels"):
        await probe(opened(f"s3://contract/{uuid.uuid4().hex}"), rng=seeded_rng(1))


async def test_a_bucket_that_is_not_there_is_said_clearly() -> None:
    with pytest.raises(Invalid, match="bucket"):
        await opened("s3://nowhere-at-all").put(object_key("a"), [b"x"])
