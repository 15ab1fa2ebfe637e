"""Verifying the log: damage is named by its offsets and bytes, and what brokers do beside it is none."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from headrace.errors import Retryable
from headrace.fetch.budget import ReadBudget
from headrace.fetch.verifying import MAX_ROUNDS
from headrace.index.objects import wal_object_key
from headrace.index.streams import advance_log_start
from headrace.index.values import INDEX_ENTRY
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectKey, StreamId
from headrace.objects.port import Buffer, ByteRange
from tests.unit.fetch.kit import FetchKit
from tests.unit.fetch.tabled import entries_of, swap_step, to_table, write_table
from tests.unit.fetch.test_damage import BATCHES, FLIPS, PER_BATCH, damaged_log
from tests.unit.fetch.test_table_reads import moved
from tests.unit.fetch.verified import TOPIC, overwrite, verify
from tests.unit.gc.folded import fold_all

BEHIND = BATCHES * PER_BATCH


@pytest.mark.parametrize("is_folded", [False, True], ids=["tail", "folded"])
async def test_whole_log_is_clean(is_folded: bool) -> None:
    log = await damaged_log()
    if is_folded:
        await fold_all(log.kit)
    report = await verify(log.kit, [log.stream, log.other])
    assert report.is_clean and report.damages() == [] and report.partitions == 2 and report.entries == 3
    entries = [entry for record in await log.kit.log() for entry in record.entries]
    assert is_folded or report.read_bytes == sum(entry.size_bytes for entry in entries)


@pytest.mark.parametrize("is_folded", [False, True], ids=["tail", "folded"])
@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("place", ["crc", "delta", "count", "body", "last"])
async def test_flipped_byte_names_its_batch_and_nothing_else(place: str, batch: int, is_folded: bool) -> None:
    log = await damaged_log()
    await log.flip(batch, FLIPS[place])
    entry, size_bytes = await log._place()
    if is_folded:
        await fold_all(log.kit)
    report = await verify(log.kit, [log.other, log.stream])
    (damage,) = report.damages()
    assert (damage.topic, damage.partition, damage.object_key) == (TOPIC, 1, log.key)
    assert (damage.start_offset, damage.end_offset) == (PER_BATCH * batch, PER_BATCH * (batch + 1))
    assert (damage.start_byte, damage.size_bytes) == (entry.start_byte + batch * size_bytes, size_bytes)
    assert damage.why and not report.is_clean and report.count == 1


async def test_object_that_ends_too_early_names_what_it_has_not() -> None:
    log = await damaged_log(segment_max_bytes=1)
    await log.cut_off(3)
    (damage,) = (await verify(log.kit, [log.stream])).damages()
    assert (damage.start_offset, damage.end_offset) == (3 * PER_BATCH, BEHIND) and "too early" in damage.why


async def test_object_that_is_gone_is_one_damage_per_partition() -> None:
    kit = FetchKit(tail_bytes=0)
    stream, other = await kit.start(2)
    for n in range(5):
        await kit.put(stream, b"%d" % n)
    await kit.put(other, b"whole")
    (object_id,) = {record.object_id for record in await kit.log() if record.entries}
    key = wal_object_key(kit.keys.domain, object_id)
    await kit.objects.delete([key])
    report = await verify(kit, [stream, other])
    assert [(one.partition, one.start_offset, one.end_offset) for one in report.damages()] == [(0, 0, 5), (1, 0, 1)]
    assert {one.object_key for one in report.damages()} == {key} and report.count == 6


async def test_index_that_counts_other_records_is_damage() -> None:
    log = await damaged_log()
    await fold_all(log.kit)
    entry = (await entries_of(log.kit, log.stream))[0]
    wrong = msgspec.structs.replace(entry, record_count=entry.record_count + 1)
    await overwrite(log.kit, {log.kit.keys.entry(log.stream, entry.end_offset): INDEX_ENTRY.encode(wrong)})
    (damage,) = (await verify(log.kit, [log.stream])).damages()
    assert f"hold {BEHIND} records, and the index says {BEHIND + 1}" in damage.why
    assert damage.object_key.startswith("wal/")


async def test_damage_below_the_log_start_hides_nothing() -> None:
    log = await damaged_log()
    await log.flip(0, FLIPS["body"])
    assert not (await verify(log.kit, [log.stream])).is_clean
    await advance_log_start(log.kit.keys, log.stream, PER_BATCH, now_ms=0).apply(log.kit.metadata)
    assert (await verify(log.kit, [log.stream])).is_clean


async def test_bad_answer_of_a_store_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    log = await damaged_log()
    through = log.kit.objects.get_ranges

    async def once_wrong(key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        monkeypatch.undo()
        return [bytes(len(data)) for data in await through(key, ranges)]

    monkeypatch.setattr(log.kit.objects, "get_ranges", once_wrong)
    assert (await verify(log.kit, [log.stream])).is_clean


async def test_records_in_a_table_are_checked_row_group_by_row_group() -> None:
    kit, stream, file = await moved()
    assert (await verify(kit, [stream])).is_clean
    group = file.row_groups[1]
    data = bytearray(await kit.objects.get(ObjectKey(file.path)))
    data[group.start_byte + group.size_bytes // 2] ^= 1
    await kit.objects.put(ObjectKey(file.path), [bytes(data)])
    report = await verify(kit, [stream])
    (damage,) = report.damages()
    assert (damage.object_key, damage.start_byte, damage.size_bytes) == (
        file.path,
        group.start_byte,
        group.size_bytes,
    )
    assert (damage.start_offset, damage.end_offset) == (group.first_offset, file.row_groups[2].first_offset)
    assert report.table_entries == 1 and "CRC" in damage.why


async def test_table_file_that_is_gone_is_damage() -> None:
    kit, stream, file = await moved()
    await kit.objects.delete([ObjectKey(file.path)])
    (damage,) = (await verify(kit, [stream])).damages()
    assert (damage.object_key, damage.start_offset, damage.end_offset) == (file.path, 0, 32)


def before_a_read(
    kit: FetchKit, monkeypatch: pytest.MonkeyPatch, change: Callable[[], Awaitable[None]], *, times: int = 1
) -> None:
    """Let something happen to the log after the index was looked at and before its bytes are read."""
    through = kit.objects.get_ranges
    left = [change] * times

    async def changed(key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        if left:
            await left.pop()()
        return await through(key, ranges)

    monkeypatch.setattr(kit.objects, "get_ranges", changed)


async def delete_wal(kit: FetchKit, entries_before: Sequence[object]) -> None:
    for extent in {extent for extent in entries_before if isinstance(extent, WalExtent)}:
        await kit.objects.delete([wal_object_key(kit.keys.domain, extent.object_id)])


async def test_swapped_and_deleted_object_is_followed_to_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = FetchKit(tail_bytes=0)
    (stream,) = await kit.start()
    for n in range(6):
        await kit.put(stream, b"%d" % n)
    file = await write_table(kit, stream)
    assert file is not None
    before = [entry.extent for entry in await entries_of(kit, stream)]

    async def swap() -> None:
        while await swap_step(kit, file, max_entries=100):
            pass
        await delete_wal(kit, before)

    before_a_read(kit, monkeypatch, swap)
    report = await verify(kit, [stream])
    assert report.is_clean and report.table_entries == 1


async def test_trimmed_and_deleted_object_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = FetchKit(tail_bytes=0, segment_max_bytes=1)
    (stream,) = await kit.start()
    for n in range(4):
        await kit.put(stream, b"%d" % n)
    await fold_all(kit)
    before = [entry.extent for entry in (await entries_of(kit, stream))[:3]]

    async def trim() -> None:
        await advance_log_start(kit.keys, stream, 3, now_ms=0).apply(kit.metadata)
        await delete_wal(kit, before)

    before_a_read(kit, monkeypatch, trim)
    assert (await verify(kit, [stream])).is_clean


async def test_entries_that_are_replaced_again_and_again_are_not_called_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = await damaged_log()
    await log.flip(1, FLIPS["body"])
    await fold_all(log.kit)
    entry = (await entries_of(log.kit, log.stream))[0]
    times = iter(range(1, 1000))

    async def replace() -> None:
        other = msgspec.structs.replace(entry, append_time_ms=next(times))
        await overwrite(log.kit, {log.kit.keys.entry(log.stream, entry.end_offset): INDEX_ENTRY.encode(other)})

    before_a_read(log.kit, monkeypatch, replace, times=10 * MAX_ROUNDS)
    with pytest.raises(Retryable, match="replaced"):
        await verify(log.kit, [log.stream])


async def test_reads_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = FetchKit(tail_bytes=0, segment_max_bytes=1)
    streams = await kit.start(12)
    for stream in streams:
        for n in range(6):
            await kit.put(stream, b"%d" % n * 3000)
    await to_table(kit, streams[0], entry_count=2)
    budget = ReadBudget(40_000, max_reads=3)
    most: list[tuple[int, int]] = []
    through = kit.objects.get_ranges

    async def noted(key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        most.append((budget.reads, budget.lent_bytes))
        return await through(key, ranges)

    monkeypatch.setattr(kit.objects, "get_ranges", noted)
    report = await verify(kit, streams, entries_per_page=3, budget=budget)
    assert report.is_clean and report.partitions == 12
    assert 1 < max(reads for reads, _ in most) <= 3 and max(held for _, held in most) <= 40_000


async def test_deleted_stream_is_left_out() -> None:
    log = await damaged_log()
    report = await verify(log.kit, [log.stream, StreamId(log.other + 1)])
    assert report.is_clean and report.partitions == 2
