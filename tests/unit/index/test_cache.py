"""The cache follows commit records, and answers right when it was told nothing, or told late."""

import asyncio

import pytest

from headrace.errors import Corrupt
from headrace.index.cache import IndexCache
from headrace.index.streams import advance_log_start, delete_stream
from headrace.index.swap import Swap, replacement_for, swap_entries
from headrace.index.trim import plan_trim, trim_entries
from headrace.metadata.port import Decision, Key, Range, Reads, Versioned
from headrace.model.extents import TableExtent
from headrace.model.ids import StreamId
from tests.log_kit import LogKit, batch

TABLE = TableExtent(())


def cache_of(log: LogKit, *, max_folded_entries: int = 100) -> IndexCache:
    return IndexCache(log.store, log.keys, max_folded_entries=max_folded_entries)


async def logged(count: int) -> tuple[LogKit, StreamId]:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    for n in range(count):
        await log.append(stream, 10, at_ms=n)
    return log, stream


async def offsets(cache: IndexCache, stream: StreamId, offset: int, *, limit: int = 64) -> list[int]:
    return [entry.start_offset for entry in await cache.locate(stream, offset, limit=limit)]


@pytest.mark.parametrize("fold_to", [0, 3, 6, 7])
async def test_look_up_is_the_same_wherever_folding_stands(fold_to: int) -> None:
    log, stream = await logged(6)
    await log.fold(max_records=fold_to) if fold_to else None
    cache = cache_of(log)
    for offset in (0, 9, 10, 35, 59):
        found = await cache.locate(stream, offset, limit=1)
        assert found[0].start_offset == offset // 10 * 10
    assert await cache.locate(stream, 60) == []


async def test_run_goes_on_from_folded_entries_into_the_tail() -> None:
    log, stream = await logged(6)
    await log.fold(max_records=4)
    cache = cache_of(log)
    await cache.fresh_head(stream)
    await cache.locate(stream, 0)
    assert await offsets(cache, stream, 0) == [0, 10, 20, 30, 40, 50]


async def test_fresh_head_sees_what_was_committed_elsewhere() -> None:
    log, stream = await logged(1)
    cache = cache_of(log)
    assert (await cache.fresh_head(stream)) == await log.head(stream)
    await log.commit((stream, [batch(2)]), (stream, [batch(1, producer=1, sequence=-1)]), (stream, [batch(3)]))
    await advance_log_start(log.keys, stream, 4, now_ms=0).apply(log.store)
    assert (await cache.fresh_head(stream)) == await log.head(stream)


async def test_unknown_and_deleted_streams_have_no_head() -> None:
    log, stream = await logged(1)
    cache = cache_of(log)
    assert await cache.fresh_head(StreamId(99)) is None
    assert await cache.fresh_head(stream) is not None
    await delete_stream(log.keys, stream, now_ms=0).apply(log.store)
    assert await cache.fresh_head(stream) is None
    (late,) = await log.streams(1)
    assert await cache.fresh_head(late) is not None


async def test_cache_that_slept_through_folding_begins_anew() -> None:
    log, stream = await logged(2)
    cache = cache_of(log)
    await cache.refresh()
    for _ in range(20):
        await log.append(stream, 10)
    await log.fold()
    head = await cache.fresh_head(stream)
    assert head is not None and head.high_watermark == 220
    assert await offsets(cache, stream, 0) == list(range(0, 220, 10))


async def test_swap_and_trim_drop_remembered_entries() -> None:
    log, stream = await logged(6)
    await log.fold()
    cache = cache_of(log)
    await cache.fresh_head(stream)
    assert len(await cache.locate(stream, 0)) == 6
    entries = await log.index(stream)
    swap = Swap(stream=stream, planned=entries[:4], replacements=[replacement_for(entries[:4], TABLE)])
    await swap_entries(log.keys, swap, now_ms=0).apply(log.store)
    await cache.refresh()
    assert (await cache.locate(stream, 25))[0].extent == TABLE
    await advance_log_start(log.keys, stream, 40, now_ms=0).apply(log.store)
    below = await plan_trim(log.store, log.keys, stream, max_entries=10)
    await trim_entries(log.keys, stream, below, now_ms=0).apply(log.store)
    await cache.refresh()
    assert await cache.locate(stream, 25) == []
    assert await offsets(cache, stream, 40) == [40, 50]


async def test_folded_entries_in_memory_are_bounded() -> None:
    log = LogKit()
    streams = await log.streams(10)
    await log.writer()
    for _ in range(10):
        await log.commit(*((stream, [batch()]) for stream in streams))
    await log.fold()
    cache = cache_of(log, max_folded_entries=25)
    for stream in streams:
        await cache.fresh_head(stream)
        assert len(await cache.locate(stream, 0)) == 10
    assert cache.view._folded_count <= 25


async def test_missing_entry_inside_the_log_is_damage_and_said_so() -> None:
    log, stream = await logged(3)
    await log.fold()
    hole = log.keys.entry(stream, 20)
    await log.store.transact([log.keys.unit], Reads(), lambda seen: Decision(result=None, deletes=[hole]))
    cache = cache_of(log)
    assert await offsets(cache, stream, 0) == [0]
    with pytest.raises(Corrupt, match="no index entry for offset 15"):
        await cache.locate(stream, 15)


async def test_refresh_never_trusts_a_read_that_began_before_it() -> None:
    log, stream = await logged(1)
    gate = asyncio.Event()
    reads = 0
    real_get = log.store.get

    async def slow_get(key: Key) -> Versioned | None:
        nonlocal reads
        found = await real_get(key)
        if key == log.keys.state:
            reads += 1
            if reads == 1:
                await gate.wait()
        return found

    log.store.get = slow_get  # type: ignore[method-assign]
    cache = cache_of(log)
    first = asyncio.create_task(cache.refresh())
    while reads == 0:
        await asyncio.sleep(0)
    await log.append(stream)  # committed after the first refresh has read the state
    second = asyncio.create_task(cache.refresh())
    third = asyncio.create_task(cache.refresh())
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, second, third)
    assert reads == 2, "the second and third share one read"
    assert cache.view.position == (await log.state()).next_seq


async def test_following_a_watch_keeps_the_view_fresh() -> None:
    log, stream = await logged(1)
    cache = cache_of(log)
    follower = asyncio.create_task(cache.follow())
    for _ in range(5):
        await log.append(stream)
    next_seq = (await log.state()).next_seq
    while cache.view.position < next_seq:
        await asyncio.sleep(0)
    follower.cancel()


async def test_what_groups_commit_does_not_wake_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    log, stream = await logged(1)
    cache = cache_of(log)
    refreshes = 0

    async def refresh() -> None:
        nonlocal refreshes
        refreshes += 1

    monkeypatch.setattr(cache, "refresh", refresh)
    follower = asyncio.create_task(cache.follow())
    while refreshes == 0:
        await asyncio.sleep(0)
    group = log.keys.group("g")
    await log.store.transact([group.unit], Reads(), lambda _: Decision(result=None, puts={group.head: b"x"}))
    for _ in range(20):
        await asyncio.sleep(0)
    assert refreshes == 1
    await log.append(stream)
    while refreshes == 1:
        await asyncio.sleep(0)
    follower.cancel()


async def test_entry_read_while_a_swap_went_by_is_not_remembered() -> None:
    log, stream = await logged(4)
    await log.fold()
    cache = cache_of(log)
    await cache.fresh_head(stream)
    entries = await log.index(stream)
    real_range = log.store.range

    async def range_then_swap(range_: Range) -> list[Versioned]:
        found = await real_range(range_)
        if "/index/" in range_.start:
            log.store.range = real_range  # type: ignore[method-assign]
            swap = Swap(stream=stream, planned=entries, replacements=[replacement_for(entries, TABLE)])
            await swap_entries(log.keys, swap, now_ms=0).apply(log.store)
            await cache.refresh()
        return found

    log.store.range = range_then_swap  # type: ignore[method-assign]
    await cache.locate(stream, 0)
    assert (await cache.locate(stream, 0))[0].extent == TABLE


async def test_entries_from_before_and_after_a_swap_are_never_one_run() -> None:
    log, stream = await logged(4)
    await log.fold()
    cache = cache_of(log)
    await cache.fresh_head(stream)
    assert await offsets(cache, stream, 0, limit=1) == [0]
    entries = await log.index(stream)
    swap = Swap(stream=stream, planned=entries, replacements=[replacement_for(entries, TABLE)])
    await swap_entries(log.keys, swap, now_ms=0).apply(log.store)
    assert await offsets(cache, stream, 10, limit=1) == [0], "the view has not heard of the swap, the store has"
    assert await offsets(cache, stream, 0) == [0], "what the new entry covers is not read twice"
    await cache.refresh()
    (entry,) = await cache.locate(stream, 0)
    assert entry.extent == TABLE


async def test_find_timestamp_over_folded_and_unfolded_entries() -> None:
    log, stream = await logged(8)
    await log.fold(max_records=5)
    cache = cache_of(log)
    for target_ms in range(8):
        found = await cache.find_timestamp(stream, target_ms)
        assert found is not None and found.start_offset == target_ms * 10
    assert await cache.find_timestamp(stream, 8) is None


async def test_head_that_records_overtook_while_it_was_read_is_read_again() -> None:
    log, stream = await logged(1)
    cache = cache_of(log)
    await log.fold()
    await cache.refresh()  # begins behind the folded records, and knows no head
    real_get = log.store.get

    async def get_then_append(key: Key) -> Versioned | None:
        found = await real_get(key)
        if key == log.keys.head(stream):
            log.store.get = real_get  # type: ignore[method-assign]
            await log.append(stream)
            await cache.refresh()
        return found

    log.store.get = get_then_append  # type: ignore[method-assign]
    head = await cache.fresh_head(stream)
    assert head is not None and head.high_watermark == 11


async def test_head_read_by_another_task_counts_only_once_its_records_are_applied() -> None:
    log, stream = await logged(0)
    cache = cache_of(log)
    await log.fold()
    await cache.refresh()
    await log.append(stream)
    cache.view.note_head(stream, await log.head(stream))  # as a look-up that runs beside this one does
    head = await cache.fresh_head(stream)
    assert head is not None and head.seq < cache.view.position
    assert await offsets(cache, stream, 0) == [0]


async def test_view_never_shows_itself_half_caught_up() -> None:
    log, stream = await logged(3)
    cache = cache_of(log)
    await cache.refresh()
    for _ in range(5):
        await log.append(stream, 10)
    await log.fold(lag_records=2)
    seen: list[int] = []
    real_range = log.store.range

    async def watching_range(range_: Range) -> list[Versioned]:
        seen.append(cache.view.position)
        return await real_range(range_)

    log.store.range = watching_range  # type: ignore[method-assign]
    before = cache.view.position
    await cache.refresh()
    assert seen and set(seen) == {before}, "the view moves only after everything was read"
    assert cache.view.position == (await log.state()).next_seq


async def test_streams_that_are_deleted_are_forgotten_when_their_deletion_is_folded() -> None:
    log = LogKit()
    await log.writer()
    cache = cache_of(log)
    for _ in range(100):
        streams = await log.streams(3)
        await log.commit(*((stream, [batch()]) for stream in streams))
        assert await cache.fresh_head(streams[0]) is not None
        for stream in streams:
            await delete_stream(log.keys, stream, now_ms=0).apply(log.store)
        assert await cache.fresh_head(streams[0]) is None
        await log.fold()
        await cache.refresh()
    view = cache.view
    sizes = [len(one) for one in (view._heads, view._changed_at, view._deleted, view._tails, view._folded)]
    assert max(sizes) <= 3, sizes
    assert await cache.fresh_head(streams[0]) is None, "its head is still in the store"
    await cache.refresh()
    assert not view._heads


async def test_head_that_was_read_before_its_stream_was_deleted_and_forgotten_does_not_bring_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, stream = await logged(1)
    await log.fold()
    cache = cache_of(log)  # begins behind the folded records, and knows no head
    get = log.store.get
    is_first = True

    async def read_before_the_deletion(key: Key) -> Versioned | None:
        nonlocal is_first
        found = await get(key)
        if key == log.keys.head(stream) and is_first:
            is_first = False
            await delete_stream(log.keys, stream, now_ms=0).apply(log.store)
            await cache.refresh()
            await log.fold()
            await cache.refresh()
        return found

    monkeypatch.setattr(log.store, "get", read_before_the_deletion)
    assert await cache.fresh_head(stream) is None
    assert not is_first
