"""Who is repacked when, under which lease, and what becomes of those who cannot be."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from headrace.errors import OutcomeUnknown, Retryable
from headrace.gc import repacking
from headrace.gc.repacking import REPACKER_LEASE
from headrace.index.objects import wal_object_key
from headrace.index.streams import advance_log_start
from headrace.index.trim import plan_trim, trim_entries
from headrace.index.values import ObjectState
from headrace.metadata.keys import table_lease
from headrace.metadata.leases import LEASE_CODEC, take
from headrace.metadata.port import Decision, Reads
from headrace.model.extents import WalExtent
from headrace.model.ids import StreamId
from headrace.runtime.crash_points import CrashPoint
from headrace.runtime.executor import InlineExecutor
from tests.unit.gc.repack_kit import MIN_AGE_MS, CutAt, PowerCut, RepackKit
from tests.unit.gc.test_collecting import collector_of
from tests.unit.produce.scripted import Hold, Lose, Refuse

T = TypeVar("T")


async def values_of(kit: RepackKit) -> list[list[bytes | None]]:
    return [await kit.kit.values(stream) for stream in kit.kit.streams]


@pytest.mark.parametrize("is_remote", [False, True])
async def test_old_records_leave_the_shared_objects_which_are_then_collected(is_remote: bool) -> None:
    kit = RepackKit(is_remote=is_remote)
    streams = await kit.start()
    await kit.append_round(20)
    await kit.kit.placement.tidy(everything=True)
    await kit.age()
    before = await values_of(kit)
    sizes = [len(await kit.entries(stream)) for stream in streams]
    repacker = kit.repacker(await kit.new_session())
    copied = await repacker.tick()
    assert copied > 0 and copied == kit.repack_metrics.bytes.value
    assert await values_of(kit) == before
    assert [await kit.loose(stream) for stream in streams] == [0, 0, 0]
    assert sum([len(await kit.entries(stream)) for stream in streams]) < sum(sizes) / 3
    assert {record.state for record in await kit.packed()} == {ObjectState.SEALED} and len(await kit.packed()) == 3
    assert kit.repack_metrics.entries.of("before").value == sum(sizes)
    assert kit.repack_metrics.freed.value == (20 if is_remote else 1)
    await kit.kit.clock.advance(1_000)
    collector = collector_of(kit.kit)
    for _ in range(3):
        await collector.tick()
    named = [record for record in (await kit.objects()).values() if record.entry_count]
    assert len(named) == 3 and await values_of(kit) == before
    assert await repacker.tick() == 0, "nothing is left to do"


async def test_young_records_stay_and_are_looked_at_again_when_they_are_old() -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(3)
    await kit.fold()
    repacker = kit.repacker(await kit.new_session())
    assert await repacker.tick() == 0
    gets = kit.kit.script.calls["get"]
    await kit.kit.clock.advance(MIN_AGE_MS / 1000)
    assert await repacker.tick() == 0
    assert kit.kit.script.calls["get"] - gets <= 1, "before their time only the turn is asked for"
    await kit.kit.clock.advance(MIN_AGE_MS / 1000)
    assert await repacker.tick() > 0
    assert await kit.loose(streams[0]) == 0


async def test_a_quiet_stream_costs_nothing_until_something_is_appended() -> None:
    kit = RepackKit()
    streams = await kit.start()
    end = dict.fromkeys(streams, 2)
    await kit.append_round(2)
    await kit.age()
    repacker = kit.repacker(await kit.new_session(), takes_turns=False, high_watermark=lambda stream: end[stream])
    assert await repacker.tick() > 0
    gets = kit.kit.script.calls["get"]
    for _ in range(3):
        await kit.kit.clock.advance(10 * MIN_AGE_MS / 1000)
        assert await repacker.tick() == 0
    assert kit.kit.script.calls["get"] == gets
    await kit.append_round(2)
    end.update(dict.fromkeys(streams, 4))
    assert await repacker.tick() == 0
    await kit.age()
    assert await repacker.tick() > 0


async def test_streams_that_never_held_a_record_cost_neither_reads_nor_memory() -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(2)
    await kit.age()
    end = {streams[0]: 2, streams[1]: 0, streams[2]: 0}  # of two of them memory has not heard yet
    repacker = kit.repacker(await kit.new_session(), takes_turns=False, high_watermark=lambda stream: end[stream])
    assert await repacker.tick() > 0
    assert [await kit.loose(stream) for stream in streams] == [0, 2, 2] and len(repacker._known) == 1
    end.update(dict.fromkeys(streams, 2))
    assert await repacker.tick() > 0, "what was appended is found when memory hears of it"
    assert [await kit.loose(stream) for stream in streams] == [0, 0, 0]


async def test_a_round_over_many_streams_goes_on_from_tick_to_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "STREAMS_PER_SLICE", 1)
    monkeypatch.setattr(repacking, "STREAMS_PER_TICK", 2)
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(2)
    await kit.age()
    looked: list[StreamId] = []

    def high_watermark(stream: StreamId) -> int:
        looked.append(stream)
        return 2

    repacker = kit.repacker(await kit.new_session(), takes_turns=False, high_watermark=high_watermark)
    for left in ([0, 0, 2], [0, 0, 0]):
        looked.clear()
        assert await repacker.tick() > 0
        assert [await kit.loose(stream) for stream in streams] == left
        assert len(looked) <= 2, "a tick looks over a part of them"


async def test_streams_of_deleted_topics_are_forgotten() -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(2)
    await kit.age()
    repacker = kit.repacker(await kit.new_session(), takes_turns=False)
    await repacker.tick()
    assert set(repacker._known) == set(streams)
    del kit.topics[0]
    await repacker.tick()
    assert set(repacker._known) == {streams[2]} and not repacker._waiting


async def test_what_is_folded_after_the_look_is_found_although_memory_knows_nothing_of_the_log() -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(2)
    await kit.age()
    await kit.append_round(2)
    repacker = kit.repacker(await kit.new_session(), high_watermark=lambda stream: None)
    assert await repacker.tick() > 0
    assert await repacker.tick() == 0
    await kit.age()
    assert await repacker.tick() > 0
    assert [await kit.loose(stream) for stream in streams] == [0, 0, 0]


async def test_a_topic_whose_lease_is_held_or_that_has_a_run_is_left_alone_and_the_others_go_on() -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(4)
    await kit.age()
    other = await kit.new_session()
    await take(kit.kit.metadata, table_lease(kit.topics[0].id), other)
    repacker = kit.repacker(await kit.new_session())
    await repacker.tick()
    assert [bool(await kit.loose(stream)) for stream in streams] == [True, True, False]
    await kit.kit.metadata.end_session(other)
    saga = kit.kit.keys.saga(kit.topics[0].id)
    put = Decision(result=None, puts={saga: b"any"})
    await kit.kit.metadata.transact([kit.kit.keys.unit], Reads(), lambda seen: put)
    await kit.kit.clock.advance(100)
    await repacker.tick()
    assert await kit.loose(streams[0]), "its run is resumed by somebody"
    gone: Decision[None] = Decision(result=None, deletes=[saga])
    await kit.kit.metadata.transact([kit.kit.keys.unit], Reads(), lambda seen: gone)
    await kit.kit.clock.advance(100)
    await repacker.tick()
    assert [await kit.loose(stream) for stream in streams] == [0, 0, 0]
    raw = await kit.kit.metadata.get(table_lease(kit.topics[0].id))
    assert raw is not None and LEASE_CODEC.decode(raw.value, raw.key).session is None, "the lease is given back"


async def test_batches_held_back_below_the_tables_end_stay_entries_of_their_own() -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(6)
    await kit.age()
    kit.ends[kit.topics[0].id] = {0: 2}
    await kit.repacker(await kit.new_session()).tick()
    ends = [entry.end_offset for entry in await kit.entries(streams[0])]
    assert ends[:2] == [1, 2] and len(ends) < 6


async def test_who_lost_the_lease_while_it_copied_changes_nothing() -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(4)
    await kit.age()
    before = await values_of(kit)
    session = await kit.new_session()
    reading = Hold()
    kit.kit.script.plan("read", reading)
    ticking = asyncio.create_task(kit.repacker(session).tick())
    await kit.kit.clock.settle()
    await kit.kit.metadata.end_session(session)
    other = await kit.new_session()
    await take(kit.kit.metadata, table_lease(kit.topics[0].id), other)
    reading.release()
    await ticking
    assert kit.failures("fenced") > 0
    assert await kit.loose(streams[0]) == 4 and await values_of(kit) == before


async def test_only_one_process_takes_its_turn() -> None:
    kit = RepackKit()
    await kit.start()
    await kit.append_round(4)
    await kit.age()
    first, second = await kit.new_session(), await kit.new_session()
    await take(kit.kit.metadata, REPACKER_LEASE, first)
    assert await kit.repacker(second).tick() == 0
    assert await kit.repacker(first).tick() > 0


async def test_damage_is_told_and_left_in_place_and_everything_else_moves() -> None:
    kit = RepackKit(is_remote=True)
    streams = await kit.start()
    await kit.append_round(5)
    await kit.age()
    damaged = (await kit.entries(streams[0]))[2]
    missing = (await kit.entries(streams[0]))[4]
    assert isinstance(damaged.extent, WalExtent) and isinstance(missing.extent, WalExtent)
    key = wal_object_key(kit.kit.keys.domain, damaged.extent.object_id)
    whole = bytearray(await kit.kit.objects.get(key))
    whole[damaged.extent.start_byte + 65] ^= 1
    await kit.kit.objects.put(key, [bytes(whole)])
    await kit.kit.objects.delete([wal_object_key(kit.kit.keys.domain, missing.extent.object_id)])
    repacker = kit.repacker(await kit.new_session())
    await repacker.tick()
    assert kit.failures("damaged") == 4, "one batch, and all three of the object that is not there"
    left = [entry for entry in await kit.entries(streams[0]) if entry in (damaged, missing)]
    assert left == [damaged, missing]
    assert await kit.loose(streams[0]) == 2 and await kit.loose(streams[1]) == 1
    assert "damaged records are not repacked" in kit.log_text.getvalue() and str(key) in kit.log_text.getvalue()
    assert await repacker.tick() == 0, "it is not tried again and again"


async def test_a_stream_that_fails_holds_up_no_other_and_is_tried_again() -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(4)
    await kit.age()
    kit.kit.script.plan("read", Refuse(Retryable("away")))
    repacker = kit.repacker(await kit.new_session())
    with pytest.raises(Retryable):
        await repacker.tick()
    assert [bool(await kit.loose(stream)) for stream in streams] == [True, False, False]
    assert await repacker.tick() == 0
    await kit.kit.clock.advance(60)
    assert await repacker.tick() > 0 and kit.failures("failed") == 1
    assert await kit.loose(streams[0]) == 0


async def test_log_start_that_moves_meanwhile_makes_the_plan_stale() -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(8)
    await kit.age()
    reading = Hold()
    kit.kit.script.plan("read", reading)
    repacker = kit.repacker(await kit.new_session())
    ticking = asyncio.create_task(repacker.tick())
    await kit.kit.clock.settle()
    metadata, keys = kit.kit.metadata, kit.kit.keys
    await advance_log_start(keys, streams[0], 2, now_ms=0).apply(metadata)
    below = await plan_trim(metadata, keys, streams[0], max_entries=10)
    await trim_entries(keys, streams[0], below, now_ms=0).apply(metadata)
    reading.release()
    await ticking
    assert kit.failures("stale") == 1
    await kit.kit.clock.advance(60)
    await repacker.tick()
    assert [await kit.loose(stream) for stream in streams] == [0, 0, 0]
    assert (await kit.entries(streams[0]))[0].start_offset == 2


@pytest.mark.parametrize(
    ("point", "arrival"),
    [
        (CrashPoint.REPACK_AFTER_STAGE, 1),
        (CrashPoint.REPACK_AFTER_WRITE, 1),
        (CrashPoint.SWAP_AFTER_STEP, 1),
        (CrashPoint.SWAP_AFTER_STEP, 2),
        (CrashPoint.REPACK_AFTER_SWAPS, 1),
    ],
)
async def test_power_cut_at_any_point_leaves_the_log_whole_and_the_next_repacker_ends_it(
    point: CrashPoint, arrival: int
) -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(12)
    await kit.age()
    before = await values_of(kit)
    session = await kit.new_session()
    with pytest.raises(PowerCut):
        await kit.repacker(session, crash_points=CutAt(point, arrival)).tick()
    assert await values_of(kit) == before
    await kit.kit.metadata.end_session(session)
    await kit.kit.clock.advance(200)
    await kit.repacker(await kit.new_session(), seed=6).tick()
    assert await values_of(kit) == before
    assert [await kit.loose(stream) for stream in streams] == [0, 0, 0]
    collector = collector_of(kit.kit)
    for _ in range(4):
        await collector.tick()
        await kit.kit.clock.advance(100)
    records = await kit.packed()
    assert {record.state for record in records} == {ObjectState.SEALED}, "what the dead one left open is sealed"
    assert all(record.entry_count for record in records), "and what it left staged is collected"
    assert await values_of(kit) == before


async def test_swap_whose_answer_is_lost_is_found_and_its_object_sealed() -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(4)
    await kit.age()
    kit.kit.script.plan("seal_object", Lose(OutcomeUnknown("lost")))
    repacker = kit.repacker(await kit.new_session())
    with pytest.raises(OutcomeUnknown):
        await repacker.tick()
    await kit.kit.clock.advance(60)
    await repacker.tick()
    assert [await kit.loose(stream) for stream in streams] == [0, 0, 0]
    assert {record.state for record in await kit.packed()} == {ObjectState.SEALED}


async def test_a_tick_stops_when_it_has_copied_enough_and_goes_on_with_the_next() -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(4)
    await kit.age()
    repacker = kit.repacker(await kit.new_session(), bytes_per_tick=1)
    for left in (2, 1, 0):
        assert await repacker.tick() > 0
        assert sum([bool(await kit.loose(stream)) for stream in streams]) == left
        assert kit.repack_metrics.waiting.value >= left


async def test_without_a_session_nothing_is_done() -> None:
    kit = RepackKit()
    streams = await kit.start()
    await kit.append_round(4)
    await kit.age()
    repacker = kit.repacker(await kit.new_session())
    repacker._session = lambda: None
    assert await repacker.tick() == 0 and await kit.loose(streams[0]) == 4


class CountingExecutor(InlineExecutor):
    """Counts what leaves the event loop."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.count += 1
        return await super().run(work)


@pytest.mark.parametrize(("most_on_loop", "planned_elsewhere"), [(8, False), (7, True)])
async def test_many_entries_are_not_planned_on_the_event_loop(
    most_on_loop: int, planned_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repacking, "LOOP_MAX_ENTRIES", most_on_loop)
    kit = RepackKit()
    kit.executor = executor = CountingExecutor()
    streams = await kit.start()
    await kit.append_round(8)
    await kit.age()
    assert await kit.repacker(await kit.new_session()).tick() > 0
    assert await kit.loose(streams[0]) == 0
    assert (executor.count > 0) == planned_elsewhere
