"""The collector: what dead writers left is sealed, what nothing names goes, and nothing else."""

import asyncio

import pytest

from headrace.errors import Corrupt, Retryable
from headrace.gc.collecting import Collector, CollectorLimits
from headrace.index.objects import (
    CollectingAges,
    condemn_objects,
    seal_object,
    stage_objects,
    wal_object_id,
    wal_object_key,
)
from headrace.index.pins import put_pin, release_pin
from headrace.index.streams import advance_log_start
from headrace.index.trim import plan_trim, trim_entries
from headrace.index.values import OBJECT_RECORD, ObjectRecord, ObjectState, PinRecord
from headrace.index.writers import register_writer
from headrace.metadata.keys import prefix_range
from headrace.metadata.port import Decision, Reads
from headrace.model.ids import ObjectId, ObjectKey, PinId, StreamId, WriterId
from headrace.objects.memory import PREPARED_BYTES
from headrace.runtime.crash_points import CrashPoint, NoCrashes
from tests.unit.gc.folded import fold_all
from tests.unit.produce.scripted import WRITER, Hold, Refuse, WriterKit

STAGED_MAX_AGE_MS = 60_000
SEALED_GRACE_MS = 10_000
AGES = CollectingAges(staged_max_age_ms=STAGED_MAX_AGE_MS, sealed_grace_ms=SEALED_GRACE_MS)
OTHER = WriterId("b2" * 16)
PIN = PinId("c3" * 16)


class PowerCut(Exception):
    """Ends a collector where a test wants it to die."""


class CutAt:
    """Cuts the power at one point."""

    def __init__(self, point: CrashPoint) -> None:
        self._point = point

    def reach(self, point: CrashPoint) -> None:
        if point is self._point:
            raise PowerCut


def collector_of(
    kit: WriterKit, *, records_per_tick: int = 100, writers_per_tick: int = 100, cut_at: CrashPoint | None = None
) -> Collector:
    return Collector(
        keys=kit.keys,
        metadata=kit.metadata,
        objects=kit.objects,
        clock=kit.clock,
        crash_points=NoCrashes() if cut_at is None else CutAt(cut_at),
        limits=CollectorLimits(ages=AGES, records_per_tick=records_per_tick, writers_per_tick=writers_per_tick),
    )


async def stage(kit: WriterKit, count: int, *, writer: WriterId = OTHER) -> list[ObjectKey]:
    """Stage objects of one frame and write their bytes, without a commit."""
    ids = [wal_object_id(writer, n) for n in range(count)]
    rule = stage_objects(kit.keys, ids, writer=writer, is_segment=False, now_ms=kit.clock.now_ms())
    await rule.apply(kit.metadata)
    keys = [wal_object_key(kit.keys.domain, one) for one in ids]
    for key in keys:
        await kit.objects.put(key, [b"bytes"])
    return keys


async def stored(kit: WriterKit) -> list[ObjectKey]:
    return [info.key async for info in kit.objects.list("")]


async def records(kit: WriterKit) -> dict[ObjectId, ObjectRecord]:
    found = await kit.metadata.range(prefix_range(kit.keys.objects_prefix, limit=1000))
    return {
        ObjectId(item.key.removeprefix(kit.keys.objects_prefix)): OBJECT_RECORD.decode(item.value, item.key)
        for item in found
    }


# Writers


async def test_segment_of_a_dead_writer_is_sealed_and_keeps_its_records() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"kept")
    size_bytes = (await kit.object(0) or pytest.fail()).size_bytes
    (key,) = await stored(kit)
    assert (await kit.objects.head(key)).size_bytes >= size_bytes + PREPARED_BYTES
    await kit.metadata.end_session(kit.session)
    await collector_of(kit).tick()
    record = await kit.object(0)
    assert record is not None and record.state is ObjectState.SEALED
    assert (await kit.objects.head(key)).size_bytes == size_bytes, "the prepared tail is given back"
    assert await kit.state() is None, "its writer is retired"
    await kit.clock.advance(10 * SEALED_GRACE_MS / 1000)
    await collector_of(kit).tick()
    assert await kit.values(stream) == [b"kept"]


async def test_living_writer_is_left_alone() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    await kit.clock.advance(1000)
    await collector_of(kit).tick()
    record = await kit.object(0)
    assert record is not None and record.state is ObjectState.OPEN
    assert await kit.append(stream, b"1") == 1


async def test_writer_that_only_seems_dead_can_commit_nothing_any_more() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    await kit.metadata.end_session(kit.session)
    write = Hold()
    kit.script.plan("append", write)
    late = await kit.taken(stream, b"1")
    await collector_of(kit).tick()
    write.release()
    await kit.clock.settle()
    assert late.exception() is not None and kit.writer.fenced.is_set()
    assert await kit.values(stream) == [b"0"]


async def test_segment_whose_writer_is_forgotten_is_sealed() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    await kit.metadata.end_session(kit.session)
    await stage(kit, 1, writer=WriterId("00" * 16))
    small = collector_of(kit, records_per_tick=1)
    await small.tick()
    record = await kit.object(0)
    assert record is not None and record.state is ObjectState.OPEN and await kit.state() is None
    await small.tick()
    record = await kit.object(0)
    assert record is not None and record.state is ObjectState.SEALED


async def test_writer_beyond_the_page_of_writers_counts_as_alive() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    session = await kit.metadata.open_session(timeout_ms=1000)
    first = WriterId("00" * 16)
    await register_writer(kit.keys, first, session=session, now_ms=0).apply(kit.metadata)
    await collector_of(kit, writers_per_tick=1).tick()
    assert await kit.append(stream, b"1") == 1


async def test_dead_writer_behind_a_page_of_living_ones_is_found() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    session = await kit.metadata.open_session(timeout_ms=1000)
    first = WriterId("00" * 16)
    await register_writer(kit.keys, first, session=session, now_ms=0).apply(kit.metadata)
    await kit.metadata.end_session(kit.session)
    collector = collector_of(kit, writers_per_tick=1)
    for _ in range(3):
        await collector.tick()
    assert await kit.state() is None
    record = await kit.object(0)
    assert record is not None and record.state is ObjectState.SEALED


async def test_sealing_a_file_that_failed_is_repeated() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    await kit.metadata.end_session(kit.session)
    kit.script.plan("seal_segment", Refuse(Retryable("busy")))
    collector = collector_of(kit)
    with pytest.raises(Retryable):
        await collector.tick()
    await collector.tick()
    record = await kit.object(0)
    (key,) = await stored(kit)
    assert record is not None and (await kit.objects.head(key)).size_bytes == record.size_bytes


async def test_file_that_vanished_while_it_was_sealed_is_no_error() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    await kit.metadata.end_session(kit.session)
    await kit.objects.delete(await stored(kit))
    await collector_of(kit).tick()
    assert await kit.state() is None


# Objects


async def test_staged_object_past_its_age_goes_with_its_bytes() -> None:
    kit = WriterKit()
    keys = await stage(kit, 2)
    await kit.clock.advance((STAGED_MAX_AGE_MS - 1) / 1000)
    await collector_of(kit).tick()
    assert await stored(kit) == keys
    await kit.clock.advance(0.001)
    await collector_of(kit).tick()
    assert await stored(kit) == []
    assert await records(kit) == {}


async def test_staged_object_without_bytes_goes_too() -> None:
    kit = WriterKit()
    await kit.objects.delete(await stage(kit, 1))
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    await collector_of(kit).tick()
    assert await records(kit) == {}


@pytest.mark.parametrize("what", ["object", "writer"])
async def test_damaged_record_holds_up_no_other_object(what: str) -> None:
    kit = WriterKit()
    await kit.start()
    keys = await stage(kit, 2)
    damaged = kit.keys.writer(WRITER) if what == "writer" else kit.keys.object(wal_object_id(OTHER, 0))
    puts = {damaged: b"\x01junk"}
    await kit.metadata.transact([kit.keys.unit], Reads(), lambda _: Decision(result=None, puts=puts))
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    with pytest.raises(Corrupt, match=damaged):
        await collector_of(kit).tick()
    left = [key for key in await stored(kit) if key in keys]
    assert left == (keys[:1] if what == "object" else []), "what is damaged stays, and nothing else"


async def test_sealed_object_goes_when_its_last_entry_went_and_its_grace_is_over() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    await kit.append(stream, b"1")
    await kit.writer.close()
    await fold_all(kit)
    await kit.clock.advance(10 * SEALED_GRACE_MS / 1000)
    for log_start, left in ((1, 1), (2, 0)):
        await advance_log_start(kit.keys, stream, log_start, now_ms=0).apply(kit.metadata)
        entries = await plan_trim(kit.metadata, kit.keys, stream, max_entries=10)
        await trim_entries(kit.keys, stream, entries, now_ms=kit.clock.now_ms()).apply(kit.metadata)
        record = await kit.object(0)
        assert record is not None and record.entry_count == left
        await collector_of(kit).tick()
        assert len(await stored(kit)) == 1, "named by an entry, or a reader may hold a plan"
    await kit.clock.advance(SEALED_GRACE_MS / 1000)
    await collector_of(kit).tick()
    assert await stored(kit) == []
    assert await kit.object(0) is None


async def test_sealed_object_with_entries_is_never_due() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    await kit.writer.close()
    await kit.clock.advance(1e6)
    await collector_of(kit).tick()
    assert await kit.values(stream) == [b"0"]


@pytest.mark.parametrize("cut_at", [CrashPoint.COLLECT_AFTER_CONDEMN, CrashPoint.COLLECT_AFTER_DELETE])
async def test_what_a_crashed_collector_condemned_is_deleted_by_the_next(cut_at: CrashPoint) -> None:
    kit = WriterKit()
    await stage(kit, 2)
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    with pytest.raises(PowerCut):
        await collector_of(kit, cut_at=cut_at).tick()
    assert len(await records(kit)) == 2
    await collector_of(kit).tick()
    assert await stored(kit) == []
    assert await records(kit) == {}


async def test_many_objects_go_in_few_transactions() -> None:
    kit = WriterKit()
    await stage(kit, 250)
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    assert len(await collector_of(kit, records_per_tick=1000).tick()) == 250
    assert (kit.script.calls["condemn_objects"], kit.script.calls["forget_objects"]) == (3, 3)
    assert (await stored(kit), await records(kit)) == ([], {})


async def test_bytes_stay_while_condemning_fails() -> None:
    kit = WriterKit()
    keys = await stage(kit, 1)
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    kit.script.plan("condemn_objects", Refuse(Retryable("busy")))
    with pytest.raises(Retryable):
        await collector_of(kit).tick()
    assert await stored(kit) == keys


async def test_record_stays_while_deleting_fails() -> None:
    kit = WriterKit()
    await stage(kit, 1)
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    kit.script.plan("delete", Refuse(Retryable("busy")))
    collector = collector_of(kit)
    with pytest.raises(Retryable):
        await collector.tick()
    (record,) = (await records(kit)).values()
    assert record.state is ObjectState.CONDEMNED
    await collector.tick()
    assert (await stored(kit), await records(kit)) == ([], {})


async def test_pages_go_round_and_round() -> None:
    kit = WriterKit()
    await stage(kit, 7)
    collector = collector_of(kit, records_per_tick=3)
    await collector.tick()  # all of them are young; the page moves on
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    left = []
    for _ in range(4):
        await collector.tick()
        left.append(len(await records(kit)))
    assert left == [4, 3, 0, 0], "the second page, the last one, and the first one again"


async def test_page_that_ends_exactly_with_the_last_record_begins_anew() -> None:
    kit = WriterKit()
    await stage(kit, 4)
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    collector = collector_of(kit, records_per_tick=2)
    for _ in range(3):
        await collector.tick()
    assert await records(kit) == {}
    await stage(kit, 1)
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    await collector.tick()
    assert await records(kit) == {}


async def test_tick_tells_what_it_deleted_and_survey_what_it_would() -> None:
    kit = WriterKit()
    keys = await stage(kit, 3)
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    surveyed = await collector_of(kit).survey()
    assert [one.key for one in surveyed] == keys == await stored(kit)
    assert await collector_of(kit).tick() == surveyed
    assert await stored(kit) == []


async def test_objects_that_nothing_names_are_counted_until_they_are_gone() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    await kit.writer.close()
    await fold_all(kit)
    collector = collector_of(kit)
    await collector.tick()
    assert collector.waiting.object_count == 0, "an entry names it"
    await advance_log_start(kit.keys, stream, 1, now_ms=0).apply(kit.metadata)
    entries = await plan_trim(kit.metadata, kit.keys, stream, max_entries=10)
    await trim_entries(kit.keys, stream, entries, now_ms=kit.clock.now_ms()).apply(kit.metadata)
    record = await kit.object(0)
    await collector.tick()
    assert record is not None
    assert (collector.waiting.object_count, collector.waiting.size_bytes) == (1, record.size_bytes)
    await kit.clock.advance(SEALED_GRACE_MS / 1000)
    assert len(await collector.tick()) == 1
    assert collector.waiting.object_count == 0


# Two at once


async def test_object_that_was_committed_since_it_was_read_is_kept() -> None:
    kit = WriterKit(is_remote=True, staged_ahead=1)
    (stream,) = await kit.start()
    commit, condemn = Hold(), Hold()
    kit.script.plan("commit_frame", commit)
    answer = await kit.taken(stream, b"just in time")
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    kit.script.plan("condemn_objects", condemn)
    collecting = asyncio.create_task(collector_of(kit).tick())
    await kit.clock.settle()
    commit.release()
    await kit.clock.settle()
    condemn.release()
    await collecting
    assert answer.result().base_offset == 0
    assert await kit.values(stream) == [b"just in time"]


@pytest.mark.parametrize("held", ["condemn_objects", "delete"])
async def test_two_collectors_at_once_harm_nothing(held: str) -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"kept")
    await kit.metadata.end_session(kit.session)
    await stage(kit, 5)
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    steps = [Hold() for _ in range(4)]
    kit.script.plan(held, *steps)
    ticks = [asyncio.create_task(collector_of(kit).tick()) for _ in range(2)]
    for step in (steps[1], steps[0], steps[3], steps[2]):
        await kit.clock.settle()
        step.release()
    await asyncio.gather(*ticks)
    assert list(await records(kit)) == [wal_object_id(WRITER, 0)]
    assert await stored(kit) == [wal_object_key(kit.keys.domain, wal_object_id(WRITER, 0))]
    assert await kit.values(stream) == [b"kept"]


async def test_collector_that_slept_between_reading_and_acting_harms_nothing() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"kept")
    await kit.writer.close()
    (key,) = await stored(kit)
    await stage(kit, 1)
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    wakes = Hold()
    kit.script.plan("condemn_objects", wakes)
    sleeper = asyncio.create_task(collector_of(kit).tick())
    await kit.clock.settle()
    await collector_of(kit).tick()
    wakes.release()
    await sleeper
    assert await stored(kit) == [key]


async def test_condemned_object_takes_no_commit() -> None:
    kit = WriterKit(is_remote=True, staged_ahead=1)
    (stream,) = await kit.start()
    commit = Hold()
    kit.script.plan("commit_frame", commit)
    answer = await kit.taken(stream, b"too late")
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    rule = condemn_objects(kit.keys, [wal_object_id(WRITER, 0)], now_ms=kit.clock.now_ms(), ages=AGES)
    assert await rule.apply(kit.metadata)
    commit.release()
    await kit.clock.settle()
    assert isinstance(answer.exception(), Retryable)
    await seal_object(kit.keys, wal_object_id(WRITER, 0), now_ms=0).apply(kit.metadata)
    record = await kit.object(0)
    assert record is None or record.state is ObjectState.CONDEMNED, "never back"


# Pins


async def trimmed(kit: WriterKit, stream: StreamId, log_start: int) -> None:
    await advance_log_start(kit.keys, stream, log_start, now_ms=0).apply(kit.metadata)
    entries = await plan_trim(kit.metadata, kit.keys, stream, max_entries=10)
    await trim_entries(kit.keys, stream, entries, now_ms=kit.clock.now_ms()).apply(kit.metadata)


async def pin(kit: WriterKit) -> None:
    now_ms = kit.clock.now_ms()
    # The clock of whoever pins is an hour behind: revisions count, and no clock does.
    record = PinRecord(now_ms - 3_600_000, now_ms, 1, "a read")
    await put_pin(kit.keys, PIN, record).apply(kit.metadata)


async def test_what_a_pinned_read_may_have_planned_from_stays_until_its_end() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    await kit.writer.close()
    await fold_all(kit)
    await pin(kit)
    await trimmed(kit, stream, 1)
    await kit.clock.advance(10 * SEALED_GRACE_MS / 1000)
    collector = collector_of(kit)
    assert await collector.survey() == [] and await collector.tick() == []
    assert collector.waiting.object_count == 1
    await release_pin(kit.keys, PIN).apply(kit.metadata)
    (removed,) = await collector.tick()
    assert await stored(kit) == [] and removed.key.startswith("wal/")


async def test_pin_holds_nothing_that_was_unnamed_before_it() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    await kit.writer.close()
    await fold_all(kit)
    await trimmed(kit, stream, 1)
    await pin(kit)
    await kit.clock.advance(SEALED_GRACE_MS / 1000)
    await collector_of(kit).tick()
    assert await stored(kit) == []


async def test_pin_does_not_keep_staged_objects() -> None:
    kit = WriterKit()
    await pin(kit)
    await stage(kit, 1)
    await kit.clock.advance(STAGED_MAX_AGE_MS / 1000)
    await collector_of(kit).tick()
    assert await stored(kit) == []
