"""The trimmer removes what lies below the log start in steps, and in the end a deleted stream as a whole."""

import asyncio

from headrace.gc.trimming import Trimmer
from headrace.index.streams import advance_log_start, delete_stream
from headrace.index.values import INDEX_ENTRY, PartStatus
from headrace.metadata.keys import prefix_range
from headrace.model.ids import StreamId
from tests.unit.gc.folded import fold_all
from tests.unit.produce.scripted import Hold, WriterKit


def trimmer_of(kit: WriterKit, *, entries_per_step: int = 2) -> Trimmer:
    return Trimmer(keys=kit.keys, metadata=kit.metadata, clock=kit.clock, entries_per_step=entries_per_step)


async def logged(count: int) -> tuple[WriterKit, StreamId]:
    """Return a folded log with `count` entries of one record each."""
    kit = WriterKit()
    (stream,) = await kit.start()
    for n in range(count):
        await kit.append(stream, b"%d" % n)
    await fold_all(kit)
    return kit, stream


async def start_at(kit: WriterKit, stream: StreamId, offset: int) -> None:
    await advance_log_start(kit.keys, stream, offset, now_ms=0).apply(kit.metadata)


async def first_offsets(kit: WriterKit, stream: StreamId) -> list[int]:
    found = await kit.metadata.range(kit.keys.entries(stream, after_offset=0, limit=100))
    return [INDEX_ENTRY.decode(item.value, item.key).start_offset for item in found]


async def entry_count(kit: WriterKit) -> int:
    record = await kit.object(0)
    assert record is not None
    return record.entry_count


async def test_entries_below_the_log_start_go_in_steps() -> None:
    kit, stream = await logged(7)
    await start_at(kit, stream, 5)
    trimmer = trimmer_of(kit)
    assert [await trimmer.trim(stream) for _ in range(4)] == [2, 2, 1, 0]
    assert await first_offsets(kit, stream) == [5, 6]
    assert await entry_count(kit) == 2


async def test_nothing_goes_while_the_log_start_stands_still() -> None:
    kit, stream = await logged(2)
    assert await trimmer_of(kit).trim(stream) == 0
    assert await trimmer_of(kit).trim(StreamId(77)) == 0
    assert await entry_count(kit) == 2


async def test_two_trimmers_count_down_once() -> None:
    kit, stream = await logged(3)
    await start_at(kit, stream, 2)
    late = Hold()
    kit.script.plan("trim_entries", late)
    slow = asyncio.create_task(trimmer_of(kit).trim(stream))
    await kit.clock.settle()
    assert await trimmer_of(kit).trim(stream) == 2
    late.release()
    assert await slow == 0
    assert await entry_count(kit) == 1


async def test_deleted_stream_is_removed_step_by_step() -> None:
    kit, stream = await logged(3)
    for producer in range(3):
        await kit.offer(stream, b"idempotent", producer=producer, sequence=0)
    await delete_stream(kit.keys, stream, now_ms=0).apply(kit.metadata)
    trimmer = trimmer_of(kit)
    steps = [await trimmer.remove(stream) for _ in range(4)]
    assert steps == [False] * 4, "two steps of entries, then it waits for folding"
    assert await first_offsets(kit, stream) == []
    await fold_all(kit)
    steps = [await trimmer.remove(stream) for _ in range(3)]
    assert steps == [False, True, True], "two producers, then the third with the head; gone is gone"
    assert await kit.metadata.range(prefix_range(kit.keys.streams_prefix, limit=10)) == []
    assert await entry_count(kit) == 0
    refused = await kit.offer(stream, b"too late")
    assert refused.status is PartStatus.UNKNOWN_STREAM


async def test_living_stream_is_not_removed() -> None:
    kit, stream = await logged(1)
    assert not await trimmer_of(kit).remove(stream)
    assert await kit.values(stream) == [b"0"]
