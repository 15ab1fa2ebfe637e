"""Readers behind the tail: read once what is answered in pieces, read ahead of who reads on, within limits."""

import asyncio

import pytest

from headrace.errors import Retryable
from headrace.fetch.catchup import CatchUpLimits
from headrace.fetch.runs import Cut
from headrace.model.ids import StreamId
from headrace.testing.batches import make_batch, read_batches
from tests.unit.fetch.kit import FetchKit
from tests.unit.gc.folded import fold_all
from tests.unit.produce.scripted import Hold, Refuse

VALUE = b"v" * 100
BATCH = len(make_batch([VALUE]))
LIMITS = CatchUpLimits(
    far_bytes=100 * BATCH,
    near_bytes=100 * BATCH,
    near_distance_bytes=0,
    read_bytes=4 * BATCH,
    held_bytes=20 * BATCH,
    cursors=10,
    cursor_max_age_s=30.0,
)


async def logged(
    count: int, *, limits: CatchUpLimits = LIMITS, batches_per_entry: int = 1
) -> tuple[FetchKit, StreamId]:
    kit = FetchKit(tail_bytes=0, limits=limits)
    (stream,) = await kit.start()
    for _ in range(count // batches_per_entry):
        await kit.put_batch(stream, make_batch([VALUE]) * batches_per_entry)
    await kit.cache.fresh_head(stream)
    kit.script.calls.clear()
    return kit, stream


def offsets(cut: Cut | None) -> list[int]:
    assert cut is not None
    return [record.offset for piece in cut.pieces for record in read_batches(memoryview(piece))]


async def read(kit: FetchKit, stream: StreamId, offset: int, batches: int = 1) -> list[int]:
    """Take from memory or read, as the fetcher does."""
    max_bytes = batches * BATCH
    found = kit.catch_up.take(stream, offset, max_bytes, whole_first=True)
    return offsets(found or await kit.catch_up.read(stream, offset, max_bytes, whole_first=True))


async def test_entry_that_is_larger_than_the_answer_is_read_once() -> None:
    kit, stream = await logged(8, batches_per_entry=8)
    for n in range(8):
        assert await read(kit, stream, n) == [n]
    assert kit.script.calls["read"] == 1 and kit.catch_up.held_bytes == 0


async def test_who_reads_on_is_read_ahead_for() -> None:
    kit, stream = await logged(20)
    assert await read(kit, stream, 0) == [0]
    await kit.clock.settle()
    assert kit.catch_up.reads_ahead == 0, "one read is no habit"
    assert await read(kit, stream, 1) == [1]
    await kit.clock.settle()
    assert kit.catch_up.reads_ahead == 1
    calls = kit.script.calls["read"]
    for n in range(2, 8):
        assert kit.catch_up.take(stream, n, BATCH, whole_first=True) is not None
    assert kit.script.calls["read"] == calls
    assert kit.catch_up.held_bytes <= 2 * LIMITS.read_bytes


async def test_reading_all_of_it_gives_every_offset_once() -> None:
    kit, stream = await logged(40)
    await fold_all(kit)
    seen: list[int] = []
    while len(seen) < 40:
        seen += await read(kit, stream, len(seen), batches=3)
        await kit.clock.settle()
    assert seen == list(range(40))
    assert kit.script.calls["read"] <= 14


async def test_read_ahead_that_is_under_way_is_waited_for() -> None:
    kit, stream = await logged(20)
    await read(kit, stream, 0, 4)
    await read(kit, stream, 4, 4)
    hold = Hold()
    kit.script.plan("read", hold)
    waiting = asyncio.create_task(read(kit, stream, 8, 4))
    await kit.clock.settle()
    assert not waiting.done() and kit.script.calls["read"] == 3
    hold.release()
    assert await waiting == [8, 9, 10, 11]
    await kit.clock.settle()
    assert kit.script.calls["read"] - kit.catch_up.reads_ahead == 2, "nobody read it twice"


async def test_read_ahead_that_failed_is_read_again_and_tells_why() -> None:
    kit, stream = await logged(20)
    await read(kit, stream, 0, 4)
    await read(kit, stream, 4, 4)
    kit.script.plan("read", Refuse(Retryable("busy")), Refuse(Retryable("still busy")))
    await kit.clock.settle()
    with pytest.raises(Retryable, match="still busy"):
        await read(kit, stream, 8, 4)
    assert await read(kit, stream, 8, 4) == [8, 9, 10, 11]


async def test_cursors_are_bounded_in_number() -> None:
    kit, stream = await logged(30, batches_per_entry=2)
    for n in range(0, 30, 2):
        await read(kit, stream, n)
    assert len(kit.catch_up._cursors) == LIMITS.cursors


async def test_cursors_are_bounded_in_bytes_and_reading_ahead_does_not_push_others_out() -> None:
    kit = FetchKit(tail_bytes=0, limits=LIMITS)
    streams = await kit.start(10)
    for stream in streams:
        for _ in range(12):
            await kit.put(stream, VALUE)
        await kit.cache.fresh_head(stream)
    for offset in range(4):
        for stream in streams:
            assert await read(kit, stream, offset) == [offset]
            await kit.clock.settle()
            assert kit.catch_up.held_bytes <= LIMITS.held_bytes
    assert kit.catch_up.read_bytes <= 10 * 12 * BATCH, "nothing was read to be thrown away"


async def test_reader_that_does_not_come_back_is_forgotten() -> None:
    kit, stream = await logged(20, batches_per_entry=4)
    await read(kit, stream, 0)
    assert kit.catch_up.held_bytes == 3 * BATCH
    await kit.clock.advance(31)
    await read(kit, stream, 16, 4)
    assert kit.catch_up.held_bytes == 0


async def test_two_readers_at_the_same_place_both_get_everything() -> None:
    kit, stream = await logged(20, batches_per_entry=2)
    seen: list[list[int]] = [[], []]
    while min(map(len, seen)) < 20:
        for mine in seen:
            mine += await read(kit, stream, len(mine))
        await kit.clock.settle()
    assert seen == [list(range(20))] * 2


async def test_limit_too_small_for_a_batch_leaves_the_cursor_where_it_is() -> None:
    kit, stream = await logged(4, batches_per_entry=4)
    await read(kit, stream, 0)
    cut = kit.catch_up.take(stream, 1, BATCH - 1, whole_first=False)
    assert cut is not None and cut.size_bytes == 0
    assert await read(kit, stream, 1) == [1] and kit.script.calls["read"] == 1


async def test_far_readers_wait_for_each_other_and_near_ones_do_not_wait() -> None:
    limits = CatchUpLimits(far_bytes=BATCH, near_bytes=100 * BATCH, near_distance_bytes=2 * BATCH)
    kit, stream = await logged(20, limits=limits)
    hold = Hold()
    kit.script.plan("read", hold)
    first = asyncio.create_task(read(kit, stream, 0))
    second = asyncio.create_task(read(kit, stream, 5))
    await kit.clock.settle()
    assert await read(kit, stream, 18) == [18]
    assert kit.catch_up.far.waiting_count == 1
    hold.release()
    assert (await first, await second) == ([0], [5])
    assert kit.catch_up.far.lent_bytes == kit.catch_up.near.lent_bytes == 0


async def test_client_that_goes_away_ends_its_read() -> None:
    kit, stream = await logged(20)
    kit.script.plan("read", Hold())
    reading = asyncio.create_task(read(kit, stream, 0))
    await kit.clock.settle()
    reading.cancel()
    await kit.clock.settle()
    assert reading.cancelled() and kit.catch_up.far.lent_bytes == 0
    assert await read(kit, stream, 0) == [0]


async def test_close_ends_what_is_read_ahead() -> None:
    kit, stream = await logged(20)
    await read(kit, stream, 0)
    await read(kit, stream, 1)
    kit.script.plan("read", Hold())
    await kit.clock.settle()
    assert kit.catch_up.far.lent_bytes > 0
    kit.catch_up.close()
    await kit.clock.settle()
    assert kit.catch_up.held_bytes == kit.catch_up.far.lent_bytes == 0


async def test_offset_that_is_not_there_gives_nothing() -> None:
    kit, stream = await logged(2)
    assert await kit.catch_up.read(stream, 2, BATCH, whole_first=True) is None


async def test_what_was_being_read_when_everything_was_dropped_is_read_again() -> None:
    kit, stream = await logged(8, batches_per_entry=8)
    assert await read(kit, stream, 0) == [0]
    assert kit.catch_up.held_bytes > 0
    kit.catch_up.drop_all()
    assert kit.catch_up.held_bytes == 0
    assert kit.catch_up.take(stream, 1, BATCH, whole_first=True) is None
    hold = Hold()
    kit.script.plan("read", hold)
    reading = asyncio.create_task(kit.catch_up.read(stream, 1, BATCH, whole_first=True))
    await kit.clock.settle()
    before = kit.script.calls["read"]
    kit.catch_up.drop_all()
    hold.release()
    assert offsets(await reading) == [1]
    assert kit.script.calls["read"] == before + 1
