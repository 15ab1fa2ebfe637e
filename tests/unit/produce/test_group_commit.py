"""Frames that wait for their commit together: one transaction, and yet each has its own fate."""

import asyncio

import pytest

from headrace.errors import Fenced, OutcomeUnknown, Retryable
from headrace.index.commit import ObjectClosed
from headrace.index.fold import fold_records, plan_fold
from headrace.index.objects import CollectingAges, condemn_objects, forget_objects, wal_object_id
from headrace.index.values import ObjectState, PartResult, PartStatus
from headrace.index.writers import retire_writer
from headrace.model.ids import StreamId
from tests.unit.produce.scripted import WRITER, Hold, Lose, Refuse, WriterKit

LOST = OutcomeUnknown("the connection was reset")
REFUSED = Refuse(Retryable("busy"))

Answer = asyncio.Task[PartResult]


async def waiting(kit: WriterKit, stream: StreamId, *values: bytes) -> tuple[Hold, list[Answer]]:
    """Hold the first value's commit, and let a frame each of the others be placed behind it."""
    commit = Hold()
    kit.script.plan("commit_frame", commit)
    return commit, [await kit.taken(stream, value) for value in values]


async def release(kit: WriterKit, commit: Hold) -> None:
    commit.release()
    await kit.clock.settle()


def offsets(answers: list[Answer]) -> list[int]:
    return [answer.result().base_offset for answer in answers]


def errors(answers: list[Answer]) -> list[type[BaseException | None]]:
    return [type(answer.exception()) for answer in answers]


@pytest.mark.parametrize("is_remote", [False, True])
async def test_frames_that_wait_together_are_committed_in_one_transaction(is_remote: bool) -> None:
    kit = WriterKit(frames_in_flight=4, is_remote=is_remote, staged_ahead=8)
    (stream,) = await kit.start()
    await kit.cache.refresh()
    commit, answers = await waiting(kit, stream, b"0", b"1", b"2", b"3")
    await release(kit, commit)
    assert offsets(answers) == [0, 1, 2, 3]
    assert (kit.script.calls["commit_frame"], kit.script.calls["commit_frames"]) == (1, 1)
    records = await kit.log()
    assert [(record.frame_number, len(record.results)) for record in records] == [(n, 1) for n in range(4)]
    assert [record.seq for record in records] == [1, 2, 3, 4]
    state = await kit.state()
    assert state is not None and (state.last_frame, state.last_seq, state.group_frames) == (3, 4, 3)
    assert await kit.values(stream) == [b"0", b"1", b"2", b"3"]
    assert kit.cache.view.position == 5, "the cache heard of each of them"


async def test_object_is_counted_for_the_entries_of_all_frames_of_a_group() -> None:
    kit = WriterKit(frames_in_flight=4)
    (stream,) = await kit.start()
    commit, _ = await waiting(kit, stream, b"0", b"1", b"2")
    await release(kit, commit)
    record = await kit.object(0)
    entries = [entry for log_record in await kit.log() for entry in log_record.entries]
    assert record is not None and record.entry_count == len(entries) == 3
    assert record.size_bytes >= entries[-1].start_byte + entries[-1].size_bytes


async def test_group_is_bounded_by_its_parts() -> None:
    kit = WriterKit(frames_in_flight=5, group_max_parts=2)
    (stream,) = await kit.start()
    commit, answers = await waiting(kit, stream, b"0", b"1", b"2", b"3", b"4")
    await release(kit, commit)
    assert offsets(answers) == [0, 1, 2, 3, 4]
    assert (kit.script.calls["commit_frame"], kit.script.calls["commit_frames"]) == (1, 2)


async def test_part_of_a_group_fails_alone_and_sees_what_earlier_frames_did() -> None:
    kit = WriterKit(frames_in_flight=4)
    (stream,) = await kit.start()
    commit, _ = await waiting(kit, stream, b"first")
    answers = [await kit.taken(stream, b"x", producer=5, sequence=sequence) for sequence in (0, 0, 7)]
    await release(kit, commit)
    assert kit.script.calls["commit_frames"] == 1
    assert [(answer.result().status, answer.result().base_offset) for answer in answers] == [
        (PartStatus.ACCEPTED, 1),
        (PartStatus.DUPLICATE, 1),
        (PartStatus.OUT_OF_ORDER_SEQUENCE, -1),
    ]
    assert await kit.values(stream) == [b"first", b"x"]


# In doubt


@pytest.mark.parametrize("is_folded", [False, True])
async def test_unknown_group_that_had_landed_answers_each_frame_with_its_first_results(is_folded: bool) -> None:
    kit = WriterKit(frames_in_flight=4)
    (stream,) = await kit.start()
    kit.script.plan("commit_frames", Lose(LOST))
    commit, answers = await waiting(kit, stream, b"0", b"1", b"2", b"3")
    await release(kit, commit)
    assert not any(answer.done() for answer in answers[1:])
    if is_folded:
        plan = await plan_fold(kit.metadata, kit.keys, max_records=10, lag_records=0)
        assert plan is not None
        await fold_records(kit.keys, plan, now_ms=0).apply(kit.metadata)
    await kit.clock.advance(0.1)
    assert offsets(answers) == [0, 1, 2, 3]
    assert await kit.values(stream) == [b"0", b"1", b"2", b"3"], "nothing is there twice"
    assert await kit.append(stream, b"4") == 4
    if is_folded:
        assert [record.frame_number for record in await kit.log()] == [4], "results are dropped with the next frame"


@pytest.mark.parametrize("step", [REFUSED, Refuse(LOST)])
async def test_group_that_had_not_landed_is_tried_again_from_its_first_frame_alone(step: Refuse) -> None:
    kit = WriterKit(frames_in_flight=4)
    (stream,) = await kit.start()
    kit.script.plan("commit_frames", step)
    commit, answers = await waiting(kit, stream, b"0", b"1", b"2", b"3")
    await release(kit, commit)
    await kit.clock.advance(0.1)
    assert offsets(answers) == [0, 1, 2, 3]
    assert (kit.script.calls["commit_frame"], kit.script.calls["commit_frames"]) == (2, 2)
    assert await kit.values(stream) == [b"0", b"1", b"2", b"3"]


async def test_first_frame_given_up_after_its_group_had_landed_is_found_committed_and_so_are_the_others() -> None:
    kit = WriterKit(frames_in_flight=4, commit_attempts=1)
    (stream,) = await kit.start()
    kit.script.plan("commit_frames", Lose(LOST))
    commit, answers = await waiting(kit, stream, b"0", b"1", b"2", b"3")
    await release(kit, commit)
    await kit.clock.advance(0.2)
    assert kit.script.calls["abandon_frame"] == 1
    assert offsets(answers) == [0, 1, 2, 3]
    assert await kit.values(stream) == [b"0", b"1", b"2", b"3"]


async def test_first_frame_that_is_given_up_does_not_sink_the_others() -> None:
    kit = WriterKit(frames_in_flight=4, commit_attempts=2)
    (stream,) = await kit.start()
    commit, answers = await waiting(kit, stream, b"0", b"1", b"2", b"3")
    kit.script.plan("commit_frames", REFUSED)
    kit.script.plan("commit_frame", REFUSED)
    await release(kit, commit)
    await kit.clock.advance(0.5)
    assert errors(answers[1:2]) == [Retryable]
    assert offsets([answers[0], *answers[2:]]) == [0, 1, 2]
    assert await kit.values(stream) == [b"0", b"2", b"3"]


async def test_every_frame_of_a_group_in_doubt_has_an_unknown_outcome_when_the_writer_is_fenced() -> None:
    kit = WriterKit(frames_in_flight=4)
    (stream,) = await kit.start()
    kit.script.plan("commit_frames", Lose(LOST))
    commit, answers = await waiting(kit, stream, b"0", b"1", b"2")
    await release(kit, commit)
    outside = await kit.taken(stream, b"never tried")
    await retire_writer(kit.keys, WRITER).apply(kit.metadata)
    await kit.clock.advance(0.1)
    assert errors(answers[1:]) == [OutcomeUnknown] * 2
    assert errors([outside]) == [Fenced]
    assert await kit.values(stream) == [b"0", b"1", b"2"]


async def test_group_in_doubt_retires_its_segment() -> None:
    kit = WriterKit(frames_in_flight=4)
    (stream,) = await kit.start()
    kit.script.plan("commit_frames", Lose(LOST))
    commit, _ = await waiting(kit, stream, b"0", b"1", b"2")
    await release(kit, commit)
    await kit.clock.advance(0.1)
    record = await kit.object(0)
    assert record is not None and record.state is ObjectState.SEALED


# A frame's own trouble


async def forget_staged(kit: WriterKit, number: int) -> None:
    """Let the collector condemn and forget an object whose frame is placed but not committed."""
    object_id = wal_object_id(WRITER, number)
    ages = CollectingAges(staged_max_age_ms=0, sealed_grace_ms=0)
    assert await condemn_objects(kit.keys, [object_id], now_ms=kit.clock.now_ms(), ages=ages).apply(kit.metadata)
    await forget_objects(kit.keys, [object_id]).apply(kit.metadata)


async def test_frame_whose_object_is_closed_fails_alone_inside_a_group() -> None:
    kit = WriterKit(frames_in_flight=5, is_remote=True, staged_ahead=8)
    (stream,) = await kit.start()
    commit, answers = await waiting(kit, stream, b"0", b"1", b"2", b"3", b"4")
    await forget_staged(kit, 2)
    await release(kit, commit)
    assert errors(answers[2:3]) == [ObjectClosed]
    assert offsets([*answers[:2], *answers[3:]]) == [0, 1, 2, 3]
    assert (kit.script.calls["commit_frames"], kit.script.calls["abandon_frame"]) == (3, 1)
    assert await kit.values(stream) == [b"0", b"1", b"3", b"4"]


async def test_producer_does_not_begin_behind_a_batch_that_was_given_up_in_the_same_group() -> None:
    kit = WriterKit(frames_in_flight=5, is_remote=True, staged_ahead=8)
    (stream,) = await kit.start()
    commit, _ = await waiting(kit, stream, b"first", b"second")
    given_up = await kit.taken(stream, b"x", producer=5, sequence=0)
    behind = await kit.taken(stream, b"y", producer=5, sequence=1)
    await forget_staged(kit, 2)
    await release(kit, commit)
    assert errors([given_up]) == [ObjectClosed]
    assert behind.result().status is PartStatus.OUT_OF_ORDER_SEQUENCE, "or the first could never come again"
    assert await kit.values(stream) == [b"first", b"second"]


async def test_frame_that_could_not_be_written_ends_the_group_before_it() -> None:
    kit = WriterKit(frames_in_flight=5)
    (stream,) = await kit.start()
    commit, before = await waiting(kit, stream, b"0", b"1")
    kit.script.plan("append", REFUSED)
    failed = await kit.taken(stream, b"2")
    behind = await kit.taken(stream, b"3")
    await release(kit, commit)
    assert errors([failed]) == [Retryable]
    assert offsets([*before, behind]) == [0, 1, 2]
    assert kit.script.calls["commit_frames"] == 0
    assert await kit.values(stream) == [b"0", b"1", b"3"]


async def test_our_own_mistake_in_a_group_leaves_every_frame_of_it_in_doubt() -> None:
    kit = WriterKit(frames_in_flight=4)
    (stream,) = await kit.start()
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    kit.script.plan("commit_frames", Refuse(ZeroDivisionError()))
    commit, answers = await waiting(kit, stream, b"0", b"1", b"2")
    await release(kit, commit)
    assert errors(answers[1:]) == [OutcomeUnknown] * 2
    assert len(told) == 1 and isinstance(told[0]["exception"], ZeroDivisionError)
