import pytest

from headrace.errors import Corrupt
from headrace.objects.memory import PREPARED_BYTES, MemoryObjects
from headrace.objects.port import object_key
from tests.unit.objects.clocks import JumpingClock

KEY = object_key("wal/segment")


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


async def test_age_comes_from_the_clock_that_was_handed_over(clock: JumpingClock) -> None:
    store = MemoryObjects(clock)
    await store.put(KEY, [b"x"])
    await clock.sleep(5)
    assert (await store.head(KEY)).modified_at_ms == 0
    await store.put(KEY, [b"y"])
    assert (await store.head(KEY)).modified_at_ms == 5_000


async def test_an_open_segment_shows_prepared_zeros_as_a_file_would(clock: JumpingClock) -> None:
    store = MemoryObjects(clock)
    segment = await store.create_segment(KEY, capacity_bytes=10_000)
    await segment.append([b"abc"])
    assert bytes(await store.get(KEY)) == b"abc" + bytes(PREPARED_BYTES)


async def test_what_was_read_does_not_change_with_later_appends(clock: JumpingClock) -> None:
    store = MemoryObjects(clock)
    segment = await store.create_segment(KEY, capacity_bytes=10_000)
    await segment.append([b"abc"])
    read = await store.get(KEY)
    await segment.append([b"def"])
    assert bytes(read)[:6] == b"abc\0\0\0"


async def test_a_put_keeps_its_bytes_when_the_buffer_is_used_again(clock: JumpingClock) -> None:
    store = MemoryObjects(clock)
    buffer = bytearray(b"abc")
    await store.put(KEY, [buffer])
    buffer[:] = b"xyz"
    assert bytes(await store.get(KEY)) == b"abc"


async def test_a_zombies_append_behind_a_seal_leaves_a_hole_of_zeros(clock: JumpingClock) -> None:
    store = MemoryObjects(clock)
    zombie = await store.create_segment(KEY, capacity_bytes=10_000)
    await zombie.append([b"committed, then some"])
    await store.seal_segment(KEY, size_bytes=9)
    await zombie.append([b"late"])
    assert bytes(await store.get(KEY))[:24] == b"committed" + bytes(11) + b"late"


async def test_an_object_deleted_during_a_listing_is_left_out(clock: JumpingClock) -> None:
    store = MemoryObjects(clock)
    for name in ("a", "b", "c"):
        await store.put(object_key(name), [b"x"])
    found = []
    async for info in store.list(""):
        found.append(info.key)
        await store.delete([object_key("b")])
    assert found == ["a", "c"]


async def test_sealing_beyond_the_end_is_corrupt(clock: JumpingClock) -> None:
    store = MemoryObjects(clock)
    await store.put(KEY, [b"abc"])
    with pytest.raises(Corrupt):
        await store.seal_segment(KEY, size_bytes=4)
