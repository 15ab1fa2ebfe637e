"""Renewals on a connection of their own: what they do not wait for, and what they still find."""

import asyncio
import threading

import pytest

from headrace.errors import Fenced, HeadraceError
from headrace.metadata.port import Decision, MetadataStore, Reads, Seen
from headrace.metadata.sessions import SessionKeeper
from headrace.runtime.clock import SystemClock
from tests.contract.metadata.engines import SHARED
from tests.contract.metadata.rules import DOMAIN
from tests.contract.metadata.test_sessions import state_of
from tests.contract.metadata.test_watches import LIMIT_S

TIMEOUT_MS = 3_000

PATIENT_TIMEOUT_MS = 9_000
"""A third of it passes before the first renewal; the rest is for a machine that is busy."""

pytestmark = pytest.mark.parametrize("engine", SHARED, indirect=True)


async def test_renewals_do_what_the_store_does(store: MetadataStore, other: MetadataStore) -> None:
    session = await store.open_session(timeout_ms=TIMEOUT_MS)
    renewals = store.renewals(timeout_ms=TIMEOUT_MS)
    assert renewals is not None
    before = await state_of(other, session)
    await renewals.renew(session)
    after = await state_of(other, session)
    assert after.version > before.version and after.timeout_ms == before.timeout_ms
    assert await other.expire_session(before) is False
    await other.end_session(session)
    with pytest.raises(Fenced, match=session):
        await renewals.renew(session)
    await renewals.close()


async def test_a_closed_store_renews_nothing(store: MetadataStore) -> None:
    session = await store.open_session(timeout_ms=TIMEOUT_MS)
    renewals = store.renewals(timeout_ms=TIMEOUT_MS)
    assert renewals is not None
    await renewals.renew(session)
    await store.close()
    with pytest.raises(HeadraceError):
        await renewals.renew(session)
    await renewals.close()


async def test_a_stalled_event_loop_does_not_stop_renewals(store: MetadataStore, other: MetadataStore) -> None:
    keeper = await SessionKeeper.open(store, SystemClock(), timeout_ms=PATIENT_TIMEOUT_MS)
    await asyncio.sleep(0)  # The keeper's task begins, and with it the thread.
    first = keeper.deadline
    never = threading.Event()
    # This blocks the loop's thread until the deadline has moved, which only another thread can do.
    while keeper.deadline == first and SystemClock().monotonic() < first:
        never.wait(0.01)
    assert keeper.deadline > first
    assert keeper.is_surely_alive()
    await keeper.close()


async def test_a_keeper_finds_out_that_others_have_ended_its_session(
    store: MetadataStore, other: MetadataStore
) -> None:
    keeper = await SessionKeeper.open(store, SystemClock(), timeout_ms=TIMEOUT_MS)
    await other.end_session(keeper.session)
    async with asyncio.timeout(LIMIT_S):
        await keeper.lost.wait()
    assert not keeper.is_surely_alive()
    await keeper.abandon()


async def test_a_session_that_ended_fences_transactions_that_wait(store: MetadataStore, other: MetadataStore) -> None:
    """Renewal, end and transactions at once: whatever commits in the session does so before its end."""
    for _ in range(5):
        session = await store.open_session(timeout_ms=TIMEOUT_MS)
        renewals = store.renewals(timeout_ms=TIMEOUT_MS)
        assert renewals is not None

        def decide(seen: Seen) -> Decision[None]:
            return Decision(result=None, puts={})

        calls = [store.transact([DOMAIN.unit], Reads(), decide, session=session) for _ in range(4)]
        outcomes = await asyncio.gather(
            *calls, renewals.renew(session), other.end_session(session), return_exceptions=True
        )
        assert not [one for one in outcomes if isinstance(one, BaseException) and not isinstance(one, Fenced)]
        with pytest.raises(Fenced):
            await renewals.renew(session)
        with pytest.raises(Fenced):
            await store.transact([DOMAIN.unit], Reads(), decide, session=session)
        await renewals.close()
