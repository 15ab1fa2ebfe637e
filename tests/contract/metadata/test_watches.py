"""Watches: a signal after every change, in this process and across handles, and at no other price than re-reading."""

import asyncio

import pytest

from headrace.metadata import keys
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Watch
from tests.contract.metadata.rules import COUNTER, DOMAIN, increment, put, put_ephemeral, value

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


async def test_many_units_that_change_at_once_are_all_heard_of(store: MetadataStore, other: MetadataStore) -> None:
    """Signals may be gathered on their way, but none is left out for it."""
    groups, rounds = 30, 10
    last = str(rounds).encode()
    names = [DOMAIN.group(f"g{number}").head for number in range(groups)]
    watches = [store.watch(keys.unit_of(name)) for name in names]

    async def follow(watch: Watch, name: Key) -> None:
        while await value(store, name) != last:
            await watch.wait()

    async def write(name: Key) -> None:
        for _ in range(rounds):
            await increment(other, name)

    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(map(follow, watches, names)), *map(write, names))
    for watch in watches:
        watch.close()


async def test_the_end_of_a_session_signals_the_units_of_its_keys(store: MetadataStore, other: MetadataStore) -> None:
    name = Key(DOMAIN.unit + "ephemeral")
    for is_expired in (False, True):
        session = await other.open_session(timeout_ms=1000)
        await put_ephemeral(other, session, name)
        watch = store.watch(DOMAIN.unit)
        await quiet(watch)
        if is_expired:
            assert await other.expire_session(next(seen for seen in await other.sessions() if seen.id == session))
        else:
            await other.end_session(session)
        async with asyncio.timeout(LIMIT_S):
            while await value(store, name) is not None:
                await watch.wait()
        watch.close()


async def test_renewals_signal_those_who_watch_sessions(store: MetadataStore, other: MetadataStore) -> None:
    session = await other.open_session(timeout_ms=60_000)
    watch = store.watch(keys.SESSIONS)
    await quiet(watch)
    before = await store.get(keys.session(session))
    await other.renew_session(session)
    async with asyncio.timeout(LIMIT_S):
        while await store.get(keys.session(session)) == before:
            await watch.wait()
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
