"""A waiter wakes when enough has come, when a head changes, or when its time is over, and leaves nothing behind."""

import asyncio

from headrace.fetch.waiting import Waiter
from headrace.index.cache import IndexCache
from headrace.index.streams import advance_log_start
from headrace.model.ids import StreamId
from headrace.runtime.turns import WakeLine
from headrace.testing.clock import ManualClock
from tests.log_kit import LogKit, batch


class Parked:
    """A waiter in a task of its own."""

    def __init__(self, cache: IndexCache, *streams: StreamId, wanted_bytes: int = 1) -> None:
        self.clock = ManualClock()
        self.waiter = Waiter(cache.view, streams, WakeLine())
        self.task = asyncio.create_task(self._run(wanted_bytes))

    async def _run(self, wanted_bytes: int) -> None:
        with self.waiter as waiter:
            waiter.begin()
            await waiter.wait(self.clock, wanted_bytes=wanted_bytes, seconds=10)

    async def is_waiting(self) -> bool:
        await self.clock.settle()
        return not self.task.done()


async def log_of(count: int) -> tuple[LogKit, IndexCache, list[StreamId]]:
    log = LogKit()
    streams = await log.streams(count)
    await log.writer()
    cache = IndexCache(log.store, log.keys, max_folded_entries=100)
    for stream in streams:
        await cache.fresh_head(stream)
    return log, cache, streams


async def test_commit_to_one_of_the_streams_wakes() -> None:
    log, cache, (a, b, c) = await log_of(3)
    parked = Parked(cache, a, b)
    await log.append(c)
    await cache.refresh()
    assert await parked.is_waiting()
    await log.append(b)
    await cache.refresh()
    assert not await parked.is_waiting()
    assert cache.view._listeners == {}


async def test_bytes_of_several_commits_and_streams_add_up() -> None:
    log, cache, (a, b) = await log_of(2)
    parked = Parked(cache, a, b, wanted_bytes=250)
    await log.commit((a, [batch(size_bytes=100)]), (b, [batch(size_bytes=100)]))
    await cache.refresh()
    assert await parked.is_waiting()
    await log.commit((a, [batch(size_bytes=50)]))
    await cache.refresh()
    assert not await parked.is_waiting()


async def test_trimming_wakes_however_little_came() -> None:
    log, cache, (a,) = await log_of(1)
    await log.append(a, 5)
    await cache.refresh()
    parked = Parked(cache, a, wanted_bytes=10_000)
    assert await parked.is_waiting()
    await advance_log_start(log.keys, a, 3, now_ms=0).apply(log.store)
    await cache.refresh()
    assert not await parked.is_waiting()


async def test_view_that_begins_anew_wakes_everybody() -> None:
    log, cache, (a, b) = await log_of(2)
    await log.append(a)
    parked = Parked(cache, b)
    assert await parked.is_waiting()
    await log.fold()
    await cache.refresh()
    assert not await parked.is_waiting()


async def test_what_came_before_the_wait_counts() -> None:
    log, cache, (a,) = await log_of(1)
    with Waiter(cache.view, [a], WakeLine()) as waiter:
        waiter.begin()
        await log.append(a)
        await cache.refresh()
        await waiter.wait(ManualClock(), wanted_bytes=100, seconds=10)


async def test_time_that_is_over_wakes() -> None:
    _, cache, (a,) = await log_of(1)
    parked = Parked(cache, a)
    await parked.clock.advance(9.9)
    assert await parked.is_waiting()
    await parked.clock.advance(0.2)
    assert not await parked.is_waiting()


async def test_cancellation_leaves_neither_listener_nor_timer() -> None:
    _, cache, (a, b) = await log_of(2)
    other = Parked(cache, a)
    parked = Parked(cache, a, b)
    assert await parked.is_waiting()
    parked.task.cancel()
    assert not await parked.is_waiting()
    assert list(cache.view._listeners) == [a] and parked.clock.sleepers == 0
    other.task.cancel()
    assert not await other.is_waiting()
    assert cache.view._listeners == {}
