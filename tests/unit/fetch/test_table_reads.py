"""Reading back from Parquet: few requests, all bytes checked, damage told, work on threads, budgets kept."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from headrace.errors import Corrupt, Missing
from headrace.fetch.budget import ReadBudget
from headrace.fetch.reader import MAX_PLANS, LogReader
from headrace.fetch.row_groups import RowGroupCache
from headrace.fetch.runs import Run
from headrace.fetch.table_reads import GroupKey, TableReader
from headrace.fetch.timestamps import TimedOffset
from headrace.index.swap import Swap, replacement_for, swap_entries
from headrace.model.extents import TableExtent, TableFile
from headrace.model.ids import ObjectKey, StreamId
from headrace.model.topics import TopicRules
from headrace.objects.port import Buffer, ByteRange
from headrace.records.batch import Codec, iter_batches
from headrace.runtime.executor import InlineExecutor
from headrace.testing.batches import make_batch, read_batches
from tests.unit.fetch.kit import ALL, FetchKit, offsets_of
from tests.unit.fetch.tabled import (
    ALL_ENTRIES,
    entries_of,
    is_in_wal,
    swap_step,
    table_extents,
    to_table,
    write_table,
)
from tests.unit.gc.folded import fold_all

T = TypeVar("T")

BATCHES = 8
PER_BATCH = 4


class CountingExecutor(InlineExecutor):
    def __init__(self) -> None:
        self.count = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.count += 1
        return work()


class Requests:
    """What the object store is asked for, from now on."""

    def __init__(self, kit: FetchKit, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[ObjectKey, int]] = []
        self.spoil: Callable[[list[Buffer]], list[Buffer]] | None = None
        through = kit.objects.get_ranges

        async def counted(key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
            self.asked.append((key, len(ranges)))
            found = await through(key, ranges)
            spoil, self.spoil = self.spoil, None
            return found if spoil is None else spoil(found)

        monkeypatch.setattr(kit.objects, "get_ranges", counted)


async def moved(
    *, executor: CountingExecutor | None = None, table_cache_bytes: int = 1_000_000, entry_count: int = ALL_ENTRIES
) -> tuple[FetchKit, StreamId, TableFile]:
    """Return a log of which the first entries lie in one file, a few records in each row group."""
    kit = FetchKit(tail_bytes=0, executor=executor, table_cache_bytes=table_cache_bytes)
    (stream,) = await kit.start()
    for n in range(BATCHES):
        values = [b"%d" % (PER_BATCH * n + row) * 400 for row in range(PER_BATCH)]
        await kit.put_batch(stream, make_batch(values, at_ms=100 * n))
    await to_table(kit, stream, entry_count=entry_count, row_group_bytes=2500)
    (extent,) = table_extents(await entries_of(kit, stream))
    (file,) = extent.files
    return kit, stream, file


def offsets(runs: Sequence[Run]) -> list[int]:
    return [record.offset for run in runs for record in read_batches(run.data)]


async def test_one_group_is_read_however_small_the_limit() -> None:
    kit, stream, file = await moved()
    assert len(file.row_groups) > 2
    for group, following in zip(file.row_groups, file.row_groups[1:], strict=False):
        for offset in range(group.first_offset, following.first_offset):
            runs = await kit.reader.read(stream, offset, max_bytes=0)
            assert offsets(runs) == list(range(group.first_offset, following.first_offset))


async def test_groups_of_a_file_come_with_one_request_and_its_footer_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kit, stream, file = await moved(table_cache_bytes=0)
    requests = Requests(kit, monkeypatch)
    groups = len(file.row_groups)
    for _ in range(2):
        assert offsets(await kit.reader.read(stream, 0, max_bytes=ALL)) == list(range(BATCHES * PER_BATCH))
    assert requests.asked == [(file.path, groups + 1), (file.path, groups)]


async def test_groups_in_memory_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kit, stream, file = await moved()
    requests = Requests(kit, monkeypatch)
    second = file.row_groups[1].first_offset
    await kit.reader.read(stream, second, max_bytes=0)
    await kit.reader.read(stream, second, max_bytes=0)
    assert requests.asked == [(file.path, 2)]
    assert offsets(await kit.reader.read(stream, 0, max_bytes=ALL)) == list(range(BATCHES * PER_BATCH))
    assert requests.asked[1:] == [(file.path, len(file.row_groups) - 1)]


async def test_two_readers_at_once_rebuild_a_group_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kit, stream, file = await moved()
    requests = Requests(kit, monkeypatch)
    found = await asyncio.gather(*(kit.reader.read(stream, offset, max_bytes=0) for offset in (0, 1, 0)))
    assert [offsets(runs)[0] for runs in found] == [0, 0, 0]
    assert requests.asked == [(file.path, 2)]


async def test_known_footers_tell_how_much_a_read_will_bring() -> None:
    kit, stream, file = await moved(table_cache_bytes=0)
    await kit.reader.read(stream, 0, max_bytes=0)
    (first,) = await kit.reader.read(stream, 0, max_bytes=0)
    runs = await kit.reader.read(stream, 0, max_bytes=4 * len(first.data))
    assert len(file.row_groups) > 4 > len(runs) > 1


async def test_number_of_groups_in_one_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.fetch.reader.MAX_WINDOWS", 3)
    kit, stream, _ = await moved()
    assert len(await kit.reader.read(stream, 0, max_bytes=ALL)) == 3


async def test_reads_end_where_the_log_changes_between_table_and_wal() -> None:
    kit, stream, _ = await moved(entry_count=5)
    in_table = 5 * PER_BATCH
    assert offsets(await kit.reader.read(stream, 1, max_bytes=ALL)) == list(range(in_table))
    assert offsets(await kit.reader.read(stream, in_table, max_bytes=ALL))[0] == in_table
    reached = 0
    while reached < BATCHES * PER_BATCH:
        (fetched,) = await kit.fetch((stream, reached))
        assert offsets_of(fetched) == list(range(reached, fetched.end_offset))
        reached = fetched.end_offset


async def test_parquet_is_opened_on_threads_only() -> None:
    executor = CountingExecutor()
    kit, stream, file = await moved(executor=executor)
    await kit.reader.read(stream, 0, max_bytes=ALL)
    assert executor.count == len(file.row_groups) + 1, "each group, and the footer"
    await kit.reader.read(stream, 0, max_bytes=ALL)
    assert executor.count == len(file.row_groups) + 1


async def test_reads_are_lent_from_the_budget_unless_memory_has_them() -> None:
    kit, stream, _ = await moved()
    budget = ReadBudget(1_000_000, max_reads=1)
    async with budget.lend(1):
        waiting = asyncio.create_task(kit.reader.read(stream, 0, max_bytes=0, budget=budget))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert budget.waiting_count == 1 and not waiting.done()
    assert await waiting
    async with budget.lend(1):
        assert await kit.reader.read(stream, 0, max_bytes=0, budget=budget), "it is in memory: nobody is in the way"


async def test_readers_in_tables_count_as_far_however_small_the_log() -> None:
    kit, stream, _ = await moved()
    await kit.fetch((stream, 0))
    assert kit.catch_up._is_near(stream, 0) is False


async def test_change_of_the_topics_compression_counts_for_the_next_read() -> None:
    kit, stream, _ = await moved()
    for compression, codec in (("zstd", Codec.ZSTD), ("uncompressed", Codec.NONE), ("gzip", Codec.GZIP)):
        kit.rules = TopicRules(max_message_bytes=1_000_000, compression=compression)
        runs = await kit.reader.read(stream, 0, max_bytes=ALL)
        assert {view.codec for run in runs for view in iter_batches(run.data)} == {codec}


async def test_entry_between_two_steps_shows_its_part_of_a_group() -> None:
    kit = FetchKit(tail_bytes=0)
    (stream,) = await kit.start()
    for n in range(4):
        await kit.put(stream, b"%d" % (2 * n), b"%d" % (2 * n + 1))
    file = await write_table(kit, stream, row_group_bytes=1_000_000)
    assert file is not None and len(file.slices[0].row_groups) == 1
    assert await swap_step(kit, file, max_entries=2)
    assert offsets(await kit.reader.read(stream, 0, max_bytes=ALL)) == [0, 1, 2, 3]
    assert offsets(await kit.reader.read(stream, 4, max_bytes=ALL)) == [4, 5, 6, 7]
    assert await swap_step(kit, file, max_entries=2)
    assert offsets(await kit.reader.read(stream, 1, max_bytes=ALL)) == [0, 1, 2, 3, 4, 5], "what is cached is not all"


async def test_entry_that_is_all_hole_needs_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = FetchKit(tail_bytes=0)
    (stream,) = await kit.start()
    for n in range(4):
        await kit.put(stream, b"%d" % n)
    await fold_all(kit)
    planned = (await entries_of(kit, stream))[1:3]
    swap = Swap(stream=stream, planned=planned, replacements=[replacement_for(planned, TableExtent(()))])
    await swap_entries(kit.keys, swap, now_ms=0).apply(kit.metadata)
    await kit.cache.refresh()
    requests = Requests(kit, monkeypatch)
    (fetched,) = await kit.fetch((stream, 1))
    assert (offsets_of(fetched), fetched.end_offset) == ([], 3)
    assert requests.asked == []
    (fetched,) = await kit.fetch((stream, 0))
    assert (offsets_of(fetched), fetched.end_offset) == ([0], 1)


# Damage


def flipped(position: int) -> Callable[[list[Buffer]], list[Buffer]]:
    """Return what changes one byte of one of the ranges that came."""

    def spoil(found: list[Buffer]) -> list[Buffer]:
        spoiled = bytearray(found[position])
        spoiled[len(spoiled) // 2] ^= 1
        return [bytes(spoiled) if n == position % len(found) else one for n, one in enumerate(found)]

    return spoil


@pytest.mark.parametrize("position", [0, 1, -1])
async def test_wrong_bytes_are_asked_for_once_more(monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    kit, stream, _ = await moved()
    requests = Requests(kit, monkeypatch)
    requests.spoil = flipped(position)
    assert offsets(await kit.reader.read(stream, 0, max_bytes=ALL)) == list(range(BATCHES * PER_BATCH))
    assert len(requests.asked) == 2


async def damage(kit: FetchKit, file: TableFile, at_byte: int) -> None:
    key = ObjectKey(file.path)
    data = bytearray(await kit.objects.get(key))
    data[at_byte] ^= 1
    await kit.objects.put(key, [bytes(data)])


async def test_damaged_group_is_damage_and_its_neighbours_are_read() -> None:
    kit, stream, file = await moved()
    spoiled = file.row_groups[1]
    await damage(kit, file, spoiled.start_byte + spoiled.size_bytes // 2)
    with pytest.raises(Corrupt, match=file.path):
        await kit.reader.read(stream, spoiled.first_offset, max_bytes=0)
    assert offsets(await kit.reader.read(stream, 0, max_bytes=0))[0] == 0
    behind = file.row_groups[2].first_offset
    assert offsets(await kit.reader.read(stream, behind, max_bytes=0))[0] == behind


@pytest.mark.parametrize("from_end", [1, 5, 8, 9, 100])
async def test_damaged_footer_is_damage(from_end: int) -> None:
    kit, stream, file = await moved()
    await damage(kit, file, file.size_bytes - from_end)
    with pytest.raises(Corrupt, match=file.path):
        await kit.reader.read(stream, 0, max_bytes=0)


async def test_file_that_is_too_short_is_damage() -> None:
    kit, stream, file = await moved()
    whole = bytes(await kit.objects.get(ObjectKey(file.path)))
    await kit.objects.put(ObjectKey(file.path), [whole[:-50]])
    with pytest.raises(Corrupt):
        await kit.reader.read(stream, 0, max_bytes=0)


async def test_file_that_is_gone_though_the_fresh_index_names_it_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    kit, stream, file = await moved()
    await kit.objects.delete([ObjectKey(file.path)])
    requests = Requests(kit, monkeypatch)
    with pytest.raises(Corrupt, match=file.path):
        await kit.reader.read(stream, 0, max_bytes=0)
    assert len(requests.asked) == MAX_PLANS + 1, "once more before it is called damage"


async def test_wal_object_that_went_with_the_swap_means_plan_again() -> None:
    kit = FetchKit(tail_bytes=0, segment_max_bytes=1)
    (stream,) = await kit.start()
    for n in range(3):
        await kit.put(stream, b"%d" % n)
    late = kit.reading(kit.cache)
    assert offsets(await late.read(stream, 0, max_bytes=ALL)) == [0, 1, 2]
    remembered = await kit.cache.locate(stream, 0)
    assert all(is_in_wal(entry) for entry in remembered)
    file = await write_table(kit, stream)
    assert file is not None
    while await swap_step(kit, file):
        pass
    kit.cache.view.note_folded(stream, remembered)  # as if the news of the swap had not come yet
    await kit.writer.close()
    async for info in kit.objects.list("wal/"):
        await kit.objects.delete([info.key])
    assert offsets(await late.read(stream, 0, max_bytes=ALL)) == [0, 1, 2]


async def test_rebuilt_file_is_missing_for_one_reader_only_once() -> None:
    kit, stream, file = await moved()
    tables = TableReader(objects=kit.objects, executor=InlineExecutor(), cache=RowGroupCache[GroupKey](max_bytes=0))
    reader = LogReader(domain=kit.keys.domain, cache=kit.cache, objects=kit.objects, tables=tables)
    original = kit.objects.get_ranges
    refusals = 1

    async def flaky(key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        nonlocal refusals
        if key == file.path and refusals:
            refusals -= 1
            raise Missing(key)
        return await original(key, ranges)

    kit.objects.get_ranges = flaky  # type: ignore[method-assign]
    assert offsets(await reader.read(stream, 0, max_bytes=0))[0] == 0


# Times


async def test_only_groups_that_can_hold_the_answer_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    kit, stream, file = await moved()
    requests = Requests(kit, monkeypatch)
    found = await kit.timestamps.first_since(stream, 503)
    assert found == TimedOffset(5 * PER_BATCH + 3, 503)
    assert requests.asked == [(file.path, 2)], "one group, and the footer"
    assert await kit.timestamps.latest(stream) == TimedOffset(BATCHES * PER_BATCH - 1, 703)
    assert requests.asked[1:] == [(file.path, 1)]


async def test_time_of_a_row_outside_the_entry_leads_on() -> None:
    kit = FetchKit(tail_bytes=0)
    (stream,) = await kit.start()
    for at_ms in (10, 60, 90, 20):
        await kit.put(stream, b"x", at_ms=at_ms)
    file = await write_table(kit, stream, row_group_bytes=1_000_000)
    assert file is not None
    assert await swap_step(kit, file, max_entries=2)
    # The entry in the table has the first two records of the one group, which knows of the third one's time.
    assert await kit.timestamps.first_since(stream, 70) == TimedOffset(2, 90)
    assert await kit.timestamps.latest(stream) == TimedOffset(2, 90)
    while await swap_step(kit, file, max_entries=2):
        assert await kit.timestamps.first_since(stream, 70) == TimedOffset(2, 90)
        assert await kit.timestamps.first_since(stream, 91) is None
        assert await kit.timestamps.latest(stream) == TimedOffset(2, 90)


async def test_greatest_time_that_became_a_hole_does_not_count() -> None:
    kit = FetchKit(tail_bytes=0)
    (stream,) = await kit.start()
    for at_ms in (10, 60, 90, 20):
        await kit.put(stream, b"x", at_ms=at_ms)
    await fold_all(kit)
    planned = (await entries_of(kit, stream))[2:3]
    swap = Swap(stream=stream, planned=planned, replacements=[replacement_for(planned, TableExtent(()))])
    await swap_entries(kit.keys, swap, now_ms=0).apply(kit.metadata)
    assert await kit.timestamps.latest(stream) == TimedOffset(1, 60)
    assert await kit.timestamps.first_since(stream, 61) is None
    assert await kit.timestamps.first_since(stream, 15) == TimedOffset(1, 60)
