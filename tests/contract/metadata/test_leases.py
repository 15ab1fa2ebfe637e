"""Leases on every engine: one holder at a time, and a holder that was paused cannot act."""

import asyncio

import pytest

from headrace.errors import Corrupt, Fenced
from headrace.metadata import keys
from headrace.metadata.leases import Lease, LeaseHeld, release, require, take
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen
from tests.contract.metadata.rules import DOMAIN, value

LEASE = keys.lease("collector")
WORK = Key(DOMAIN.unit + "work")


async def act(store: MetadataStore, lease: Lease) -> None:
    """Do what only the holder may do."""

    def decide(seen: Seen) -> Decision[None]:
        require(seen, lease)
        return Decision(result=None, puts={WORK: str(lease.epoch).encode()})

    units = sorted([DOMAIN.unit, keys.unit_of(lease.key)])
    await store.transact(units, Reads(keys=[lease.key]), decide, session=lease.session)


async def test_a_free_lease_is_taken_and_lets_its_holder_act(store: MetadataStore) -> None:
    session = await store.open_session(timeout_ms=1000)
    lease = await take(store, LEASE, session)
    assert lease.epoch == 1
    assert await take(store, LEASE, session) == lease, "taking it again changes nothing"
    await act(store, lease)
    assert await value(store, WORK) == b"1"


async def test_a_lease_that_is_taken_anew_shuts_out_what_was_sent_before(store: MetadataStore) -> None:
    session = await store.open_session(timeout_ms=1000)
    old = await take(store, LEASE, session, anew=True)
    new = await take(store, LEASE, session, anew=True)
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises(Fenced):
        await act(store, old)
    await act(store, new)
    assert await value(store, WORK) == b"2"


async def test_a_lease_that_is_held_is_refused_and_its_holder_named(
    store: MetadataStore, other: MetadataStore
) -> None:
    holder, late = await store.open_session(timeout_ms=1000), await other.open_session(timeout_ms=1000)
    await take(store, LEASE, holder)
    with pytest.raises(LeaseHeld, match=holder) as caught:
        await take(other, LEASE, late)
    assert (caught.value.holder, caught.value.epoch) == (holder, 1)


async def test_the_lease_of_an_ended_session_is_taken_over_with_the_next_epoch(
    store: MetadataStore, other: MetadataStore
) -> None:
    first, second = await store.open_session(timeout_ms=1000), await other.open_session(timeout_ms=1000)
    old = await take(store, LEASE, first)
    await other.end_session(first)
    new = await take(other, LEASE, second)
    assert (old.epoch, new.epoch) == (1, 2)
    await act(other, new)
    with pytest.raises(Fenced):
        await act(store, old)
    assert await value(store, WORK) == b"2"


async def test_a_paused_holder_is_fenced_by_its_session_before_anybody_takes_over(
    store: MetadataStore, other: MetadataStore
) -> None:
    session = await store.open_session(timeout_ms=1000)
    lease = await take(store, LEASE, session)
    await other.end_session(session)
    with pytest.raises(Fenced, match=session):
        await act(store, lease)


async def test_a_released_lease_is_free_and_keeps_its_epoch(store: MetadataStore) -> None:
    first, second = await store.open_session(timeout_ms=1000), await store.open_session(timeout_ms=1000)
    old = await take(store, LEASE, first)
    await release(store, old)
    with pytest.raises(Fenced):
        await act(store, old)
    new = await take(store, LEASE, second)
    assert new.epoch == 2
    await release(store, old)  # too late, and no harm done
    await act(store, new)


async def test_a_dead_session_cannot_take_a_lease(store: MetadataStore) -> None:
    session = await store.open_session(timeout_ms=1000)
    await store.end_session(session)
    with pytest.raises(Fenced):
        await take(store, LEASE, session)


async def test_of_many_that_race_for_a_lease_one_gets_it(store: MetadataStore, other: MetadataStore) -> None:
    sessions = [await store.open_session(timeout_ms=1000) for _ in range(6)]
    dead = await store.open_session(timeout_ms=1000)
    await take(store, LEASE, dead)
    await store.end_session(dead)
    outcomes = await asyncio.gather(
        *(take(one, LEASE, session) for one, session in zip((store, other) * 3, sessions, strict=True)),
        return_exceptions=True,
    )
    taken = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
    assert [lease.epoch for lease in taken] == [2]
    assert all(isinstance(outcome, Lease | LeaseHeld) for outcome in outcomes), outcomes


async def test_a_damaged_lease_is_not_taken_for_a_free_one(store: MetadataStore) -> None:
    session = await store.open_session(timeout_ms=1000)
    bad = b"\x01 this is no lease"
    await store.transact([keys.unit_of(LEASE)], Reads(), lambda _: Decision(result=None, puts={LEASE: bad}))
    with pytest.raises(Corrupt, match="collector"):
        await take(store, LEASE, session)
    with pytest.raises(Corrupt, match="collector"):
        await act(store, Lease(key=LEASE, session=session, epoch=1))
    assert await value(store, LEASE) == bad, "nothing is deleted, nothing is guessed"
