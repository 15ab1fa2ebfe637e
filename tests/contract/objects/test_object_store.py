"""What every object store must do."""

import asyncio
import time

import pytest

from headrace.errors import Corrupt, Exists, Invalid, Missing
from headrace.model.ids import ObjectKey
from headrace.objects.port import Buffer, ByteRange, ObjectStore, object_key
from headrace.objects.probe import probe
from headrace.objects.remote import GUARDED_PUT_BYTES, UPLOAD_PART_BYTES
from headrace.runtime.rng import seeded_rng

KEY = object_key("wal/one")


async def listed(store: ObjectStore, prefix: str, start_after: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix, start_after=start_after)]


def at(start_byte: int, size_bytes: int) -> ByteRange:
    return ByteRange(start_byte=start_byte, size_bytes=size_bytes)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([b"abc"], b"abc"),
        ([], b""),
        ([b""], b""),
        ([b"a", bytearray(b"bc"), memoryview(b"xdefx")[1:4], b""], b"abcdef"),
        ([b"%04d" % n for n in range(3000)], b"".join(b"%04d" % n for n in range(3000))),
    ],
    ids=["one buffer", "no buffer", "an empty buffer", "kinds of buffers", "more buffers than one call takes"],
)
async def test_what_was_put_is_read_back(store: ObjectStore, data: list[Buffer], expected: bytes) -> None:
    await store.put(KEY, data)
    assert bytes(await store.get(KEY)) == expected
    assert (await store.head(KEY)).size_bytes == len(expected)


async def test_put_replaces_and_leaves_one_object(store: ObjectStore) -> None:
    await store.put(KEY, [b"a longer first one"])
    await store.put(KEY, [b"second"])
    assert bytes(await store.get(KEY)) == b"second"
    assert await listed(store, "") == [KEY]


async def test_put_if_absent_refuses_a_taken_key_and_leaves_it_alone(store: ObjectStore) -> None:
    await store.put_if_absent(KEY, [b"fi", b"rst"])
    with pytest.raises(Exists, match="wal/one"):
        await store.put_if_absent(KEY, [b"second"])
    assert bytes(await store.get(KEY)) == b"first"


async def test_put_if_absent_works_again_after_delete(store: ObjectStore) -> None:
    await store.put_if_absent(KEY, [b"first"])
    await store.delete([KEY])
    await store.put_if_absent(KEY, [b"second"])
    assert bytes(await store.get(KEY)) == b"second"


async def test_concurrent_put_if_absent_has_exactly_one_winner(store: ObjectStore) -> None:
    async def attempt(n: int) -> int | None:
        try:
            await store.put_if_absent(KEY, [b"writer %d" % n])
        except Exists:
            return None
        return n

    winners = [n for n in await asyncio.gather(*map(attempt, range(8))) if n is not None]
    assert len(winners) == 1
    assert bytes(await store.get(KEY)) == b"writer %d" % winners[0]


async def test_a_missing_object_is_missing_for_every_read(store: ObjectStore) -> None:
    await store.put(object_key("wal/other"), [b"x"])
    for read in (
        store.get(KEY),
        store.head(KEY),
        store.get_ranges(KEY, [at(0, 1)]),
        store.get_ranges(KEY, []),
        store.get_ranges(KEY, [at(0, 0)]),
        store.get(object_key("wal")),
        store.get(object_key("wal/other/below")),
    ):
        with pytest.raises(Missing):
            await read


async def test_ranges_come_back_in_the_order_asked_for(store: ObjectStore) -> None:
    await store.put(KEY, [b"0123456789"])
    ranges = [at(7, 3), at(0, 2), at(1, 4), at(5, 0), at(0, 10), at(10, 0)]
    found = await store.get_ranges(KEY, ranges)
    assert [bytes(piece) for piece in found] == [b"789", b"01", b"1234", b"", b"0123456789", b""]


@pytest.mark.parametrize("beyond", [at(8, 3), at(10, 1), at(500, 7)])
async def test_a_range_behind_the_end_is_corrupt_never_short(store: ObjectStore, beyond: ByteRange) -> None:
    await store.put(KEY, [b"0123456789"])
    with pytest.raises(Corrupt, match="wal/one"):
        await store.get_ranges(KEY, [at(0, 1), beyond])


async def test_bytes_that_come_back_are_read_only(store: ObjectStore) -> None:
    await store.put(KEY, [b"0123456789"])
    pieces = [await store.get(KEY), *await store.get_ranges(KEY, [at(1, 2), at(2, 0)])]
    assert all(memoryview(piece).readonly for piece in pieces)


async def test_head_tells_when_an_object_was_written(store: ObjectStore) -> None:
    await store.put(KEY, [b"x"])
    # Object stores round to seconds and have clocks of their own.
    assert abs((await store.head(KEY)).modified_at_ms - time.time() * 1000) < 120_000


IN_KEY_ORDER = ["A", "a-c", "a-c/z", "a.b", "a/-", "a/b", "a/b.c", "a/b/c", "a/b0", "a0", "aa/b", "b"]


async def put_all(store: ObjectStore, names: list[str]) -> None:
    for name in reversed(names):
        await store.put(object_key(name), [name.encode()])


async def test_list_goes_in_key_order_with_sizes(store: ObjectStore) -> None:
    names = [name for name in IN_KEY_ORDER if name not in ("a-c", "a/b")]  # a file system has no room for both
    await put_all(store, names)
    assert await listed(store, "") == names
    assert {i.key: i.size_bytes async for i in store.list("")} == {name: len(name) for name in names}


async def test_list_takes_any_prefix_and_any_start(store: ObjectStore) -> None:
    names = [name for name in IN_KEY_ORDER if name not in ("a-c", "a/b")]
    await put_all(store, names)
    for prefix in ("", "a", "a/", "a/b", "a/b.", "a/b/", "a-", "A", "aa/b", "aa/bc", "zz", "zz/yy/"):
        for start_after in ("", "a", "a.", "a.b", "a/", "a/b.c", "a/b/c", "a/zzz", "b", "zzz"):
            expected = [name for name in names if name.startswith(prefix) and name > start_after]
            assert await listed(store, prefix, start_after) == expected, (prefix, start_after)


async def test_a_prefix_cannot_climb_out_of_the_store(store: ObjectStore) -> None:
    for prefix in ("../", "a/../../", "/etc/"):
        try:
            assert await listed(store, prefix) == []
        except Invalid:
            continue


async def test_delete_takes_many_keys_and_absent_ones(store: ObjectStore) -> None:
    names = [f"d/{n:03d}" for n in range(40)]
    await put_all(store, names)
    absent = [object_key("d/absent"), object_key("nowhere/at/all")]
    await store.delete([absent[0], *map(object_key, names[:-1]), absent[1]])
    assert await listed(store, "d/") == names[-1:]
    await store.delete([object_key(names[-1]), object_key(names[-1])])
    await store.delete([])
    assert await listed(store, "") == []


@pytest.mark.parametrize(
    "bad", ["", "/a", "a/", "a//b", "../a", "a/./b", "a/..", "a b", "a\x00b", "ä", "x" * 901, "~a"]
)
async def test_strings_that_are_no_keys_are_refused(store: ObjectStore, bad: str) -> None:
    key = ObjectKey(bad)
    for call in (
        store.put(key, [b"x"]),
        store.put_if_absent(key, [b"x"]),
        store.get(key),
        store.get_ranges(key, [at(0, 1)]),
        store.head(key),
        store.delete([key]),
        store.upload(key),
    ):
        with pytest.raises(Invalid):
            await call


async def test_an_upload_appears_whole_at_complete(store: ObjectStore) -> None:
    await store.put(KEY, [b"older"])
    piece = bytearray(1024 * 1024)
    written = bytearray()
    upload = await store.upload(KEY)
    while len(written) < 2 * UPLOAD_PART_BYTES:
        piece[:4] = len(written).to_bytes(4, "big")
        # The buffer is used again at once: what was handed over must not change with it.
        await upload.write(piece)
        written += piece
    await upload.write(memoryview(b"the end"))
    written += b"the end"
    assert bytes(await store.get(KEY)) == b"older"
    await upload.complete()
    assert bytes(await store.get(KEY)) == written
    assert await listed(store, "") == [KEY]


async def test_an_upload_of_nothing_is_an_empty_object(store: ObjectStore) -> None:
    upload = await store.upload(KEY)
    await upload.complete()
    assert (await store.head(KEY)).size_bytes == 0


async def test_an_aborted_upload_leaves_nothing(store: ObjectStore) -> None:
    upload = await store.upload(KEY)
    for _ in range(9):
        await upload.write(bytes(1024 * 1024))
    await upload.abort()
    await upload.abort()
    assert await listed(store, "") == []
    with pytest.raises(Invalid, match="over"):
        await upload.write(b"more")
    with pytest.raises(Invalid, match="over"):
        await upload.complete()


@pytest.mark.parametrize("size_bytes", [0, 1024, GUARDED_PUT_BYTES + 1024 * 1024])
async def test_an_upload_if_absent_appears_where_nothing_was(store: ObjectStore, size_bytes: int) -> None:
    upload = await store.upload(KEY, if_absent=True)
    piece = bytes(range(256)) * 4096
    for start in range(0, size_bytes, len(piece)):
        await upload.write(piece[: size_bytes - start])
    assert await listed(store, "") == []
    await upload.complete()
    assert (await store.head(KEY)).size_bytes == size_bytes
    with pytest.raises(Invalid, match="over"):
        await upload.write(b"more")


@pytest.mark.parametrize("size_bytes", [1024, GUARDED_PUT_BYTES + 1024 * 1024])
async def test_an_upload_if_absent_never_replaces_an_object(store: ObjectStore, size_bytes: int) -> None:
    await store.put(KEY, [b"older"])
    upload = await store.upload(KEY, if_absent=True)
    piece = bytes(1024 * 1024)
    with pytest.raises(Exists):
        for start in range(0, size_bytes, len(piece)):
            await upload.write(piece[: size_bytes - start])
        await upload.complete()
    await upload.abort()
    assert bytes(await store.get(KEY)) == b"older"
    assert await listed(store, "") == [KEY]


async def test_an_aborted_upload_if_absent_leaves_nothing(store: ObjectStore) -> None:
    for size_bytes in (1, GUARDED_PUT_BYTES + 1):
        upload = await store.upload(KEY, if_absent=True)
        await upload.write(bytes(size_bytes))
        await upload.abort()
        with pytest.raises(Invalid, match="over"):
            await upload.complete()
    assert await listed(store, "") == []


async def test_a_completed_upload_takes_no_more(store: ObjectStore) -> None:
    upload = await store.upload(KEY)
    await upload.write(b"all")
    await upload.complete()
    with pytest.raises(Invalid, match="over"):
        await upload.write(b"more")
    await upload.abort()
    assert bytes(await store.get(KEY)) == b"all"


async def test_a_reader_sees_the_old_or_the_new_object_whole(store: ObjectStore) -> None:
    versions = [bytes([n]) * 50_000 for n in range(12)]
    await store.put(KEY, [versions[0]])

    async def overwrite() -> None:
        for version in versions[1:]:
            await store.put(KEY, [version[:20_000], version[20_000:]])

    writing = asyncio.create_task(overwrite())
    while not writing.done():
        assert bytes(await store.get(KEY)) in versions
        await asyncio.sleep(0)
    await writing


async def test_the_probe_is_satisfied_and_cleans_up(store: ObjectStore) -> None:
    await probe(store, rng=seeded_rng(7))
    assert await listed(store, "") == []
