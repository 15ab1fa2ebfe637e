import pytest

from headrace.errors import Corrupt, Exists
from headrace.index.objects import CollectingAges, condemn_objects, forget_objects, stage_objects, wal_object_id
from headrace.index.streams import delete_stream
from headrace.index.values import ObjectState
from headrace.metadata.port import Decision, Reads
from headrace.model.ids import ObjectId, WriterId
from tests.log_kit import DAY_MS, WRITER, LogKit

AGES = CollectingAges(staged_max_age_ms=100, sealed_grace_ms=50)


async def condemn(log: LogKit, object_id: ObjectId) -> bool:
    condemned = await condemn_objects(log.keys, [object_id], now_ms=log.now_ms, ages=AGES).apply(log.store)
    return object_id in condemned


async def test_staging_again_is_harmless_but_an_id_is_used_once() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    segment = await log.writer()
    again = stage_objects(log.keys, [segment], writer=WRITER, is_segment=True, now_ms=log.now_ms)
    await again.apply(log.store)
    await log.append(stream)
    with pytest.raises(Exists):
        await again.apply(log.store)
    other = stage_objects(log.keys, [segment], writer=WriterId("b" * 32), is_segment=True, now_ms=log.now_ms)
    with pytest.raises(Exists):
        await other.apply(log.store)


async def test_staged_object_is_condemned_by_age_only() -> None:
    log = LogKit()
    staged = await log.writer()
    log.now_ms += 99
    assert not await condemn(log, staged)
    log.now_ms += 1
    assert await condemn(log, staged)


async def test_object_with_entries_is_never_condemned() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    segment = await log.writer()
    await log.append(stream)
    log.now_ms += DAY_MS
    assert not await condemn(log, segment), "open"
    await log.seal(segment)
    log.now_ms += DAY_MS
    assert not await condemn(log, segment), "sealed, with one entry"


async def test_grace_begins_when_the_last_entry_goes() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    segment = await log.writer()
    await log.append(stream)
    await log.seal(segment)
    log.now_ms += DAY_MS
    await delete_stream(log.keys, stream, now_ms=log.now_ms).apply(log.store)
    await log.fold()
    assert not await condemn(log, segment)
    log.now_ms += AGES.sealed_grace_ms
    assert await condemn(log, segment)
    record = await log.object(segment)
    assert record is not None and record.state is ObjectState.CONDEMNED
    await forget_objects(log.keys, [segment]).apply(log.store)
    assert await log.object(segment) is None


async def test_only_a_condemned_object_is_forgotten() -> None:
    log = LogKit()
    staged = await log.writer()
    with pytest.raises(AssertionError):
        await forget_objects(log.keys, [staged]).apply(log.store)
    assert await log.object(staged) is not None


async def test_unreadable_record_is_loud_and_stays() -> None:
    log = LogKit()
    staged = wal_object_id(WRITER, 9)
    key = log.keys.object(staged)
    spoil = Decision(result=None, puts={key: b"\x01damaged"})
    await log.store.transact([log.keys.unit], Reads(), lambda seen: spoil)
    with pytest.raises(Corrupt, match=staged):
        await condemn(log, staged)
    assert await log.store.get(key) is not None


async def test_those_of_many_that_are_due_are_condemned_together() -> None:
    log = LogKit()
    old, young, gone = (wal_object_id(WRITER, number) for number in (7, 8, 9))
    await stage_objects(log.keys, [old], writer=WRITER, is_segment=False, now_ms=log.now_ms).apply(log.store)
    log.now_ms += AGES.staged_max_age_ms
    await stage_objects(log.keys, [young], writer=WRITER, is_segment=False, now_ms=log.now_ms).apply(log.store)
    for _ in range(2):
        rule = condemn_objects(log.keys, [old, young, gone], now_ms=log.now_ms, ages=AGES)
        assert await rule.apply(log.store) == {old}, "also those that were condemned before"
    with pytest.raises(AssertionError, match="not condemned"):
        await forget_objects(log.keys, [old, young]).apply(log.store)
    await forget_objects(log.keys, [old, gone]).apply(log.store)
    assert await log.object(old) is None and await log.object(young) is not None
