"""Topics are compacted between runs: when it is due, whatever crashes, and the table shows what it was asked to."""

from itertools import pairwise

import pytest

from headrace.index.values import IndexEntry
from headrace.model.extents import TableExtent
from headrace.pipeline.compaction_plan import CompactionLimits
from headrace.pipeline.records import SagaKind
from headrace.pipeline.scans import ScanLimits
from headrace.runtime.crash_points import CrashPoint
from tests.unit.pipeline.compaction_kit import CompactionKit
from tests.unit.pipeline.pipeline_kit import KillAt, Killed

A, B, C = b"a", b"b", b"c"
DAY_S = 86_400


def covers(entries: list[IndexEntry]) -> tuple[int, int]:
    """Return what entries cover, once it is sure that they leave nothing out."""
    for one, other in pairwise(entries):
        assert one.end_offset == other.start_offset
    return entries[0].start_offset, entries[-1].end_offset


async def test_latest_record_per_key_is_left_and_offsets_stay() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic()
    (stream,) = topic.streams
    await kit.put(stream, (A, b"1"), (B, b"1"), (A, b"2"))
    await kit.put(stream, (C, b"1"), (A, b"3"))
    process = await kit.pipeline()
    assert await process.run() == (5, {})
    assert await kit.kept(stream) == [(1, B, b"1"), (3, C, b"1"), (4, A, b"3")]
    entries = await kit.index(stream)
    assert covers(entries) == (0, 5)
    state = await kit.compaction(topic)
    assert (state.rounds, state.dropped_rows) == (1, 2)
    assert state.streams[0].cleaned_to == 5
    assert await kit.saga(topic) is None
    table = kit.catalog.tables["orders"]
    assert kit.rows_on(table.files) == 3
    assert (await kit.state(topic)).rows == 3


async def test_bytes_as_produced_go_on_counting() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic()
    (stream,) = topic.streams
    await kit.put(stream, (A, b"1" * 100), (A, b"2"))
    before = await kit.head(stream)
    await (await kit.pipeline()).run()
    (entry,) = await kit.index(stream)
    assert entry.cumulative_bytes == before.cumulative_bytes


async def test_second_round_replaces_what_the_first_has_left() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic()
    (stream,) = topic.streams
    process = await kit.pipeline()
    await kit.put(stream, (A, b"1"), (B, b"1"))
    await process.run()
    await kit.put(stream, (A, b"2"), (C, b"1"))
    await process.run()
    assert await kit.kept(stream) == [(1, B, b"1"), (2, A, b"2"), (3, C, b"1")]
    await process.run()
    assert (await kit.compaction(topic)).rounds == 2, "nothing is dirty"


async def test_file_without_a_row_left_leaves_a_hole_that_is_covered() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic()
    (stream,) = topic.streams
    process = await kit.pipeline()
    await kit.put(stream, (A, b"1"), (B, b"1"))
    await process.run()
    await kit.put(stream, (B, b"2"), (A, b"2"))
    await process.run()
    first, second = await kit.index(stream)
    assert first.extent == TableExtent(()) and (first.start_offset, first.end_offset) == (0, 2)
    assert await kit.kept(stream) == [(2, B, b"2"), (3, A, b"2")]
    assert isinstance(second.extent, TableExtent) and second.extent.files


async def test_topic_that_is_not_compacted_keeps_everything() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic(cleanup_policy="delete")
    (stream,) = topic.streams
    await kit.put(stream, (A, b"1"), (A, b"2"))
    await (await kit.pipeline()).run()
    assert [offset for offset, _, _ in await kit.kept(stream)] == [0, 1]
    assert await kit.sagas.compaction(topic.id) is None


async def test_records_without_a_key_go_with_the_first_round() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic()
    (stream,) = topic.streams
    await kit.put(stream, (None, b"1"), (A, b"1"), (None, b"2"))
    await (await kit.pipeline()).run()
    assert await kit.kept(stream) == [(1, A, b"1")]


async def test_other_streams_of_a_shared_file_are_copied() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic(partitions=2)
    first, second = topic.streams
    await kit.put(first, (A, b"1"), (A, b"2"))
    await kit.put(second, (A, b"x"), (B, b"y"))
    await (await kit.pipeline()).run()
    assert len(kit.catalog.tables["orders"].files) == 1
    assert await kit.kept(first) == [(1, A, b"2")]
    assert await kit.kept(second) == [(0, A, b"x"), (1, B, b"y")]


async def test_young_records_are_spared() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic(min_compaction_lag_ms="60000")
    (stream,) = topic.streams
    now_ms = kit.clock.now_ms()
    process = await kit.pipeline()
    await kit.put(stream, (A, b"1"), (A, b"2"), at_ms=now_ms - 70_000)
    await process.run()
    await kit.put(stream, (A, b"3"), (A, b"4"), at_ms=now_ms)
    await process.run()
    assert [offset for offset, _, _ in await kit.kept(stream)] == [1, 2, 3]
    await kit.clock.advance(61.0)
    await process.run()
    assert [offset for offset, _, _ in await kit.kept(stream)] == [3]


async def test_ratio_decides_and_the_greatest_lag_overrules_it() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic(min_cleanable_dirty_ratio="0.9", max_compaction_lag_ms="600000")
    (stream,) = topic.streams
    process = await kit.pipeline()
    await kit.put(stream, (A, b"1"), (A, b"2"))
    await process.run()
    assert (await kit.cleaned(topic)).cleaned_to == 2, "all of it is dirty at first"
    await kit.put(stream, (A, b"3"))
    await process.run()
    assert (await kit.cleaned(topic)).cleaned_to == 2
    await kit.clock.advance(700.0)
    await process.run()
    assert (await kit.cleaned(topic)).cleaned_to == 3


async def test_tombstone_lives_for_its_time_after_the_round_that_came_past_it() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic(delete_retention_ms="3600000")
    (stream,) = topic.streams
    process = await kit.pipeline()
    await kit.put(stream, (A, b"1"), (B, b"1"), (A, None))
    await kit.clock.advance(DAY_S)
    await process.run()
    assert await kit.kept(stream) == [(1, B, b"1"), (2, A, None)], "however old it is when it is first cleaned"
    await kit.clock.advance(3_500)
    await kit.put(stream, (C, b"1"))
    await process.run()
    assert (2, A, None) in await kit.kept(stream)
    await kit.clock.advance(200)
    await kit.put(stream, (C, b"2"))
    await process.run()
    assert await kit.kept(stream) == [(1, B, b"1"), (4, C, b"2")]


async def test_tombstones_go_from_a_topic_that_gets_nothing_new() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic(delete_retention_ms="60000")
    (stream,) = topic.streams
    process = await kit.pipeline()
    await kit.put(stream, (A, b"1"), (A, None), (B, b"1"))
    await process.run()
    await kit.clock.advance(121.0)
    await process.run()
    assert await kit.kept(stream) == [(2, B, b"1")]
    state = await kit.cleaned(topic)
    assert state.cleaned_to == 3 and all(mark.tombstones == 0 for mark in state.marks)
    await kit.clock.advance(DAY_S)
    await process.run()
    assert (await kit.compaction(topic)).rounds == 2


@pytest.mark.parametrize(("policy", "rows"), [("history", 4), ("latest", 2)])
async def test_main_keeps_everything_or_follows(policy: str, rows: int) -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic(headrace_table_compaction=policy)
    (stream,) = topic.streams
    await kit.put(stream, (A, b"1"), (B, b"1"), (A, b"2"), (B, b"2"))
    await (await kit.pipeline()).run()
    table = kit.catalog.tables["orders"]
    assert (kit.rows_on(table.files), kit.rows_on(table.main)) == (2, rows)


async def test_round_that_is_too_large_goes_on_with_the_next() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic()
    (stream,) = topic.streams
    limits = CompactionLimits(max_files=1)
    process = await kit.pipeline(compaction=CompactionLimits(max_streams=0))
    for number in range(3):
        await kit.put(stream, (A, b"%d" % number), (B, b"%d" % number))
        await process.run()
    process = await kit.pipeline(compaction=limits)
    await process.run()
    assert len(await kit.kept(stream)) == 4
    assert (await kit.compaction(topic)).streams == {}, "not all that is obsolete is gone"
    await process.run()
    assert [offset for offset, _, _ in await kit.kept(stream)] == [4, 5]
    assert (await kit.cleaned(topic)).cleaned_to == 6


async def test_map_that_is_full_ends_the_round_early() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic()
    (stream,) = topic.streams
    process = await kit.pipeline(compaction=CompactionLimits(max_streams=0))
    for number in range(3):
        await kit.put(stream, (A, b"%d" % number), (b"%d" % number, b"x"))
        await process.run()
    process = await kit.pipeline(compaction=CompactionLimits(scan=ScanLimits(map_bytes=60)))
    await process.run()
    assert (await kit.cleaned(topic)).cleaned_to == 2
    for _ in range(2):
        await process.run()
    assert (await kit.cleaned(topic)).cleaned_to == 6
    assert [offset for offset, _, _ in await kit.kept(stream)] == [1, 3, 4, 5]


async def test_partly_trimmed_file_is_left_alone_and_its_keys_stay_hidden() -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic(partitions=2, cleanup_policy="compact,delete", delete_retention_ms="0")
    first, second = topic.streams
    idle = await kit.pipeline(compaction=CompactionLimits(max_streams=0))
    await kit.put(first, (A, b"1"))
    await kit.put(second, (A, b"x"), (A, b"y"))
    await idle.run()
    await kit.trim(first, 1)
    await kit.put(second, (A, None), (B, b"1"))
    process = await kit.pipeline()
    for _ in range(3):
        await process.run()
    kept = await kit.kept(second)
    assert kept == [(0, A, b"x"), (1, A, b"y"), (2, A, None), (3, B, b"1")]
    rounds = (await kit.compaction(topic)).rounds
    for _ in range(3):
        await process.pipeline.run_once()
    assert (await kit.compaction(topic)).rounds == rounds, "a round that changed nothing is not made again at once"


@pytest.mark.parametrize(
    "point",
    [
        CrashPoint.SAGA_AFTER_PLAN,
        CrashPoint.COMPACTION_AFTER_SCAN,
        CrashPoint.SAGA_AFTER_FILES,
        CrashPoint.SAGA_AFTER_WRITTEN,
        CrashPoint.SAGA_AFTER_APPEND,
        CrashPoint.SAGA_AFTER_IN_TABLE,
        CrashPoint.SWAP_AFTER_STEP,
        CrashPoint.SAGA_AFTER_SWAPPED,
        CrashPoint.SAGA_AFTER_DONE,
    ],
)
async def test_next_process_goes_on_after_a_crash(point: CrashPoint) -> None:
    kit = CompactionKit(max_entries=2)
    topic = await kit.compacted_topic()
    (stream,) = topic.streams
    idle = await kit.pipeline(compaction=CompactionLimits(max_streams=0))
    for number in range(3):
        await kit.put(stream, (A, b"%d" % number), (B, b"%d" % number), (b"%d" % number, None))
        await idle.run()
    await idle.bury()
    killed = await kit.pipeline(crash_points=KillAt(point))
    with pytest.raises(Killed):
        await killed.run()
    saga = await kit.saga(topic)
    assert saga is None or saga.kind is SagaKind.COMPACT
    await killed.bury()
    state = await kit.sagas.compaction(topic.id)
    is_late = point in (CrashPoint.SAGA_AFTER_SWAPPED, CrashPoint.SAGA_AFTER_DONE)
    assert (state is not None) == is_late, "it is remembered with the swap, not before"
    process = await kit.pipeline()
    for _ in range(2):
        _, problems = await process.run()
        assert problems == {}
    kept = await kit.kept(stream)
    assert kept == [(2, b"0", None), (5, b"1", None), (6, A, b"2"), (7, B, b"2"), (8, b"2", None)]
    assert covers(await kit.index(stream)) == (0, 9)
    assert (await kit.cleaned(topic)).cleaned_to == 9
    assert kit.rows_on(kit.catalog.tables["orders"].main) == 9, "main is the full history"
    assert await kit.saga(topic) is None
