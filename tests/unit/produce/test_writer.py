"""Group commit: what is gathered, in which order it commits, and what callers hear when something fails."""

import asyncio

import pytest

from headrace.errors import Fenced, OutcomeUnknown, Retryable, Unusable
from headrace.index.fold import fold_records, plan_fold
from headrace.index.objects import seal_object, wal_object_id
from headrace.index.values import (
    PRODUCER_STATE,
    ObjectState,
    PartResult,
    PartStatus,
    ProducedBatch,
    ProducerState,
)
from headrace.index.writers import retire_writer
from headrace.metadata.port import Decision, Reads
from headrace.model.ids import ProducerId
from headrace.produce.offers import NewPart
from headrace.produce.writer import SMALL_FRAME_BYTES
from headrace.records.batch import BatchView
from headrace.testing.batches import make_batch
from tests.unit.produce.scripted import WRITER, Hold, Lose, Meanwhile, Refuse, WriterKit, batch_bytes

REFUSED = Refuse(Retryable("busy"))
LOST = OutcomeUnknown("connection reset")


def offsets(*answers: "asyncio.Task[PartResult]") -> list[int]:
    return [answer.result().base_offset for answer in answers]


def errors(*answers: "asyncio.Task[PartResult]") -> list[type[BaseException | None]]:
    return [type(answer.exception()) for answer in answers]


def statuses(*answers: "asyncio.Task[PartResult]") -> list[PartStatus]:
    return [answer.result().status for answer in answers]


# Gathering


async def test_idle_writer_answers_after_one_write() -> None:
    kit = WriterKit(frames_in_flight=4)
    (stream,) = await kit.start()
    for n in range(3):
        assert await kit.append(stream, b"value") == n
    assert (kit.script.calls["append"], kit.script.calls["commit_frame"]) == (3, 3)
    assert kit.clock.monotonic() == 0, "nobody waited for a timer"


async def test_busy_writer_gathers_what_arrives_into_one_frame() -> None:
    kit = WriterKit()
    a, b = await kit.start(2)
    write = Hold()
    kit.script.plan("append", write)
    first = await kit.taken(a, b"0")
    others = [await kit.taken(stream, b"%d" % n) for n, stream in enumerate((b, a, b, a), 1)]
    assert not any(answer.done() for answer in others)
    write.release()
    await kit.clock.settle()
    assert offsets(first, *others) == [0, 0, 1, 1, 2]
    assert [len(record.results) for record in await kit.log()] == [1, 4]
    assert await kit.values(a) == [b"0", b"2", b"4"]
    assert await kit.values(b) == [b"1", b"3"]


async def test_frame_with_enough_parts_is_full_however_few_bytes_it_has() -> None:
    kit = WriterKit(frame_max_parts=3, frames_in_flight=2)
    streams = await kit.start(8)
    data = [memoryview(bytearray(make_batch([b"x"]))) for _ in streams]
    parts = [NewPart(stream, one, (BatchView(one).summary(),)) for stream, one in zip(streams, data, strict=True)]
    appended = await kit.writer.append_all(parts)
    await kit.clock.settle()
    assert [len(record.results) for record in await kit.log()] == [3, 3, 2]
    assert [result.base_offset for result in appended.results if isinstance(result, PartResult)] == [0] * 8


async def test_small_frames_wait_for_each_other_and_large_ones_do_not() -> None:
    kit = WriterKit(
        frames_in_flight=4,
        small_frames_in_flight=1,
        buffer_max_bytes=10_000_000,
        frame_max_bytes=5_000_000,
        segment_max_bytes=50_000_000,
    )
    (stream,) = await kit.start()
    write = Hold()
    kit.script.plan("append", write)
    first = await kit.taken(stream, b"0")
    small = [await kit.taken(stream, b"%d" % n) for n in (1, 2)]
    await kit.clock.settle()
    assert kit.script.calls["append"] == 1, "what is small gathers behind the frame under way"
    large = await kit.taken(stream, b"x" * SMALL_FRAME_BYTES)
    await kit.clock.settle()
    assert kit.script.calls["append"] == 2, "what is large is written beside it"
    write.release()
    await kit.clock.settle()
    assert offsets(first, *small, large) == [0, 1, 2, 3]
    assert [len(record.results) for record in await kit.log()] == [1, 3]


async def test_full_frame_is_cut_before_the_batch_that_does_not_fit() -> None:
    size_bytes = batch_bytes(b"x" * 100)
    kit = WriterKit(frame_max_bytes=3 * size_bytes)
    (stream,) = await kit.start()
    write = Hold()
    kit.script.plan("append", write)
    first = await kit.taken(stream, b"first")
    others = [await kit.taken(stream, bytes([n]) * 100) for n in range(5)]
    write.release()
    await kit.clock.settle()
    assert offsets(first, *others) == list(range(6))
    assert [len(record.results) for record in await kit.log()] == [1, 2, 2, 1]


async def test_batch_larger_than_a_frame_gets_a_frame_of_its_own() -> None:
    kit = WriterKit(frame_max_bytes=200)
    (stream,) = await kit.start()
    write = Hold()
    kit.script.plan("append", write)
    answers = [await kit.taken(stream, b"first"), *[kit.offer(stream, bytes(size)) for size in (10, 1000, 10)]]
    write.release()
    await kit.clock.settle()
    assert offsets(*answers) == [0, 1, 2, 3]
    assert [len(record.results) for record in await kit.log()] == [1, 1, 1, 1]


async def test_full_buffer_pushes_back_and_serves_first_come_first() -> None:
    kit = WriterKit(buffer_max_bytes=2000, frame_max_bytes=10_000)
    (stream,) = await kit.start()
    write = Hold()
    kit.script.plan("append", write)
    first = await kit.taken(stream, b"a" * 1500)
    large = await kit.taken(stream, b"b" * 1500)
    small = await kit.taken(stream, b"c")
    assert len(kit.writer._open.offers) == 0, "the small batch would fit, but the large one came first"
    write.release()
    await kit.clock.settle()
    assert offsets(first, large, small) == [0, 1, 2]


async def test_batch_larger_than_the_buffer_is_taken_when_it_is_alone() -> None:
    kit = WriterKit(buffer_max_bytes=100)
    (stream,) = await kit.start()
    answers = [kit.offer(stream, bytes(500)), kit.offer(stream, bytes(500))]
    await kit.clock.settle()
    assert offsets(*answers) == [0, 1]


async def test_failed_frames_give_their_room_back() -> None:
    kit = WriterKit(buffer_max_bytes=300)
    (stream,) = await kit.start()
    kit.script.plan("append", *[REFUSED] * 5)
    answers = [kit.offer(stream, bytes(200)) for _ in range(6)]
    await kit.clock.settle()
    assert errors(*answers[:5]) == [Retryable] * 5
    assert offsets(answers[5]) == [0]


async def test_lingering_waits_for_company_and_not_longer() -> None:
    kit = WriterKit(linger_ms=50)
    (stream,) = await kit.start()
    early = await kit.taken(stream, b"early")
    await kit.clock.advance(0.030)
    late = await kit.taken(stream, b"late")
    await kit.clock.advance(0.019)
    assert kit.script.calls["append"] == 0
    await kit.clock.advance(0.001)
    assert offsets(early, late) == [0, 1]
    assert len(await kit.log()) == 1


async def test_full_frame_does_not_linger() -> None:
    kit = WriterKit(linger_ms=50, frame_max_bytes=2 * batch_bytes(bytes(100)))
    (stream,) = await kit.start()
    answers = [await kit.taken(stream, bytes(100)) for _ in range(2)]
    assert [answer.done() for answer in answers] == [True, False]
    assert kit.clock.monotonic() == 0


async def test_closing_writer_does_not_linger() -> None:
    kit = WriterKit(linger_ms=50_000)
    (stream,) = await kit.start()
    answer = await kit.taken(stream, b"last")
    await kit.writer.drain()
    await kit.clock.settle()
    assert offsets(answer) == [0]
    assert kit.clock.monotonic() == 0


# Order


async def test_frames_in_flight_are_bounded() -> None:
    kit = WriterKit(is_remote=True, frames_in_flight=2, frame_max_bytes=1)
    (stream,) = await kit.start()
    puts = [Hold() for _ in range(5)]
    kit.script.plan("put", *puts)
    answers = [await kit.taken(stream, b"%d" % n) for n in range(5)]
    assert kit.script.calls["put"] == 2
    puts[1].release()
    await kit.clock.settle()
    assert kit.script.calls["put"] == 2, "a frame that waits for its predecessor holds its slot"
    puts[0].release()
    await kit.clock.settle()
    assert kit.script.calls["put"] == 4
    for put in puts:
        put.release()
    await kit.clock.settle()
    assert offsets(*answers) == list(range(5))


async def test_frames_commit_in_their_order_though_writes_finish_in_reverse() -> None:
    kit = WriterKit(is_remote=True, frames_in_flight=4)
    (stream,) = await kit.start()
    puts = [Hold() for _ in range(4)]
    kit.script.plan("put", *puts)
    answers = [await kit.taken(stream, b"%d" % n) for n in range(4)]
    for put in reversed(puts):
        assert kit.script.calls["commit_frame"] == 0
        put.release()
        await kit.clock.settle()
    assert offsets(*answers) == [0, 1, 2, 3]
    assert [record.frame_number for record in await kit.log()] == [0, 1, 2, 3]
    assert await kit.values(stream) == [b"0", b"1", b"2", b"3"]


async def test_nothing_is_acknowledged_before_bytes_and_commit_are_durable() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    write, commit = Hold(), Hold()
    kit.script.plan("append", write)
    kit.script.plan("commit_frame", commit)
    answer = await kit.taken(stream, b"value")
    assert not answer.done()
    write.release()
    await kit.clock.settle()
    assert kit.script.calls["commit_frame"] == 1 and not answer.done()
    commit.release()
    await kit.clock.settle()
    assert offsets(answer) == [0]


async def test_parts_fail_alone_and_each_caller_hears_its_own_result() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    write = Hold()
    kit.script.plan("append", write)
    await kit.taken(stream, b"occupies the slot")
    first = kit.offer(stream, b"one", producer=5, sequence=0)
    again = kit.offer(stream, b"one", producer=5, sequence=0)
    gap = kit.offer(stream, b"three", producer=5, sequence=7)
    plain = await kit.taken(stream, b"plain")
    write.release()
    await kit.clock.settle()
    statuses = [answer.result().status for answer in (first, again, gap, plain)]
    expected = [PartStatus.ACCEPTED, PartStatus.DUPLICATE, PartStatus.OUT_OF_ORDER_SEQUENCE, PartStatus.ACCEPTED]
    assert statuses == expected
    assert offsets(first, again, plain) == [1, 1, 2]


# Failing writes


@pytest.mark.parametrize("step", [REFUSED, Refuse(LOST), Lose(LOST)])
@pytest.mark.parametrize("is_remote", [False, True])
async def test_failed_write_gives_its_frame_up_and_the_next_one_commits(is_remote: bool, step: Refuse | Lose) -> None:
    kit = WriterKit(is_remote=is_remote)
    (stream,) = await kit.start()
    kit.script.plan("put" if is_remote else "append", step)
    failed = await kit.taken(stream, b"lost")
    assert errors(failed) == [Retryable]
    state = await kit.state()
    assert state is not None and (state.last_frame, state.last_seq) == (0, -1), "it is recorded as abandoned"
    assert await kit.append(stream, b"kept") == 0
    assert await kit.values(stream) == [b"kept"]


async def test_giving_up_is_tried_until_it_is_certain() -> None:
    kit = WriterKit(frames_in_flight=2)
    (stream,) = await kit.start()
    kit.script.plan("append", REFUSED)
    kit.script.plan("abandon_frame", *[REFUSED, Refuse(LOST)] * 10, Lose(LOST))
    failed = await kit.taken(stream, b"lost")
    behind = await kit.taken(stream, b"kept")
    for _ in range(20):
        assert not failed.done() and kit.script.calls["commit_frame"] == 0, "nothing behind it commits before"
        await kit.clock.advance(0.1)
    await kit.clock.advance(0.1)
    assert errors(failed) == [Retryable]
    assert offsets(behind) == [0]


# Commits in doubt


async def test_unknown_commit_that_had_landed_answers_with_its_first_results() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    kit.script.plan("commit_frame", Lose(LOST))
    answer = await kit.taken(stream, b"once")
    await kit.clock.advance(0.1)
    assert offsets(answer) == [0]
    assert await kit.values(stream) == [b"once"]
    assert await kit.append(stream, b"next") == 1


async def test_results_of_a_commit_in_doubt_survive_folding() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    kit.script.plan("commit_frame", Lose(LOST))
    answer = await kit.taken(stream, b"once")
    plan = await plan_fold(kit.metadata, kit.keys, max_records=10, lag_records=0)
    assert plan is not None
    await fold_records(kit.keys, plan, now_ms=0).apply(kit.metadata)
    await kit.clock.advance(0.1)
    assert offsets(answer) == [0]


@pytest.mark.parametrize("step", [REFUSED, Refuse(LOST)])
async def test_commit_that_had_not_landed_is_tried_again(step: Refuse) -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    kit.script.plan("commit_frame", step)
    answer = await kit.taken(stream, b"once")
    assert not answer.done()
    await kit.clock.advance(0.1)
    assert offsets(answer) == [0]
    assert kit.script.calls["append"] == 1, "the bytes are written once"


@pytest.mark.parametrize("step", [REFUSED, Refuse(LOST)])
async def test_commit_is_given_up_after_so_many_tries(step: Refuse) -> None:
    kit = WriterKit(commit_attempts=3)
    (stream,) = await kit.start()
    kit.script.plan("commit_frame", *[step] * 3)
    failed = await kit.taken(stream, b"lost")
    await kit.clock.advance(0.5)
    assert errors(failed) == [Retryable]
    state = await kit.state()
    assert state is not None and (state.last_frame, state.last_seq) == (0, -1)
    assert await kit.append(stream, b"kept") == 0


async def test_frame_given_up_after_it_had_landed_is_found_committed() -> None:
    kit = WriterKit(commit_attempts=1)
    (stream,) = await kit.start()
    kit.script.plan("commit_frame", Lose(LOST))
    answer = await kit.taken(stream, b"once")
    await kit.clock.advance(0.1)
    assert offsets(answer) == [0]
    assert await kit.values(stream) == [b"once"]


async def test_commit_in_doubt_retires_its_segment() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    kit.script.plan("commit_frame", Lose(LOST))
    await kit.taken(stream, b"once")
    await kit.clock.advance(0.1)
    record = await kit.object(0)
    assert record is not None and record.state is ObjectState.SEALED
    await kit.append(stream, b"next")
    assert [entry.object_id for entry in await kit.log()] == [wal_object_id(WRITER, n) for n in (0, 1)]


async def test_closed_object_fails_its_frame_and_the_next_goes_to_a_new_segment() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    rule = seal_object(kit.keys, wal_object_id(WRITER, 0), now_ms=0)
    await rule.apply(kit.metadata)
    refused = await kit.taken(stream, b"1")
    assert isinstance(refused.exception(), Retryable)
    assert await kit.append(stream, b"2") == 1
    assert [record.object_id for record in await kit.log()] == [wal_object_id(WRITER, n) for n in (0, 1)]
    assert await kit.values(stream) == [b"0", b"2"]


# Fenced


async def test_fenced_writer_refuses_this_and_every_later_append() -> None:
    kit = WriterKit(frames_in_flight=2)
    (stream,) = await kit.start()
    await retire_writer(kit.keys, WRITER).apply(kit.metadata)
    answers = [await kit.taken(stream, b"%d" % n) for n in range(3)]
    assert errors(*answers) == [Fenced] * 3
    assert kit.writer.fenced.is_set()
    assert kit.script.calls["commit_frame"] == 1, "the second was refused at the door"


async def test_frames_behind_a_fenced_one_are_fenced_with_it() -> None:
    kit = WriterKit(frames_in_flight=2, buffer_max_bytes=1000)
    (stream,) = await kit.start()
    commit = Hold()
    kit.script.plan("commit_frame", commit)
    answers = [await kit.taken(stream, bytes(300)) for _ in range(5)]
    await retire_writer(kit.keys, WRITER).apply(kit.metadata)
    commit.release()
    await kit.clock.settle()
    assert errors(*answers) == [Fenced] * 5
    assert kit.script.calls["commit_frame"] == 1


async def test_frame_in_doubt_when_its_writer_is_fenced_has_an_unknown_outcome() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    kit.script.plan("commit_frame", Lose(LOST))
    answer = await kit.taken(stream, b"maybe")
    await retire_writer(kit.keys, WRITER).apply(kit.metadata)
    await kit.clock.advance(0.1)
    assert errors(answer) == [OutcomeUnknown]
    assert await kit.values(stream) == [b"maybe"]


async def test_writer_that_is_fenced_in_doubt_says_so_at_once() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    kit.script.plan("commit_frame", Refuse(LOST))
    answer = await kit.taken(stream, b"maybe")
    await retire_writer(kit.keys, WRITER).apply(kit.metadata)
    await kit.clock.advance(0.1)
    assert errors(answer) == [OutcomeUnknown]
    assert kit.writer.fenced.is_set()
    assert errors(await kit.taken(stream, b"later")) == [Fenced]
    assert kit.script.calls["commit_frame"] == 2, "the later one was refused at the door"


async def test_results_that_went_with_a_retired_writer_leave_the_outcome_unknown() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    kit.script.plan("commit_frame", Lose(LOST))
    answer = await kit.taken(stream, b"maybe")
    plan = await plan_fold(kit.metadata, kit.keys, max_records=10, lag_records=0)
    assert plan is not None
    await fold_records(kit.keys, plan, now_ms=0).apply(kit.metadata)
    # The second try finds the frame committed; before the results can be read the writer is retired.
    kit.script.plan("get", Meanwhile(lambda: retire_writer(kit.keys, WRITER).apply(kit.metadata)))
    await kit.clock.advance(0.1)
    assert errors(answer) == [OutcomeUnknown]
    assert kit.writer.fenced.is_set()


# Followers


async def test_followers_of_a_failed_frame_are_refused_wherever_they_are() -> None:
    size_bytes = batch_bytes(bytes(100))
    kit = WriterKit(
        is_remote=True, frames_in_flight=2, frame_max_bytes=size_bytes * 3 // 2, buffer_max_bytes=size_bytes * 9 // 2
    )
    (stream,) = await kit.start()
    failing, flying = Hold(Retryable("no")), Hold()
    kit.script.plan("put", failing, flying)
    answers = [await kit.taken(stream, bytes(100), producer=1, sequence=n) for n in range(5)]
    writer = kit.writer
    places = (len(writer._in_flight), len(writer._full), len(writer._open.offers))
    assert places == (2, 1, 1), "in flight, full, open; and the fifth waits for room"
    failing.release()
    flying.release()
    await kit.clock.settle()
    assert errors(answers[0]) == [Retryable]
    assert statuses(*answers[1:]) == [PartStatus.OUT_OF_ORDER_SEQUENCE] * 4
    assert await kit.values(stream) == []
    again = [kit.offer(stream, bytes(100), producer=1, sequence=n) for n in range(5)]
    await kit.clock.settle()
    assert offsets(*again) == [0, 1, 2, 3, 4]


async def test_other_producers_and_other_streams_do_not_follow_a_failed_frame() -> None:
    kit = WriterKit(is_remote=True, frames_in_flight=3)
    a, b = await kit.start(2)
    failing, flying = Hold(Retryable("no")), Hold()
    kit.script.plan("put", failing, flying)
    failed = await kit.taken(a, b"0", producer=1, sequence=0)
    in_flight = [
        kit.offer(a, b"other", producer=2, sequence=0),
        kit.offer(a, b"refused", producer=1, sequence=1),
        kit.offer(b, b"other stream", producer=1, sequence=0),
        kit.offer(a, b"plain"),
    ]
    await kit.clock.settle()
    failing.release()
    flying.release()
    await kit.clock.settle()
    assert errors(failed) == [Retryable]
    assert statuses(in_flight[1]) == [PartStatus.OUT_OF_ORDER_SEQUENCE]
    assert offsets(in_flight[0], in_flight[2], in_flight[3]) == [0, 0, 1]
    assert await kit.values(a) == [b"other", b"plain"]


async def test_plain_batches_do_not_follow_a_failed_plain_one() -> None:
    kit = WriterKit(is_remote=True, frames_in_flight=2)
    (stream,) = await kit.start()
    failing = Hold(Retryable("no"))
    kit.script.plan("put", failing)
    failed = await kit.taken(stream, b"0")
    behind = await kit.taken(stream, b"1")
    failing.release()
    await kit.clock.settle()
    assert errors(failed) == [Retryable]
    assert offsets(behind) == [0]


async def test_batch_that_comes_in_long_after_the_failure_still_waits_for_the_one_that_failed() -> None:
    kit = WriterKit(is_remote=True)
    (stream,) = await kit.start()
    kit.script.plan("put", Refuse(Retryable("no")))
    first = await kit.taken(stream, b"0", producer=1, sequence=0)
    second = await kit.taken(stream, b"1", producer=1, sequence=1)
    third = await kit.taken(stream, b"2", producer=1, sequence=2)
    assert errors(first) == [Retryable]
    assert statuses(second, third) == [PartStatus.OUT_OF_ORDER_SEQUENCE] * 2
    again = [await kit.taken(stream, b"%d" % n, producer=1, sequence=n) for n in range(3)]
    assert offsets(*again) == [0, 1, 2]


async def test_newer_epoch_of_the_producer_begins_where_it_likes() -> None:
    kit = WriterKit(is_remote=True)
    (stream,) = await kit.start()
    kit.script.plan("put", Refuse(Retryable("no")))
    await kit.taken(stream, b"0", producer=1, sequence=0)
    newer = kit.offer(stream, b"new", producer=1, sequence=7, epoch=1)
    await kit.clock.settle()
    assert statuses(newer) == [PartStatus.ACCEPTED]


async def test_writer_that_remembers_a_failure_believes_a_stream_that_knows_the_producer() -> None:
    kit = WriterKit(is_remote=True)
    (stream,) = await kit.start()
    kit.script.plan("put", Refuse(Retryable("no")))
    await kit.taken(stream, b"0", producer=1, sequence=0)
    # Through another broker, the producer has gone on to sequence 1 meanwhile.
    state = ProducerState(0, (ProducedBatch(1, 1, 0, 0),), kit.clock.now_ms())
    key = kit.keys.producer(stream, ProducerId(1))
    stored = Decision(result=None, puts={key: PRODUCER_STATE.encode(state)})
    await kit.metadata.transact([kit.keys.unit], Reads(), lambda seen: stored)
    third = await kit.taken(stream, b"2", producer=1, sequence=2)
    assert statuses(third) == [PartStatus.ACCEPTED]


# The end


async def test_close_answers_everything_seals_segments_and_retires_the_writer() -> None:
    kit = WriterKit(buffer_max_bytes=1000)
    (stream,) = await kit.start()
    write = Hold()
    kit.script.plan("append", write)
    taken = [await kit.taken(stream, bytes(300)) for _ in range(2)]
    waiting = await kit.taken(stream, bytes(300))
    closing = asyncio.create_task(kit.writer.close())
    await kit.clock.settle()
    assert not closing.done()
    write.release()
    await closing
    assert offsets(*taken) == [0, 1]
    await kit.clock.settle()
    assert errors(waiting) == [Retryable], "it was not taken yet"
    record = await kit.object(0)
    assert record is not None and record.state is ObjectState.SEALED
    assert await kit.state() is None


async def test_append_after_close_is_refused() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    await kit.writer.close()
    assert errors(await kit.taken(stream, b"1")) == [Retryable]
    assert await kit.values(stream) == [b"0"]


async def test_close_that_failed_can_be_repeated() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    kit.script.plan("seal_object", REFUSED)
    with pytest.raises(Retryable):
        await kit.writer.close()
    await kit.writer.close()
    record = await kit.object(0)
    assert record is not None and record.state is ObjectState.SEALED
    assert await kit.state() is None


async def test_cancelled_caller_does_not_disturb_others() -> None:
    kit = WriterKit(buffer_max_bytes=1000)
    (stream,) = await kit.start()
    write = Hold()
    kit.script.plan("append", write)
    in_flight = await kit.taken(stream, bytes(300))
    gathered, neighbour = await kit.taken(stream, bytes(300)), await kit.taken(stream, b"n")
    waiting, last = await kit.taken(stream, bytes(300)), await kit.taken(stream, b"last")
    for caller in (in_flight, gathered, waiting):
        caller.cancel()
    await kit.clock.settle()
    write.release()
    await kit.clock.settle()
    assert offsets(neighbour, last) == [2, 3], "what was taken is committed, whoever still listens"
    assert kit.writer._held_bytes == 0


async def test_own_commits_are_in_the_cache_at_once() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.cache.fresh_head(stream)
    await kit.append(stream, b"0", b"1")
    head = kit.cache.view.head(stream)
    assert head is not None and head.high_watermark == 2
    assert [entry.end_offset for entry in kit.cache.view.find(stream, 0, limit=10)] == [2]


async def test_own_commit_behind_unknown_ones_is_left_to_the_next_refresh() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    await kit.append(stream, b"0")
    assert kit.cache.view.position == 0, "the stream's creation was not read yet"
    head = await kit.cache.fresh_head(stream)
    assert head is not None and head.high_watermark == 1


# Mistakes and broken stores


@pytest.fixture
async def reported() -> list[BaseException | None]:
    """Return what the event loop is told of tasks that broke off; by default it would write to the log."""
    found: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context.get("exception")))
    return found


@pytest.mark.usefixtures("reported")
async def test_store_that_cannot_be_trusted_any_more_ends_the_writer_without_a_lie() -> None:
    kit = WriterKit()
    (stream,) = await kit.start()
    kit.script.plan("commit_frame", Refuse(Unusable("look at the disk")))
    answer = await kit.taken(stream, b"maybe")
    assert errors(answer) == [OutcomeUnknown]
    assert errors(await kit.taken(stream, b"later")) == [Fenced], "nothing may commit behind a frame without a fate"
    assert kit.writer.fenced.is_set()


@pytest.mark.usefixtures("reported")
async def test_unexpected_error_in_one_write_leaves_the_frames_before_it_alone() -> None:
    kit = WriterKit(is_remote=True, frames_in_flight=2)
    (stream,) = await kit.start()
    first_put, broken_put = Hold(), Hold(ValueError("a bug in a store"))
    kit.script.plan("put", first_put, broken_put)
    commit = Hold()
    kit.script.plan("commit_frame", commit)
    first = await kit.taken(stream, b"0", producer=1, sequence=0)
    broken = await kit.taken(stream, b"1", producer=1, sequence=1)
    first_put.release()
    await kit.clock.settle()
    broken_put.release()
    await kit.clock.settle()
    commit.release()
    await kit.clock.settle()
    assert offsets(first) == [0]
    assert errors(broken) == [OutcomeUnknown]
    assert kit.writer._held_bytes == 0
