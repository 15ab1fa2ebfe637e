import pytest

from headrace.errors import Invalid, Missing
from headrace.index.rule import StalePlan
from headrace.index.streams import advance_log_start, delete_stream
from headrace.index.trim import (
    entries_below,
    finish_deletion,
    forget_producers,
    plan_trim,
    trim_entries,
    trim_streams,
)
from headrace.index.values import PartStatus
from headrace.metadata.keys import prefix_range
from headrace.model.ids import StreamId
from tests.log_kit import EXPIRATION_MS, LogKit, batch


async def logged(count: int) -> tuple[LogKit, StreamId]:
    """Return a folded log with `count` entries of one record each."""
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    for _ in range(count):
        await log.append(stream)
    await log.fold()
    return log, stream


async def test_log_start_moves_forward_only_and_raises_the_epoch() -> None:
    log, stream = await logged(5)
    moved = await advance_log_start(log.keys, stream, 3, now_ms=0).apply(log.store)
    assert (moved.log_start, moved.index_epoch) == (3, 1)
    back = await advance_log_start(log.keys, stream, 1, now_ms=0).apply(log.store)
    assert (back.log_start, back.index_epoch) == (3, 1)
    with pytest.raises(Invalid):
        await advance_log_start(log.keys, stream, 6, now_ms=0).apply(log.store)
    with pytest.raises(Missing):
        await advance_log_start(log.keys, StreamId(77), 0, now_ms=0).apply(log.store)


async def test_trimming_in_steps_removes_what_lies_below_and_counts_down() -> None:
    log, stream = await logged(7)
    await advance_log_start(log.keys, stream, 5, now_ms=0).apply(log.store)
    for left in (5, 3, 2, 2):
        entries = await plan_trim(log.store, log.keys, stream, max_entries=2)
        if entries:
            await trim_entries(log.keys, stream, entries, now_ms=0).apply(log.store)
        assert len(await log.index(stream)) == left
    record = (await log.log())[0]
    segment = await log.object(record.object_id)
    assert segment is not None and segment.entry_count == 2


async def test_two_trimmers_never_count_down_twice() -> None:
    log, stream = await logged(3)
    await advance_log_start(log.keys, stream, 3, now_ms=0).apply(log.store)
    entries = await plan_trim(log.store, log.keys, stream, max_entries=10)
    await trim_entries(log.keys, stream, entries, now_ms=0).apply(log.store)
    with pytest.raises(StalePlan):
        await trim_entries(log.keys, stream, entries, now_ms=0).apply(log.store)


async def test_many_streams_are_trimmed_in_one_step_and_a_shared_object_is_counted_down_for_all() -> None:
    log = LogKit()
    streams = await log.streams(3)
    await log.writer()
    await log.commit(*((stream, [batch()]) for stream in streams))
    await log.fold()
    for stream in streams:
        await advance_log_start(log.keys, stream, 1, now_ms=0).apply(log.store)
    planned = {stream: await plan_trim(log.store, log.keys, stream, max_entries=10) for stream in streams}
    changed = streams[1]
    await trim_entries(log.keys, changed, planned[changed], now_ms=0).apply(log.store)
    trimmed = await trim_streams(log.keys, planned, now_ms=0).apply(log.store)
    assert trimmed == {streams[0], streams[2]}, "one that has changed meanwhile holds up no other"
    assert [await log.index(stream) for stream in streams] == [[], [], []]
    segment = await log.object((await log.log())[0].object_id)
    assert segment is not None and segment.entry_count == 0


async def test_a_page_is_bounded_by_entries_and_by_bytes_and_has_one_entry_at_least() -> None:
    log, stream = await logged(3)
    await log.fold()
    raw = await log.store.range(log.keys.entries(stream, after_offset=0, limit=10))
    sizes = [len(item.value) for item in raw]
    for max_entries, max_bytes, count, is_all in (
        (10, sum(sizes), 3, True),
        (3, sum(sizes), 3, False),
        (10, sum(sizes) - 1, 2, False),
        (10, 1, 1, False),
    ):
        page = await entries_below(log.store, log.keys, stream, 1_000, max_entries=max_entries, max_bytes=max_bytes)
        assert (len(page.entries), page.is_all, page.size_bytes) == (count, is_all, sum(sizes[:count]))


async def test_deleted_stream_goes_last_after_folding_and_trimming() -> None:
    log, stream = await logged(1)
    await log.commit((stream, [batch(producer=1, sequence=0)]), (stream, [batch(producer=2, sequence=0)]))
    await delete_stream(log.keys, stream, now_ms=0).apply(log.store)
    gone = finish_deletion(log.keys, stream, max_keys=2)
    assert not await gone.apply(log.store), "a commit record still speaks of it"
    await log.fold()
    assert not await gone.apply(log.store), "an entry is left"
    entries = await plan_trim(log.store, log.keys, stream, max_entries=10)
    await trim_entries(log.keys, stream, entries, now_ms=0).apply(log.store)
    assert not await gone.apply(log.store), "one step removes the two producers"
    assert await gone.apply(log.store)
    left = await log.store.range(prefix_range(log.keys.streams_prefix, limit=10))
    assert left == []


async def test_deletion_leaves_a_living_stream_alone() -> None:
    log, stream = await logged(1)
    assert not await finish_deletion(log.keys, stream, max_keys=10).apply(log.store)
    assert (await log.head(stream)).high_watermark == 1


async def test_a_producer_that_has_sent_something_since_it_was_looked_at_is_not_forgotten() -> None:
    log, stream = await logged(0)
    for producer in range(5):
        await log.commit((stream, [batch(producer=producer, sequence=0)]))
    silent = [item.key for item in await log.store.range(prefix_range(log.keys.producers_prefix(stream), limit=10))]
    log.now_ms += EXPIRATION_MS
    await log.commit((stream, [batch(producer=3, sequence=0)]))
    rule = forget_producers(log.keys, silent, now_ms=log.now_ms, expiration_ms=EXPIRATION_MS)
    assert await rule.apply(log.store) == 4
    assert await rule.apply(log.store) == 0, "repeating it changes nothing"
    (result,) = await log.commit((stream, [batch(producer=3, sequence=0)]))
    assert result.status is PartStatus.DUPLICATE
