"""Look-up by time: the first offset whose own timestamp is late enough, wherever it hides."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.fetch.timestamps import TimedOffset
from headrace.index.streams import advance_log_start
from headrace.model.ids import StreamId
from headrace.records.batch import HEADER_BYTES, Codec
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.records.stamping import stamp_append_time, stamp_crc
from tests.unit.fetch.kit import FetchKit
from tests.unit.gc.folded import fold_all


def timed_batch(times: list[int], codec: Codec = Codec.NONE) -> bytearray:
    records = [Record(offset=n, timestamp_ms=at_ms, value=b"v" * 50) for n, at_ms in enumerate(times)]
    return bytearray(BatchEncoder(codec=codec).encode(columns_of(records)))


async def timed(*batches: list[int], codec: Codec = Codec.NONE) -> tuple[FetchKit, StreamId]:
    kit = FetchKit()
    (stream,) = await kit.start()
    for times in batches:
        await kit.put_batch(stream, timed_batch(times, codec))
    return kit, stream


@pytest.mark.parametrize("codec", Codec)
async def test_first_record_at_or_after_the_time_is_found(codec: Codec) -> None:
    kit, stream = await timed([10, 20, 30], [40, 50], codec=codec)
    for target, expected in [(0, (0, 10)), (10, (0, 10)), (11, (1, 20)), (30, (2, 30)), (31, (3, 40)), (50, (4, 50))]:
        assert await kit.timestamps.first_since(stream, target) == TimedOffset(*expected)
    assert await kit.timestamps.first_since(stream, 51) is None
    assert await kit.timestamps.latest(stream) == TimedOffset(4, 50)


async def test_times_may_fall_within_and_between_batches() -> None:
    kit, stream = await timed([30, 10, 40], [5, 35], [100, 90])
    assert await kit.timestamps.first_since(stream, 20) == TimedOffset(0, 30)
    assert await kit.timestamps.first_since(stream, 35) == TimedOffset(2, 40)
    assert await kit.timestamps.first_since(stream, 41) == TimedOffset(5, 100)
    assert await kit.timestamps.latest(stream) == TimedOffset(5, 100)


async def test_of_equal_times_the_first_is_the_latest() -> None:
    kit, stream = await timed([7, 9, 9], [9])
    assert await kit.timestamps.latest(stream) == TimedOffset(1, 9)


async def test_batch_with_append_time_has_it_for_all_records() -> None:
    kit = FetchKit()
    (stream,) = await kit.start()
    batch = timed_batch([1, 2, 3])
    stamp_append_time(memoryview(batch), append_time_ms=500)
    await kit.put_batch(stream, batch)
    assert await kit.timestamps.first_since(stream, 3) == TimedOffset(0, 500)
    assert await kit.timestamps.latest(stream) == TimedOffset(0, 500)


async def test_empty_log_and_unknown_stream_have_none() -> None:
    kit, stream = await timed()
    assert await kit.timestamps.first_since(stream, 0) is None
    assert await kit.timestamps.latest(stream) is None
    assert await kit.timestamps.first_since(StreamId(99), 0) is None
    assert await kit.timestamps.latest(StreamId(99)) is None


@pytest.mark.parametrize("is_folded", [False, True])
async def test_records_below_the_log_start_do_not_count(is_folded: bool) -> None:
    kit, stream = await timed([100, 10], [20, 90], [30, 40])
    if is_folded:
        await fold_all(kit)
    await advance_log_start(kit.keys, stream, 1, now_ms=0).apply(kit.metadata)
    assert await kit.timestamps.first_since(stream, 50) == TimedOffset(3, 90)
    assert await kit.timestamps.latest(stream) == TimedOffset(3, 90)
    await advance_log_start(kit.keys, stream, 4, now_ms=0).apply(kit.metadata)
    assert await kit.timestamps.first_since(stream, 50) is None
    assert await kit.timestamps.first_since(stream, 35) == TimedOffset(5, 40)
    assert await kit.timestamps.latest(stream) == TimedOffset(5, 40)
    await advance_log_start(kit.keys, stream, 6, now_ms=0).apply(kit.metadata)
    assert await kit.timestamps.latest(stream) is None


async def test_batch_that_cannot_be_opened_answers_with_its_own_time() -> None:
    kit = FetchKit()
    (stream,) = await kit.start()
    await kit.put_batch(stream, timed_batch([10]))
    broken = timed_batch([20, 30], Codec.ZSTD)
    broken[HEADER_BYTES:] = b"?" * (len(broken) - HEADER_BYTES)
    stamp_crc(memoryview(broken))
    await kit.put_batch(stream, broken)
    assert await kit.timestamps.first_since(stream, 15) == TimedOffset(1, 30)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(0, 8))
async def test_every_time_finds_what_a_scan_finds(batches: list[list[int]], log_start: int) -> None:
    kit, stream = await timed(*batches)
    times = [at_ms for batch in batches for at_ms in batch]
    log_start = min(log_start, len(times))
    if log_start:
        await advance_log_start(kit.keys, stream, log_start, now_ms=0).apply(kit.metadata)
    for target in range(22):
        expected = next((n for n, at_ms in enumerate(times) if n >= log_start and at_ms >= target), None)
        found = await kit.timestamps.first_since(stream, target)
        assert found == (None if expected is None else TimedOffset(expected, times[expected]))
    rest = times[log_start:]
    latest = TimedOffset(log_start + rest.index(max(rest)), max(rest)) if rest else None
    assert await kit.timestamps.latest(stream) == latest
