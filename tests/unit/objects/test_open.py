from pathlib import Path

import pytest

from headrace.errors import Invalid
from headrace.objects.local import LocalObjects
from headrace.objects.memory import MemoryObjects
from headrace.objects.open import open_objects
from headrace.objects.port import ObjectStore, object_key
from headrace.objects.retrying import RetryingObjects
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.rng import seeded_rng
from tests.unit.objects.clocks import JumpingClock


def opened(url: str) -> ObjectStore:
    return open_objects(url, executor=InlineExecutor(), clock=JumpingClock(), rng=seeded_rng(1))


@pytest.mark.parametrize("form", ["{path}", "file://{path}", "file://localhost{path}"])
async def test_a_path_or_a_file_url_is_local_disk(form: str, tmp_path: Path) -> None:
    store = opened(form.format(path=tmp_path / "some" / "objects"))
    assert isinstance(store, LocalObjects)
    await store.put(object_key("a"), [b"x"])
    assert (tmp_path / "some" / "objects" / "a").read_bytes() == b"x"
    await store.close()


async def test_file_urls_are_unescaped_and_paths_are_not(tmp_path: Path) -> None:
    await opened(f"file://{tmp_path}/a%20b").close()
    await opened(f"{tmp_path}/c%20d").close()
    assert {path.name for path in tmp_path.iterdir()} == {"a b", "c%20d"}


async def test_a_relative_path_lies_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = opened("data/objects")
    monkeypatch.chdir("/")
    await store.put(object_key("a"), [b"x"])
    assert (tmp_path / "data" / "objects" / "a").exists()
    await store.close()


def test_memory_is_memory() -> None:
    assert isinstance(opened("memory://"), MemoryObjects)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/some/prefix", "gs://bucket/x", "az://container/x"])
def test_clouds_are_remote_with_retries_and_without_segments(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    store = opened(url)
    assert isinstance(store, RetryingObjects)
    assert store.segments is None


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://host/x", r"unknown object store ftp://; known are a path, file:, memory:, s3://, gs://, az://"),
        ("http://host/x", "unknown object store"),
        ("", "empty"),
        ("file://relative/path", "name a directory"),
        ("file://", "empty"),
        ("file:///", "name a directory"),
        ("s3://", "name of a bucket"),
        ("s3://key:secret@bucket", "name of a bucket"),
        ("s3://bucket/x?listing=odd", "listing=levels"),
        ("s3://bucket/x?retries=3", "listing=levels"),
    ],
)
def test_other_urls_are_refused_with_a_sentence(url: str, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence) as caught:
        opened(url)
    assert "secret" not in str(caught.value)
