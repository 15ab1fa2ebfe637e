"""A batch of a sink is in the log once or not at all, whoever offers it, however often, and whatever ended then."""

import pytest

from headrace.errors import Fenced, Invalid, Missing
from headrace.index.cache import IndexCache
from headrace.index.commit import AppendPart
from headrace.index.objects import wal_object_id_at, wal_object_key
from headrace.index.sinks import (
    MAX_FRAMES,
    SinkCommit,
    SinkFrame,
    SinkOutcome,
    begin_write,
    commit_batch,
    end_write,
    expire_sinks,
    expire_writes,
    forget_sink,
    sink_object_id,
    write_of,
)
from headrace.index.streams import advance_log_start, delete_stream
from headrace.index.values import ObjectState, SinkRange
from headrace.model.ids import StreamId, WriterId
from tests.log_kit import DAY_MS, LogKit, batch

FIRST = WriterId("1" * 32)
SECOND = WriterId("2" * 32)


async def begin(log: LogKit, write: WriterId) -> None:
    await begin_write(log.keys, write, now_ms=log.now_ms, max_age_ms=DAY_MS).apply(log.store)


def frame(write: WriterId, task: int, *parts: tuple[StreamId, int]) -> SinkFrame:
    """Return a frame with one batch of 100 bytes per stream; the counts are of records."""
    appends = [AppendPart(stream, 60 + 100 * n, [batch(count)]) for n, (stream, count) in enumerate(parts)]
    object_id = sink_object_id(write, task=task, attempt=7, frame=0)
    return SinkFrame(object_id=object_id, size_bytes=1000, parts=appends)


async def commit(
    log: LogKit, write: WriterId, *frames: SinkFrame, batch_id: int = 0, sink_id: str = "copy", query: str = ""
) -> SinkOutcome:
    offered = SinkCommit(sink_id=sink_id, batch_id=batch_id, query=query, write=write, frames=frames)
    return await commit_batch(log.keys, offered, now_ms=log.now_ms).apply(log.store)


async def test_frames_of_a_batch_follow_each_other_in_the_order_of_tasks() -> None:
    log = LogKit()
    one, two = await log.streams(2)
    await log.writer()
    await log.append(one, 5)
    await begin(log, FIRST)
    frames = [frame(FIRST, 0, (one, 3), (two, 1)), frame(FIRST, 1, (one, 4))]
    outcome = await commit(log, FIRST, *frames)
    assert outcome == SinkOutcome((SinkRange(one, 5, 12), SinkRange(two, 0, 1)), False)
    assert (await log.head(one)).high_watermark == 12
    assert (await log.head(one)).cumulative_bytes == 300
    first, second = (await log.log())[-2:]
    assert [(entry.stream, entry.start_offset, entry.end_offset) for entry in first.entries] == [
        (one, 5, 8),
        (two, 0, 1),
    ]
    assert [(entry.start_offset, entry.end_offset) for entry in second.entries] == [(8, 12)]
    assert (await log.head(one)).seq == second.seq == (await log.state()).next_seq - 1
    for sink_frame, count in zip(frames, (2, 1), strict=True):
        record = await log.object(sink_frame.object_id)
        assert record is not None
        assert (record.state, record.entry_count, record.size_bytes) == (ObjectState.SEALED, count, 1000)
    assert await log.append(one) == 12


async def test_frames_that_lie_at_the_same_bytes_of_two_objects_are_two_entries() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await begin(log, FIRST)
    ends_where_the_next_begins = SinkFrame(
        object_id=sink_object_id(FIRST, task=1, attempt=0, frame=0),
        size_bytes=1000,
        parts=[AppendPart(stream, 160, [batch(1)])],
    )
    await commit(log, FIRST, frame(FIRST, 0, (stream, 1)), ends_where_the_next_begins)
    await log.fold()
    assert len(await log.index(stream)) == 2


async def test_a_batch_that_comes_again_is_answered_with_its_first_offsets() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await begin(log, FIRST)
    first = await commit(log, FIRST, frame(FIRST, 0, (stream, 3)))
    await log.append(stream, 9)
    await begin(log, SECOND)
    lost = frame(SECOND, 0, (stream, 2), (stream, 1))
    again = await commit(log, SECOND, lost)
    assert again == SinkOutcome(first.ranges, True)
    assert (await log.head(stream)).high_watermark == 12
    assert await log.object(lost.object_id) is None
    assert await commit(log, FIRST, frame(FIRST, 0, (stream, 3))) == again, "nor does a late answer append anything"


async def test_the_next_batch_need_not_follow_closely_and_an_older_one_is_refused() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    for number, batch_id in enumerate((3, 9)):
        write = WriterId(f"{number:032x}")
        await begin(log, write)
        assert not (await commit(log, write, frame(write, 0, (stream, 1)), batch_id=batch_id)).is_repeated
    await begin(log, FIRST)
    with pytest.raises(Invalid, match="batch 3 of sink 'copy' comes after batch 9"):
        await commit(log, FIRST, frame(FIRST, 0, (stream, 1)), batch_id=3)
    assert (await log.head(stream)).high_watermark == 2


async def test_a_sink_belongs_to_one_query() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await begin(log, FIRST)
    await commit(log, FIRST, frame(FIRST, 0, (stream, 1)), query="q1")
    await begin(log, SECOND)
    with pytest.raises(Invalid, match="belongs to query q1"):
        await commit(log, SECOND, frame(SECOND, 0, (stream, 1)), query="q2")


@pytest.mark.parametrize("how", ["never begun", "given up", "too old"])
async def test_nothing_of_a_write_that_has_ended_is_appended(how: str) -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    if how != "never begun":
        await begin(log, FIRST)
    if how == "given up":
        await end_write(log.keys, FIRST).apply(log.store)
    if how == "too old":
        step = await expire_writes(log.keys, now_ms=log.now_ms + DAY_MS, max_keys=10).apply(log.store)
        assert step.expired_count == 1
    with pytest.raises(Fenced, match="has ended"):
        await commit(log, FIRST, frame(FIRST, 0, (stream, 1)))
    assert (await log.head(stream)).high_watermark == 0


async def test_a_topic_that_was_deleted_meanwhile_fails_the_whole_batch() -> None:
    log = LogKit()
    one, two = await log.streams(2)
    await begin(log, FIRST)
    await delete_stream(log.keys, two, now_ms=log.now_ms).apply(log.store)
    with pytest.raises(Missing, match="its topic was deleted"):
        await commit(log, FIRST, frame(FIRST, 0, (one, 1)), frame(FIRST, 1, (two, 1)))
    assert (await log.head(one)).high_watermark == 0


async def test_what_is_too_large_for_one_transaction_is_refused() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    with pytest.raises(Invalid, match=f"came in {MAX_FRAMES + 1} objects"):
        await commit(log, FIRST, *([frame(FIRST, 0, (stream, 1))] * (MAX_FRAMES + 1)))


async def test_folding_and_trimming_count_the_objects_of_a_sink_down() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await begin(log, FIRST)
    frames = [frame(FIRST, 0, (stream, 1)), frame(FIRST, 1, (stream, 1))]
    await commit(log, FIRST, *frames)
    await advance_log_start(log.keys, stream, 1, now_ms=log.now_ms).apply(log.store)
    await log.fold()
    overtaken, kept = [await log.object(one.object_id) for one in frames]
    assert overtaken is not None and overtaken.entry_count == 0
    assert kept is not None and kept.entry_count == 1
    assert await log.log() == [], "no commit record of a sink outlives its folding"


async def test_a_cache_that_follows_the_log_sees_the_whole_batch() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    cache = IndexCache(log.store, log.keys, max_folded_entries=100)
    assert (await cache.fresh_head(stream)) is not None
    await begin(log, FIRST)
    await commit(log, FIRST, *(frame(FIRST, task, (stream, 2)) for task in range(3)))
    await cache.refresh()
    head = cache.view.head(stream)
    assert head is not None and head.high_watermark == 6
    assert [entry.start_offset for entry in await cache.locate(stream, 0)] == [0, 2, 4]


async def test_an_empty_batch_is_remembered_too() -> None:
    log = LogKit()
    await log.streams(1)
    before = await log.state()
    await begin(log, FIRST)
    assert await commit(log, FIRST) == SinkOutcome((), False)
    assert await commit(log, SECOND) == SinkOutcome((), True)
    assert await log.state() == before


async def test_idle_sinks_are_forgotten_in_steps() -> None:
    log = LogKit()
    for number in range(5):
        write = WriterId(f"{number:032x}")
        await begin(log, write)
        await commit(log, write, sink_id=f"sink {number}")
        log.now_ms += DAY_MS
    after, forgotten = None, 0
    for _ in range(3):
        rule = expire_sinks(log.keys, now_ms=log.now_ms, expiration_ms=3 * DAY_MS, max_keys=2, after=after)
        step = await rule.apply(log.store)
        forgotten, after = forgotten + step.expired_count, step.next_after
    assert (forgotten, after) == (3, None)
    await forget_sink(log.keys, "sink 4").apply(log.store)
    assert await log.store.get(log.keys.sink("sink 4")) is None
    assert await log.store.get(log.keys.sink("sink 3")) is not None


def test_objects_of_a_sink_are_named_as_wal_objects_are() -> None:
    object_id = sink_object_id(FIRST, task=99_999_999, attempt=2**48 - 1, frame=999_999)
    key = wal_object_key(LogKit().keys.domain, object_id)
    assert wal_object_id_at(LogKit().keys.domain, key) == object_id
    assert write_of(object_id) == FIRST
