"""Closing a store, and finding everything again."""

import asyncio

import pytest

from headrace.errors import Unusable
from headrace.metadata.port import Key, MetadataStore, Range
from tests.contract.metadata.engines import SHARED, Engine
from tests.contract.metadata.rules import COUNTER, DOMAIN, increment, put, put_ephemeral, value
from tests.contract.metadata.test_watches import quiet

KEY = Key(DOMAIN.unit + "a")


async def test_a_closed_store_refuses_everything(engine: Engine) -> None:
    store = await engine.open()
    session = await store.open_session(timeout_ms=1000)
    await store.close()
    await store.close()
    for call in (
        lambda: store.get(KEY),
        lambda: store.range(Range(KEY, Key(KEY + "0"))),
        lambda: increment(store),
        lambda: store.open_session(timeout_ms=1000),
        lambda: store.renew_session(session),
        lambda: store.end_session(session),
        store.sessions,
    ):
        with pytest.raises(Unusable):
            await call()


async def test_closing_wakes_those_who_watch(engine: Engine) -> None:
    store = await engine.open()
    watch = store.watch(DOMAIN.unit)
    await quiet(watch)
    waiter = asyncio.ensure_future(watch.wait())
    await asyncio.sleep(0)
    await store.close()
    await asyncio.wait([waiter], timeout=60)
    assert waiter.cancelled()
    with pytest.raises(asyncio.CancelledError):
        await store.watch(DOMAIN.unit).wait()


@pytest.mark.parametrize("engine", SHARED, indirect=True)
async def test_what_was_committed_is_there_after_opening_anew(engine: Engine) -> None:
    store: MetadataStore = await engine.open()
    session = await store.open_session(timeout_ms=1000)
    before = await put(store, a=b"1")
    await put_ephemeral(store, session, Key(DOMAIN.unit + "e"))
    await store.close()
    again = await engine.open()
    assert await value(again, KEY) == b"1"
    assert await value(again, Key(DOMAIN.unit + "e")) == b"here", "closing ends no session"
    assert await put(again, a=b"2") > before, "revisions go on where they were"
    await again.close()


@pytest.mark.parametrize("engine", SHARED, indirect=True)
async def test_closing_finishes_what_is_under_way_and_refuses_the_rest(engine: Engine) -> None:
    """Whoever is refused knows that nothing happened: closing makes no outcome unknown."""
    store = await engine.open()
    callers = [asyncio.ensure_future(increment(store)) for _ in range(30)]
    await asyncio.wait(callers, return_when=asyncio.FIRST_COMPLETED)
    await store.close()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(outcome, int | Unusable) for outcome in outcomes), outcomes
    again = await engine.open()
    done = sum(isinstance(outcome, int) for outcome in outcomes)
    assert await value(again, COUNTER) == str(done).encode()
    await again.close()
