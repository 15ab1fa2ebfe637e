"""Watches: a signal after every change, in this process and across handles, and at no other price than re-reading."""

import asyncio

import pytest

from headrace.metadata import keys
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Watch
from tests.contract.metadata.rules import COUNTER, DOMAIN, increment, put, value

QUIET_S = 0.1
LIMIT_S = 60
"""For waits that take milliseconds: generous, because it only ends a test that has failed."""


async def wait(watch: Watch) -> int:
    async with asyncio.timeout(LIMIT_S):
        return (await watch.wait()).revision


async def wait_until(watch: Watch, store: MetadataStore, key: Key, expected: bytes) -> None:
    """Read only when the watch says so, until the value is there: so without a signal this never ends."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            await watch.wait()
            if await value(store, key) == expected:
                return


async def quiet(watch: Watch) -> None:
    """Take signals until none has come for a while: other handles' news arrive late, and may come twice."""
    while True:
        try:
            async with asyncio.timeout(QUIET_S):
                await watch.wait()
        except TimeoutError:
            return


async def test_the_first_wait_returns_at_once_and_says_read(store: MetadataStore) -> None:
    watch = store.watch(DOMAIN.unit)
    assert await wait(watch) == 0
    watch.close()


async def test_a_change_signals_the_watch(store: MetadataStore) -> None:
    watch = store.watch(DOMAIN.unit)
    await quiet(watch)
    revision = await put(store, a=b"1")
    assert await wait(watch) in (revision, 0), "a signal names the revision, or says that something was lost"
    watch.close()


async def test_a_change_by_another_process_signals_the_watch(store: MetadataStore, other: MetadataStore) -> None:
    watch = store.watch(DOMAIN.unit)
    await quiet(watch)
    for number in range(5):
        await put(other, a=str(number).encode())
        await wait_until(watch, store, Key(DOMAIN.unit + "a"), str(number).encode())
    watch.close()


@pytest.mark.parametrize("prefix", [DOMAIN.unit + "log/", keys.ROOT, DOMAIN.unit, keys.ROOT + "d/"])
async def test_prefixes_below_and_above_the_unit_are_signalled(
    store: MetadataStore, other: MetadataStore, prefix: str
) -> None:
    watch = store.watch(prefix)
    await quiet(watch)
    decision = Decision(result=None, puts={DOMAIN.log(1): b"x"})
    await other.transact([DOMAIN.unit], Reads(), lambda _: decision)
    await wait_until(watch, store, DOMAIN.log(1), b"x")
    watch.close()


async def test_signals_are_coalesced(store: MetadataStore) -> None:
    watch = store.watch(DOMAIN.unit)
    await quiet(watch)
    for number in range(20):
        await put(store, a=str(number).encode())
    signals = 0
    while True:
        try:
            async with asyncio.timeout(QUIET_S):
                await watch.wait()
        except TimeoutError:
            break
        signals += 1
    assert 1 <= signals < 20
    watch.close()


async def test_after_the_last_change_there_is_a_signal(store: MetadataStore, other: MetadataStore) -> None:
    """A reader that only ever reads after a signal ends up with the last state, however it races the writers."""
    total = 60
    watch = store.watch(DOMAIN.unit)

    async def follow() -> None:
        while await value(store, COUNTER) != str(total).encode():
            await watch.wait()

    async def write(handle: MetadataStore) -> None:
        for _ in range(total // 2):
            await increment(handle)

    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(follow(), write(store), write(other))
    watch.close()


async def test_a_cancelled_wait_loses_no_signal(store: MetadataStore) -> None:
    watch = store.watch(DOMAIN.unit)
    await quiet(watch)
    for number in range(10):
        waiter = asyncio.ensure_future(watch.wait())
        await asyncio.sleep(0)
        writer = asyncio.ensure_future(put(store, a=str(number).encode()))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter, writer])
        if waiter.cancelled():
            await wait(watch)
    watch.close()


async def test_watches_are_independent(store: MetadataStore) -> None:
    watches = [store.watch(DOMAIN.unit) for _ in range(3)]
    for watch in watches:
        await quiet(watch)
    watches[0].close()
    await put(store, a=b"1")
    for watch in watches[1:]:
        await wait(watch)
        watch.close()


async def test_closing_a_watch_wakes_its_waiter(store: MetadataStore) -> None:
    watch = store.watch(DOMAIN.unit)
    await quiet(watch)
    waiter = asyncio.ensure_future(watch.wait())
    await asyncio.sleep(0)
    watch.close()
    watch.close()
    await asyncio.wait([waiter], timeout=LIMIT_S)
    assert waiter.cancelled()
    with pytest.raises(asyncio.CancelledError):
        await watch.wait()
