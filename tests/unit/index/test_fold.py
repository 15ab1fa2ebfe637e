import pytest

from headrace.index.cache import IndexCache
from headrace.index.fold import fold_records, plan_fold
from headrace.index.rule import StalePlan
from headrace.index.streams import advance_log_start, delete_stream
from headrace.index.trim import plan_trim, trim_entries
from headrace.index.writers import abandon_frame, retire_writer
from tests.log_kit import WRITER, LogKit, batch


async def test_folded_entries_equal_those_of_the_records() -> None:
    log = LogKit()
    a, b = await log.streams(2)
    await log.writer()
    await log.commit((a, [batch(2)]), (b, [batch(3)]))
    await log.commit((a, [batch(4)]))
    expected = {
        stream: [record.index_entry(e) for record in await log.log() for e in record.entries if e.stream == stream]
        for stream in (a, b)
    }
    await log.fold()
    assert {stream: await log.index(stream) for stream in (a, b)} == expected


async def test_folding_drops_records_but_keeps_the_last_of_each_living_writer() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    for _ in range(3):
        await log.append(stream)
    await log.fold()
    assert [record.seq for record in await log.log()] == [3]
    await log.append(stream)
    assert [record.seq for record in await log.log()] == [4], "the next frame frees the record that folding left"


@pytest.mark.parametrize("ending", ["abandon", "retire"])
async def test_record_kept_for_its_results_goes_when_its_writer_moves_on(ending: str) -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream)
    await log.fold()
    assert len(await log.log()) == 1
    if ending == "abandon":
        await abandon_frame(log.keys, WRITER, 1).apply(log.store)
    else:
        await retire_writer(log.keys, WRITER).apply(log.store)
    assert await log.log() == []


async def test_folding_in_steps_leaves_the_lag_and_goes_on_where_it_stopped() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    for _ in range(9):
        await log.append(stream)
    assert await log.fold(max_records=4, lag_records=3) == 4
    assert await log.fold(max_records=4, lag_records=3) == 7
    assert await log.fold(max_records=4, lag_records=3) == 0
    assert [entry.start_offset for entry in await log.index(stream)] == list(range(6))


async def test_second_folder_finds_its_plan_stale() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream)
    plan = await plan_fold(log.store, log.keys, max_records=10, lag_records=0)
    assert plan is not None
    await log.fold()
    with pytest.raises(StalePlan):
        await fold_records(log.keys, plan, now_ms=0).apply(log.store)


@pytest.mark.parametrize("how", ["trim", "delete"])
async def test_overtaken_entries_are_counted_down_instead_of_folded(how: str) -> None:
    log = LogKit()
    kept, gone = await log.streams(2)
    segment = await log.writer()
    await log.commit((kept, [batch(5)]), (gone, [batch(5)]))
    if how == "trim":
        await advance_log_start(log.keys, gone, 5, now_ms=log.now_ms).apply(log.store)
    else:
        await delete_stream(log.keys, gone, now_ms=log.now_ms).apply(log.store)
    await log.fold()
    assert (len(await log.index(kept)), len(await log.index(gone))) == (1, 0)
    record = await log.object(segment)
    assert record is not None and record.entry_count == 1


async def test_entry_that_the_log_start_cuts_is_folded() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream, 5)
    await advance_log_start(log.keys, stream, 3, now_ms=0).apply(log.store)
    await log.fold()
    assert [(entry.start_offset, entry.end_offset) for entry in await log.index(stream)] == [(0, 5)]


async def test_record_with_more_entries_than_a_step_takes_is_folded_in_several() -> None:
    log = LogKit()
    streams = await log.streams(7)
    await log.writer()
    await log.commit(*((stream, [batch(2)]) for stream in streams))
    await log.commit((streams[0], [batch(1)]))
    cache = IndexCache(log.store, log.keys, max_folded_entries=100)
    await cache.refresh()
    counts: list[tuple[int, int, int]] = []
    for _ in range(4):
        await log.fold(max_entries=3)
        state = await log.state()
        folded = [entry for stream in streams for entry in await log.index(stream)]
        counts.append((state.folded_to, state.folded_entries, len(folded)))
        for stream in streams:
            assert [entry.start_offset for entry in await cache.locate(stream, 0, limit=1)] == [0]
    assert counts == [(1, 3, 3), (1, 6, 6), (3, 0, 8), (3, 0, 8)]


async def test_commits_between_the_steps_of_a_record_keep_its_place() -> None:
    log = LogKit()
    a, b = await log.streams(2)
    segment = await log.writer()
    await log.commit((a, [batch(2)]), (b, [batch(2)]))
    await log.fold(max_entries=1)
    await log.append(a)
    await advance_log_start(log.keys, a, 2, now_ms=0).apply(log.store)
    entries = await plan_trim(log.store, log.keys, a, max_entries=10)
    await trim_entries(log.keys, a, entries, now_ms=0).apply(log.store)
    assert (await log.state()).folded_entries == 1
    await log.fold()
    assert [entry.start_offset for entry in await log.index(a)] == [2], "what was trimmed does not come back"
    assert [entry.start_offset for entry in await log.index(b)] == [0]
    record = await log.object(segment)
    assert record is not None and record.entry_count == 2


async def test_cache_forgets_what_was_trimmed_out_of_a_record_that_is_folded_in_part() -> None:
    log = LogKit()
    a, b = await log.streams(2)
    await log.writer()
    await log.commit((a, [batch(2)]), (b, [batch(2)]))
    cache = IndexCache(log.store, log.keys, max_folded_entries=100)
    await cache.refresh()
    await log.fold(max_entries=1)
    await cache.refresh()
    assert cache.view.find(a, 0, limit=1) == [], "the tail must not keep what the index may exchange"
    assert len(cache.view.find(b, 0, limit=1)) == 1


async def test_plan_reads_no_more_records_than_fill_a_step() -> None:
    log = LogKit()
    streams = await log.streams(20)
    await log.writer()
    for _ in range(8):
        await log.commit(*((stream, [batch(1)]) for stream in streams))
    plan = await plan_fold(log.store, log.keys, max_records=1000, lag_records=0, max_entries=30)
    assert plan is not None and plan.is_full
    assert len(list(plan.entries())) == 30
    assert plan.end == (2, 10)
