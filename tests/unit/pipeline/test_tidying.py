"""Table files go when a record gives them up and its time has come, and no other file ever does."""

from collections.abc import Mapping

import pytest

from headrace.errors import Corrupt, Retryable
from headrace.gc.removed import Waiting, Why
from headrace.index.pins import put_pin, release_pin
from headrace.index.values import PinRecord
from headrace.metadata.port import Decision, Key, Reads
from headrace.model.ids import ObjectKey, PinId
from headrace.model.topics import TopicId
from headrace.pipeline.records import CONDEMNED_FILES, TIDY_RECORD, CondemnedFiles, TidyRecord
from headrace.pipeline.tidying import TableFileCollector, TableFileLimits
from headrace.runtime.crash_points import CrashPoint, NoCrashes
from tests.unit.gc.test_collecting import CutAt, PowerCut
from tests.unit.produce.scripted import Refuse, WriterKit

TOPIC = TopicId(b"t" * 16)
FLOOR_MS = 60_000
GRACE_MS = 10_000
DATA = "tables/74747474-0000/data/"


def collector_of(
    kit: WriterKit, *, records: int = 100, files: int = 100, cut_at: CrashPoint | None = None
) -> TableFileCollector:
    return TableFileCollector(
        keys=kit.keys,
        metadata=kit.metadata,
        objects=kit.objects,
        clock=kit.clock,
        crash_points=NoCrashes() if cut_at is None else CutAt(cut_at),
        limits=TableFileLimits(
            attempt_age_floor_ms=FLOOR_MS, grace_ms=GRACE_MS, records_per_tick=records, files_per_tick=files
        ),
    )


async def put_files(kit: WriterKit, *paths: str) -> None:
    for path in paths:
        await kit.objects.put(ObjectKey(path), [b"rows"])


async def put_records(kit: WriterKit, puts: Mapping[Key, bytes]) -> None:
    await kit.metadata.transact([kit.keys.unit], Reads(), lambda _: Decision(result=None, puts=puts))


async def tidy(kit: WriterKit, saga: str, *, kept: tuple[str, ...] = (), prefix: str | None = None) -> None:
    """Put the record of a run that is over now."""
    where = f"{DATA}{saga}/" if prefix is None else prefix
    record = TidyRecord(TOPIC, where, kept, kit.clock.now_ms())
    await put_records(kit, {kit.keys.tidy(saga): TIDY_RECORD.encode(record)})


async def condemn(kit: WriterKit, name: str, *paths: str, prefix: str = "") -> None:
    """Put a record that condemns files now."""
    record = CondemnedFiles(TOPIC, paths, kit.clock.now_ms(), prefix)
    await put_records(kit, {kit.keys.condemned(name): CONDEMNED_FILES.encode(record)})


async def stored(kit: WriterKit) -> list[str]:
    return [info.key async for info in kit.objects.list("tables/")]


async def is_known(kit: WriterKit, key: Key) -> bool:
    return await kit.metadata.get(key) is not None


async def test_files_of_lost_attempts_go_after_the_age_floor_and_kept_ones_stay() -> None:
    kit = WriterKit()
    await put_files(kit, f"{DATA}s1/0-a.parquet", f"{DATA}s1/0-b.parquet", f"{DATA}s2/0-a.parquet")
    await tidy(kit, "s1", kept=(f"{DATA}s1/0-b.parquet",))
    collector = collector_of(kit)
    await kit.clock.advance((FLOOR_MS - 1) / 1000)
    assert await collector.tick() == []
    await kit.clock.advance(0.001)
    (removed,) = await collector.tick()
    assert (removed.key, removed.size_bytes, removed.why) == (f"{DATA}s1/0-a.parquet", 4, Why.LOST_ATTEMPT)
    assert await stored(kit) == [f"{DATA}s1/0-b.parquet", f"{DATA}s2/0-a.parquet"], "a run under way has no record"
    assert not await is_known(kit, kit.keys.tidy("s1"))


async def test_run_whose_name_another_begins_with_is_left_alone() -> None:
    kit = WriterKit()
    await put_files(kit, f"{DATA}s1/0.parquet", f"{DATA}s10/0.parquet")
    await tidy(kit, "s1")
    await kit.clock.advance(FLOOR_MS / 1000)
    await collector_of(kit).tick()
    assert await stored(kit) == [f"{DATA}s10/0.parquet"]


async def test_condemned_files_go_after_their_grace_and_nothing_beside_them() -> None:
    kit = WriterKit()
    await put_files(kit, "tables/t/metadata/a.avro", "tables/t/metadata/b.avro")
    await condemn(kit, "s1", "tables/t/metadata/a.avro", "tables/t/metadata/gone.avro")
    collector = collector_of(kit)
    assert await collector.tick() == []
    assert collector.waiting == Waiting(object_count=2)
    await kit.clock.advance(GRACE_MS / 1000)
    assert [one.why for one in await collector.tick()] == [Why.TABLE_FILE] * 2, "one that is gone is no error"
    assert await stored(kit) == ["tables/t/metadata/b.avro"]
    assert not await is_known(kit, kit.keys.condemned("s1"))
    assert collector.waiting == Waiting()


async def test_files_condemned_while_a_read_is_pinned_stay_until_its_end() -> None:
    kit = WriterKit()
    await put_files(kit, "tables/t/data/a.parquet", "tables/t/data/b.parquet", f"{DATA}s1/0.parquet")
    await condemn(kit, "before", "tables/t/data/a.parquet")
    pin = PinId("c3" * 16)
    await put_pin(kit.keys, pin, PinRecord(0, 1, 1, "a read")).apply(kit.metadata)
    await condemn(kit, "after", "tables/t/data/b.parquet")
    await tidy(kit, "s1")
    await kit.clock.advance(FLOOR_MS / 1000)
    collector = collector_of(kit)
    await collector.tick()
    assert await stored(kit) == ["tables/t/data/b.parquet"], "nothing ever named the files of a lost attempt"
    assert collector.waiting.object_count == 1
    await release_pin(kit.keys, pin).apply(kit.metadata)
    await collector.tick()
    assert await stored(kit) == []


async def test_dropped_table_goes_as_a_whole_in_bounded_ticks() -> None:
    kit = WriterKit()
    await put_files(kit, *(f"tables/t/data/{n}.parquet" for n in range(7)), "tables/u/data/0.parquet")
    await condemn(kit, "t", prefix="tables/t/")
    await kit.clock.advance(GRACE_MS / 1000)
    collector = collector_of(kit, files=3)
    counts = [len(await collector.tick()) for _ in range(4)]
    assert counts == [3, 3, 1, 0]
    assert await stored(kit) == ["tables/u/data/0.parquet"]
    assert not await is_known(kit, kit.keys.condemned("t"))


async def test_prefix_with_exactly_as_many_files_as_a_tick_deletes_is_finished_in_it() -> None:
    kit = WriterKit()
    await put_files(kit, *(f"{DATA}s1/{n}.parquet" for n in range(3)))
    await tidy(kit, "s1")
    await kit.clock.advance(FLOOR_MS / 1000)
    assert len(await collector_of(kit, files=3).tick()) == 3
    assert not await is_known(kit, kit.keys.tidy("s1"))


async def test_crash_between_files_and_record_is_made_good_by_the_next() -> None:
    kit = WriterKit()
    await put_files(kit, f"{DATA}s1/lost.parquet", f"{DATA}s1/kept.parquet")
    await tidy(kit, "s1", kept=(f"{DATA}s1/kept.parquet",))
    await kit.clock.advance(FLOOR_MS / 1000)
    with pytest.raises(PowerCut):
        await collector_of(kit, cut_at=CrashPoint.TIDY_AFTER_DELETE).tick()
    assert await is_known(kit, kit.keys.tidy("s1"))
    assert await collector_of(kit).tick() == []
    assert not await is_known(kit, kit.keys.tidy("s1"))
    assert await stored(kit) == [f"{DATA}s1/kept.parquet"]


async def test_record_stays_while_deleting_fails_and_holds_up_no_other() -> None:
    kit = WriterKit()
    await put_files(kit, f"{DATA}s1/a.parquet", f"{DATA}s2/a.parquet")
    await tidy(kit, "s1")
    await tidy(kit, "s2")
    await kit.clock.advance(FLOOR_MS / 1000)
    kit.script.plan("delete", Refuse(Retryable("busy")))
    collector = collector_of(kit)
    with pytest.raises(Retryable):
        await collector.tick()
    assert await stored(kit) == [f"{DATA}s1/a.parquet"]
    await collector.tick()
    assert await stored(kit) == []


@pytest.mark.parametrize("prefix", ["tables/", "wal/0000/", "", "tables/t", "../x/", "/", "tables//"])
async def test_record_that_names_more_than_a_table_deletes_nothing(prefix: str) -> None:
    kit = WriterKit()
    await put_files(kit, f"{DATA}s1/a.parquet", "tables/t/data/b.parquet")
    await tidy(kit, "s1", prefix=prefix)
    await kit.clock.advance(FLOOR_MS / 1000)
    with pytest.raises(Corrupt, match="nothing was deleted"):
        await collector_of(kit).tick()
    assert len(await stored(kit)) == 2


async def test_condemned_path_outside_of_tables_deletes_nothing() -> None:
    kit = WriterKit()
    await put_files(kit, "tables/t/a.avro", "wal/0000/aa/x")
    await condemn(kit, "s1", "tables/t/a.avro", "wal/0000/aa/x")
    await kit.clock.advance(GRACE_MS / 1000)
    with pytest.raises(Corrupt, match="no file of a table"):
        await collector_of(kit).tick()
    assert await stored(kit) == ["tables/t/a.avro"]


async def test_records_go_round_and_round_in_pages() -> None:
    kit = WriterKit()
    for n in range(5):
        await tidy(kit, f"s{n}")
    collector = collector_of(kit, records=2)
    await kit.clock.advance(FLOOR_MS / 1000)
    rounds = []
    for _ in range(3):
        await collector.tick()
        rounds.append((collector.is_round_over, sum([await is_known(kit, kit.keys.tidy(f"s{n}")) for n in range(5)])))
    assert rounds == [(False, 3), (False, 1), (True, 0)]


async def test_survey_tells_what_is_due_and_touches_nothing() -> None:
    kit = WriterKit()
    await put_files(kit, f"{DATA}s1/a.parquet", f"{DATA}s1/b.parquet", f"{DATA}s2/a.parquet", "tables/t/a.avro")
    await tidy(kit, "s1", kept=(f"{DATA}s1/b.parquet",))
    await condemn(kit, "c1", "tables/t/a.avro")
    await kit.clock.advance(FLOOR_MS / 1000)
    await tidy(kit, "s2")
    found = await collector_of(kit).survey()
    assert [one.key for one in found] == [f"{DATA}s1/a.parquet", "tables/t/a.avro"]
    assert len(await stored(kit)) == 4
