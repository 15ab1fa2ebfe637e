"""Joining, draining, leaving and losing a place."""

import asyncio

import pytest

from headrace.errors import OutcomeUnknown, Retryable
from headrace.metadata.port import Key, Versioned
from headrace.model.ids import SessionId
from tests.unit.cluster.stage import TIMEOUT_MS, Stage, place


async def test_a_member_is_present_and_stays_so_while_it_renews(stage: Stage) -> None:
    joined = await stage.join(place())
    await stage.clock.advance(10 * TIMEOUT_MS / 1000)
    assert joined.is_present() and joined.is_surely_alive() and not joined.lost.is_set()
    assert await stage.registered() == joined.record


async def test_draining_gives_up_the_place_first_and_the_session_last(stage: Stage) -> None:
    joined = await stage.join(place())
    await joined.unregister()
    assert await stage.registered() is None
    assert not joined.is_present()
    assert joined.is_surely_alive(), "a flush that is under way still needs the session"
    await joined.leave()
    assert joined.lost.is_set()
    assert await stage.store.sessions() == []


async def test_leaving_alone_does_both(stage: Stage) -> None:
    joined = await stage.join(place())
    await joined.leave()
    assert await stage.registered() is None and await stage.store.sessions() == []
    await joined.leave()


async def test_a_late_unregister_does_not_throw_out_the_successor(stage: Stage) -> None:
    old = await stage.join(place(lock="file"))
    new = await stage.join(place(lock="file"))
    await old.unregister()
    assert await stage.registered() == new.record


async def test_an_ended_session_is_reported_and_a_new_incarnation_takes_the_place_back(stage: Stage) -> None:
    old = await stage.join(place(lock="file"))
    await stage.store.end_session(old.session)
    await stage.clock.advance(TIMEOUT_MS / 1000)
    assert old.lost.is_set() and not old.is_present()
    await old.abandon()
    new = await stage.join(place(lock="file"))
    assert new.is_present() and not old.is_present()
    assert new.session != old.session and new.incarnation != old.incarnation
    assert len(new.incarnation) == 32


async def test_a_lost_incarnation_whose_session_still_stands_is_replaced_at_once(stage: Stage) -> None:
    old = await stage.join(place(lock="file"))
    await old.abandon()
    before = stage.clock.monotonic()
    new = await stage.join(place(lock="file"))
    assert stage.clock.monotonic() == before
    assert await stage.registered() == new.record


@pytest.mark.parametrize("error", [Retryable("down"), OutcomeUnknown("reset")])
async def test_a_join_that_fails_leaves_no_session_behind(
    stage: Stage, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    transact = stage.store.transact

    async def fail(*args: object, **options: object) -> None:
        await transact(*args, **options)  # type: ignore[arg-type]
        raise error

    monkeypatch.setattr(stage.store, "transact", fail)
    with pytest.raises(type(error)):
        await stage.join(place())
    assert await stage.store.sessions() == [] and await stage.registered() is None


async def test_a_join_that_is_cancelled_while_it_waits_leaves_no_session_behind(stage: Stage) -> None:
    living = await stage.join(place())
    joining = asyncio.ensure_future(stage.join(place()))
    await stage.clock.settle()
    assert len(await stage.store.sessions()) == 2
    joining.cancel()
    await asyncio.wait([joining])
    assert joining.cancelled()
    assert [state.id for state in await stage.store.sessions()] == [living.session]


async def test_leaving_while_the_store_is_down_ends_here_and_times_out_there(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = await stage.join(place())

    async def fail(*args: object, **options: object) -> None:
        raise Retryable("down")

    async def fail_to_end(session: SessionId) -> Versioned | Key | None:
        raise OutcomeUnknown("down")

    monkeypatch.setattr(stage.store, "transact", fail)
    monkeypatch.setattr(stage.store, "end_session", fail_to_end)
    await joined.leave()
    assert joined.lost.is_set() and not joined.is_present()
