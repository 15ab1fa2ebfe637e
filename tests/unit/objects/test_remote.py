import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore, MemoryStore

from headrace.errors import Exists, Invalid
from headrace.objects.port import ObjectStore, object_key
from headrace.objects.probe import probe
from headrace.objects.remote import GUARDED_PUT_BYTES, RemoteObjects
from headrace.runtime.rng import seeded_rng

NAMES = ["a-c", "a.b", "a/b", "a/c/d", "a0", "b/1", "b/11", "b/12", "b/2", "c"]


async def listed(store: ObjectStore, prefix: str, start_after: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix, start_after=start_after)]


@pytest.mark.parametrize("lists_by_key", [True, False])
async def test_both_ways_of_listing_agree(lists_by_key: bool) -> None:
    store = RemoteObjects(MemoryStore(), lists_by_key=lists_by_key)
    for name in NAMES:
        await store.put(object_key(name), [b"x"])
    for prefix in ("", "a", "a/", "b/1", "b/", "b/3", "d"):
        for start_after in ("", "a.b", "a/", "b/1", "b/115"):
            expected = [name for name in NAMES if name.startswith(prefix) and name > start_after]
            assert await listed(store, prefix, start_after) == expected, (prefix, start_after)


@pytest.mark.parametrize("lists_by_key", [True, False])
async def test_obstores_own_memory_store_passes_the_probe(lists_by_key: bool) -> None:
    await probe(RemoteObjects(MemoryStore(), lists_by_key=lists_by_key), rng=seeded_rng(1))


async def test_uploads_use_their_own_handle() -> None:
    single, uploads = MemoryStore(), MemoryStore()
    store = RemoteObjects(single, uploads=uploads)
    upload = await store.upload(object_key("a"))
    await upload.write(b"x")
    await upload.complete()
    assert await listed(RemoteObjects(uploads), "") == ["a"]
    assert await listed(RemoteObjects(single), "") == []


async def test_a_guarded_upload_is_one_conditional_put_while_it_is_small_and_parts_beyond() -> None:
    single, uploads = MemoryStore(), MemoryStore()
    store = RemoteObjects(single, uploads=uploads)
    for name, size_bytes in (("small", GUARDED_PUT_BYTES), ("large", GUARDED_PUT_BYTES + 1)):
        upload = await store.upload(object_key(name), if_absent=True)
        await upload.write(bytes(size_bytes - 1))
        await upload.write(b"x")
        await upload.complete()
    assert await listed(RemoteObjects(single), "") == ["small"]
    assert await listed(RemoteObjects(uploads), "") == ["large"]


async def test_a_guarded_upload_that_grows_large_looks_before_it_sends() -> None:
    store = RemoteObjects(MemoryStore())
    await store.put(object_key("a"), [b"older"])
    upload = await store.upload(object_key("a"), if_absent=True)
    with pytest.raises(Exists):
        await upload.write(bytes(GUARDED_PUT_BYTES + 1))
    with pytest.raises(Invalid, match="over"):
        await upload.complete()
    assert await store.get(object_key("a")) == b"older"


async def test_deleting_goes_on_where_the_store_complains_about_an_absent_key(tmp_path: Path) -> None:
    # obstore's local store is such a one.
    store = RemoteObjects(LocalStore(tmp_path))
    for name in ("a", "c"):
        await store.put(object_key(name), [b"x"])
    await store.delete([object_key("a"), object_key("b"), object_key("c")])
    assert await listed(store, "") == []


class StuckHandle:
    """Takes one piece of an upload and no more."""

    def __init__(self) -> None:
        self.was_cancelled = False

    async def put_async(self, path: str, source: AsyncIterator[bytes], **options: object) -> None:
        await anext(source)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


@pytest.mark.parametrize("end", ["complete", "abort"])
async def test_an_upload_whose_end_is_cancelled_does_not_wait_for_ever(end: str) -> None:
    handle: Any = StuckHandle()
    upload = await RemoteObjects(handle).upload(object_key("a"))
    await upload.write(b"taken")
    await upload.write(b"waits in the queue")
    ending = asyncio.create_task(getattr(upload, end)())
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.wait({ending})
    while not handle.was_cancelled:
        await asyncio.sleep(0)
