"""Sessions, and the ephemeral keys that live and die with them."""

import asyncio

import pytest

from headrace.errors import Fenced, Invalid
from headrace.metadata import keys
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen, SessionState
from headrace.model.ids import SessionId
from tests.contract.metadata.rules import DOMAIN, OTHER_DOMAIN, put, put_ephemeral, value
from tests.contract.metadata.test_watches import LIMIT_S, quiet, wait

HERE, THERE = Key(DOMAIN.unit + "here"), Key(OTHER_DOMAIN.unit + "there")
GROUP_KEY = Key(DOMAIN.unit + "groups/=g/members/=m")


async def state_of(store: MetadataStore, session: SessionId) -> SessionState:
    [found] = [state for state in await store.sessions() if state.id == session]
    return found


async def test_living_sessions_are_listed(store: MetadataStore, other: MetadataStore) -> None:
    assert await store.sessions() == []
    opened = {await store.open_session(timeout_ms=1000), await other.open_session(timeout_ms=2000)}
    found = await store.sessions()
    assert {state.id for state in found} == opened
    assert {state.timeout_ms for state in found} == {1000, 2000}
    assert await other.sessions() == found


async def test_a_renewal_changes_the_version_only(store: MetadataStore) -> None:
    session = await store.open_session(timeout_ms=1000)
    before = await state_of(store, session)
    await store.renew_session(session)
    after = await state_of(store, session)
    assert after.version > before.version
    assert (after.id, after.timeout_ms) == (before.id, before.timeout_ms)


async def test_a_session_that_has_ended_cannot_be_renewed(store: MetadataStore, other: MetadataStore) -> None:
    session = await store.open_session(timeout_ms=1000)
    await other.end_session(session)
    await other.end_session(session)
    with pytest.raises(Fenced, match=session):
        await store.renew_session(session)
    with pytest.raises(Fenced):
        await store.renew_session(SessionId("never-opened"))
    assert await store.sessions() == []


@pytest.mark.parametrize("timeout_ms", [-1, 0, 10**9])
async def test_a_timeout_that_nobody_can_keep_is_refused(store: MetadataStore, timeout_ms: int) -> None:
    with pytest.raises(Invalid):
        await store.open_session(timeout_ms=timeout_ms)


async def test_ending_a_session_deletes_its_ephemeral_keys_in_every_unit(
    store: MetadataStore, other: MetadataStore
) -> None:
    session, neighbour = await store.open_session(timeout_ms=1000), await store.open_session(timeout_ms=1000)
    theirs = Key(DOMAIN.unit + "theirs")
    await put_ephemeral(store, session, HERE, THERE, GROUP_KEY)
    await put_ephemeral(store, neighbour, theirs)
    await put(store, plain=b"stays")
    assert await value(other, HERE) == b"here"
    await other.end_session(session)
    assert [await value(store, key) for key in (HERE, THERE, GROUP_KEY)] == [None, None, None]
    assert await value(store, theirs) == b"here"
    assert await value(store, Key(DOMAIN.unit + "plain")) == b"stays"


async def test_a_plain_put_makes_an_ephemeral_key_permanent_and_the_other_way_round(store: MetadataStore) -> None:
    session = await store.open_session(timeout_ms=1000)
    await put_ephemeral(store, session, HERE)
    await put(store, here=b"permanent", there=b"permanent")
    became_ephemeral = Key(DOMAIN.unit + "there")
    await put_ephemeral(store, session, became_ephemeral)
    await store.end_session(session)
    assert await value(store, HERE) == b"permanent"
    assert await value(store, became_ephemeral) is None


async def test_an_ephemeral_key_that_was_deleted_and_put_anew_belongs_to_the_new_session(
    store: MetadataStore,
) -> None:
    first, second = await store.open_session(timeout_ms=1000), await store.open_session(timeout_ms=1000)
    await put_ephemeral(store, first, HERE)
    await put_ephemeral(store, second, HERE)
    await store.end_session(first)
    assert await value(store, HERE) == b"here"
    await store.end_session(second)
    assert await value(store, HERE) is None


async def test_a_session_expires_only_if_it_was_not_renewed_since_it_was_seen(
    store: MetadataStore, other: MetadataStore
) -> None:
    session = await store.open_session(timeout_ms=1000)
    await put_ephemeral(store, session, HERE)
    old = await state_of(other, session)
    await store.renew_session(session)
    assert await other.expire_session(old) is False
    assert await value(store, HERE) == b"here"
    assert await other.expire_session(await state_of(other, session)) is True
    assert await value(store, HERE) is None
    assert await other.expire_session(old) is False
    with pytest.raises(Fenced):
        await store.renew_session(session)


async def test_only_one_of_many_reapers_ends_a_session(store: MetadataStore, other: MetadataStore) -> None:
    session = await store.open_session(timeout_ms=1000)
    await put_ephemeral(store, session, HERE, THERE)
    seen = await state_of(store, session)
    ended = await asyncio.gather(*(one.expire_session(seen) for one in (store, other) * 3))
    assert ended.count(True) == 1


async def test_a_transaction_in_a_dead_session_is_fenced(store: MetadataStore, other: MetadataStore) -> None:
    """A paused holder cannot act: it finds its session gone in the very transaction with which it would."""
    session = await store.open_session(timeout_ms=1000)
    await put_ephemeral(store, session, HERE)
    await other.end_session(session)
    calls = 0

    def decide(seen: Seen) -> Decision[None]:
        nonlocal calls
        calls += 1
        return Decision(result=None, puts={HERE: b"zombie"})

    with pytest.raises(Fenced, match=session):
        await store.transact([DOMAIN.unit], Reads(), decide, session=session)
    assert calls == 0
    assert await value(store, HERE) is None


async def test_a_living_session_is_not_in_the_way(store: MetadataStore) -> None:
    session = await store.open_session(timeout_ms=1000)
    reads = Reads(keys=[HERE], ranges=[keys.prefix_range(DOMAIN.log_prefix, limit=5)])
    committed = await store.transact(
        [DOMAIN.unit], reads, lambda seen: Decision(result=dict(seen.values), puts={HERE: b"1"}), session=session
    )
    assert committed.result == {}, "the session's own record is not among what was asked for"
    assert await value(store, HERE) == b"1"


async def test_no_ephemeral_key_outlives_its_session_in_a_race(store: MetadataStore, other: MetadataStore) -> None:
    for number in range(10):
        session = await store.open_session(timeout_ms=1000)
        own = [Key(f"{unit}race/{number}") for unit in (DOMAIN.unit, OTHER_DOMAIN.unit)]
        outcomes = await asyncio.gather(
            *(put_ephemeral(store, session, key) for key in own), other.end_session(session), return_exceptions=True
        )
        assert all(outcome is None or isinstance(outcome, Fenced) for outcome in outcomes), outcomes
        assert [await value(store, key) for key in own] == [None, None]


async def test_sessions_and_ephemeral_keys_signal_watches(store: MetadataStore, other: MetadataStore) -> None:
    sessions, domain = store.watch(keys.SESSIONS), store.watch(DOMAIN.unit)
    await quiet(sessions)
    session = await other.open_session(timeout_ms=1000)
    await wait(sessions)
    await quiet(sessions)
    await other.renew_session(session)
    await wait(sessions)
    await put_ephemeral(other, session, HERE)
    await quiet(sessions)
    await quiet(domain)
    await other.end_session(session)
    await wait(sessions)
    await wait(domain)
    async with asyncio.timeout(LIMIT_S):
        while await value(store, HERE) is not None:
            await domain.wait()
    sessions.close()
    domain.close()


async def test_a_transaction_may_read_the_record_of_a_session(store: MetadataStore) -> None:
    """Leases judge whether their holder is alive by it."""
    session = await store.open_session(timeout_ms=1000)
    key = keys.session(session)

    async def is_there() -> bool:
        committed = await store.transact(
            [keys.unit_of(key)], Reads(keys=[key]), lambda seen: Decision(result=seen.get(key) is not None)
        )
        return committed.result

    assert await is_there() is True
    await store.end_session(session)
    assert await is_there() is False
    with pytest.raises(Invalid):
        await store.transact([keys.unit_of(key)], Reads(), lambda _: Decision(result=None, puts={key: b"forged"}))
