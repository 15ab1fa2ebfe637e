"""Copies are byte for byte, in order, checked, and at a bounded pace."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from headrace.errors import Corrupt
from headrace.gc import copying
from headrace.gc.copying import Copier, UnreadableEntry
from headrace.index.objects import wal_object_key
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectKey
from headrace.objects.port import Buffer, ByteRange, ObjectStore
from headrace.runtime.executor import InlineExecutor
from tests.unit.gc.repack_kit import AtOnce, RepackKit

TARGET = ObjectKey("wal/0000/bb/copy")


async def logged(*, is_remote: bool) -> RepackKit:
    kit = RepackKit(is_remote=is_remote)
    await kit.start()
    await kit.append_round(9, text=b"some text ")
    await kit.fold()
    return kit


def copier_of(kit: RepackKit, clock: AtOnce, *, bytes_per_second: int = 1_000) -> Copier:
    return Copier(
        domain=kit.kit.keys.domain,
        objects=kit.kit.objects,
        executor=InlineExecutor(),
        clock=clock,
        bytes_per_second=bytes_per_second,
    )


async def bytes_of(kit: RepackKit, number: int) -> bytes:
    found = b""
    for entry in await kit.entries(kit.kit.streams[number]):
        assert isinstance(entry.extent, WalExtent)
        whole = await kit.kit.objects.get(wal_object_key(kit.kit.keys.domain, entry.extent.object_id))
        found += bytes(whole)[entry.extent.start_byte : entry.extent.start_byte + entry.extent.size_bytes]
    return found


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("window_bytes", [1, 200, 10_000])
async def test_whatever_the_window_the_copy_is_byte_for_byte_and_paced(
    is_remote: bool, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "WINDOW_BYTES", window_bytes)
    kit = await logged(is_remote=is_remote)
    clock = AtOnce(kit.kit)
    upload = await kit.kit.objects.upload(TARGET)
    await copier_of(kit, clock).copy(await kit.entries(kit.kit.streams[1]), upload)
    await upload.complete()
    expected = await bytes_of(kit, 1)
    assert bytes(await kit.kit.objects.get(TARGET)) == expected
    assert clock.slept_seconds == pytest.approx(len(expected) / 1_000)


async def test_neighbours_in_an_object_are_one_read() -> None:
    kit = await logged(is_remote=False)
    reads = kit.kit.script.calls["read"]
    upload = await kit.kit.objects.upload(TARGET)
    await copier_of(kit, AtOnce(kit.kit)).copy(await kit.entries(kit.kit.streams[1]), upload)
    assert kit.kit.script.calls["read"] == reads + 1


async def test_entry_that_is_too_long_for_its_object_is_blamed_and_not_its_neighbours() -> None:
    kit = await logged(is_remote=False)
    entries = await kit.entries(kit.kit.streams[1])
    last = entries[-1]
    assert isinstance(last.extent, WalExtent)
    key = wal_object_key(kit.kit.keys.domain, last.extent.object_id)
    whole = bytes(await kit.kit.objects.get(key))
    await kit.kit.objects.put(key, [whole[: last.extent.start_byte + 10]])
    upload = await kit.kit.objects.upload(TARGET)
    with pytest.raises(UnreadableEntry) as raised:
        await copier_of(kit, AtOnce(kit.kit)).copy(entries, upload)
    assert raised.value.entry == last and isinstance(raised.value, Corrupt)


async def test_batches_that_do_not_cover_the_entry_are_damage() -> None:
    kit = await logged(is_remote=False)
    first, second, *_ = await kit.entries(kit.kit.streams[1])
    wrong = msgspec.structs.replace(first, end_offset=second.end_offset)
    upload = await kit.kit.objects.upload(TARGET)
    with pytest.raises(UnreadableEntry, match="the index says 2"):
        await copier_of(kit, AtOnce(kit.kit)).copy([wrong], upload)


async def test_window_holds_a_bounded_number_of_entries_however_small_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copying, "WINDOW_ENTRIES", 2)
    kit = await logged(is_remote=False)
    reads = Abreast(kit.kit.objects)
    upload = await kit.kit.objects.upload(TARGET)
    await copier_of(kit, AtOnce(kit.kit)).copy(await kit.entries(kit.kit.streams[1]), upload)
    await upload.complete()
    assert reads.count == 5, "nine entries, two at a time"
    assert bytes(await kit.kit.objects.get(TARGET)) == await bytes_of(kit, 1)


@pytest.mark.parametrize(("is_remote", "most"), [(False, 2), (True, 8)])
async def test_a_copy_leaves_threads_and_disk_to_appends_and_waits_for_a_remote_store_abreast(
    is_remote: bool, most: int
) -> None:
    kit = RepackKit(is_remote=is_remote)
    await kit.start()
    stream = kit.kit.streams[1]
    for _ in range(20):
        await kit.append_round(1)
        await kit.kit.clock.advance(100)
        await kit.kit.writer.tick()  # a segment is sealed by its age
    await kit.fold()
    reads = Abreast(kit.kit.objects)
    upload = await kit.kit.objects.upload(TARGET)
    await copier_of(kit, AtOnce(kit.kit)).copy(await kit.entries(stream), upload)
    assert len(reads.keys) == 20, "every entry lies in an object of its own"
    assert reads.most == most


class Abreast:
    """Sees how many objects are read at the same time from here on."""

    def __init__(self, objects: ObjectStore) -> None:
        self.keys: set[ObjectKey] = set()
        self.most = self.count = self._now = 0
        real = objects.get_ranges

        async def get_ranges(key: ObjectKey, ranges: Sequence[ByteRange]) -> Sequence[Buffer]:
            self.keys.add(key)
            self.count += 1
            self._now += 1
            self.most = max(self.most, self._now)
            await asyncio.sleep(0)
            try:
                return await real(key, ranges)
            finally:
                self._now -= 1

        objects.get_ranges = get_ranges  # type: ignore[method-assign, assignment]
