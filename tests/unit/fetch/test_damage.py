"""Damage: what is intact is served up to it, then an error; what lies behind is readable."""

import json

import pytest

from headrace.fetch.damage import MAX_KNOWN_DAMAGES, Damage, DamageBook, Damaged, readable
from headrace.fetch.fetcher import Fetched, Outcome
from headrace.fetch.runs import Run
from headrace.index.objects import wal_object_key
from headrace.index.values import CommitEntry
from headrace.model.ids import ObjectKey, StreamId
from headrace.records.batch import HEADER_BYTES
from headrace.testing.batches import make_batch
from tests.unit.fetch.kit import ALL, FetchKit, offsets_of, stamped_run
from tests.unit.fetch.test_table_reads import moved

PER_BATCH = 2
BATCHES = 5

FLIPS = {"length": 9, "magic": 16, "crc": 18, "delta": 26, "count": 58, "body": HEADER_BYTES + 3, "last": -1}
"""Bytes of a batch that something watches over."""


class DamagedLog:
    """A stream of which one entry has several batches, and what was done to it."""

    def __init__(self, kit: FetchKit, stream: StreamId, other: StreamId) -> None:
        self.kit, self.stream, self.other = kit, stream, other

    async def flip(self, batch: int, at_byte: int) -> None:
        """Damage one byte of a batch, counted from the beginning of the stream."""
        entry, size_bytes = await self._place()
        data = bytearray(await self.kit.objects.get(self.key))
        start_byte = entry.start_byte + batch * size_bytes
        data[start_byte + (at_byte % size_bytes)] ^= 0x41
        await self.kit.objects.put(self.key, [bytes(data)])

    async def cut_off(self, batch: int) -> None:
        """Let the object end within a batch."""
        entry, size_bytes = await self._place()
        data = bytes(await self.kit.objects.get(self.key))
        await self.kit.objects.put(self.key, [data[: entry.start_byte + batch * size_bytes + 70]])

    async def _place(self) -> tuple[CommitEntry, int]:
        records = [record for record in await self.kit.log() if record.entries]
        (record, entry) = next((r, e) for r in records for e in r.entries if e.stream == self.stream)
        self.key = wal_object_key(self.kit.keys.domain, record.object_id)
        return entry, entry.size_bytes // BATCHES

    async def fetch(self, offset: int, max_bytes: int = ALL) -> Fetched:
        (found,) = await self.kit.fetch((self.stream, offset), partition_bytes=max_bytes)
        return found

    async def walk(self, offset: int, *, max_bytes: int = ALL) -> tuple[list[int], int]:
        """Read on like a consumer until an error; return the offsets that came, and where the error was."""
        seen: list[int] = []
        while True:
            found = await self.fetch(offset, max_bytes)
            if found.outcome is Outcome.FAILED:
                assert isinstance(found.error, Damaged) and not found.records
                return [one for one in seen if one >= 0], offset
            assert found.outcome is Outcome.FOUND and found.records, "a fetch never comes back with nothing"
            seen += [one for one in offsets_of(found) if one >= offset]
            offset = found.end_offset


async def damaged_log(*, segment_max_bytes: int = 100_000) -> DamagedLog:
    kit = FetchKit(tail_bytes=0, segment_max_bytes=segment_max_bytes)
    stream, other = await kit.start(2)
    values = [[b"%04d" % (PER_BATCH * n + row) for row in range(PER_BATCH)] for n in range(BATCHES)]
    assert await kit.put_batch(stream, b"".join(bytes(make_batch(one)) for one in values)) == 0
    await kit.put(other, b"whole")
    await kit.put(stream, b"behind")
    return DamagedLog(kit, stream, other)


@pytest.mark.parametrize("segment_max_bytes", [100_000, 1], ids=["segment", "own object"])
@pytest.mark.parametrize("max_bytes", [ALL, 160, 1])
@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("place", FLIPS)
async def test_intact_records_before_the_damage_are_served_then_it_answers_with_an_error(
    place: str, batch: int, max_bytes: int, segment_max_bytes: int
) -> None:
    log = await damaged_log(segment_max_bytes=segment_max_bytes)
    await log.flip(batch, FLIPS[place])
    first = PER_BATCH * batch
    for offset in range(first + PER_BATCH):
        assert await log.walk(offset, max_bytes=max_bytes) == (list(range(offset, first)), max(offset, first))
    assert log.kit.damages.found == 1
    lines = [json.loads(line) for line in log.kit.logged.getvalue().splitlines()]
    (line,) = [line for line in lines if line["level"] == "error"]
    assert line["object"] == log.key and line["topic"] == "topic" and line["start_offset"] == first
    assert line["size_bytes"] > 0 and line["start_byte"] >= 0


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("place", ["crc", "delta", "count", "body", "last"])
async def test_records_behind_the_damage_are_readable(place: str, batch: int) -> None:
    log = await damaged_log()
    await log.flip(batch, FLIPS[place])
    found = await log.fetch(PER_BATCH * (batch + 1))
    end = PER_BATCH * BATCHES
    assert offsets_of(found)[: end - PER_BATCH * (batch + 1)] == list(range(PER_BATCH * (batch + 1), end)) or (
        batch == BATCHES - 1 and offsets_of(found) == [end]
    )


async def test_two_damaged_batches_hide_what_lies_between_them_and_no_more() -> None:
    log = await damaged_log()
    await log.flip(1, FLIPS["body"])
    await log.flip(3, FLIPS["body"])
    assert await log.walk(0) == ([0, 1], 2)
    assert await log.walk(5) == ([], 5)
    assert offsets_of(await log.fetch(8)) == [8, 9, 10]


@pytest.mark.parametrize("batch", range(BATCHES))
async def test_object_that_ends_too_early_serves_what_it_has(batch: int) -> None:
    log = await damaged_log(segment_max_bytes=1)
    await log.cut_off(batch)
    assert await log.walk(0) == (list(range(PER_BATCH * batch)), PER_BATCH * batch)
    assert offsets_of(await log.fetch(PER_BATCH * BATCHES)) == [PER_BATCH * BATCHES]


async def test_missing_object_hides_its_own_offsets_only() -> None:
    kit = FetchKit(tail_bytes=0, segment_max_bytes=1)
    (stream,) = await kit.start()
    for n in range(3):
        await kit.put(stream, b"%d" % n)
    second = [record for record in await kit.log() if record.entries][1]
    await kit.objects.delete([wal_object_key(kit.keys.domain, second.object_id)])
    log = DamagedLog(kit, stream, stream)
    assert await log.walk(0) == ([0], 1)
    assert offsets_of(await log.fetch(2)) == [2]


async def test_damaged_partition_hides_no_neighbour_and_does_not_wait() -> None:
    log = await damaged_log()
    await log.flip(0, FLIPS["body"])
    for max_bytes in (1, ALL):
        broken, whole = await log.kit.fetch(
            (log.stream, 0), (log.other, 0), max_bytes=max_bytes, min_bytes=ALL, max_wait_ms=300_000
        )
        assert broken.outcome is Outcome.FAILED and offsets_of(whole) == [0]


async def test_records_before_the_damage_do_not_wait_for_more() -> None:
    log = await damaged_log()
    await log.flip(2, FLIPS["body"])
    (found,) = await log.kit.fetch((log.stream, 0), min_bytes=ALL, max_wait_ms=300_000)
    assert offsets_of(found) == [0, 1, 2, 3]


async def test_row_group_that_is_damaged_hides_its_own_rows_only() -> None:
    kit, stream, file = await moved(table_cache_bytes=0)
    key = ObjectKey(file.path)
    data = bytearray(await kit.objects.get(key))
    data[file.row_groups[1].start_byte + 20] ^= 1
    await kit.objects.put(key, [bytes(data)])
    start, end = file.row_groups[1].first_offset, file.row_groups[2].first_offset
    log = DamagedLog(kit, stream, stream)
    assert await log.walk(0) == (list(range(start)), start)
    assert await log.walk(end - 1) == ([], end - 1)
    assert offsets_of(await log.fetch(end))[0] == end
    assert kit.damages.found == 1


async def test_look_up_by_time_finds_what_lies_before_the_damage_and_says_so_where_it_may_hide_the_answer() -> None:
    kit = FetchKit(tail_bytes=0)
    (stream,) = await kit.start()
    batches = [bytes(make_batch([b"%d" % n, b"x"], at_ms=1000 * (n + 1))) for n in range(BATCHES)]
    await kit.put_batch(stream, b"".join(batches))
    log = DamagedLog(kit, stream, stream)
    await log.flip(2, FLIPS["body"])
    found = await kit.timestamps.first_since(stream, 2000)
    assert found is not None and found.offset == 2
    with pytest.raises(Damaged):
        await kit.timestamps.first_since(stream, 2500)
    with pytest.raises(Damaged):
        await kit.timestamps.latest(stream)


def damage_of(start_offset: int, end_offset: int) -> Damage:
    return Damage(
        object_key="o",
        start_byte=start_offset,
        size_bytes=1,
        start_offset=start_offset,
        end_offset=end_offset,
        why="",
    )


def test_runs_end_at_the_next_damage() -> None:
    first, behind = stamped_run(0, [b"0"]), stamped_run(2, [b"2"])
    parts: list[Run | Damage] = [first, damage_of(1, 2), behind]
    assert readable(parts, 0) == [first]
    assert readable(parts, 1) == damage_of(1, 2)
    assert readable(parts, 2) == [behind]
    assert readable(parts, 3) == []


def test_book_forgets_rather_than_grow_without_limit() -> None:
    book = DamageBook()
    for n in range(MAX_KNOWN_DAMAGES + 1):
        book.note(StreamId(1), damage_of(n, n + 1))
    book.note(StreamId(1), damage_of(MAX_KNOWN_DAMAGES, MAX_KNOWN_DAMAGES + 1))
    assert book.found == MAX_KNOWN_DAMAGES + 1
