"""Where frames go: records before bytes, segments that roll, and nothing left behind that nobody knows."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.errors import OutcomeUnknown, Retryable
from headrace.index.objects import (
    CollectingAges,
    condemn_objects,
    forget_objects,
    seal_object,
    wal_object_id,
    wal_object_key,
)
from headrace.index.values import ObjectState
from headrace.model.ids import ObjectId, ObjectKey
from headrace.objects.memory import PREPARED_BYTES
from headrace.produce.placement import Placed
from tests.unit.produce.scripted import WRITER, Hold, Lose, Meanwhile, Refuse, WriterKit

FRAME = 100
AT_ONCE = CollectingAges(staged_max_age_ms=0, sealed_grace_ms=0)


def object_id(number: int) -> ObjectId:
    return wal_object_id(WRITER, number)


def key_of(kit: WriterKit, number: int) -> ObjectKey:
    return wal_object_key(kit.keys.domain, object_id(number))


async def place(kit: WriterKit, size_bytes: int = FRAME) -> Placed:
    return await kit.placement.place([bytes(size_bytes // 2), bytes(size_bytes - size_bytes // 2)], size_bytes)


async def state_of(kit: WriterKit, number: int) -> ObjectState | None:
    record = await kit.object(number)
    return None if record is None else record.state


async def exists(kit: WriterKit, number: int) -> bool:
    return key_of(kit, number) in [info.key async for info in kit.objects.list("wal/")]


async def condemn(kit: WriterKit, number: int) -> None:
    """Do the first half of what a collector does to a staged object that has grown old."""
    rule = condemn_objects(kit.keys, [object_id(number)], now_ms=kit.clock.now_ms(), ages=AT_ONCE)
    assert await rule.apply(kit.metadata)
    await kit.objects.delete([key_of(kit, number)])


async def collect(kit: WriterKit, number: int) -> None:
    """Do all of it."""
    await condemn(kit, number)
    await forget_objects(kit.keys, [object_id(number)]).apply(kit.metadata)


# Records before bytes


@pytest.mark.parametrize(("is_remote", "kind"), [(False, "create"), (True, "put")])
async def test_record_is_staged_before_the_first_byte(is_remote: bool, kind: str) -> None:
    kit = WriterKit(is_remote=is_remote)
    seen: list[ObjectState | None] = []

    async def look() -> None:
        assert not await exists(kit, 0)
        seen.append(await state_of(kit, 0))

    kit.script.plan(kind, Meanwhile(look))
    placed = await place(kit)
    assert seen == [ObjectState.STAGED]
    assert placed == Placed(object_id=object_id(0), start_byte=0, end_byte=FRAME)
    record = await kit.object(0)
    assert record is not None and record.is_segment is not is_remote


@pytest.mark.parametrize("is_remote", [False, True])
async def test_no_byte_is_written_when_staging_fails(is_remote: bool) -> None:
    kit = WriterKit(is_remote=is_remote, staged_ahead=1)
    kit.script.plan("stage_objects", Refuse(Retryable("busy")), Lose(OutcomeUnknown("reset")))
    for error in (Retryable, OutcomeUnknown):
        with pytest.raises(error):
            await place(kit)
    assert kit.script.calls["put"] + kit.script.calls["create"] == 0
    assert (await place(kit)).object_id == object_id(2), "numbers of a failed try are not used again"


# Segments


async def test_frames_share_a_segment_back_to_back() -> None:
    kit = WriterKit()
    placed = [await place(kit, size_bytes) for size_bytes in (100, 50, 70)]
    assert {one.object_id for one in placed} == {object_id(0)}
    assert [(one.start_byte, one.end_byte) for one in placed] == [(0, 100), (100, 150), (150, 220)]
    assert kit.script.calls["stage_objects"] == 1, "staged once"


async def test_segment_rolls_by_size() -> None:
    kit = WriterKit(segment_max_bytes=250)
    numbers = [(await place(kit)).object_id for _ in range(5)]
    assert numbers == [object_id(n) for n in (0, 0, 1, 1, 2)]


async def test_frame_larger_than_a_segment_gets_one_of_its_own() -> None:
    kit = WriterKit(segment_max_bytes=250)
    placed = [await place(kit, size_bytes) for size_bytes in (100, 1000, 100)]
    assert [one.object_id for one in placed] == [object_id(n) for n in (0, 1, 2)]


async def test_segment_rolls_by_age() -> None:
    kit = WriterKit(segment_max_age_ms=1000)
    await place(kit)
    await kit.clock.advance(0.999)
    assert (await place(kit)).object_id == object_id(0)
    await kit.clock.advance(0.001)
    assert (await place(kit)).object_id == object_id(1)


@pytest.mark.parametrize("step", [Refuse(Retryable("full")), Lose(OutcomeUnknown("fsync"))])
async def test_segment_takes_no_frame_after_an_error(step: Refuse | Lose) -> None:
    kit = WriterKit()
    before = await place(kit)
    kit.script.plan("append", step)
    with pytest.raises((Retryable, OutcomeUnknown)):
        await place(kit)
    assert (await place(kit)).object_id == object_id(1)
    await kit.placement.tidy()
    assert kit.script.calls["seal"] == 0, "a frame of it has not met its fate"
    kit.placement.settled(before.object_id, in_doubt=False)
    await kit.placement.tidy()
    assert kit.script.calls["seal"] == 1


async def test_segment_that_could_not_be_created_is_not_tried_again() -> None:
    kit = WriterKit()
    kit.script.plan("create", Refuse(Retryable("full")), Lose(OutcomeUnknown("fsync")))
    for _ in range(2):
        with pytest.raises((Retryable, OutcomeUnknown)):
            await place(kit)
    assert (await place(kit)).object_id == object_id(2)
    assert [await state_of(kit, n) for n in range(3)] == [ObjectState.STAGED] * 3, "age condemns the first two"


async def test_doubt_about_a_commit_retires_the_segment() -> None:
    kit = WriterKit()
    placed = await place(kit)
    kit.placement.settled(placed.object_id, in_doubt=True)
    assert (await place(kit)).object_id == object_id(1)


async def committed_segment(kit: WriterKit) -> None:
    """Let the writer put one frame into a segment, so that its record is open."""
    (stream,) = await kit.start()
    await kit.append(stream, b"value")
    assert await state_of(kit, 0) is ObjectState.OPEN


async def test_full_segment_is_sealed_when_all_its_frames_are_settled() -> None:
    kit = WriterKit(segment_max_bytes=500)
    await committed_segment(kit)
    second = await place(kit)
    await place(kit, 500)
    await kit.placement.tidy()
    assert await state_of(kit, 0) is ObjectState.OPEN, "its second frame may still commit"
    kit.placement.settled(second.object_id, in_doubt=False)
    await kit.placement.tidy()
    assert await state_of(kit, 0) is ObjectState.SEALED
    assert (await kit.objects.head(key_of(kit, 0))).size_bytes == second.end_byte, "the prepared tail is given back"


async def test_old_segment_is_sealed_though_nothing_arrives() -> None:
    kit = WriterKit(segment_max_age_ms=1000)
    await committed_segment(kit)
    await kit.placement.tidy()
    assert await state_of(kit, 0) is ObjectState.OPEN
    await kit.clock.advance(1)
    await kit.placement.tidy()
    assert await state_of(kit, 0) is ObjectState.SEALED


async def test_at_the_end_everything_is_sealed() -> None:
    kit = WriterKit()
    await committed_segment(kit)
    await kit.placement.tidy(everything=True)
    assert await state_of(kit, 0) is ObjectState.SEALED


@pytest.mark.parametrize("kind", ["seal_object", "seal"])
async def test_sealing_that_failed_is_tried_again(kind: str) -> None:
    kit = WriterKit()
    await committed_segment(kit)
    kit.script.plan(kind, Refuse(Retryable("busy")))
    with pytest.raises(Retryable):
        await kit.placement.tidy(everything=True)
    await kit.placement.tidy()
    assert await state_of(kit, 0) is ObjectState.SEALED
    assert (await kit.objects.head(key_of(kit, 0))).size_bytes < PREPARED_BYTES


async def test_frame_is_not_written_into_a_segment_that_is_sealed_meanwhile() -> None:
    kit = WriterKit(segment_max_age_ms=1000)
    await committed_segment(kit)
    write = Hold()
    kit.script.plan("append", write)
    placing = asyncio.create_task(place(kit))
    await kit.clock.advance(1)
    await kit.placement.tidy()
    assert await state_of(kit, 0) is ObjectState.OPEN, "a frame is being written into it"
    write.release()
    placed = await placing
    kit.placement.settled(placed.object_id, in_doubt=False)
    await kit.placement.tidy()
    assert await state_of(kit, 0) is ObjectState.SEALED


# Objects of one frame


async def test_ids_are_staged_ahead() -> None:
    kit = WriterKit(is_remote=True, staged_ahead=3)
    numbers = [(await place(kit)).object_id for _ in range(4)]
    assert numbers == [object_id(n) for n in range(4)]
    assert kit.script.calls["stage_objects"] == 2


async def test_staged_ids_that_grew_old_are_not_used() -> None:
    kit = WriterKit(is_remote=True, staged_ahead=3, staged_max_age_ms=1000)
    await place(kit)
    await kit.clock.advance(0.5)
    assert (await place(kit)).object_id == object_id(1), "young enough to be committed before it is condemned"
    await kit.clock.advance(0.001)
    assert (await place(kit)).object_id == object_id(3)


# Written after the record was collected


@pytest.mark.parametrize("end", [collect, condemn])
@pytest.mark.parametrize(("is_remote", "kind"), [(False, "create"), (True, "put")])
async def test_object_written_after_its_record_was_collected_is_deleted_by_tidy(
    is_remote: bool, kind: str, end: Callable[[WriterKit, int], Awaitable[None]]
) -> None:
    kit = WriterKit(is_remote=is_remote)
    (stream,) = await kit.start()
    kit.script.plan(kind, Meanwhile(lambda: end(kit, 0)))
    refused = await kit.taken(stream, b"too late")
    assert isinstance(refused.exception(), Retryable)
    await kit.placement.tidy()
    assert not await exists(kit, 0)
    assert await kit.append(stream, b"in time") == 0
    await kit.placement.tidy(everything=True)
    assert await kit.values(stream) == [b"in time"]


async def test_deleting_such_an_object_is_tried_again() -> None:
    kit = WriterKit(is_remote=True)
    (stream,) = await kit.start()
    kit.script.plan("put", Meanwhile(lambda: collect(kit, 0)))
    kit.script.plan("delete", Meanwhile(kit.state), Refuse(Retryable("busy")), Refuse(Retryable("busy")))
    await kit.taken(stream, b"too late")
    with pytest.raises(Retryable):
        await kit.placement.tidy()
    assert await exists(kit, 0)
    await kit.placement.tidy()
    assert not await exists(kit, 0)


async def test_tidy_leaves_objects_in_doubt_alone_that_have_a_record() -> None:
    kit = WriterKit(is_remote=True)
    (stream,) = await kit.start()
    kit.script.plan("commit_frame", Lose(OutcomeUnknown("reset")))
    await kit.taken(stream, b"value")
    await kit.clock.advance(0.1)
    await kit.placement.tidy(everything=True)
    assert await kit.values(stream) == [b"value"]


async def test_segment_sealed_by_somebody_else_is_left_to_the_index() -> None:
    kit = WriterKit()
    await committed_segment(kit)
    await seal_object(kit.keys, object_id(0), now_ms=0).apply(kit.metadata)
    await kit.placement.tidy(everything=True)
    assert await exists(kit, 0)
