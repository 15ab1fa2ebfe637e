"""The flow of a fetch: from memory where it can, from the store where it must, never a no without asking."""

import asyncio
import json

import pytest

from headrace.errors import Corrupt, Retryable
from headrace.fetch.fetcher import FAILURE_REPEATS_S, MAX_WAIT_MS, Fetched, Outcome
from headrace.index.objects import wal_object_id, wal_object_key
from headrace.index.streams import advance_log_start, delete_stream
from headrace.model.ids import StreamId
from headrace.model.topics import TopicRules
from headrace.runtime.answers import FIRST_ANSWER_BYTES, SMALL_ANSWER_BYTES, TURN_BYTES, AnswerBudget, AnswerRoom
from headrace.testing.batches import make_batch
from tests.unit.fetch.kit import FetchKit, offsets_of, values_of
from tests.unit.produce.scripted import WRITER, Hold, Refuse

BATCH = len(make_batch([b"0", b"1"]))


async def logged(count: int, **options: int) -> tuple[FetchKit, StreamId]:
    """Return a log of batches with two records each."""
    kit = FetchKit(**options)  # type: ignore[arg-type]
    (stream,) = await kit.start()
    for n in range(count):
        await kit.put(stream, b"%d" % (2 * n), b"%d" % (2 * n + 1))
    await kit.cache.fresh_head(stream)
    kit.script.calls.clear()
    return kit, stream


# What is found


async def test_tail_answers_without_asking_any_store() -> None:
    kit, stream = await logged(3)
    (found,) = await kit.fetch((stream, 3))
    assert values_of(found) == [b"2", b"3", b"4", b"5"]
    assert (found.high_watermark, found.last_stable_offset, found.log_start, found.end_offset) == (6, 6, 0, 6)
    assert not kit.script.calls


async def test_what_the_tail_lost_comes_from_objects() -> None:
    kit, stream = await logged(3)
    kit.tail.evict(1)
    (found,) = await kit.fetch((stream, 0))
    assert offsets_of(found) == [0, 1, 2, 3, 4, 5]
    assert kit.script.calls == {"read": 1}


@pytest.mark.parametrize("is_compacted", [True, False])
async def test_memory_of_a_compacted_stream_is_dropped_when_its_index_changes(is_compacted: bool) -> None:
    kit, stream = await logged(3)
    kit.rules = TopicRules(max_message_bytes=1_000_000, is_compacted=is_compacted)
    await advance_log_start(kit.keys, stream, 1, now_ms=0).apply(kit.metadata)
    await kit.cache.fresh_head(stream)
    (found,) = await kit.fetch((stream, 2))
    assert offsets_of(found) == [2, 3, 4, 5]
    assert kit.tail.covers(stream, 2) != is_compacted
    await kit.put(stream, b"6")
    await kit.fetch((stream, 6))
    assert kit.tail.covers(stream, 6), "it is dropped once per change"


async def test_another_broker_finds_everything() -> None:
    kit, stream = await logged(3)
    (found,) = await kit.fetch((stream, 0), fetcher=kit.another())
    assert offsets_of(found) == [0, 1, 2, 3, 4, 5]


async def test_misses_are_read_at_the_same_time() -> None:
    kit = FetchKit(tail_bytes=0)
    streams = await kit.start(3)
    for stream in streams:
        await kit.put(stream, b"x")
    holds = [Hold() for _ in streams]
    kit.script.plan("read", *holds)
    fetching = asyncio.create_task(kit.fetch(*((stream, 0) for stream in streams)))
    await kit.clock.settle()
    assert kit.script.calls["read"] == 3
    for hold in holds:
        hold.release()
    assert [offsets_of(found) for found in await fetching] == [[0], [0], [0]]


# Limits


@pytest.mark.parametrize("tail_bytes", [0, 1_000_000])
@pytest.mark.parametrize(("max_bytes", "count"), [(0, 1), (1, 1), (BATCH, 1), (2 * BATCH - 1, 1), (2 * BATCH, 2)])
async def test_limit_holds_but_the_first_batch_is_whole(tail_bytes: int, max_bytes: int, count: int) -> None:
    kit, stream = await logged(4, tail_bytes=tail_bytes)
    (found,) = await kit.fetch((stream, 2), max_bytes=max_bytes)
    assert offsets_of(found) == list(range(2, 2 + 2 * count))
    (found,) = await kit.fetch((stream, 2), partition_bytes=max_bytes)
    assert offsets_of(found) == list(range(2, 2 + 2 * count))


@pytest.mark.parametrize("tail_bytes", [0, 1_000_000])
async def test_limit_of_the_answer_is_shared_in_order(tail_bytes: int) -> None:
    kit = FetchKit(tail_bytes=tail_bytes)
    streams = await kit.start(3)
    for stream in streams:
        for _ in range(3):
            await kit.put(stream, b"0", b"1")
    wanted = [(stream, 0) for stream in streams]
    found = await kit.fetch(*wanted, max_bytes=4 * BATCH, partition_bytes=3 * BATCH)
    assert [len(offsets_of(one)) for one in found] == [6, 2, 0]
    found = await kit.fetch(*wanted, max_bytes=1)
    assert [len(offsets_of(one)) for one in found] == [2, 0, 0]
    assert all(one.high_watermark == 6 for one in found)


async def test_partition_at_its_end_does_not_use_up_the_first_batch() -> None:
    kit = FetchKit()
    a, b = await kit.start(2)
    await kit.put(a, b"x")
    await kit.put(b, b"y")
    found = await kit.fetch((a, 1), (b, 0), max_bytes=1)
    assert [offsets_of(one) for one in found] == [[], [0]]


async def test_number_of_partitions_that_one_answer_reads_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.fetch.fetcher.MAX_READS", 2)
    kit = FetchKit(tail_bytes=0)
    streams = await kit.start(4)
    for stream in streams:
        await kit.put(stream, b"x")
    found = await kit.fetch(*((stream, 0) for stream in streams))
    assert [offsets_of(one) for one in found] == [[0], [0], [], []]
    assert all(one.outcome is Outcome.FOUND and one.high_watermark == 1 for one in found)


# Noes


@pytest.mark.parametrize("offset", [-1, 7, 2**62])
async def test_out_of_range_is_said_after_asking_the_store(offset: int) -> None:
    kit, stream = await logged(3)
    (found,) = await kit.fetch((stream, offset), max_wait_ms=1000)
    assert found.outcome is Outcome.OUT_OF_RANGE
    assert kit.script.calls["get"] > 0


async def test_offset_that_only_the_store_knows_is_in_range() -> None:
    kit, stream = await logged(1)
    another = kit.another()
    await kit.fetch((stream, 0), fetcher=another)
    await kit.put(stream, b"2", b"3")
    await kit.put(stream, b"4", b"5")
    (found,) = await kit.fetch((stream, 4), fetcher=another)
    assert values_of(found) == [b"4", b"5"]


async def test_empty_answer_is_given_after_asking_the_store() -> None:
    kit, stream = await logged(1)
    another = kit.another()
    await kit.fetch((stream, 0), fetcher=another)
    await kit.put(stream, b"2", b"3")
    (found,) = await kit.fetch((stream, 2), fetcher=another, min_bytes=0)
    assert values_of(found) == [b"2", b"3"], "whoever was acknowledged reads its own write through any broker"


async def test_trimmed_offsets_are_out_of_range_though_the_tail_holds_them() -> None:
    kit, stream = await logged(3)
    await advance_log_start(kit.keys, stream, 4, now_ms=0).apply(kit.metadata)
    await kit.cache.refresh()
    (found,) = await kit.fetch((stream, 3))
    assert found.outcome is Outcome.OUT_OF_RANGE
    (found,) = await kit.fetch((stream, 4))
    assert (offsets_of(found), found.log_start) == ([4, 5], 4)


async def test_unknown_and_deleted_streams_are_said_so_and_fail_alone() -> None:
    kit, stream = await logged(1)
    gone = StreamId(99)
    found = await kit.fetch((gone, 0), (stream, 0), max_wait_ms=1000)
    assert [one.outcome for one in found] == [Outcome.NO_STREAM, Outcome.FOUND]
    assert offsets_of(found[1]) == [0, 1]
    await delete_stream(kit.keys, stream, now_ms=0).apply(kit.metadata)
    await kit.cache.refresh()
    (deleted,) = await kit.fetch((stream, 0), max_wait_ms=1000)
    assert deleted.outcome is Outcome.NO_STREAM


async def test_trim_that_comes_between_plan_and_read_is_noticed() -> None:
    kit, stream = await logged(3, tail_bytes=0)

    async def trimmed_meanwhile(*_: object, **__: object) -> None:
        await advance_log_start(kit.keys, stream, 4, now_ms=0).apply(kit.metadata)
        kit.catch_up.read = read  # type: ignore[method-assign]

    read, kit.catch_up.read = kit.catch_up.read, trimmed_meanwhile  # type: ignore[method-assign]
    (found,) = await kit.fetch((stream, 0))
    assert found.outcome is Outcome.OUT_OF_RANGE


# Failures


async def test_damaged_object_fails_its_partition_loudly_and_skips_nothing() -> None:
    kit = FetchKit(tail_bytes=0, segment_max_bytes=1)
    a, b = await kit.start(2)
    await kit.put(a, b"first")
    await kit.put(b, b"second")
    (entry,) = (await kit.log())[0].entries
    key = wal_object_key(kit.keys.domain, wal_object_id(WRITER, 0))
    data = bytearray(await kit.objects.get(key))
    data[entry.start_byte + entry.size_bytes - 3] ^= 1
    await kit.objects.put(key, [bytes(data)])
    for _ in range(2):
        broken, whole = await kit.fetch((a, 0), (b, 0), max_wait_ms=1000)
        assert broken.outcome is Outcome.FAILED and isinstance(broken.error, Corrupt) and not broken.records
        assert values_of(whole) == [b"second"]
    assert '"level":"error"' in kit.logged.getvalue().replace(" ", "") and key in kit.logged.getvalue()


async def test_partition_that_fails_does_not_keep_the_room_from_its_neighbours() -> None:
    kit = FetchKit(tail_bytes=0)
    a, b = await kit.start(2)
    await kit.put(a, b"first")
    await kit.put(b, b"second")
    await kit.cache.fresh_head(a)
    await kit.cache.fresh_head(b)
    kit.script.plan("read", Refuse(Retryable("busy")))
    broken, whole = await kit.fetch((a, 0), (b, 0), max_bytes=10)
    assert broken.outcome is Outcome.FAILED and values_of(whole) == [b"second"]


async def test_store_that_is_busy_fails_the_partition_and_works_again() -> None:
    kit, stream = await logged(1, tail_bytes=0)
    kit.script.plan("read", Refuse(Retryable("busy")))
    (found,) = await kit.fetch((stream, 0), max_wait_ms=1000)
    assert found.outcome is Outcome.FAILED and isinstance(found.error, Retryable)
    (found,) = await kit.fetch((stream, 0))
    assert offsets_of(found) == [0, 1]


# Waiting


async def parked(kit: FetchKit, *wanted: tuple[StreamId, int], **options: int) -> "asyncio.Task[list[Fetched]]":
    task = asyncio.create_task(kit.fetch(*wanted, **options))  # type: ignore[arg-type]
    await kit.clock.settle()
    return task


async def test_fetch_at_the_end_waits_for_the_next_commit() -> None:
    kit, stream = await logged(1)
    waiting = await parked(kit, (stream, 2), max_wait_ms=1000)
    assert not waiting.done() and kit.fetcher.parked == 1
    assert kit.script.calls["get"] > 0, "before it waits, the store is asked"
    await kit.put(stream, b"2", b"3")
    (found,) = await waiting
    assert values_of(found) == [b"2", b"3"] and kit.fetcher.parked == 0


async def test_commit_of_another_broker_ends_the_wait_when_it_is_heard_of() -> None:
    kit, stream = await logged(1)
    another = kit.another()
    waiting = asyncio.create_task(kit.fetch((stream, 2), fetcher=another, max_wait_ms=1000))
    await kit.clock.settle()
    await kit.put(stream, b"2", b"3")
    await another._index.refresh()
    (found,) = await waiting
    assert values_of(found) == [b"2", b"3"]


async def test_wait_ends_with_the_time_and_an_empty_answer() -> None:
    kit, stream = await logged(1)
    waiting = await parked(kit, (stream, 2), max_wait_ms=1000)
    await kit.clock.advance(0.999)
    assert not waiting.done()
    await kit.clock.advance(0.002)
    (found,) = await waiting
    assert (found.outcome, found.records, found.high_watermark) == (Outcome.FOUND, [], 2)
    assert kit.cache.view._listeners == {}


async def test_fetch_that_waits_for_more_holds_no_bytes_meanwhile() -> None:
    kit, stream = await logged(1)
    waiting = await parked(kit, (stream, 0), min_bytes=2**31 - 1, max_wait_ms=1000)
    (run,) = kit.tail.find(stream, 0, 1)
    memory = run.data.obj
    del run
    kit.tail.evict(1_000_000)
    assert isinstance(memory, bytearray)
    kit.writer._predecessor = None
    memory.append(0)  # a bytearray refuses to grow as long as anybody has a view of it
    await kit.clock.advance(1.1)
    (found,) = await waiting
    assert offsets_of(found) == [0, 1]


async def test_longest_wait_has_a_limit() -> None:
    kit, stream = await logged(1)
    waiting = await parked(kit, (stream, 2), max_wait_ms=2**31 - 1)
    await kit.clock.advance(MAX_WAIT_MS / 1000 + 1)
    assert waiting.done()


async def test_min_bytes_counts_over_all_partitions() -> None:
    kit = FetchKit()
    a, b = await kit.start(2)
    await kit.put(a, b"0", b"1")
    waiting = await parked(kit, (a, 0), (b, 0), min_bytes=3 * BATCH, max_wait_ms=1000)
    await kit.put(b, b"0", b"1")
    await kit.clock.settle()
    assert not waiting.done()
    await kit.put(a, b"2", b"3")
    assert [len(offsets_of(one)) for one in await waiting] == [4, 2]


async def test_min_bytes_that_never_come_are_not_waited_for_beyond_the_time() -> None:
    kit, stream = await logged(1)
    waiting = await parked(kit, (stream, 0), min_bytes=2**31 - 1, max_wait_ms=1000)
    assert not waiting.done()
    await kit.clock.advance(1.1)
    (found,) = await waiting
    assert offsets_of(found) == [0, 1]


async def test_trim_and_delete_end_the_wait() -> None:
    kit, stream = await logged(2)
    waiting = await parked(kit, (stream, 4), max_wait_ms=1000)
    await delete_stream(kit.keys, stream, now_ms=0).apply(kit.metadata)
    await kit.cache.refresh()
    (found,) = await waiting
    assert found.outcome is Outcome.NO_STREAM


async def test_client_that_goes_away_leaves_nothing_behind() -> None:
    kit, stream = await logged(1)
    waiting = await parked(kit, (stream, 2), max_wait_ms=1000)
    waiting.cancel()
    await kit.clock.settle()
    assert waiting.cancelled()
    assert kit.cache.view._listeners == {} and kit.fetcher.parked == 0 and kit.clock.sleepers == 0


async def test_wait_goes_on_though_the_view_began_anew() -> None:
    kit, stream = await logged(1)
    waiting = await parked(kit, (stream, 2), max_wait_ms=1000)
    kit.cache.view.reset(kit.cache.view.position)
    await kit.clock.settle()
    assert not waiting.done()
    await kit.put(stream, b"2", b"3")
    (found,) = await waiting
    assert values_of(found) == [b"2", b"3"]


async def test_store_that_is_away_is_one_line_for_all_readers() -> None:
    kit = FetchKit(tail_bytes=0)
    streams = await kit.start(5)
    for stream in streams:
        await kit.put(stream, b"value")
    kit.script.plan("read", *[Refuse(Retryable("the store is away"))] * 100)
    for _ in range(3):
        for stream in streams:
            (found,) = await kit.fetch((stream, 0))
            assert found.outcome is Outcome.FAILED
    (line,) = [json.loads(line) for line in kit.logged.getvalue().splitlines()]
    assert line["event"] == "a fetch could not be read" and line["level"] == "warning" and line["advice"]
    await kit.clock.advance(FAILURE_REPEATS_S)
    await kit.fetch((streams[0], 0))
    assert len(kit.logged.getvalue().splitlines()) == 2


# Room for answers


async def large_log(*, tail_bytes: int) -> tuple[FetchKit, StreamId]:
    """Return a log of nine batches of 900 kB."""
    kit = FetchKit(tail_bytes=tail_bytes)
    (stream,) = await kit.start()
    for number in range(9):
        await kit.put(stream, bytes([number]) * 900_000)
    await kit.cache.fresh_head(stream)
    return kit, stream


@pytest.mark.parametrize("tail_bytes", [0, 100_000_000])
async def test_answer_to_a_client_that_has_taken_nothing_is_bounded_and_counts(tail_bytes: int) -> None:
    kit, stream = await large_log(tail_bytes=tail_bytes)
    budget = AnswerBudget(100_000_000)
    (found,) = await kit.fetch((stream, 0), room=AnswerRoom(budget))
    assert offsets_of(found) == [0, 1, 2, 3] and found.size_bytes <= FIRST_ANSWER_BYTES
    assert budget.taken_bytes == found.size_bytes, "what was not found was given back"


async def test_what_is_read_is_taken_before_it_is_read() -> None:
    kit, stream = await large_log(tail_bytes=0)
    budget = AnswerBudget(100_000_000)
    hold = Hold()
    kit.script.plan("read", hold)
    fetching = asyncio.create_task(kit.fetch((stream, 0), room=AnswerRoom(budget), max_bytes=1))
    await kit.clock.settle()
    assert budget.taken_bytes >= 900_000
    hold.release()
    (found,) = await fetching
    assert offsets_of(found) == [0] and budget.taken_bytes == found.size_bytes


@pytest.mark.parametrize("tail_bytes", [0, 100_000_000])
async def test_fetch_without_room_waits_for_its_turn_and_gets_less(tail_bytes: int) -> None:
    kit, stream = await large_log(tail_bytes=tail_bytes)
    budget = AnswerBudget(16 * TURN_BYTES)
    budget.change(16 * TURN_BYTES)
    room = AnswerRoom(budget)
    fetching = asyncio.create_task(kit.fetch((stream, 0), room=room, min_bytes=5_000_000, max_wait_ms=1000))
    await kit.clock.settle()
    assert budget.waiting_count == 1 and budget.taken_bytes == 16 * TURN_BYTES
    budget.change(-10 * TURN_BYTES)
    (found,) = await fetching
    assert offsets_of(found) == [0], "as much as a turn has room for, although more was to be waited for"
    assert budget.taken_bytes == 6 * TURN_BYTES + found.size_bytes


async def test_small_answer_never_waits_for_room() -> None:
    kit, stream = await logged(3)
    budget = AnswerBudget(16 * TURN_BYTES)
    budget.change(16 * TURN_BYTES)
    (found,) = await kit.fetch((stream, 0), room=AnswerRoom(budget))
    assert offsets_of(found) == [0, 1, 2, 3, 4, 5] and found.size_bytes < SMALL_ANSWER_BYTES


async def test_fetch_that_waits_for_records_takes_no_room() -> None:
    kit, stream = await logged(1)
    budget = AnswerBudget(16 * TURN_BYTES)
    fetching = asyncio.create_task(
        kit.fetch((stream, 0), room=AnswerRoom(budget), min_bytes=10 * BATCH, max_wait_ms=1000)
    )
    await kit.clock.settle()
    assert kit.fetcher.parked == 1 and budget.taken_bytes == 0
    await kit.clock.advance(1.1)
    (found,) = await fetching
    assert found.size_bytes == BATCH
