"""A slow reader, the tail cache and a pool that uses buffers again: what was handed out stays what it was."""

from collections import deque

from headrace.fetch.fetcher import Fetched
from headrace.fetch.tail import TailCache
from headrace.model.ids import StreamId
from headrace.records.batch import iter_batches
from headrace.runtime.buffers import BufferPool
from headrace.testing.batches import make_batch
from tests.unit.fetch.kit import FetchKit, values_of

BATCH_VALUE_BYTES = 60_000
TAIL_BYTES = 256 * 1024
SLOW_READERS = 3
APPENDS = 60
BUFFER_BYTES = 64 * 1024


def value_of(number: int) -> bytes:
    return b"%08d" % number * (BATCH_VALUE_BYTES // 8)


async def receive(kit: FetchKit, pool: BufferPool, stream: StreamId, number: int) -> None:
    """Append a batch as the server does: in a buffer of the pool, of which nobody but the log keeps a view."""
    produced = make_batch([value_of(number)])
    view = pool.lease(len(produced))
    view[:] = produced
    batches = [batch.summary() for batch in iter_batches(view)]
    await kit.writer.append(stream, view, batches)


async def test_bytes_that_wait_for_a_slow_reader_are_never_overwritten() -> None:
    kit = FetchKit()
    kit.tail = TailCache(max_bytes=TAIL_BYTES)
    kit.writer._tail = kit.tail
    kit.fetcher = kit.fetching(kit.cache, kit.tail, kit.catch_up)
    pool = BufferPool(max_idle_bytes=16 * 1024 * 1024)
    (stream,) = await kit.start()
    await kit.cache.fresh_head(stream)
    # What each reader's socket has not taken yet; a slow one is some answers behind.
    queues: list[deque[tuple[int, Fetched]]] = [deque() for _ in range(SLOW_READERS)]
    for number in range(APPENDS):
        await receive(kit, pool, stream, number)
        for lag, queue in enumerate(queues):
            (found,) = await kit.fetch((stream, number), max_bytes=1)
            queue.append((number, found))
            del found
            if len(queue) > 5 * lag:
                sent_number, sent = queue.popleft()
                assert values_of(sent) == [value_of(sent_number)]
                del sent
    assert kit.tail.misses == 0, "all of it was at the tail"
    for queue in queues:
        for number, answer in queue:
            assert values_of(answer) == [value_of(number)]
        queue.clear()
    del answer
    kit.tail.evict(TAIL_BYTES)
    assert pool.leased_bytes <= BUFFER_BYTES, "only the writer may still hold its last frame"
    assert 0 < pool.idle_bytes < APPENDS // 2 * BUFFER_BYTES, "buffers came back and were used again"
