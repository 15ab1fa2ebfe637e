"""Reading: whole entries with their offsets, from wherever the index says they lie, or a clear error."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from headrace.errors import Corrupt, Missing, Retryable
from headrace.fetch.reader import MAX_PLANS, LogReader
from headrace.fetch.runs import Run
from headrace.fetch.wal_reads import LOOP_MAX_BYTES
from headrace.index.cache import ENTRIES_PER_READ, IndexCache
from headrace.index.objects import CollectingAges, condemn_objects, forget_objects, stage_objects, wal_object_id
from headrace.index.objects import wal_object_key as object_key_of
from headrace.index.streams import advance_log_start, delete_stream
from headrace.index.swap import Swap, replacement_for, swap_entries
from headrace.index.values import INDEX_ENTRY, IndexEntry
from headrace.metadata.port import Range, Versioned
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectId, ObjectKey, StreamId, WriterId
from headrace.objects.port import Buffer, ByteRange
from headrace.records.batch import iter_batches
from headrace.runtime.executor import InlineExecutor
from headrace.testing.batches import read_batches
from tests.unit.gc.folded import fold_all
from tests.unit.produce.scripted import WRITER, Meanwhile, Refuse, WriterKit, batch_bytes

T = TypeVar("T")

ALL = 1_000_000
PACKER = WriterId("c3" * 16)
AT_ONCE = CollectingAges(staged_max_age_ms=0, sealed_grace_ms=0)


def reader_of(kit: WriterKit) -> LogReader:
    return LogReader(domain=kit.keys.domain, cache=kit.cache, objects=kit.objects)


def records(runs: list[Run]) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for run in runs for record in read_batches(run.data)]


async def logged(count: int, *, segment_max_bytes: int = 100_000) -> tuple[WriterKit, StreamId]:
    """Return a log with `count` entries of two records each; segments may be so small that each entry has its own."""
    kit = WriterKit(segment_max_bytes=segment_max_bytes)
    (stream,) = await kit.start()
    for n in range(count):
        await kit.append(stream, b"%d" % (2 * n), b"%d" % (2 * n + 1))
    return kit, stream


def expected(start_offset: int, end_offset: int) -> list[tuple[int, bytes | None]]:
    return [(offset, b"%d" % offset) for offset in range(start_offset, end_offset)]


async def entries(kit: WriterKit, stream: StreamId) -> list[IndexEntry]:
    found = await kit.metadata.range(kit.keys.entries(stream, after_offset=0, limit=100))
    return [INDEX_ENTRY.decode(item.value, item.key) for item in found]


async def repack(kit: WriterKit, stream: StreamId, *, collects: bool = True) -> None:
    """Swap all entries for one that names a packed object, and collect the old objects at once, or never."""
    await kit.writer.close()
    planned = await entries(kit, stream)
    packed = wal_object_id(PACKER, 0)
    rule = stage_objects(kit.keys, [packed], writer=PACKER, is_segment=False, now_ms=0)
    await rule.apply(kit.metadata)
    data = b""
    for entry in planned:
        assert isinstance(entry.extent, WalExtent)
        whole = bytes(await kit.objects.get(object_key_of(kit.keys.domain, entry.extent.object_id)))
        data += whole[entry.extent.start_byte :][: entry.extent.size_bytes]
    await kit.objects.put(object_key_of(kit.keys.domain, packed), [data])
    replacement = replacement_for(planned, WalExtent(packed, 0, len(data)))
    swap = Swap(stream=stream, planned=planned, replacements=[replacement])
    await swap_entries(kit.keys, swap, now_ms=0).apply(kit.metadata)
    for number in range(len(planned) if collects else 0):
        await collect(kit, wal_object_id(WRITER, number))


async def collect(kit: WriterKit, object_id: ObjectId) -> None:
    assert await condemn_objects(kit.keys, [object_id], now_ms=2**60, ages=AT_ONCE).apply(kit.metadata)
    await kit.objects.delete([object_key_of(kit.keys.domain, object_id)])
    await forget_objects(kit.keys, [object_id]).apply(kit.metadata)


async def damage(kit: WriterKit, at_byte: int, value: bytes) -> None:
    """Change bytes of the writer's first object."""
    key = object_key_of(kit.keys.domain, wal_object_id(WRITER, 0))
    data = bytearray(await kit.objects.get(key))
    data[at_byte : at_byte + len(value)] = value
    await kit.objects.put(key, [bytes(data)])


# What is returned


@pytest.mark.parametrize("is_folded", [False, True])
async def test_whole_entries_are_returned_from_the_one_that_holds_the_offset(is_folded: bool) -> None:
    kit, stream = await logged(4)
    if is_folded:
        await fold_all(kit)
    for offset in range(8):
        runs = await reader_of(kit).read(stream, offset, max_bytes=ALL)
        assert records(runs) == expected(offset // 2 * 2, 8)
        assert [(run.start_offset, run.end_offset) for run in runs] == [
            (n, n + 2) for n in range(offset // 2 * 2, 8, 2)
        ]


async def test_batches_come_back_byte_for_byte_but_for_their_offsets() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"before")
    await kit.offer(stream, b"value", producer=7, sequence=0)
    (run,) = await reader_of(kit).read(stream, 1, max_bytes=ALL)
    (batch,) = iter_batches(run.data)
    batch.check()
    assert (batch.base_offset, batch.leader_epoch, batch.producer_id, batch.base_sequence) == (1, -1, 7, 0)
    assert run.data.readonly


@pytest.mark.parametrize(("spare_bytes", "count"), [(-1, 2), (0, 3), (1, 3)])
async def test_entries_are_returned_while_they_fit(spare_bytes: int, count: int) -> None:
    kit, stream = await logged(5)
    runs = await reader_of(kit).read(stream, 0, max_bytes=3 * batch_bytes(b"0", b"1") + spare_bytes)
    assert records(runs) == expected(0, 2 * count)


async def test_one_entry_is_returned_however_small_the_limit() -> None:
    kit, stream = await logged(2)
    assert records(await reader_of(kit).read(stream, 2, max_bytes=0)) == expected(2, 4)


async def test_entries_of_several_objects_are_read_with_one_request_each() -> None:
    kit, stream = await logged(6, segment_max_bytes=2 * 220)
    objects = {record.object_id for record in await kit.log()}
    assert len(objects) == 3
    assert records(await reader_of(kit).read(stream, 0, max_bytes=ALL)) == expected(0, 12)
    assert kit.script.calls["read"] == 3


async def test_streams_of_one_frame_are_kept_apart() -> None:
    kit = WriterKit()
    a, b = await kit.start(2)
    offers = [kit.offer(b if n % 2 else a, b"%d" % n) for n in range(6)]
    for offer in offers:
        await offer
    assert records(await reader_of(kit).read(a, 0, max_bytes=ALL)) == [(0, b"0"), (1, b"2"), (2, b"4")]
    assert records(await reader_of(kit).read(b, 0, max_bytes=ALL)) == [(0, b"1"), (1, b"3"), (2, b"5")]


@pytest.mark.parametrize("offset", [4, 5, 2**40])
async def test_nothing_is_returned_at_or_behind_the_end(offset: int) -> None:
    kit, stream = await logged(2)
    assert await reader_of(kit).read(stream, offset, max_bytes=ALL) == []


async def test_nothing_is_returned_for_a_stream_that_is_not_there() -> None:
    kit, _ = await logged(1)
    assert await reader_of(kit).read(StreamId(99), 0, max_bytes=ALL) == []


@pytest.mark.parametrize("is_folded", [False, True])
async def test_nothing_is_returned_below_the_log_start(is_folded: bool) -> None:
    kit, stream = await logged(3)
    if is_folded:
        await fold_all(kit)
    await advance_log_start(kit.keys, stream, 4, now_ms=0).apply(kit.metadata)
    await kit.cache.refresh()
    assert await reader_of(kit).read(stream, 0, max_bytes=ALL) == []


async def test_nothing_is_returned_from_a_deleted_stream() -> None:
    kit, stream = await logged(3)
    await delete_stream(kit.keys, stream, now_ms=0).apply(kit.metadata)
    await kit.cache.refresh()
    assert await reader_of(kit).read(stream, 0, max_bytes=ALL) == []


async def test_what_another_process_appended_is_found() -> None:
    kit, stream = await logged(1)
    reader = reader_of(kit)
    assert await reader.read(stream, 2, max_bytes=ALL) == []
    kit.writer._cache = None
    await kit.append(stream, b"2", b"3")
    assert records(await reader.read(stream, 2, max_bytes=ALL)) == expected(2, 4)


async def test_small_entries_are_read_beyond_one_page_of_the_index() -> None:
    kit, stream = await logged(ENTRIES_PER_READ + 40, segment_max_bytes=1_000_000)
    await fold_all(kit)
    reader = LogReader(
        domain=kit.keys.domain,
        cache=IndexCache(kit.metadata, kit.keys, max_folded_entries=1000),
        objects=kit.objects,
    )
    assert len(await reader.read(stream, 0, max_bytes=ALL)) == ENTRIES_PER_READ + 40
    assert kit.script.calls["read"] == 1


async def test_number_of_entries_in_one_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.fetch.reader.MAX_ENTRIES", 10)
    kit, stream = await logged(ENTRIES_PER_READ + 10, segment_max_bytes=1_000_000)
    await fold_all(kit)
    assert len(await reader_of(kit).read(stream, 0, max_bytes=ALL)) == ENTRIES_PER_READ


async def test_neighbours_in_an_object_are_read_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    kit, stream = await logged(5)
    asked: list[int] = []
    through = kit.objects.get_ranges

    async def counted(key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        asked.append(len(ranges))
        return await through(key, ranges)

    monkeypatch.setattr(kit.objects, "get_ranges", counted)
    assert records(await reader_of(kit).read(stream, 0, max_bytes=ALL)) == expected(0, 10)
    monkeypatch.setattr("headrace.fetch.wal_reads.MAX_GAP_BYTES", 10)
    assert records(await reader_of(kit).read(stream, 0, max_bytes=ALL)) == expected(0, 10)
    assert asked == [1, 5]


async def test_large_reads_are_checked_by_the_executor() -> None:
    kit = WriterKit(segment_max_bytes=10_000_000, frame_max_bytes=1_000_000)
    (stream,) = await kit.start()
    await kit.append(stream, b"x" * 100)
    await kit.append(stream, b"y" * LOOP_MAX_BYTES)

    class Counting(InlineExecutor):
        count = 0

        async def run(self, work: Callable[[], T]) -> T:
            self.count += 1
            return work()

    executor = Counting()
    reader = LogReader(domain=kit.keys.domain, cache=kit.cache, objects=kit.objects, executor=executor)
    await reader.read(stream, 0, max_bytes=0)
    assert executor.count == 0
    assert records(await reader.read(stream, 1, max_bytes=0)) == [(1, b"y" * LOOP_MAX_BYTES)]
    assert executor.count == 1


async def test_stamping_never_changes_bytes_that_the_store_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    kit, stream = await logged(3)
    given: list[Buffer] = []
    through = kit.objects.get_ranges

    async def kept(key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        found = await through(key, ranges)
        given.extend(found)
        return found

    monkeypatch.setattr(kit.objects, "get_ranges", kept)
    monkeypatch.setattr("headrace.fetch.wal_reads.MAX_GAP_BYTES", 0)
    runs = await reader_of(kit).read(stream, 0, max_bytes=ALL)
    assert records(runs) == expected(0, 6)
    assert [next(iter_batches(memoryview(piece))).base_offset for piece in given] == [0, 0, 0], "as produced"


# Objects that are gone


async def test_object_that_went_with_a_repack_means_plan_again() -> None:
    kit, stream = await logged(3, segment_max_bytes=1)
    await fold_all(kit)
    reader = reader_of(kit)
    assert records(await reader.read(stream, 0, max_bytes=ALL)) == expected(0, 6)
    await repack(kit, stream)
    runs = await reader.read(stream, 3, max_bytes=ALL)
    assert records(runs) == expected(0, 6), "one entry holds all of them now"


async def test_repack_that_comes_between_plan_and_read_means_plan_again() -> None:
    kit, stream = await logged(3, segment_max_bytes=1)
    await fold_all(kit)
    kit.script.plan("read", Meanwhile(lambda: repack(kit, stream)))
    assert records(await reader_of(kit).read(stream, 0, max_bytes=ALL)) == expected(0, 6)


async def test_repack_that_comes_between_two_pages_of_a_plan_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kit, stream = await logged(3, segment_max_bytes=1)
    await fold_all(kit)
    real = kit.metadata.range
    pages = 0

    async def repacked_after_the_first(wanted: Range) -> list[Versioned]:
        nonlocal pages
        found = await real(wanted)
        if "/index/" in wanted.start:
            pages += 1
            if pages == 1:
                await repack(kit, stream, collects=False)
        return found

    monkeypatch.setattr("headrace.fetch.reader.ENTRIES_PER_READ", 1)
    monkeypatch.setattr(kit.metadata, "range", repacked_after_the_first)
    reader = reader_of(kit)
    assert records(await reader.read(stream, 0, max_bytes=ALL)) == expected(0, 2)
    assert records(await reader.read(stream, 2, max_bytes=ALL)) == expected(0, 6), "one entry holds all of them now"


async def test_repack_of_what_memory_holds_unfolded_means_plan_again() -> None:
    kit, stream = await logged(3, segment_max_bytes=1)
    await kit.cache.refresh()
    await fold_all(kit)
    await repack(kit, stream)
    assert records(await reader_of(kit).read(stream, 0, max_bytes=ALL)) == expected(0, 6)


@pytest.mark.parametrize("is_folded", [False, True])
async def test_object_that_the_fresh_index_names_and_is_gone_is_damage(is_folded: bool) -> None:
    kit, stream = await logged(2)
    if is_folded:
        await fold_all(kit)
    key = object_key_of(kit.keys.domain, wal_object_id(WRITER, 0))
    await kit.objects.delete([key])
    with pytest.raises(Corrupt, match=key):
        await reader_of(kit).read(stream, 0, max_bytes=ALL)
    assert kit.script.calls["read"] == MAX_PLANS + 2, "and again before it is called damage"


async def test_missing_that_was_a_lie_is_read_at_the_next_plan() -> None:
    kit, stream = await logged(1)
    kit.script.plan("read", Refuse(Missing("not there yet")))
    assert records(await reader_of(kit).read(stream, 0, max_bytes=ALL)) == expected(0, 2)


async def test_other_errors_reach_the_caller_as_they_are() -> None:
    kit, stream = await logged(1)
    kit.script.plan("read", Refuse(Retryable("busy")))
    with pytest.raises(Retryable):
        await reader_of(kit).read(stream, 0, max_bytes=ALL)


# Damage


@pytest.mark.parametrize("distance", range(0, 150, 7))
async def test_damaged_bytes_are_never_skipped_or_served(distance: int) -> None:
    kit, stream = await logged(2)
    (first, second) = [entry for record in await kit.log() for entry in record.entries]
    assert first.size_bytes == second.size_bytes
    at_byte = second.start_byte + distance
    if distance >= second.size_bytes or 0 <= distance < 8 or 12 <= distance < 16:
        return  # base offset and leader epoch are stamped over
    key = object_key_of(kit.keys.domain, wal_object_id(WRITER, 0))
    (was,) = bytes(await kit.objects.get(key))[at_byte : at_byte + 1]
    await damage(kit, at_byte, bytes([was ^ 0xFF]))
    reader = reader_of(kit)
    with pytest.raises(Corrupt, match=key):
        await reader.read(stream, 2, max_bytes=ALL)
    for max_bytes in (0, ALL):
        assert records(await reader.read(stream, 0, max_bytes=max_bytes)) == expected(0, 2), "what lies before it"


async def test_batches_that_cover_other_offsets_than_the_index_says_are_damage() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"12", b"34")
    await kit.append(stream, b"5678" + bytes(batch_bytes(b"12", b"34") - batch_bytes(b"5678")))
    (first, second) = [entry for record in await kit.log() for entry in record.entries]
    assert first.size_bytes <= second.size_bytes
    key = object_key_of(kit.keys.domain, wal_object_id(WRITER, 0))
    data = bytes(await kit.objects.get(key))
    await damage(kit, second.start_byte, data[first.start_byte :][: first.size_bytes])
    with pytest.raises(Corrupt):
        await reader_of(kit).read(stream, 2, max_bytes=ALL)


async def test_object_that_is_too_short_is_damage() -> None:
    kit, stream = await logged(2)
    key = object_key_of(kit.keys.domain, wal_object_id(WRITER, 0))
    await kit.objects.put(key, [bytes(await kit.objects.get(key))[:150]])
    assert records(await reader_of(kit).read(stream, 0, max_bytes=ALL)) == expected(0, 2)
    with pytest.raises(Corrupt):
        await reader_of(kit).read(stream, 2, max_bytes=ALL)
