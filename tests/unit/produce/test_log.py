"""The way into the log while writers come and go."""

import asyncio
from dataclasses import replace

import pytest

from headrace.errors import Fenced, Retryable
from headrace.index.values import PartResult, PartStatus
from headrace.index.writers import retire_writer
from headrace.model.ids import WriterId
from headrace.produce.log import ProduceLog
from headrace.produce.offers import GivenUp, NewPart
from headrace.produce.placement import PlacementLimits, open_placement
from headrace.produce.writer import LogWriter
from headrace.records.batch import BatchView
from headrace.runtime.crash_points import NoCrashes
from headrace.testing.batches import make_batch
from tests.unit.produce.scripted import WRITER, Hold, WriterKit, batch_bytes


def part_of(kit: WriterKit, *values: bytes, sequence: int = -1) -> NewPart:
    """Return one batch, of producer 7 if it has a sequence."""
    producer, epoch = (7, 0) if sequence >= 0 else (-1, -1)
    batch = make_batch(values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    data = memoryview(bytearray(batch))
    return NewPart(kit.streams[0], data, (BatchView(data).summary(),))


async def another_writer(kit: WriterKit, given_up: GivenUp) -> LogWriter:
    """Start the writer of this process's next incarnation."""
    name = WriterId("b2" * 16)
    placement = open_placement(
        keys=kit.keys,
        writer=name,
        metadata=kit.metadata,
        objects=kit.objects,
        clock=kit.clock,
        crash_points=NoCrashes(),
        limits=PlacementLimits(
            segment_max_bytes=100_000, segment_max_age_ms=60_000, staged_ahead=2, staged_max_age_ms=600_000
        ),
    )
    writer = LogWriter(
        keys=kit.keys,
        writer=name,
        metadata=kit.metadata,
        placement=placement,
        clock=kit.clock,
        crash_points=NoCrashes(),
        limits=kit.writer._limits,
        given_up=given_up,
    )
    await writer.start(kit.session)
    return writer


async def status_of(log_in: ProduceLog, part: NewPart) -> PartStatus:
    appended = await log_in.append_all([part])
    await appended.done
    (result,) = appended.results
    assert isinstance(result, PartResult), result
    return result.status


async def test_without_a_writer_requests_are_refused_at_once_and_may_be_sent_again() -> None:
    log_in = ProduceLog()
    assert log_in.has_room(1_000_000_000), "nobody has to wait to hear it"
    with pytest.raises(Retryable, match="joining"):
        await log_in.append_all([])


async def test_requests_go_to_the_writer_there_is() -> None:
    kit = WriterKit()
    await kit.start()
    log_in = ProduceLog()
    log_in.use(kit.writer)
    appended = await log_in.append_all([part_of(kit, b"a"), part_of(kit, b"b")])
    await appended.done
    assert await kit.values(kit.streams[0]) == [b"a", b"b"]
    log_in.use(None)
    with pytest.raises(Retryable):
        await log_in.append_all([part_of(kit, b"c")])


async def test_room_is_the_writer_s_room() -> None:
    kit = WriterKit(buffer_max_bytes=2 * batch_bytes(b"a"))
    await kit.start()
    log_in = ProduceLog()
    log_in.use(kit.writer)
    write = Hold()
    kit.script.plan("append", write)
    assert log_in.has_room(1_000_000_000), "an empty writer takes anything"
    await log_in.append_all([part_of(kit, b"a")])
    assert log_in.has_room(batch_bytes(b"a")) and not log_in.has_room(batch_bytes(b"a") + 1)
    write.release()
    await kit.clock.settle()
    assert log_in.has_room(1_000_000_000)


async def test_who_waits_for_room_in_a_writer_that_closes_is_told_to_try_again() -> None:
    kit = WriterKit(buffer_max_bytes=1)
    await kit.start()
    log_in = ProduceLog()
    log_in.use(kit.writer)
    write = Hold()
    kit.script.plan("append", write)
    first = await log_in.append_all([part_of(kit, b"a")])
    waiting = asyncio.create_task(log_in.append_all([part_of(kit, b"b")]))
    await kit.clock.settle()
    assert not waiting.done()
    log_in.use(None)
    closing = asyncio.create_task(kit.writer.close())
    await kit.clock.settle()
    write.release()
    await closing
    await first.done
    with pytest.raises(Retryable):
        await waiting
    assert await kit.values(kit.streams[0]) == [b"a"]


async def test_fenced_writer_refuses_what_comes_and_answers_what_it_had_taken() -> None:
    kit = WriterKit()
    await kit.start()
    log_in = ProduceLog()
    log_in.use(kit.writer)
    await retire_writer(kit.keys, WRITER).apply(kit.metadata)
    taken = await log_in.append_all([part_of(kit, b"a")])
    await taken.done
    assert [type(result) for result in taken.results] == [Fenced]
    assert kit.writer.fenced.is_set()
    with pytest.raises(Fenced):
        await log_in.append_all([part_of(kit, b"b")])


# The order of a producer that the stream has never seen: what comes behind a refused batch must not land before it


async def test_batch_behind_one_that_was_refused_for_want_of_a_writer_does_not_overtake_it() -> None:
    kit = WriterKit()
    await kit.start()
    log_in = ProduceLog()
    with pytest.raises(Retryable):
        await log_in.append_all([part_of(kit, b"0", sequence=0)])
    log_in.use(await another_writer(kit, log_in.given_up))
    assert await status_of(log_in, part_of(kit, b"1", sequence=1)) is PartStatus.OUT_OF_ORDER_SEQUENCE
    assert await status_of(log_in, part_of(kit, b"0", sequence=0)) is PartStatus.ACCEPTED
    assert await status_of(log_in, part_of(kit, b"1", sequence=1)) is PartStatus.ACCEPTED
    assert await kit.values(kit.streams[0]) == [b"0", b"1"]


async def test_batch_behind_one_that_a_fenced_writer_lost_does_not_overtake_it_in_the_next_writer() -> None:
    kit = WriterKit()
    await kit.start()
    log_in = ProduceLog()
    log_in.use(await another_writer(kit, log_in.given_up))
    await retire_writer(kit.keys, WriterId("b2" * 16)).apply(kit.metadata)
    lost = await log_in.append_all([part_of(kit, b"0", sequence=0)])
    await lost.done
    with pytest.raises(Fenced):
        await log_in.append_all([part_of(kit, b"1", sequence=1)])
    kit.writer._given_up = log_in.given_up
    kit.writer._settler = replace(kit.writer._settler, given_up=log_in.given_up)
    log_in.use(kit.writer)
    assert await status_of(log_in, part_of(kit, b"2", sequence=2)) is PartStatus.OUT_OF_ORDER_SEQUENCE
    for sequence in range(3):
        part = part_of(kit, b"%d" % sequence, sequence=sequence)
        assert await status_of(log_in, part) is PartStatus.ACCEPTED
    assert await kit.values(kit.streams[0]) == [b"0", b"1", b"2"]


async def test_batch_behind_one_that_gave_up_waiting_for_room_does_not_overtake_it() -> None:
    kit = WriterKit(buffer_max_bytes=1)
    await kit.start()
    log_in = ProduceLog()
    writer = await another_writer(kit, log_in.given_up)
    log_in.use(writer)
    write = Hold()
    kit.script.plan("append", write)
    first = await log_in.append_all([part_of(kit, b"in the way")])
    waiting = asyncio.create_task(log_in.append_all([part_of(kit, b"0", sequence=0)]))
    await kit.clock.settle()
    waiting.cancel()
    await asyncio.wait([waiting])
    write.release()
    await first.done
    assert await status_of(log_in, part_of(kit, b"1", sequence=1)) is PartStatus.OUT_OF_ORDER_SEQUENCE
    assert await status_of(log_in, part_of(kit, b"0", sequence=0)) is PartStatus.ACCEPTED
