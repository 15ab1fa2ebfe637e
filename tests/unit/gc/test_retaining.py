"""Retention moves log starts by age and size, in bounded ticks, and gives the bytes back."""

import asyncio
import io
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.errors import Corrupt
from headrace.gc import retaining, trimming
from headrace.gc.clocks import ClockGuard
from headrace.gc.collecting import Collector, CollectorLimits
from headrace.gc.folding import Folder, FoldLimits
from headrace.gc.leased import COLLECTOR_LEASE, CollectorLease
from headrace.gc.retaining import Retainer, RetainerLimits, RetentionMetrics
from headrace.gc.trimming import LogTrimmer, LogTrimmerLimits, Trimmer
from headrace.index.cache import IndexCache
from headrace.index.objects import CollectingAges, wal_object_id
from headrace.index.streams import advance_log_start, delete_stream
from headrace.index.values import STREAM_HEAD, StreamHead
from headrace.metadata.leases import take
from headrace.metadata.port import Decision, Key, Reads
from headrace.model.ids import StreamId
from headrace.model.topics import Retention, Topic, TopicId, TopicRules
from headrace.records.batch import iter_batches
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.testing.batches import make_batch
from tests.unit.gc.folded import fold_all
from tests.unit.produce.scripted import WRITER, Refuse, WriterKit

MINUTE_S = 60
MINUTE_MS = 60_000
BY_AGE = Retention(max_age_ms=10 * MINUTE_MS)
GRACE_MS = 5_000


class RetainKit(WriterKit):
    """A broker's storage side with the keepers of retention; `retention` holds for every stream."""

    def __init__(self, retention: Retention, *, looks: int = 100, entries: int = 100, streams: int = 50) -> None:
        super().__init__()
        self.retention = retention
        self.metrics = Metrics()
        self.said = io.StringIO()
        self.retainer = self.make_retainer(self.metrics, looks=looks, entries=entries, streams=streams)
        self.trimmer = self.make_trimmer(self.cache)

    def make_trimmer(self, index: IndexCache) -> LogTrimmer:
        return LogTrimmer(
            trimmer=Trimmer(keys=self.keys, metadata=self.metadata, clock=self.clock, entries_per_step=3),
            folder=Folder(
                keys=self.keys,
                metadata=self.metadata,
                clock=self.clock,
                crash_points=NoCrashes(),
                limits=FoldLimits(records_per_step=5, steps_per_tick=2, lag_records=0),
            ),
            index=index,
            streams=lambda: self.streams,
            lease=CollectorLease(self.metadata, lambda: self.session),
            limits=LogTrimmerLimits(steps_per_tick=4, looks_per_tick=10, heads_per_tick=2),
        )

    def make_retainer(
        self, metrics: Metrics, *, looks: int = 100, entries: int = 100, streams: int = 50, node_id: int = 1
    ) -> Retainer:
        return Retainer(
            keys=self.keys,
            metadata=self.metadata,
            index=self.cache,
            topics=self.topics,
            guard=ClockGuard(
                node_id=node_id,
                metadata=self.metadata,
                session=lambda: self.session,
                clock=self.clock,
                log=open_log(self.said, clock=self.clock, level="info", format="json"),
                max_jump_ms=MINUTE_MS,
            ),
            lease=CollectorLease(self.metadata, lambda: self.session),
            session=lambda: self.session,
            clock=self.clock,
            crash_points=NoCrashes(),
            metrics=RetentionMetrics(metrics),
            limits=RetainerLimits(
                interval_ms=MINUTE_MS, looks_per_tick=looks, entries_per_look=entries, streams_per_step=streams
            ),
        )

    def topics(self) -> list[Topic]:
        rules = TopicRules(max_message_bytes=1000)
        return [
            Topic(id=TopicId(bytes(16)), name="t", streams=tuple(self.streams), rules=rules, retention=self.retention)
        ]

    async def appended(self, stream: StreamId, count: int) -> None:
        """Append entries of one record each, whose time is now."""
        for n in range(count):
            data = make_batch([b"%d" % n], at_ms=self.clock.now_ms())
            await self.writer.append(stream, data, [view.summary() for view in iter_batches(memoryview(data))])

    async def log_start(self, stream: StreamId) -> int:
        raw = await self.metadata.get(self.keys.head(stream))
        assert raw is not None
        return STREAM_HEAD.decode(raw.value, raw.key).log_start

    async def later(self, minutes: float) -> int:
        await self.clock.advance(minutes * MINUTE_S)
        return await self.retainer.tick()

    async def entry_count(self) -> int:
        ranges = [self.keys.entries(stream, after_offset=0, limit=1000) for stream in self.streams]
        return sum([len(await self.metadata.range(one)) for one in ranges])

    def metric(self, name: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"headrace_{name} ")).rpartition(" ")[2])


async def test_old_records_go_and_young_ones_stay() -> None:
    kit = RetainKit(BY_AGE)
    (stream,) = await kit.start()
    await kit.appended(stream, 3)
    await kit.clock.advance(6 * MINUTE_S)
    await kit.appended(stream, 2)
    await fold_all(kit)
    assert await kit.retainer.tick() == 0
    assert await kit.later(5) == 1
    assert await kit.log_start(stream) == 3
    head = kit.cache.view.head(stream)
    assert head is not None and head.log_start == 3, "this broker's readers see it at once"
    assert kit.metric('retention_log_start_moves_total{by="age"}') == 1
    assert kit.metric('retention_records_total{by="age"}') == 3
    assert kit.metric('retention_bytes_total{by="age"}') == 3 * len(make_batch([b"0"]))


async def test_quiet_stream_becomes_empty_although_nothing_was_folded() -> None:
    kit = RetainKit(BY_AGE)
    (stream,) = await kit.start()
    await kit.appended(stream, 5)
    assert await kit.later(11) == 1
    assert await kit.log_start(stream) == 5
    assert await kit.later(100) == 0


async def test_by_size_the_oldest_go() -> None:
    batch_bytes = len(make_batch([b"0"]))
    kit = RetainKit(Retention(max_bytes=3 * batch_bytes))
    (stream,) = await kit.start()
    await kit.appended(stream, 3)
    assert await kit.retainer.tick() == 0
    await kit.appended(stream, 4)
    assert await kit.later(1) == 1
    assert await kit.log_start(stream) == 4
    assert kit.metric('retention_records_total{by="size"}') == 4


async def test_without_end_means_without_a_read() -> None:
    kit = RetainKit(Retention())
    (stream,) = await kit.start()
    await kit.appended(stream, 2)
    await kit.later(1_000_000)
    assert await kit.log_start(stream) == 0
    assert kit.script.calls["advance_log_starts"] == 0


async def test_a_round_begins_in_slices_between_which_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retaining, "STREAMS_PER_SLICE", 2)
    kit = RetainKit(BY_AGE)
    await kit.start(5)
    passes = 0

    async def count_passes() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_passes())
    await asyncio.sleep(0)
    kit.retainer._now_ms, before = 0, passes
    await kit.retainer._begin_round()
    assert passes - before >= 3, "one pass of the loop per slice"
    counting.cancel()


async def test_stream_whose_time_has_not_come_is_not_read_again() -> None:
    kit = RetainKit(BY_AGE)
    await kit.start(streams=20)
    for stream in kit.streams:
        await kit.appended(stream, 1)
    await kit.retainer.tick()
    reads = RangeCounter(kit)
    for _ in range(8):
        await kit.later(1)
    assert reads.of_entries == 0
    await kit.later(3)
    assert reads.of_entries == 20
    assert [await kit.log_start(stream) for stream in kit.streams] == [1] * 20


class RangeCounter:
    """Counts reads of index entries from here on."""

    def __init__(self, kit: RetainKit) -> None:
        self.of_entries = 0
        real = kit.metadata.range

        async def range_(wanted, /):  # type: ignore[no-untyped-def]
            self.of_entries += "/index/" in wanted.start
            return await real(wanted)

        kit.metadata.range = range_  # type: ignore[method-assign]


async def test_changed_setting_counts_from_the_next_round_on() -> None:
    kit = RetainKit(Retention(max_age_ms=10**9))
    (stream,) = await kit.start()
    await kit.appended(stream, 1)
    assert await kit.later(20) == 0
    kit.retention = BY_AGE
    assert await kit.later(1) == 1
    assert await kit.log_start(stream) == 1


async def test_tick_is_bounded_and_the_round_goes_on_in_the_next_ones() -> None:
    kit = RetainKit(BY_AGE, looks=10, streams=4)
    await kit.start(streams=25)
    for stream in kit.streams:
        await kit.appended(stream, 1)
    moved = [await kit.later(11), await kit.retainer.tick(), await kit.retainer.tick(), await kit.retainer.tick()]
    assert moved == [10, 10, 5, 0]
    assert kit.script.calls["advance_log_starts"] == 8, "at most four streams in one transaction"


async def test_long_log_goes_page_by_page() -> None:
    kit = RetainKit(BY_AGE, entries=3)
    (stream,) = await kit.start()
    await kit.appended(stream, 8)
    await fold_all(kit)
    starts = []
    await kit.clock.advance(11 * MINUTE_S)
    for _ in range(4):
        await kit.retainer.tick()
        starts.append(await kit.log_start(stream))
    assert starts == [3, 6, 8, 8]


async def test_lag_says_how_late_retention_is() -> None:
    kit = RetainKit(BY_AGE)
    (stream,) = await kit.start()
    await kit.appended(stream, 1)
    await kit.later(15)
    assert kit.metric("retention_lag_seconds") == pytest.approx(5 * MINUTE_S, abs=1)
    await kit.later(1)
    assert kit.metric("retention_lag_seconds") == 0


async def test_after_a_jump_of_the_clock_nothing_goes_in_that_round() -> None:
    kit = RetainKit(BY_AGE)
    (stream,) = await kit.start()
    await kit.appended(stream, 1)
    await kit.retainer.tick()
    kit.clock.jump_wall(60 * MINUTE_MS)
    assert await kit.later(1) == 0
    kit.clock.jump_wall(-60 * MINUTE_MS)
    assert await kit.later(1) == 0, "it jumped back"
    assert await kit.later(1) == 0
    assert await kit.log_start(stream) == 0
    assert await kit.later(9) == 1


async def test_other_broker_collects_so_this_one_waits() -> None:
    kit = RetainKit(BY_AGE)
    (stream,) = await kit.start()
    await kit.appended(stream, 1)
    other = await kit.metadata.open_session(timeout_ms=5000)
    await take(kit.metadata, COLLECTOR_LEASE, other)
    assert await kit.later(11) == 0
    await kit.metadata.end_session(other)
    assert await kit.retainer.tick() == 1


async def test_lost_session_moves_nothing() -> None:
    kit = RetainKit(BY_AGE)
    (stream,) = await kit.start()
    await kit.appended(stream, 1)

    class EndSession:
        async def __call__(self, work):  # type: ignore[no-untyped-def]
            await kit.metadata.end_session(kit.session)
            return await work()

    kit.script.plan("advance_log_starts", EndSession())
    assert await kit.later(11) == 0
    assert await kit.log_start(stream) == 0


async def test_damaged_stream_holds_up_no_other() -> None:
    kit = RetainKit(BY_AGE)
    broken, sound = await kit.start(streams=2)
    await kit.appended(broken, 1)
    await kit.appended(sound, 1)
    await fold_all(kit)
    await damage(kit, kit.keys.entry(broken, 1))
    with pytest.raises(Corrupt):
        await kit.later(11)
    assert (await kit.log_start(broken), await kit.log_start(sound)) == (0, 1)


async def test_failed_step_is_made_again_in_the_next_round() -> None:
    kit = RetainKit(BY_AGE)
    (stream,) = await kit.start()
    await kit.appended(stream, 1)
    kit.script.plan("advance_log_starts", Refuse(Corrupt("the store is ill")))
    with pytest.raises(Corrupt):
        await kit.later(11)
    assert await kit.later(1) == 1


async def test_deleted_stream_is_passed_over() -> None:
    kit = RetainKit(BY_AGE)
    gone, kept = await kit.start(streams=2)
    await kit.appended(gone, 1)
    await kit.appended(kept, 1)
    await delete_stream(kit.keys, gone, now_ms=0).apply(kit.metadata)
    assert await kit.later(11) == 1
    assert await kit.log_start(kept) == 1


# Trimming, and the bytes


async def test_entries_go_behind_retention_and_behind_deleted_records_alike() -> None:
    kit = RetainKit(BY_AGE)
    first, second = await kit.start(streams=2)
    for stream in (first, second):
        await kit.appended(stream, 8)
    await fold_all(kit)
    await kit.later(11)
    await advance_log_start(kit.keys, second, 8, now_ms=0).apply(kit.metadata)
    await kit.cache.refresh()
    assert await kit.trimmer.tick() == 4 * 3, "at most four steps of three"
    await kit.trimmer.tick()
    assert await kit.entry_count() == 0
    assert await kit.trimmer.tick() == 0


async def test_entries_of_many_streams_go_in_one_transaction_and_a_long_one_takes_several() -> None:
    kit = RetainKit(BY_AGE)
    await kit.start(streams=4)
    for stream in kit.streams[:3]:
        await kit.appended(stream, 1)
    await kit.appended(kit.streams[3], 4)
    await fold_all(kit)
    await kit.later(11)
    assert await kit.trimmer.tick() == 7
    assert await kit.entry_count() == 0
    assert kit.script.calls["trim_streams"] == 3, "three streams, then three entries, then the last"
    assert await kit.trimmer.tick() == 0
    assert kit.script.calls["trim_streams"] == 3


async def test_a_step_is_bounded_by_the_bytes_of_its_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = RetainKit(BY_AGE)
    await kit.start(streams=2)
    await kit.appended(kit.streams[0], 1)
    await kit.appended(kit.streams[1], 2)
    await fold_all(kit)
    await kit.later(11)
    monkeypatch.setattr(trimming, "MAX_TRIM_BYTES", 1)
    assert await kit.trimmer.tick() == 3
    assert await kit.entry_count() == 0
    assert kit.script.calls["trim_streams"] == 3, "each entry is larger than a step"
    assert kit.trimmer._trimmed_to == {kit.streams[0]: 1, kit.streams[1]: 2}


async def test_tick_reads_a_bounded_number_of_streams_and_comes_to_all_of_them() -> None:
    kit = RetainKit(BY_AGE)
    await kit.start(streams=25)
    for stream in kit.streams:
        await kit.appended(stream, 1)
    await fold_all(kit)
    await kit.later(11)
    reads = RangeCounter(kit)
    removed = []
    for _ in range(4):
        removed.append(await kit.trimmer.tick())
        assert reads.of_entries <= 10 * len(removed)
    assert sum(removed) == 25


async def damage(kit: RetainKit, key: Key) -> None:
    junk = {key: b"\x01junk"}
    await kit.metadata.transact([kit.keys.unit], Reads(), lambda _: Decision(result=None, puts=junk))


async def test_damaged_head_holds_up_no_other_stream() -> None:
    kit = RetainKit(Retention())
    broken, sound = await kit.start(streams=2)
    for stream in (broken, sound):
        await kit.appended(stream, 1)
    await fold_all(kit)
    await advance_log_start(kit.keys, sound, 1, now_ms=0).apply(kit.metadata)
    await fold_all(kit)
    await damage(kit, kit.keys.head(broken))
    later = kit.make_trimmer(IndexCache(kit.metadata, kit.keys, max_folded_entries=10))
    with pytest.raises(Corrupt):
        await later.tick()
    assert await kit.metadata.range(kit.keys.entries(sound, after_offset=0, limit=10)) == []


async def test_damaged_object_record_holds_up_no_stream_that_has_nothing_in_it() -> None:
    kit = RetainKit(BY_AGE)
    broken, *sound = await kit.start(streams=3)
    await kit.appended(broken, 1)
    await kit.clock.advance(2 * MINUTE_S)
    await kit.writer.tick()  # the segment is sealed by its age: the others lie in another one
    for stream in sound:
        await kit.appended(stream, 1)
    await fold_all(kit)
    await kit.later(11)
    await damage(kit, kit.keys.object(wal_object_id(WRITER, 0)))
    with pytest.raises(Corrupt):
        await kit.trimmer.tick()
    assert await kit.entry_count() == 1, "only that of the damaged one is left"


async def test_new_process_trims_what_another_left_behind() -> None:
    kit = RetainKit(Retention())
    await kit.start(streams=5)
    for stream in kit.streams:
        await kit.appended(stream, 2)
    await fold_all(kit)
    for stream in kit.streams:
        await advance_log_start(kit.keys, stream, 2, now_ms=0).apply(kit.metadata)
    await fold_all(kit)
    later = kit.make_trimmer(IndexCache(kit.metadata, kit.keys, max_folded_entries=10))
    for _ in range(4):
        await later.tick()
    assert await kit.entry_count() == 0


async def test_disk_is_given_back_when_a_living_but_quiet_writer_holds_the_segment() -> None:
    kit = RetainKit(BY_AGE)
    (stream,) = await kit.start()
    await kit.appended(stream, 12)
    collector = Collector(
        keys=kit.keys,
        metadata=kit.metadata,
        objects=kit.objects,
        clock=kit.clock,
        crash_points=NoCrashes(),
        limits=CollectorLimits(
            ages=CollectingAges(staged_max_age_ms=10**9, sealed_grace_ms=GRACE_MS),
            records_per_tick=10,
            writers_per_tick=10,
        ),
    )
    assert [info.key async for info in kit.objects.list("wal/")]
    await kit.later(11)
    for _ in range(8):
        await kit.trimmer.tick()
        await kit.cache.refresh()
        await kit.writer.tick()
        await collector.tick()
        await kit.clock.advance(GRACE_MS / 1000)
    assert [info.key async for info in kit.objects.list("wal/")] == []
    await kit.appended(stream, 1)
    assert await kit.log_start(stream) == 12


async def test_trimmer_compares_some_streams_per_tick_and_comes_round_to_all() -> None:
    kit = RetainKit(BY_AGE)
    streams = [StreamId(n) for n in range(10)]
    heads: list[StreamId] = []

    class View:
        def head(self, stream: StreamId) -> StreamHead:
            heads.append(stream)
            return StreamHead(0, 0, 0, 0, 0, 0, 0)

        def has_tail_below(self, stream: StreamId, offset: int) -> bool:
            return False

    trimmer = kit.make_trimmer(cast(IndexCache, SimpleNamespace(view=View())))
    trimmer._limits = LogTrimmerLimits(streams_per_tick=4)
    trimmer._streams = lambda: streams
    rounds = []
    for _ in range(6):
        await trimmer.tick()
        rounds.append(sorted(set(heads)))
        heads.clear()
    assert rounds == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2
    assert trimmer._trimmed_to == {}, "a stream that was never trimmed is not remembered"
    trimmer._trimmed_to = dict.fromkeys(streams, 7)
    del streams[5:]
    for _ in range(2):
        await trimmer.tick()
    assert sorted(trimmer._trimmed_to) == streams, "those that are gone are forgotten"
