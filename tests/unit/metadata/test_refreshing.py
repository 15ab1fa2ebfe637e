"""A refresh proves something only for those who asked before it began."""

import asyncio
import gc

import pytest

from headrace.errors import Corrupt, Retryable
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.refreshing import SharedRefresh, follow
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock


class Reading:
    """Counts readings, each of which waits until it is let through."""

    def __init__(self) -> None:
        self.begun = 0
        self.gate = asyncio.Event()

    async def __call__(self) -> None:
        self.begun += 1
        await self.gate.wait()


async def test_who_asks_while_a_reading_is_under_way_waits_for_the_next_and_shares_it() -> None:
    reading, clock = Reading(), ManualClock()
    refresh = SharedRefresh(reading)
    first = asyncio.create_task(refresh.run())
    await clock.settle()
    late = [asyncio.create_task(refresh.run()) for _ in range(3)]
    await clock.settle()
    assert reading.begun == 1
    reading.gate.set()
    await asyncio.gather(first, *late)
    assert reading.begun == 2


async def test_failed_reading_fails_those_who_asked_and_nobody_after_them() -> None:
    failures = [Corrupt("damaged")]

    async def read() -> None:
        if failures:
            raise failures.pop()

    refresh = SharedRefresh(read)
    with pytest.raises(Corrupt):
        await refresh.run()
    await refresh.run()


async def test_following_tries_again_until_the_store_answers() -> None:
    clock, store = ManualClock(), MemoryMetadata(seeded_rng(1))
    failures = [Retryable("away"), Retryable("away")]
    done = asyncio.Event()

    async def read() -> None:
        if failures:
            raise failures.pop()
        done.set()

    following = asyncio.create_task(follow(store, "/headrace/v1/", read, clock=clock))
    while not done.is_set():
        await clock.advance(1)
    following.cancel()
    await asyncio.wait([following])
    assert not failures


async def test_a_failure_that_nobody_waits_for_any_more_is_not_left_lying_about() -> None:
    failures: list[dict[str, object]] = []
    loop, clock = asyncio.get_running_loop(), ManualClock()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    gate = asyncio.Event()

    async def reading() -> None:
        await gate.wait()
        raise Retryable("not now")

    refresh = SharedRefresh(reading)
    asked = asyncio.create_task(refresh.run())
    await clock.settle()
    asked.cancel()
    await clock.settle()
    gate.set()
    await clock.settle()
    del refresh
    gc.collect()
    assert failures == []
