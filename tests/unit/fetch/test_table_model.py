"""Any log, moved into tables step by step: at every offset, fetches and look-ups by time answer as before."""

import itertools
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.fetch.catchup import CatchUpLimits
from headrace.fetch.fetcher import Fetched, Fetcher, Outcome
from headrace.fetch.tail import TailCache
from headrace.fetch.timestamps import TimedOffset, TimestampFinder
from headrace.index.cache import IndexCache
from headrace.index.streams import advance_log_start
from headrace.model.ids import StreamId
from headrace.model.topics import TopicRules
from headrace.records.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    Codec,
    iter_batches,
)
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.records.stamping import stamp_crc
from tests.unit.fetch.kit import ALL, MAX_OPEN_BYTES, FetchKit
from tests.unit.fetch.tabled import Row, entries_of, is_in_wal, rows_in, swap_step, write_streams, write_table

LIMITS = CatchUpLimits(read_bytes=600, held_bytes=1500, far_bytes=2000, near_bytes=2000, near_distance_bytes=400)
SIZES = (1, 300, ALL)
MAX_TIME_MS = 12


@dataclass(frozen=True)
class Produced:
    """One batch: how many bytes each record has, their times, and who sent them how."""

    records: tuple[tuple[int, int], ...]
    producer: int
    attributes: int
    codec: Codec

    def batch(self, sequence: int) -> bytes:
        records = [
            Record(
                offset=n,
                timestamp_ms=at_ms if not self.attributes & LOG_APPEND_TIME_BIT else 7,
                key=None if size % 3 else b"%d" % n,
                value=None if size == 13 else bytes([65 + n]) * size,
                headers=((b"h", None), (b"h", b"\xff"), (b"\xfe", b"")) if size % 5 == 0 else (),
            )
            for n, (size, at_ms) in enumerate(self.records)
        ]
        columns = columns_of(
            records,
            attributes=self.attributes,
            producer_id=self.producer,
            producer_epoch=-1 if self.producer < 0 else 0,
            base_sequence=-1 if self.producer < 0 else sequence,
        )
        return bytes(BatchEncoder(codec=self.codec).encode(columns))


PRODUCED = st.builds(
    Produced,
    records=st.lists(
        st.tuples(st.sampled_from([0, 1, 13, 60, 200]), st.integers(0, MAX_TIME_MS)), min_size=1, max_size=5
    ).map(tuple),
    producer=st.sampled_from([-1, -1, 4, 5]),
    attributes=st.sampled_from([0, 0, 0, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT]),
    codec=st.sampled_from(Codec),
)
RULES = st.builds(
    TopicRules,
    max_message_bytes=st.sampled_from([200, 1000, 1_000_000]),
    compression=st.sampled_from([None, "uncompressed", "zstd", "gzip"]),
)


class World:
    """A log whose rows are known, and a reader that remembers nothing but row groups."""

    def __init__(self, rules: TopicRules, stream: StreamId, kit: FetchKit) -> None:
        self.kit = kit
        self.stream = stream
        kit.rules = rules
        self.rows: list[Row] = []
        self.log_start = 0
        self.high_watermark = 0

    def fetcher(self) -> Fetcher:
        cache = IndexCache(self.kit.metadata, self.kit.keys, max_folded_entries=100)
        tail = TailCache(max_bytes=0)
        return self.kit.fetching(cache, tail, self.kit.catching_up(cache, tail, LIMITS))

    async def append(self, produced: list[Produced]) -> None:
        sequences = {4: 0, 5: 0}
        for one in produced:
            batch = bytearray(one.batch(sequences.get(one.producer, 0)))
            sequences[one.producer] = sequences.get(one.producer, 0) + len(one.records)
            start = await self.kit.put_batch(self.stream, bytes(batch))
            batch[:8] = start.to_bytes(8, "big")
            self.rows += rows_in(memoryview(batch))
            self.high_watermark = start + len(one.records)

    async def trim(self, share: float) -> None:
        self.log_start = int(self.high_watermark * share)
        if self.log_start:
            rule = advance_log_start(self.kit.keys, self.stream, self.log_start, now_ms=0)
            await rule.apply(self.kit.metadata)

    async def check(self) -> None:
        for size_bytes in SIZES:
            fetcher = self.fetcher()
            for offset in range(self.log_start, self.high_watermark):
                (found,) = await self.kit.fetch(
                    (self.stream, offset), fetcher=fetcher, max_bytes=size_bytes, partition_bytes=size_bytes
                )
                self.check_answer(found, offset, size_bytes)
        await self.check_times()

    def check_answer(self, found: Fetched, offset: int, size_bytes: int) -> None:
        assert found.outcome is Outcome.FOUND, found.error
        data = memoryview(b"".join(found.records))
        batches = list(iter_batches(data))
        assert found.size_bytes == len(data) <= max(size_bytes, batches[0].size_bytes)
        assert batches[0].base_offset <= offset < batches[0].end_offset
        for before, after in itertools.pairwise(batches):
            assert before.end_offset == after.base_offset, "offsets were left out or came twice"
        assert batches[-1].end_offset == found.end_offset <= found.high_watermark == self.high_watermark
        expected = [row for row in self.rows if batches[0].base_offset <= row.record.offset < found.end_offset]
        assert rows_in(data) == expected

    async def check_times(self) -> None:
        cache = IndexCache(self.kit.metadata, self.kit.keys, max_folded_entries=100)
        finder = TimestampFinder(
            index=cache, reader=self.kit.reading(cache), executor=self.kit.executor, max_open_bytes=MAX_OPEN_BYTES
        )
        timed = [TimedOffset(row.record.offset, row.record.timestamp_ms) for row in self.rows]
        timed = [one for one in timed if one.offset >= self.log_start]
        for target_ms in range(MAX_TIME_MS + 2):
            expected = next((one for one in timed if one.timestamp_ms >= target_ms), None)
            assert await finder.first_since(self.stream, target_ms) == expected
        latest = max(timed, key=lambda one: (one.timestamp_ms, -one.offset), default=None)
        assert await finder.latest(self.stream) == latest


@settings(max_examples=30, deadline=None)
@given(
    st.lists(PRODUCED, min_size=1, max_size=9),
    RULES,
    st.integers(1, 6),
    st.sampled_from([100, 400, 100_000]),
    st.integers(2, 4),
    st.sampled_from([0, 0, 0.3, 0.9]),
    st.sampled_from([0, 1_000, 1_000_000]),
)
async def test_every_answer_is_the_same_before_between_and_after_the_steps_of_a_swap(
    produced: list[Produced],
    rules: TopicRules,
    entries_per_file: int,
    row_group_bytes: int,
    step_entries: int,
    trimmed: float,
    cache_bytes: int,
) -> None:
    kit = FetchKit(segment_max_bytes=1500, table_cache_bytes=cache_bytes)
    (stream,) = await kit.start()
    world = World(rules, stream, kit)
    await world.append(produced)
    await world.trim(trimmed)
    await world.check()
    number = 0
    while file := await write_table(
        kit, stream, entry_count=entries_per_file, row_group_bytes=row_group_bytes, number=number
    ):
        number += 1
        while await swap_step(kit, file, max_entries=step_entries):
            await world.check()


async def test_markers_become_holes_that_readers_step_over() -> None:
    kit = FetchKit()
    (stream,) = await kit.start()
    world = World(TopicRules(max_message_bytes=1000), stream, kit)
    plain = Produced(((5, 3), (60, 9)), -1, 0, Codec.NONE)
    marker = Produced(((6, 1),), -1, CONTROL_BIT, Codec.NONE)
    await world.append([marker, plain, marker, marker, plain, marker])
    await world.check()
    file = await write_table(kit, stream, row_group_bytes=1)
    assert file is not None and file.row_count == 4
    while await swap_step(kit, file):
        await world.check()


async def test_log_of_nothing_but_markers_is_all_hole() -> None:
    kit = FetchKit()
    (stream,) = await kit.start()
    world = World(TopicRules(max_message_bytes=1000), stream, kit)
    await world.append([Produced(((6, 1),), -1, CONTROL_BIT, Codec.NONE)] * 3)
    file = await write_table(kit, stream)
    assert file is not None and not file.path
    assert await swap_step(kit, file, max_entries=10)
    assert not await swap_step(kit, file, max_entries=10)
    for offset in range(3):
        (found,) = await kit.fetch((stream, offset), fetcher=world.fetcher())
        world.check_answer(found, offset, ALL)
        assert found.end_offset == 3
    assert await kit.timestamps.latest(stream) is None


async def test_batch_that_cannot_be_opened_is_served_from_the_wal_as_it_is() -> None:
    kit = FetchKit(tail_bytes=0)
    (stream,) = await kit.start()
    plain = Produced(((60, 10), (60, 30)), -1, 0, Codec.NONE).batch(0)
    broken = bytearray(Produced(((200, 20), (200, 50), (200, 40)), -1, 0, Codec.ZSTD).batch(0))
    broken[HEADER_BYTES:] = b"?" * (len(broken) - HEADER_BYTES)
    stamp_crc(memoryview(broken))
    for batch in (plain, plain + bytes(broken) + plain, plain):
        await kit.put_batch(stream, batch)
    ends = [2, 4, 7, 9, 11]

    async def answers() -> list[bytes]:
        return [b"".join((await kit.fetch((stream, at), max_bytes=1))[0].records) for at in (0, 2, 4, 5, 6, 7, 9)]

    async def times() -> list[TimedOffset | None]:
        return [await kit.timestamps.latest(stream)] + [
            await kit.timestamps.first_since(stream, at_ms) for at_ms in (0, 11, 31, 45, 51)
        ]

    before, timed = await answers(), await times()
    file = await write_table(kit, stream, row_group_bytes=1_000_000)
    assert file is not None and [held.start_offset for held in file.slices[0].held_back] == [4]
    while await swap_step(kit, file):
        found = await answers()
        assert found[2:5] == before[2:5], "the very bytes of the batch that was held back"
        for after, earlier in zip(found[:2] + found[5:], before[:2] + before[5:], strict=True):
            rows = rows_in(memoryview(after))
            assert all(row in rows for row in rows_in(memoryview(earlier))), "a larger batch holds them, too"
        assert await times() == timed
    entries = await entries_of(kit, stream)
    assert [entry.end_offset for entry in entries if is_in_wal(entry)] == [ends[2]]


async def test_streams_that_share_a_file_are_kept_apart() -> None:
    kit = FetchKit(tail_bytes=0)
    worlds = [World(TopicRules(max_message_bytes=1000), stream, kit) for stream in await kit.start(3)]
    for n, world in enumerate(worlds):
        await world.append([Produced(((60 + n, 3 + n), (200, 9)), -1, 0, Codec.NONE)] * (2 + n))
    file = await write_streams(kit, [world.stream for world in worlds])
    assert len(file.slices) == 3
    while await swap_step(kit, file):
        for world in worlds:
            await world.check()
