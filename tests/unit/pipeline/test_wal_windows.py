"""WAL bytes come in order, in few calls, and never too many at once."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from headrace.errors import Missing
from headrace.index.objects import wal_object_id, wal_object_key
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectKey
from headrace.objects.memory import MemoryObjects
from headrace.objects.port import Buffer, ByteRange
from headrace.pipeline import wal_windows
from headrace.pipeline.plans import WalPiece
from headrace.pipeline.wal_windows import Window, read_windows
from headrace.testing.clock import ManualClock
from tests.table_kit import DOMAIN, WRITER

DATA = bytes(range(256)) * 16


class CountingObjects(MemoryObjects):
    """Notes every call, and how many bytes were asked for and not yet taken."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.calls: list[list[ByteRange]] = []
        self.under_way = 0
        self.most_under_way = 0
        self.ended = 0

    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        self.calls.append(list(ranges))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(0)
            return await super().get_ranges(key, ranges)
        finally:
            self.under_way -= 1
            self.ended += 1


@pytest.fixture
async def objects() -> CountingObjects:
    store = CountingObjects()
    for number in range(30):
        await store.put(wal_object_key(DOMAIN, wal_object_id(WRITER, number)), [DATA])
    return store


def piece(number: int, start_byte: int, size_bytes: int) -> WalPiece:
    return WalPiece(0, 1, 0, WalExtent(wal_object_id(WRITER, number), start_byte, size_bytes))


async def read(objects: CountingObjects, pieces: Sequence[WalPiece]) -> list[Window]:
    async with aclosing(read_windows(objects, DOMAIN, pieces)) as reads:
        found = [window async for windows in reads for window in windows]
    for window in found:
        end_byte = window.start_byte + len(window.data)
        assert window.data == DATA[window.start_byte : end_byte]
        extent = window.piece.extent
        assert window.is_last == (end_byte == extent.start_byte + extent.size_bytes)
    return found


async def test_neighbours_come_in_one_range_and_far_ones_in_one_call(
    objects: CountingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_windows, "MAX_GAP_BYTES", 10)
    pieces = [piece(1, 0, 5), piece(1, 5, 5), piece(1, 20, 5), piece(1, 50, 5), piece(1, 10, 5)]
    windows = await read(objects, pieces)
    assert [window.piece for window in windows] == pieces
    assert objects.calls == [
        [
            ByteRange(start_byte=0, size_bytes=25),
            ByteRange(start_byte=50, size_bytes=5),
            ByteRange(start_byte=10, size_bytes=5),
        ]
    ]


async def test_a_large_piece_comes_in_several_windows(
    objects: CountingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_windows, "READ_BYTES", 1000)
    windows = await read(objects, [piece(1, 96, 4000), piece(2, 0, 10)])
    assert [len(window.data) for window in windows] == [1000] * 4 + [10]
    assert all(sum(wanted.size_bytes for wanted in call) <= 1000 for call in objects.calls)


async def test_small_objects_are_read_several_at_a_time(objects: CountingObjects) -> None:
    pieces = [piece(number, 0, 100) for number in range(30)]
    windows = await read(objects, pieces)
    assert [window.piece for window in windows] == pieces
    assert objects.most_under_way == wal_windows.MAX_READS_AT_ONCE


async def test_no_more_than_the_limit_is_read_ahead(
    objects: CountingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_windows, "READ_AHEAD_BYTES", 250)
    async with aclosing(read_windows(objects, DOMAIN, [piece(n, 0, 100) for n in range(30)])) as windows:
        taken = 0
        async for _ in windows:
            taken += 1
            assert len(objects.calls) - taken <= 2


async def test_leaving_early_leaves_nothing_under_way(objects: CountingObjects) -> None:
    async with aclosing(read_windows(objects, DOMAIN, [piece(n, 0, 100) for n in range(30)])) as windows:
        await anext(windows)
    assert objects.under_way == 0


async def test_a_missing_object_is_told_and_nothing_stays_under_way(objects: CountingObjects) -> None:
    with pytest.raises(Missing):
        await read(objects, [piece(1, 0, 5), piece(77, 0, 5), piece(2, 0, 5)])
    assert objects.under_way == 0
