"""A scan finds what Kafka's cleaner would take away, within its limits, and trusts no unchecked byte."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import Corrupt, Invalid, Missing
from headrace.model.ids import ObjectKey
from headrace.objects.memory import MemoryObjects
from headrace.pipeline.dropped_offsets import unpack_offsets
from headrace.pipeline.key_scanning import scan_keys
from headrace.pipeline.latest_offsets import ENTRY_BYTES
from headrace.pipeline.scans import ScanLimits, ScannedStream, ScanRange, ScanTask
from headrace.pipeline.writing import write_file
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.runtime.executor import ThreadExecutor
from headrace.testing.clock import ManualClock
from tests.table_kit import DATA_PREFIX, STREAM, put_piece, table_file, task_of

Row = tuple[bytes | None, bytes | None]
"""A key and a value."""


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(ManualClock())


async def put_rows(
    objects: MemoryObjects, rows: Sequence[Row], *, start_offset: int = 0, is_fixed: bool = False, group_rows: int = 3
) -> ScanRange:
    """Write rows into a file of their own, a few per row group."""
    batches = []
    for first in range(0, len(rows), group_rows):
        records = [
            Record(offset=number, timestamp_ms=5, key=key, value=value)
            for number, (key, value) in enumerate(rows[first : first + group_rows])
        ]
        batches.append(bytes(BatchEncoder().encode(columns_of(records))))
    piece = await put_piece(objects, batches, start_offset=start_offset, number=start_offset + 1)
    written = await write_file(task_of([piece], row_group_bytes=1), objects, attempt=f"at{start_offset}")
    file = table_file(written, written.slices[0])
    return ScanRange(start_offset, start_offset + len(rows), file, is_fixed)


def scan_of(*ranges: ScanRange, **changes: Any) -> ScanTask:
    given: dict[str, Any] = {
        "dirty_from": ranges[0].start_offset,
        "cleanable_end": ranges[-1].end_offset,
        "expired_to": 0,
        **changes,
    }
    return ScanTask(saga_id="s", epoch=2, data_prefix=DATA_PREFIX, partition=3, stream=STREAM, ranges=ranges, **given)


async def found(objects: MemoryObjects, task: ScanTask) -> tuple[ScannedStream, list[int]]:
    result = await scan_keys(task, objects, attempt="x")
    listed: list[int] = []
    if result.path:
        listed = unpack_offsets(await objects.get(ObjectKey(result.path)), result.path).to_pylist()
    assert len(listed) == result.obsolete_count
    return result, listed


A, B, C = b"a", b"b", b"c"


async def test_all_but_the_latest_of_a_key_are_obsolete(objects: MemoryObjects) -> None:
    rows = [(A, b"1"), (B, b"1"), (A, b"2"), (C, b"1"), (A, b"3"), (B, None)]
    range_ = await put_rows(objects, rows)
    result, listed = await found(objects, scan_of(range_))
    assert listed == [0, 1, 2]
    assert result.path == f"{DATA_PREFIX}s/00003-{STREAM}-2-x.offsets"
    assert result.losses == {range_.file.path: 3}
    assert (result.cleaned_to, result.is_whole, result.tombstones, result.row_count) == (6, True, 1, 6)


async def test_rows_without_a_key_are_obsolete_as_for_kafkas_cleaner(objects: MemoryObjects) -> None:
    _, listed = await found(objects, scan_of(await put_rows(objects, [(None, b"1"), (A, b"1"), (None, None)])))
    assert listed == [0, 2]


async def test_empty_key_is_a_key(objects: MemoryObjects) -> None:
    _, listed = await found(objects, scan_of(await put_rows(objects, [(b"", b"1"), (b"", b"2"), (A, b"1")])))
    assert listed == [0]


async def test_dirty_part_replaces_the_clean_one_and_nothing_behind_is_touched(objects: MemoryObjects) -> None:
    clean = await put_rows(objects, [(A, b"1"), (B, b"1")])
    dirty = await put_rows(objects, [(A, b"2"), (C, b"1"), (B, b"2"), (C, b"2")], start_offset=2)
    result, listed = await found(objects, scan_of(clean, dirty, dirty_from=2, cleanable_end=4))
    assert listed == [0]
    assert result.losses == {clean.file.path: 1}
    assert result.cleaned_to == 4


async def test_nothing_obsolete_leaves_no_object(objects: MemoryObjects) -> None:
    result, listed = await found(objects, scan_of(await put_rows(objects, [(A, b"1"), (B, b"1")])))
    assert listed == [] and result.path == "" and result.losses == {}
    assert not [key for key in await keys_of(objects) if key.endswith(".offsets")]


async def test_expired_tombstone_goes_and_younger_ones_stay(objects: MemoryObjects) -> None:
    clean = await put_rows(objects, [(A, None), (B, None), (C, b"1"), (b"d", None)])
    result, listed = await found(objects, scan_of(clean, dirty_from=4, expired_to=3))
    assert listed == [0, 1]
    assert (result.cleaned_to, result.tombstones, result.expired_left) == (4, 0, 0)


async def test_latest_record_is_kept_where_its_key_was_a_tombstone_before(objects: MemoryObjects) -> None:
    rows = await put_rows(objects, [(A, None), (B, None), (A, b"2"), (B, None)])
    result, listed = await found(objects, scan_of(rows, dirty_from=2, expired_to=2))
    assert listed == [0, 1]
    assert result.tombstones == 1


async def test_file_that_stays_keeps_its_rows_and_the_tombstones_of_its_keys(objects: MemoryObjects) -> None:
    fixed = await put_rows(objects, [(A, b"1"), (C, b"1")], is_fixed=True)
    clean = await put_rows(objects, [(A, None), (B, None)], start_offset=2)
    dirty = await put_rows(objects, [(C, b"2")], start_offset=4)
    result, listed = await found(objects, scan_of(fixed, clean, dirty, dirty_from=4, expired_to=4))
    assert listed == [3], "a's tombstone has to go on hiding a's record in the file that stays"
    assert result.expired_left == 1


async def test_record_that_a_tombstone_hides_goes_before_its_tombstone(objects: MemoryObjects) -> None:
    once_fixed = await put_rows(objects, [(A, b"1"), (C, b"1")])
    clean = await put_rows(objects, [(A, None), (B, None)], start_offset=2)
    result, listed = await found(objects, scan_of(once_fixed, clean, dirty_from=4, expired_to=4))
    assert listed == [0, 3]
    assert result.expired_left == 1


async def test_full_map_ends_the_round_before_what_does_not_fit(objects: MemoryObjects) -> None:
    rows = await put_rows(objects, [(A, b"1"), (B, b"1"), (A, b"2"), (C, b"1"), (A, b"3"), (B, b"2"), (A, b"4")])
    limits = ScanLimits(map_bytes=2 * (1 + ENTRY_BYTES))
    result, listed = await found(objects, scan_of(rows, limits=limits))
    assert listed == [0], "then comes a third key"
    assert (result.cleaned_to, result.is_whole) == (3, True)
    result, listed = await found(objects, scan_of(rows, limits=limits, dirty_from=3))
    assert (listed, result.cleaned_to) == ([0, 2], 5)


async def test_list_that_is_full_makes_the_scan_a_partial_one(objects: MemoryObjects) -> None:
    rows = await put_rows(objects, [(A, b"%d" % number) for number in range(30)])
    result, listed = await found(objects, scan_of(rows, limits=ScanLimits(chunk_bytes=1, max_obsolete=5)))
    assert not result.is_whole
    assert listed == [0, 1, 2, 3, 4]


async def test_only_offsets_inside_of_the_ranges_count(objects: MemoryObjects) -> None:
    rows = await put_rows(objects, [(A, b"1"), (A, b"2"), (A, b"3"), (A, b"4"), (A, b"5")])
    cut = ScanRange(1, 4, rows.file)
    result, listed = await found(objects, scan_of(cut))
    assert listed == [1, 2]
    assert result.cleaned_to == 4


async def test_threads_find_the_same(objects: MemoryObjects) -> None:
    task = scan_of(await put_rows(objects, [(A, b"1"), (B, None), (A, b"2"), (B, b"1")]))
    executor = ThreadExecutor("scan", threads=1)
    try:
        beside = await scan_keys(task, objects, attempt="y", executor=executor)
    finally:
        executor.close()
    inline = await scan_keys(task, objects, attempt="z")
    assert msgspec.structs.replace(beside, path="") == msgspec.structs.replace(inline, path="")
    assert await objects.get(ObjectKey(beside.path)) == await objects.get(ObjectKey(inline.path))


async def test_damage_and_missing_files_are_told(objects: MemoryObjects) -> None:
    range_ = await put_rows(objects, [(A, b"1"), (A, b"2")])
    data = bytearray(await objects.get(ObjectKey(range_.file.path)))
    data[range_.file.row_groups[0].start_byte + 3] ^= 1
    await objects.delete([ObjectKey(range_.file.path)])
    with pytest.raises(Missing):
        await scan_keys(scan_of(range_), objects, attempt="x")
    await objects.put(ObjectKey(range_.file.path), [bytes(data)])
    with pytest.raises(Corrupt, match="CRC"):
        await scan_keys(scan_of(range_), objects, attempt="x")


async def test_ranges_out_of_order_are_refused(objects: MemoryObjects) -> None:
    first, second = await put_rows(objects, [(A, b"1")]), await put_rows(objects, [(A, b"1")], start_offset=5)
    with pytest.raises(Invalid, match="follows"):
        await scan_keys(scan_of(second, first, cleanable_end=6), objects, attempt="x")


rows_strategy = st.lists(
    st.tuples(st.sampled_from([A, B, C, b"", None]), st.sampled_from([b"1", None])), min_size=1, max_size=25
)


@settings(max_examples=150, deadline=None)
@given(rows=rows_strategy, data=st.data())
async def test_scan_finds_what_a_model_of_the_cleaner_finds(rows: list[Row], data: st.DataObject) -> None:
    objects = MemoryObjects(ManualClock())
    split = data.draw(st.integers(0, len(rows)), label="split")
    ranges = [
        await put_rows(objects, part, start_offset=at)
        for at, part in ((0, rows[:split]), (split, rows[split:]))
        if part
    ]
    dirty_from = data.draw(st.integers(0, len(rows)), label="dirty from")
    end = data.draw(st.integers(dirty_from, len(rows)), label="end")
    expired = data.draw(st.integers(0, dirty_from), label="expired")
    limits = ScanLimits(chunk_bytes=data.draw(st.integers(1, 400), label="chunk"))
    task = scan_of(*ranges, dirty_from=dirty_from, cleanable_end=end, expired_to=expired, limits=limits)
    result, listed = await found(objects, task)
    latest = {key: offset for offset, (key, _) in enumerate(rows[:end]) if offset >= dirty_from}
    reach = end if end > dirty_from else expired
    expected, tombstones = [], 0
    for offset, (key, value) in enumerate(rows[:expired]):
        if key is not None and value is None and offset >= latest.get(key, 0):
            latest[key] = offset
    for offset, (key, value) in enumerate(rows[:reach]):
        if key is None or offset < latest.get(key, 0) or (value is None and offset < expired):
            expected.append(offset)
        elif value is None and offset >= dirty_from:
            tombstones += 1
    missed = set(expected) - set(listed)
    assert set(listed) <= set(expected)
    assert not missed or result.expired_left, "only what a tombstone has to do with may stay longer than it must"
    assert all(offset < expired for offset in missed)
    for offset in set(listed) - {at for at, (key, _) in enumerate(rows) if key is None}:
        key, value = rows[offset]
        later = [at for at in range(offset + 1, reach) if rows[at][0] == key]
        earlier = [at for at in range(offset) if rows[at][0] == key]
        assert later or (value is None and offset < expired and not earlier), "it would come back to life"
    assert result.tombstones == tombstones
    assert result.cleaned_to == end


async def keys_of(objects: MemoryObjects) -> list[str]:
    return [info.key async for info in objects.list("")]
