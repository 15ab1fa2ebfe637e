"""The cache of row groups: bounded, one load for all who ask, and nobody suffers from others who go away."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from headrace.errors import Missing, Retryable
from headrace.fetch.row_groups import BoundedCache, RowGroupCache
from headrace.fetch.runs import Run


def run_of(key: int, size_bytes: int = 10) -> Run:
    return Run(start_offset=key, end_offset=key + 1, data=memoryview(bytes([key]) * size_bytes))


class Loader:
    """Brings runs when the test lets it, and remembers what it was asked for."""

    def __init__(self, *, size_bytes: int = 10, is_open: bool = True) -> None:
        self.asked: list[list[int]] = []
        self.gate = asyncio.Event()
        self.error: BaseException | None = None
        self.size_bytes = size_bytes
        self.ended = 0
        if is_open:
            self.gate.set()

    async def __call__(self, keys: Sequence[int]) -> Mapping[int, list[Run]]:
        self.asked.append(list(keys))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.ended += 1
            raise
        if self.error is not None:
            raise self.error
        return {key: [run_of(key, self.size_bytes)] for key in keys}


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_groups_come_in_the_order_asked_for_and_stay() -> None:
    cache, load = RowGroupCache[int](max_bytes=100), Loader()
    assert await cache.get([2, 1], load) == [[run_of(2)], [run_of(1)]]
    assert await cache.get([1, 3, 2], load) == [[run_of(1)], [run_of(3)], [run_of(2)]]
    assert load.asked == [[2, 1], [3]]
    assert (cache.held_bytes, cache.hits, cache.loads) == (30, 2, 3)


async def test_groups_used_least_recently_go_first() -> None:
    cache, load = RowGroupCache[int](max_bytes=25), Loader()
    await cache.get([1], load)
    await cache.get([2], load)
    await cache.get([1], load)
    await cache.get([3], load)
    assert [cache.is_known(key) for key in (1, 2, 3)] == [True, False, True]
    assert cache.held_bytes == 20


async def test_group_larger_than_the_cache_is_returned_and_not_kept() -> None:
    cache, load = RowGroupCache[int](max_bytes=5), Loader()
    for _ in range(2):
        assert await cache.get([1, 2], load) == [[run_of(1)], [run_of(2)]]
    assert (cache.held_bytes, cache.loads) == (0, 4)


async def test_readers_of_one_group_wait_for_one_load() -> None:
    cache, load = RowGroupCache[int](max_bytes=100), Loader(is_open=False)
    readers = [asyncio.create_task(cache.get(keys, load)) for keys in ([1, 2], [2, 3], [2])]
    await turns()
    assert load.asked == [[1, 2], [3]]
    assert all(cache.is_known(key) for key in (1, 2, 3))
    load.gate.set()
    assert await asyncio.gather(*readers) == [
        [[run_of(1)], [run_of(2)]],
        [[run_of(2)], [run_of(3)]],
        [[run_of(2)]],
    ]
    assert load.asked == [[1, 2], [3]]


async def test_reader_that_goes_away_leaves_the_load_to_the_others() -> None:
    cache, load = RowGroupCache[int](max_bytes=100), Loader(is_open=False)
    first = asyncio.create_task(cache.get([1], load))
    second = asyncio.create_task(cache.get([1], load))
    await turns()
    first.cancel()
    await turns()
    load.gate.set()
    assert await second == [[run_of(1)]]
    assert first.cancelled() and len(load.asked) == 1


async def test_failure_reaches_all_who_wait_and_the_next_one_tries_again() -> None:
    cache, load = RowGroupCache[int](max_bytes=100), Loader(is_open=False)
    load.error = Missing("gone")
    readers = [asyncio.create_task(cache.get([1], load)) for _ in range(2)]
    await turns()
    load.gate.set()
    for found in await asyncio.gather(*readers, return_exceptions=True):
        assert isinstance(found, Missing)
    load.error = None
    assert await cache.get([1], load) == [[run_of(1)]]


async def test_load_ends_when_the_last_reader_has_gone_and_the_next_one_begins_anew() -> None:
    cache, load = RowGroupCache[int](max_bytes=100), Loader(is_open=False)
    readers = [asyncio.create_task(cache.get(keys, load)) for keys in ([1, 2], [2])]
    await turns()
    for reader in readers:
        assert cache.is_known(2)
        reader.cancel()
        await turns()
    assert not cache.is_known(1) and not cache.is_known(2)
    assert load.ended == 1
    load.gate.set()
    assert await cache.get([2], load) == [[run_of(2)]]
    assert load.asked == [[1, 2], [2]]


async def test_reader_that_comes_while_a_load_is_being_ended_begins_another() -> None:
    cache, load = RowGroupCache[int](max_bytes=100), Loader(is_open=False)
    first = asyncio.create_task(cache.get([1], load))
    await turns()
    first.add_done_callback(lambda _: late.append(asyncio.create_task(cache.get([1], load))))
    late: list[asyncio.Task[list[list[Run]]]] = []
    first.cancel()
    load.gate.set()
    await turns()
    assert await late[0] == [[run_of(1)]]


async def test_failure_that_nobody_waits_for_any_more_is_no_news() -> None:
    cache, load = RowGroupCache[int](max_bytes=100), Loader(is_open=False)
    load.error = Missing("gone")
    reader = asyncio.create_task(cache.get([1], load))
    await turns()
    load.gate.set()
    reader.cancel()
    await turns()
    assert not cache.is_known(1)


async def test_close_ends_loads_and_tells_those_who_wait() -> None:
    cache, load = RowGroupCache[int](max_bytes=100), Loader(is_open=False)
    reader = asyncio.create_task(cache.get([1], load))
    await turns()
    cache.close()
    with pytest.raises(Retryable):
        await reader


def test_bounded_cache_replaces_and_drops() -> None:
    cache = BoundedCache[str, int](max_bytes=10)
    cache.put("a", 1, 6)
    cache.put("a", 2, 4)
    assert (cache.get("a"), cache.held_bytes) == (2, 4)
    cache.put("a", 3, 11)
    assert (cache.get("a"), cache.held_bytes) == (None, 0)
    cache.drop("a")
