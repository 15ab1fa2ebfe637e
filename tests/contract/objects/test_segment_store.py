"""What every store that can append must do."""

import asyncio

import pytest

from headrace.errors import Corrupt, Exists, Invalid, Missing
from headrace.objects.port import Buffer, ByteRange, ObjectStore, Segment, SegmentStore, object_key

KEY = object_key("wal/segment")
CAPACITY_BYTES = 64 * 1024 * 1024


@pytest.fixture
def segments(appending_store: ObjectStore) -> SegmentStore:
    assert appending_store.segments is not None
    return appending_store.segments


async def create(segments: SegmentStore, capacity_bytes: int = CAPACITY_BYTES) -> Segment:
    return await segments.create_segment(KEY, capacity_bytes=capacity_bytes)


async def read(store: ObjectStore, start_byte: int, size_bytes: int) -> bytes:
    [found] = await store.get_ranges(KEY, [ByteRange(start_byte=start_byte, size_bytes=size_bytes)])
    return bytes(found)


async def test_appends_lie_back_to_back(appending_store: ObjectStore, segments: SegmentStore) -> None:
    segment = await create(segments)
    assert (segment.key, segment.size_bytes) == (KEY, 0)
    assert await segment.append([b"abc", memoryview(b"xdex")[1:3]]) == 0
    assert await segment.append([]) == 5
    assert await segment.append([b"", bytearray(b"f")]) == 5
    assert segment.size_bytes == 6
    assert await read(appending_store, 0, 6) == b"abcdef"
    await segment.seal()


async def test_what_was_appended_is_readable_while_appending_goes_on(
    appending_store: ObjectStore, segments: SegmentStore
) -> None:
    segment = await create(segments)
    for n in range(200):
        frame = n.to_bytes(2, "big") * 2048
        position = await segment.append([frame])
        assert position == n * 4096
        assert await read(appending_store, position, 4096) == frame
        assert await read(appending_store, 0, 2) == b"\0\0"
    await segment.seal()
    expected = b"".join(n.to_bytes(2, "big") * 2048 for n in range(200))
    assert bytes(await appending_store.get(KEY)) == expected


async def test_small_and_huge_appends_mix(appending_store: ObjectStore, segments: SegmentStore) -> None:
    segment = await create(segments)
    written = bytearray()
    for n, size_bytes in enumerate([10, 3_000_000, 4096, 1_500_000, 1, 2_000_000] + [60_000] * 60):
        frame = bytes([n + 1]) * size_bytes
        assert await segment.append([frame]) == len(written)
        written += frame
    await segment.seal()
    assert bytes(await appending_store.get(KEY)) == written


async def test_more_than_the_capacity_may_be_appended(appending_store: ObjectStore, segments: SegmentStore) -> None:
    segment = await create(segments, capacity_bytes=100)
    for _ in range(5):
        await segment.append([b"x" * 50])
    await segment.seal()
    assert bytes(await appending_store.get(KEY)) == b"x" * 250


async def test_concurrent_appends_keep_the_order_of_the_calls(
    appending_store: ObjectStore, segments: SegmentStore
) -> None:
    segment = await create(segments)
    positions = await asyncio.gather(*(segment.append([b"%03d" % n]) for n in range(50)))
    assert positions == [n * 3 for n in range(50)]
    await segment.seal()
    assert bytes(await appending_store.get(KEY)) == b"".join(b"%03d" % n for n in range(50))


async def test_a_sealed_segment_has_its_size_and_takes_no_more(
    appending_store: ObjectStore, segments: SegmentStore
) -> None:
    segment = await create(segments)
    await segment.append([b"abc"])
    await segment.seal()
    await segment.seal()
    assert (await appending_store.head(KEY)).size_bytes == 3
    with pytest.raises(Invalid, match="no more appends"):
        await segment.append([b"d"])
    assert bytes(await appending_store.get(KEY)) == b"abc"


async def test_an_empty_segment_can_be_sealed(appending_store: ObjectStore, segments: SegmentStore) -> None:
    segment = await create(segments)
    await segment.seal()
    assert bytes(await appending_store.get(KEY)) == b""


async def test_a_taken_key_is_refused(appending_store: ObjectStore, segments: SegmentStore) -> None:
    segment = await create(segments)
    await segment.append([b"abc"])
    with pytest.raises(Exists):
        await create(segments)
    with pytest.raises(Exists):
        await appending_store.put_if_absent(KEY, [b"x"])
    await segment.append([b"def"])
    await segment.seal()
    assert bytes(await appending_store.get(KEY)) == b"abcdef"


async def test_an_objects_key_is_taken_too(appending_store: ObjectStore, segments: SegmentStore) -> None:
    await appending_store.put(KEY, [b"object"])
    with pytest.raises(Exists):
        await create(segments)


async def test_segments_are_listed_and_deleted_like_objects(
    appending_store: ObjectStore, segments: SegmentStore
) -> None:
    segment = await create(segments)
    assert [info.key async for info in appending_store.list("wal/")] == [KEY]
    await segment.seal()
    await appending_store.delete([KEY])
    assert [info.key async for info in appending_store.list("")] == []


async def test_a_dead_writers_segment_is_sealed_by_another(
    appending_store: ObjectStore, segments: SegmentStore
) -> None:
    left_behind = await create(segments)
    await left_behind.append([b"committed"])
    await left_behind.append([b"not committed"])
    for _ in range(2):
        await segments.seal_segment(KEY, size_bytes=9)
        assert bytes(await appending_store.get(KEY)) == b"committed"


async def test_a_sealed_segments_old_owner_cannot_change_what_was_committed(
    appending_store: ObjectStore, segments: SegmentStore
) -> None:
    zombie = await create(segments)
    frames: list[Buffer] = [b"committed"]
    await zombie.append(frames)
    await zombie.append([b"not committed"])
    await segments.seal_segment(KEY, size_bytes=9)
    position = await zombie.append([b"too late"])
    assert position == 22
    assert await read(appending_store, 0, 9) == b"committed"


async def test_sealing_what_is_not_there_is_missing(segments: SegmentStore) -> None:
    with pytest.raises(Missing, match="wal/segment"):
        await segments.seal_segment(KEY, size_bytes=0)


async def test_a_segment_shorter_than_its_committed_size_is_corrupt(
    appending_store: ObjectStore, segments: SegmentStore
) -> None:
    segment = await create(segments)
    await segment.append([b"abc"])
    await segment.seal()
    with pytest.raises(Corrupt, match="3 bytes"):
        await segments.seal_segment(KEY, size_bytes=4)
    assert bytes(await appending_store.get(KEY)) == b"abc"
