import itertools

import msgspec
import pytest

from headrace.index.commit import ObjectClosed
from headrace.index.rule import StalePlan
from headrace.index.streams import advance_log_start
from headrace.index.swap import Swap, replacement_for, swap_entries
from headrace.index.trim import plan_trim, trim_entries
from headrace.index.values import ObjectState
from headrace.model.extents import RowGroup, TableExtent, TableFile, WalExtent
from headrace.model.ids import StreamId
from tests.log_kit import LogKit

TABLE = TableExtent((TableFile("tables/t/f.parquet", 900, 100, 7, (RowGroup(0, 0, 4, 100, 5, 0, 9),)),))


async def logged(count: int) -> tuple[LogKit, StreamId]:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    for n in range(count):
        await log.append(stream, n + 1, at_ms=1000 - n)
    await log.fold()
    return log, stream


async def test_replacement_keeps_range_bytes_and_running_maximum() -> None:
    log, stream = await logged(3)
    entries = await log.index(stream)
    new = replacement_for(entries, TABLE)
    assert (new.start_offset, new.end_offset, new.record_count) == (0, 6, 6)
    assert (new.cumulative_bytes, new.running_max_ms) == (entries[-1].cumulative_bytes, 1000)
    assert (new.min_timestamp_ms, new.max_timestamp_ms, new.max_timestamp_offset) == (998, 1000, 0)


async def test_steps_swap_a_run_and_every_offset_has_one_entry_in_between() -> None:
    log, stream = await logged(5)
    entries = await log.index(stream)
    for step in (entries[:2], entries[2:4]):
        swap = Swap(stream=stream, planned=step, replacements=[replacement_for(step, TABLE)])
        await swap_entries(log.keys, swap, now_ms=0).apply(log.store)
        current = await log.index(stream)
        assert current[0].start_offset == 0 and current[-1].end_offset == 15
        assert all(left.end_offset == right.start_offset for left, right in itertools.pairwise(current))
    assert (await log.head(stream)).index_epoch == 2
    segment = await log.object(entries[0].extent.object_id)  # type: ignore[union-attr]
    assert segment is not None and segment.entry_count == 1


async def test_repeated_step_is_harmless_and_a_stale_plan_is_refused() -> None:
    log, stream = await logged(4)
    entries = await log.index(stream)
    step = Swap(stream=stream, planned=entries[1:3], replacements=[replacement_for(entries[1:3], TABLE)])
    await swap_entries(log.keys, step, now_ms=0).apply(log.store)
    await swap_entries(log.keys, step, now_ms=0).apply(log.store)
    assert (await log.head(stream)).index_epoch == 1
    overlapping = Swap(stream=stream, planned=entries[:2], replacements=[replacement_for(entries[:2], TABLE)])
    with pytest.raises(StalePlan):
        await swap_entries(log.keys, overlapping, now_ms=0).apply(log.store)


async def test_entries_trimmed_meanwhile_make_the_plan_stale() -> None:
    log, stream = await logged(3)
    entries = await log.index(stream)
    await advance_log_start(log.keys, stream, 3, now_ms=0).apply(log.store)
    below = await plan_trim(log.store, log.keys, stream, max_entries=10)
    await trim_entries(log.keys, stream, below, now_ms=0).apply(log.store)
    swap = Swap(stream=stream, planned=entries, replacements=[replacement_for(entries, TABLE)])
    with pytest.raises(StalePlan):
        await swap_entries(log.keys, swap, now_ms=0).apply(log.store)


async def test_repacked_object_takes_entries_while_it_is_open() -> None:
    log, stream = await logged(4)
    entries = await log.index(stream)
    packed = await log.stage(number=1, is_segment=False)
    for step, start_byte in ((entries[:2], 0), (entries[2:], 300)):
        extent = WalExtent(packed, start_byte, 300)
        swap = Swap(stream=stream, planned=step, replacements=[replacement_for(step, extent)])
        await swap_entries(log.keys, swap, now_ms=5).apply(log.store)
    record = await log.object(packed)
    assert record is not None
    assert (record.state, record.entry_count, record.size_bytes) == (ObjectState.OPEN, 2, 600)
    await log.seal(packed)
    last = (await log.index(stream))[-1:]
    again = Swap(stream=stream, planned=last, replacements=[replacement_for(last, WalExtent(packed, 900, 300))])
    with pytest.raises(ObjectClosed):
        await swap_entries(log.keys, again, now_ms=5).apply(log.store)


async def test_replacement_of_another_range_is_our_own_mistake() -> None:
    log, stream = await logged(3)
    entries = await log.index(stream)
    wrong = msgspec.structs.replace(replacement_for(entries, TABLE), end_offset=7)
    with pytest.raises(AssertionError):
        swap_entries(log.keys, Swap(stream=stream, planned=entries, replacements=[wrong]), now_ms=0)
