"""The sweeper deletes WAL objects that have no record, and touches nothing else."""

import pytest

from headrace.gc.sweeping import Sweeper
from headrace.index.commit import AppendPart
from headrace.index.objects import stage_objects, wal_object_id, wal_object_key
from headrace.index.sinks import SinkCommit, SinkFrame, begin_write, commit_batch, end_write, sink_object_id
from headrace.model.ids import DomainId, ObjectId, ObjectKey, WriterId
from tests.log_kit import batch
from tests.unit.produce.scripted import Meanwhile, WriterKit

GONE = WriterId("0c" * 16)


def sweeper_of(kit: WriterKit, *, objects_per_tick: int = 100, age_floor_ms: int = 0) -> Sweeper:
    return Sweeper(
        keys=kit.keys,
        metadata=kit.metadata,
        objects=kit.objects,
        clock=kit.clock,
        age_floor_ms=age_floor_ms,
        objects_per_tick=objects_per_tick,
    )


async def orphans(kit: WriterKit, count: int) -> list[ObjectKey]:
    keys = [wal_object_key(kit.keys.domain, wal_object_id(GONE, n)) for n in range(count)]
    for key in keys:
        await kit.objects.put(key, [b"orphan"])
    return keys


async def stored(kit: WriterKit) -> list[ObjectKey]:
    return [info.key async for info in kit.objects.list("")]


async def test_young_object_is_left_alone() -> None:
    kit = WriterKit()
    await orphans(kit, 1)
    sweeper = sweeper_of(kit, age_floor_ms=1_000)
    await kit.clock.advance(0.999)
    assert await sweeper.tick() == []
    await kit.clock.advance(0.001)
    assert len(await sweeper.tick()) == 1


async def test_object_without_a_record_is_deleted() -> None:
    kit = WriterKit()
    keys = await orphans(kit, 2)
    assert [one.key for one in await sweeper_of(kit).tick()] == keys
    assert await stored(kit) == []


async def test_objects_with_a_record_are_kept_in_every_state() -> None:
    kit = WriterKit(segment_max_bytes=1)
    (stream,) = await kit.start()
    for n in range(3):
        await kit.append(stream, b"%d" % n)
    await kit.placement.tidy()
    staged = wal_object_id(GONE, 7)
    rule = stage_objects(kit.keys, [staged], writer=GONE, is_segment=False, now_ms=0)
    await rule.apply(kit.metadata)
    await kit.objects.put(wal_object_key(kit.keys.domain, staged), [b"not committed yet"])
    before = await stored(kit)
    assert len(before) == 4
    assert await sweeper_of(kit).tick() == []
    assert await stored(kit) == before


async def test_foreign_names_are_kept() -> None:
    kit = WriterKit()
    orphan = wal_object_id(GONE, 0)
    foreign = [
        wal_object_key(DomainId(1), orphan),
        ObjectKey(f"wal/0000/ff/{orphan}"),
        ObjectKey(f"wal/0000/0c/deeper/{orphan}"),
        ObjectKey("wal/0000/readme"),
        ObjectKey("wal/0000/no/notes.txt"),
        ObjectKey(f"wal/0000/0c/{orphan}.bak"),
        ObjectKey(f"tables/0c/{orphan}"),
    ]
    for key in foreign:
        await kit.objects.put(key, [b"not ours"])
    assert await sweeper_of(kit).tick() == []
    assert await stored(kit) == sorted(foreign)


async def test_pages_go_round_and_round() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"kept")
    keys = await orphans(kit, 5)
    sweeper = sweeper_of(kit, objects_per_tick=2)
    swept = [await sweeper.tick() for _ in range(4)]
    assert [len(page) for page in swept] == [2, 2, 1, 0]
    assert [one.key for page in swept for one in page] == keys
    late = await orphans(kit, 1)
    assert [one.key for one in await sweeper.tick()] == late
    assert await kit.values(stream) == [b"kept"]


async def test_objects_that_appear_while_the_sweeper_looks_are_kept() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    keys = await orphans(kit, 2)
    kit.script.plan("get", Meanwhile(lambda: kit.append(stream, b"new")))
    assert [one.key for one in await sweeper_of(kit).tick()] == keys
    assert await sweeper_of(kit).tick() == []
    assert await kit.values(stream) == [b"new"]


async def test_objects_of_a_write_are_left_alone_until_it_is_over() -> None:
    kit = WriterKit()
    keys = await orphans(kit, 2)
    await begin_write(kit.keys, GONE, now_ms=0, max_age_ms=1000).apply(kit.metadata)
    assert await sweeper_of(kit).tick() == []
    await end_write(kit.keys, GONE).apply(kit.metadata)
    assert [one.key for one in await sweeper_of(kit).tick()] == keys


async def test_an_object_that_is_committed_between_two_looks_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    object_id = sink_object_id(GONE, task=0, attempt=1, frame=0)
    await kit.objects.put(wal_object_key(kit.keys.domain, object_id), [b"frame"])
    await begin_write(kit.keys, GONE, now_ms=0, max_age_ms=1000).apply(kit.metadata)
    frame = SinkFrame(object_id=object_id, size_bytes=5, parts=[AppendPart(stream, 0, [batch(1, size_bytes=5)])])
    commit = SinkCommit(sink_id="s", batch_id=0, query="", write=GONE, frames=[frame])
    sweeper = sweeper_of(kit)
    real = sweeper._has_record
    looks: list[bool] = []

    async def has_record(looked_at: ObjectId) -> bool:
        looks.append(await real(looked_at))
        if len(looks) == 1:
            await commit_batch(kit.keys, commit, now_ms=1).apply(kit.metadata)
        return looks[-1]

    monkeypatch.setattr(sweeper, "_has_record", has_record)
    assert await sweeper.tick() == []
    assert looks == [False, True]
