"""Tables in proportion: small files are merged, forgotten ones released; whoever dies, readers notice nothing."""

import msgspec
import pytest

from headrace.errors import Fenced
from headrace.index.streams import advance_log_start
from headrace.index.swap import Swap, replacement_for, swap_entries
from headrace.index.trim import plan_trim, trim_entries
from headrace.metadata.keys import prefix_range, table_lease
from headrace.metadata.leases import Lease
from headrace.model.extents import TableExtent
from headrace.model.ids import SessionId
from headrace.model.topics import Topic
from headrace.pipeline.keeping import KeepLimits, due_for
from headrace.pipeline.merging import MergeLimits
from headrace.pipeline.records import CONDEMNED_FILES, TableState, TableStatus
from headrace.pipeline.swapping import Swapper
from headrace.runtime.crash_points import CrashPoint, NoCrashes
from headrace.tables.format import DAY_MS
from headrace.tables.port import ExpiryRule
from headrace.topics.tables import table_rules_of
from tests.unit.pipeline.pipeline_kit import KillAt, Killed, PipelineKit, PipelineProcess
from tests.unit.pipeline.test_runner import logged, unreadable

KEEP = KeepLimits(merge=MergeLimits(file_target_bytes=1 << 20, min_files=3), quiet_expiry_ms=10**12)
AT_ONCE = ExpiryRule(max_snapshots=1, max_age_ms=10**12)
MERGE_POINTS = [point for point in CrashPoint if point.startswith(("saga.", "swap."))]


async def runs(kit: PipelineKit, topic: Topic, process: PipelineProcess, count: int, *, first: int = 0) -> None:
    """Make runs of a few records each."""
    for run in range(first, first + count):
        await logged(kit, topic, 2, first=2 * run)
        assert (await process.run())[1] == {}


async def forget(kit: PipelineKit, topic: Topic, partition: int, offset: int) -> None:
    """Move a log start, and trim behind it."""
    stream = topic.streams[partition]
    await advance_log_start(kit.keys, stream, offset, now_ms=kit.clock.now_ms()).apply(kit.metadata)
    await trim(kit, topic)


async def trim(kit: PipelineKit, topic: Topic) -> None:
    for stream in topic.streams:
        while True:
            entries = await plan_trim(kit.metadata, kit.keys, stream, max_entries=2)
            if not entries:
                break
            await trim_entries(kit.keys, stream, entries, now_ms=kit.clock.now_ms()).apply(kit.metadata)


def branch(kit: PipelineKit) -> list[str]:
    return [file.path for file in kit.catalog.tables["orders"].files]


def main(kit: PipelineKit) -> list[str]:
    return [file.path for file in kit.catalog.tables["orders"].main]


async def condemned(kit: PipelineKit) -> set[str]:
    found = await kit.metadata.range(prefix_range(kit.keys.condemned_prefix, limit=1000))
    return {path for item in found for path in CONDEMNED_FILES.decode(item.value, item.key).paths}


async def test_small_files_become_one_and_readers_get_the_same() -> None:
    kit = PipelineKit(max_entries=2)
    topic = await kit.topic(partitions=2)
    process = await kit.pipeline(keep=KEEP)
    await runs(kit, topic, process, 2)
    assert len(branch(kit)) == 2
    await runs(kit, topic, process, 1, first=2)
    (path,) = branch(kit)
    assert main(kit) == [path]
    for stream in topic.streams:
        (entry,) = await kit.index(stream)
        assert isinstance(entry.extent, TableExtent)
        assert (entry.start_offset, entry.end_offset, entry.record_count) == (0, 12, 12)
        assert [file.path for file in entry.extent.files] == [path]
        assert await kit.values(stream) == [b"%d" % n for n in range(12)]
    state = await kit.state(topic)
    assert (state.merges, state.runs, state.files, state.rows, state.ends) == (1, 3, 1, 24, {0: 12, 1: 12})
    assert state.new_files == 0
    await runs(kit, topic, process, 3, first=3)
    assert len(branch(kit)) == 1
    for stream in topic.streams:
        assert await kit.values(stream) == [b"%d" % n for n in range(24)]


@pytest.mark.parametrize("point", MERGE_POINTS)
@pytest.mark.parametrize("arrival", [1, 2, 3])
async def test_another_process_ends_a_merge_that_a_dead_one_left(point: CrashPoint, arrival: int) -> None:
    kit = PipelineKit(max_entries=2)
    topic = await kit.topic(partitions=2)
    await runs(kit, topic, await kit.pipeline(keep=KeepLimits(merge_enable=False)), 3)
    victim = await kit.pipeline(crash_points=KillAt(point, arrival), keep=KEEP)
    try:
        await victim.run()
    except Killed:
        await victim.bury()
    else:
        assert arrival > 1, f"nothing ever reaches {point}"
    for stream in topic.streams:
        assert await kit.values(stream) == [b"%d" % n for n in range(12)]
    heir = await kit.pipeline(keep=KEEP)
    for _ in range(2):
        assert (await heir.run())[1] == {}
    (path,) = branch(kit)
    assert main(kit) == [path]
    for stream in topic.streams:
        (entry,) = await kit.index(stream)
        assert isinstance(entry.extent, TableExtent)
        assert [file.path for file in entry.extent.files] == [path]
        assert await kit.values(stream) == [b"%d" % n for n in range(12)]
    state = await kit.state(topic)
    assert (state.files, state.rows, state.status) == (1, 24, TableStatus.OK)


async def test_a_batch_that_was_held_back_stays_where_it_is_and_breaks_the_entry() -> None:
    kit = PipelineKit(max_entries=2)
    topic = await kit.topic()
    (stream,) = topic.streams
    process = await kit.pipeline(keep=KEEP)
    await runs(kit, topic, process, 1)
    await kit.append_raw(stream, unreadable(b"x", b"y"))
    await runs(kit, topic, process, 2, first=1)
    first, held, last = await kit.index(stream)
    assert not isinstance(held.extent, TableExtent)
    (path,) = branch(kit)
    for entry, wanted in ((first, (0, 4)), (last, (6, 14))):
        assert isinstance(entry.extent, TableExtent)
        assert (entry.start_offset, entry.end_offset) == wanted
        assert [file.path for file in entry.extent.files] == [path]
        assert all(group.first_offset >= entry.start_offset for group in entry.extent.files[0].row_groups)


@pytest.mark.parametrize("follows", [True, False])
async def test_files_that_the_log_has_forgotten_go_and_main_follows_if_it_is_to(follows: bool) -> None:
    kit = PipelineKit()
    topic = await kit.topic(retention="follow" if follows else "keep")
    process = await kit.pipeline(keep=KeepLimits(merge_enable=False), expiry=AT_ONCE)
    await runs(kit, topic, process, 4)
    first, second, *others = branch(kit)
    await forget(kit, topic, 0, 6)  # into the second file: that one stays
    await process.run()
    assert branch(kit) == [second, *others]
    assert main(kit) == ([second, *others] if follows else [first, second, *others])
    assert await condemned(kit) == ({first} if follows else set())
    state = await kit.state(topic)
    assert (state.released_files, state.files, state.released_to) == (1, 3, {0: 6})
    commits = kit.catalog.commits
    await process.run()
    assert kit.catalog.commits == commits, "nothing more is forgotten, so nobody looks"
    assert await kit.values(topic.streams[0], start_offset=6) == [b"%d" % n for n in range(6, 16)]


async def test_a_file_stays_as_long_as_one_stream_needs_it() -> None:
    kit = PipelineKit()
    topic = await kit.topic(partitions=2, retention="follow")
    process = await kit.pipeline(keep=KeepLimits(merge_enable=False), expiry=AT_ONCE)
    await runs(kit, topic, process, 2)
    first, second = branch(kit)
    await forget(kit, topic, 0, 4)
    await process.run()
    assert branch(kit) == [first, second]
    await forget(kit, topic, 1, 4)
    await process.run()
    assert branch(kit) == [second]
    assert await condemned(kit) == {first}


async def test_a_release_that_a_dead_process_left_is_ended_by_another() -> None:
    for point in MERGE_POINTS:
        if point is CrashPoint.SWAP_AFTER_STEP:
            continue
        kit = PipelineKit()
        topic = await kit.topic(retention="follow")
        await runs(kit, topic, await kit.pipeline(keep=KeepLimits(merge_enable=False)), 3)
        await forget(kit, topic, 0, 8)
        victim = await kit.pipeline(crash_points=KillAt(point), keep=KEEP, expiry=AT_ONCE)
        with pytest.raises(Killed):
            await victim.run()
        await victim.bury()
        heir = await kit.pipeline(keep=KEEP, expiry=AT_ONCE)
        for _ in range(2):
            assert (await heir.run())[1] == {}
        assert len(branch(kit)) == 1 and main(kit) == branch(kit), point
        assert not await condemned(kit) & set(branch(kit))
        assert await kit.values(topic.streams[0], start_offset=8) == [b"%d" % n for n in range(8, 12)]


async def test_inputs_of_a_merge_are_condemned_once_no_snapshot_names_them_and_the_index_does_not_either() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    await runs(kit, topic, await kit.pipeline(keep=KeepLimits(merge_enable=False)), 3)
    inputs = set(branch(kit))
    await (await kit.pipeline(keep=KEEP, expiry=AT_ONCE)).run()
    assert len(branch(kit)) == 1
    assert await condemned(kit) == inputs


async def test_a_freed_file_that_the_index_names_is_never_condemned() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    process = await kit.pipeline(keep=KeepLimits(merge_enable=False), expiry=AT_ONCE)
    await runs(kit, topic, process, 2)
    table = kit.catalog.tables["orders"]
    lost = table.files[0].path
    table.files, table.main = table.files[1:], table.main[1:]  # somebody has set the branch to another snapshot
    await logged(kit, topic, 1, first=4)
    _, problems = await process.run()
    assert "somebody has changed the branch" in problems["orders"]
    assert lost not in await condemned(kit)
    assert await kit.saga(topic) is None


async def test_snapshots_of_a_quiet_table_expire_too() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    limits = KeepLimits(merge=MergeLimits(file_target_bytes=1 << 20, min_files=3), quiet_expiry_ms=3_600_000)
    process = await kit.pipeline(keep=limits, expiry=ExpiryRule(max_snapshots=100, max_age_ms=1_000_000))
    await runs(kit, topic, process, 3)
    inputs = {path for one in kit.catalog.tables["orders"].snapshots for path in one.paths} - set(branch(kit))
    assert len(inputs) == 3
    assert await condemned(kit) == set()
    await kit.clock.advance(4_000)
    await process.run()
    assert await condemned(kit) == inputs
    assert len(kit.catalog.tables["orders"].snapshots) == 1


async def test_rows_that_a_person_deleted_from_main_do_not_come_back() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    await runs(kit, topic, await kit.pipeline(keep=KeepLimits(merge_enable=False)), 3)
    before = main(kit)
    kit.catalog.tables["orders"].touch(before[1])
    await (await kit.pipeline(keep=KEEP)).run()
    assert len(branch(kit)) == 1
    assert main(kit) == before
    state = await kit.state(topic)
    assert state.held_twice_bytes == 0, "as it was when the merge was planned"


async def test_a_paused_process_swaps_nothing_once_others_have_ended_its_merge() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    (stream,) = topic.streams
    await runs(kit, topic, await kit.pipeline(keep=KeepLimits(merge_enable=False)), 3)
    paused = await kit.pipeline(crash_points=KillAt(CrashPoint.SAGA_AFTER_IN_TABLE), keep=KEEP)
    with pytest.raises(Killed):
        await paused.run()
    saga = await kit.saga(topic)
    assert saga is not None
    lease = Lease(key=table_lease(topic.id), session=SessionId(paused.session), epoch=saga.epoch)
    await paused.bury()
    await (await kit.pipeline(keep=KEEP)).run()
    entries = await kit.index(stream)
    emptied = [replacement_for(entries, TableExtent(()))]  # as compaction leaves it, if all rows are obsolete
    step = Swap(stream=stream, planned=entries, replacements=emptied)
    await swap_entries(kit.keys, step, now_ms=0).apply(kit.metadata)
    swapper = Swapper(store=kit.metadata, keys=kit.keys, clock=kit.clock, crash_points=NoCrashes(), max_entries=10)
    with pytest.raises(Fenced):
        await swapper.swap_rewritten(lease, saga.files[0], saga.files[0].slices[0], frozenset(saga.inputs))
    assert await kit.index(stream) == emptied


async def left_in_main(kit: PipelineKit, topic: Topic) -> list[str]:
    """Make runs whose files the log forgets one by one before they are merged; return what `main` has kept."""
    process = await kit.pipeline(keep=KeepLimits(merge_enable=False), expiry=AT_ONCE)
    for run in range(4):
        await runs(kit, topic, process, 1, first=run)
        await forget(kit, topic, 0, 4 * (run + 1))
        await process.run()
    assert branch(kit) == [] and len(main(kit)) == 4
    return main(kit)


async def test_what_only_main_has_kept_is_merged_there() -> None:
    kit = PipelineKit()
    topic = await kit.topic(retention="keep")
    kept = await left_in_main(kit, topic)
    process = await kit.pipeline(keep=KEEP, expiry=AT_ONCE)
    await runs(kit, topic, process, 1, first=4)
    (new,) = branch(kit)
    merged = set(main(kit)) - {new}
    assert len(merged) == 1 and not merged & set(kept)
    assert [file.row_count for file in kit.catalog.tables["orders"].main if file.path in merged] == [16]
    assert await condemned(kit) == set(kept), "the next snapshot set them free"
    state = await kit.state(topic)
    assert (state.merges, state.files, state.rows, state.released_files) == (1, 1, 4, 4), (
        "all but merges: the branch's"
    )
    assert await kit.values(topic.streams[0], start_offset=16) == [b"%d" % n for n in range(16, 20)]
    commits = kit.catalog.commits
    await process.run()
    assert kit.catalog.commits == commits


@pytest.mark.parametrize("point", [point for point in MERGE_POINTS if point is not CrashPoint.SWAP_AFTER_STEP])
async def test_another_process_ends_a_merge_of_main_that_a_dead_one_left(point: CrashPoint) -> None:
    kit = PipelineKit()
    topic = await kit.topic(retention="keep")
    kept = await left_in_main(kit, topic)
    await runs(kit, topic, await kit.pipeline(keep=KeepLimits(merge_enable=False)), 1, first=4)
    victim = await kit.pipeline(crash_points=KillAt(point), keep=KEEP, expiry=AT_ONCE)
    with pytest.raises(Killed):
        await victim.run()
    await victim.bury()
    heir = await kit.pipeline(keep=KEEP, expiry=AT_ONCE)
    for _ in range(2):
        assert (await heir.run())[1] == {}
    assert len(main(kit)) == 2 and not set(kept) & set(main(kit))
    assert sum(file.row_count for file in kit.catalog.tables["orders"].main) == 20
    assert not await condemned(kit) & set(main(kit))


async def test_main_that_follows_the_log_also_loses_what_merges_have_left_in_it() -> None:
    kit = PipelineKit()
    topic = await kit.topic(partitions=2, retention="follow")
    await runs(kit, topic, await kit.pipeline(keep=KeepLimits(merge_enable=False)), 3)
    left = main(kit)
    kit.catalog.tables["orders"].touch(left[0])
    process = await kit.pipeline(keep=KEEP, expiry=AT_ONCE)
    await process.run()
    assert main(kit) == left and len(branch(kit)) == 1 and branch(kit) != left, "a person has touched an input"
    await forget(kit, topic, 0, 12)
    await forget(kit, topic, 1, 5)
    await process.run()
    assert main(kit) == left[1:], "of the others the log has rows"
    assert len(branch(kit)) == 1
    await forget(kit, topic, 1, 12)
    await process.run()
    assert branch(kit) == [] and main(kit) == []
    state = await kit.state(topic)
    assert (state.files, state.rows) == (0, 0)


async def test_files_of_main_that_a_person_touches_meanwhile_stay() -> None:
    kit = PipelineKit()
    topic = await kit.topic(retention="keep")
    kept = await left_in_main(kit, topic)
    kit.catalog.tables["orders"].touch(kept[0])
    process = await kit.pipeline(keep=KEEP, expiry=AT_ONCE)
    await runs(kit, topic, process, 1, first=4)
    assert kept[0] in main(kit) and not set(kept[1:]) & set(main(kit))
    assert kit.catalog.main_merges == 1


def test_what_is_due_is_known_without_asking_the_catalog() -> None:
    rules = table_rules_of({})
    now = 100 * DAY_MS
    state = TableState("orders", ends={0: 10}, expired_at_ms=now, merge_looked_at_ms=now, release_looked_at_ms=now)

    def due(
        log_start: int = 0, *, force: bool = False, at_ms: int = now, **changes: object
    ) -> tuple[bool, bool, bool]:
        changed = msgspec.structs.replace(state, **changes)
        found = due_for(changed, rules, {0: log_start}, now_ms=at_ms, limits=KEEP, force=force)
        return (False, False, False) if found is None else (found.release, found.merge, found.expiry)

    assert due() == (False, False, False)
    assert due(5) == (False, False, False), "a look was just taken"
    assert due(5, force=True) == due(5, at_ms=now + 60_000) == (True, False, False)
    assert due(5, force=True, released_to={0: 5}) == (False, False, False)
    assert due(new_files=2) == (False, False, False)
    assert due(new_files=3) == due(new_files=1, at_ms=now + DAY_MS) == (False, True, False)
    assert due(at_ms=now + KEEP.quiet_expiry_ms) == (False, False, True)
    assert due(5, force=True, new_files=9, status=TableStatus.FOREIGN) == (False, False, False)
    assert due_for(None, rules, {}, now_ms=now, limits=KEEP) is None
