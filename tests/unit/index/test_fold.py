import msgspec
import pytest

from headrace.index.cache import IndexCache
from headrace.index.fold import MAX_RUN_STEPS, fold_records, plan_fold
from headrace.index.rule import Rule, StalePlan
from headrace.index.streams import advance_log_start, delete_stream
from headrace.index.trim import plan_trim, trim_entries
from headrace.index.values import DOMAIN_STATE, FoldPlace
from headrace.index.writers import abandon_frame, retire_writer
from headrace.metadata.port import Decision, Key, Reads
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


async def test_records_with_more_entries_than_a_step_takes_are_folded_stream_by_stream() -> None:
    log = LogKit()
    streams = await log.streams(7)
    await log.writer()
    await log.commit(*((stream, [batch(2)]) for stream in reversed(streams)))
    await log.commit((streams[0], [batch(1)]))
    cache = IndexCache(log.store, log.keys, max_folded_entries=100)
    await cache.refresh()
    places: list[FoldPlace] = []
    folded: list[list[int]] = []
    for _ in range(4):
        await log.fold(max_entries=3)
        places.append((await log.state()).fold_place)
        folded.append([len(await log.index(stream)) for stream in streams])
        for stream in streams:
            assert [entry.start_offset for entry in await cache.locate(stream, 0, limit=1)] == [0]
    assert folded == [[2, 1, 0, 0, 0, 0, 0], [2, 1, 1, 1, 1, 0, 0], [2] + [1] * 6, [2] + [1] * 6]
    assert places[:2] == [FoldPlace(0, 0, 3, streams[2]), FoldPlace(0, 0, 3, streams[5])]
    assert places[2:] == [FoldPlace(3)] * 2
    assert [record.seq for record in await log.log()] == [2], "records go with the last step of their run"


async def test_run_that_was_begun_is_finished_by_any_process_whatever_the_lag() -> None:
    log = LogKit()
    streams = await log.streams(3)
    await log.writer()
    for _ in range(2):
        await log.commit(*((stream, [batch(2)]) for stream in streams))
    await log.fold(max_entries=2)
    assert (await log.state()).run_end == 3
    await log.append(streams[0])
    await log.fold(max_entries=2, lag_records=100)
    assert [len(await log.index(stream)) for stream in streams] == [2, 2, 0]
    await log.fold(max_entries=2, lag_records=100)
    assert [len(await log.index(stream)) for stream in streams] == [2, 2, 2]
    assert (await log.state()).fold_place == FoldPlace(3)


async def test_step_of_a_run_takes_one_stream_at_least_though_the_limit_is_smaller_than_it_was() -> None:
    log = LogKit()
    streams = await log.streams(2)
    await log.writer()
    for _ in range(3):
        await log.commit(*((stream, [batch(1)]) for stream in streams))
    await log.fold(max_entries=3)
    await log.fold(max_entries=1)
    assert [len(await log.index(stream)) for stream in streams] == [3, 3]


async def test_next_step_of_a_run_reads_no_record_again() -> None:
    log = LogKit()
    streams = await log.streams(3)
    await log.writer()
    for _ in range(2):
        await log.commit(*((stream, [batch(1)]) for stream in streams))
    plan = None
    for expected in ([2, 0, 0], [2, 2, 0], [2, 2, 2]):
        plan = await plan_fold(log.store, log.keys, max_records=9, lag_records=0, max_entries=2, previous=plan)
        assert plan is not None
        await fold_records(log.keys, plan, now_ms=0).apply(log.store)
        assert [len(await log.index(stream)) for stream in streams] == expected
        for seq in (1, 2):  # what is in memory is all that the next step needs
            await drop_value(log, log.keys.log(seq))


async def drop_value(log: LogKit, key: Key) -> None:
    await Rule(log.keys.unit, Reads(), lambda _: Decision(result=None, deletes=[key])).apply(log.store)


async def test_record_with_too_many_entries_of_one_stream_is_folded_in_its_own_order() -> None:
    log = LogKit()
    a, b = await log.streams(2)
    await log.writer()
    refused = batch(5, producer=9, sequence=-1)  # it splits what lies around it
    await log.commit(
        (a, [batch(1)]), (a, [refused]), (a, [batch(1)]), (a, [refused]), (a, [batch(1)]), (b, [batch()])
    )
    places = []
    for _ in range(2):
        await log.fold(max_entries=2)
        places.append((await log.state()).fold_place)
    assert places == [FoldPlace(1, 2), FoldPlace(2)]
    assert [len(await log.index(stream)) for stream in (a, b)] == [3, 1]
    assert [(entry.start_offset, entry.end_offset) for entry in await log.index(a)] == [(0, 1), (1, 2), (2, 3)]


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
    assert (await log.state()).run_stream == b
    await log.fold()
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


async def test_plan_reads_no_more_records_than_fill_a_run() -> None:
    log = LogKit()
    streams = await log.streams(20)
    await log.writer()
    for _ in range(18):
        await log.commit(*((stream, [batch(1)]) for stream in streams))
    plan = await plan_fold(log.store, log.keys, max_records=1000, lag_records=0, max_entries=30)
    assert plan is not None and plan.is_full
    assert MAX_RUN_STEPS * 30 <= len(plan.entries) + len(plan.left) < 2 * MAX_RUN_STEPS * 30
    assert 30 - len(plan.records) < len(plan.entries) <= 30


async def test_heads_are_read_only_if_a_log_start_may_have_moved() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream, 2)
    await advance_log_start(log.keys, stream, 2, now_ms=0).apply(log.store)
    await log.append(stream, 3)
    moved = await plan_fold(log.store, log.keys, max_records=10, lag_records=0)
    assert moved is not None and moved.reads_heads
    assert log.keys.head(stream) in fold_records(log.keys, moved, now_ms=0).reads.keys
    await log.fold()
    await log.append(stream, 4)
    quiet = await plan_fold(log.store, log.keys, max_records=10, lag_records=0)
    assert quiet is not None and not quiet.reads_heads
    assert log.keys.head(stream) not in fold_records(log.keys, quiet, now_ms=0).reads.keys
    await log.fold()
    assert [entry.start_offset for entry in await log.index(stream)] == [2, 5]


@pytest.mark.parametrize("how", ["trim", "delete"])
async def test_log_start_that_moves_behind_the_plan_makes_it_stale(how: str) -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    segment = await log.writer()
    await log.fold()
    await log.append(stream, 2)
    plan = await plan_fold(log.store, log.keys, max_records=10, lag_records=0)
    assert plan is not None and not plan.reads_heads
    if how == "trim":
        await advance_log_start(log.keys, stream, 2, now_ms=0).apply(log.store)
    else:
        await delete_stream(log.keys, stream, now_ms=0).apply(log.store)
    with pytest.raises(StalePlan):
        await fold_records(log.keys, plan, now_ms=0).apply(log.store)
    await log.fold()
    record = await log.object(segment)
    assert await log.index(stream) == [] and record is not None and record.entry_count == 0


async def test_state_that_does_not_say_when_a_log_start_moved_is_not_believed() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream)
    old = msgspec.structs.replace(await log.state(), starts_moved_at=-1)  # as an older release writes it
    puts = {log.keys.state: DOMAIN_STATE.encode(old)}
    await Rule(log.keys.unit, Reads(), lambda _: Decision(result=None, puts=puts)).apply(log.store)
    plan = await plan_fold(log.store, log.keys, max_records=10, lag_records=0)
    assert plan is not None and plan.reads_heads
    await log.streams(1)
    assert (await log.state()).starts_moved_at == 2, "from here on it is known"
