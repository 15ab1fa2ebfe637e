"""One node, one place: who gets it, who waits, who is refused."""

import asyncio

import pytest

from headrace.cluster.membership import Membership
from headrace.cluster.registration import MAX_WAIT_TIMEOUTS
from headrace.errors import Fenced, Invalid, Retryable
from headrace.metadata.port import SessionState
from headrace.model.ids import SessionId
from tests.unit.cluster.stage import TIMEOUT_MS, Stage, place

TIMEOUT_S = TIMEOUT_MS / 1000


async def crash(membership: Membership) -> None:
    """End a broker as kill -9 would: its session and its key are left behind."""
    await membership.abandon()


async def test_a_broker_stands_under_its_node_id(stage: Stage) -> None:
    joined = await stage.join(place(7, rack="eu-1a", lock="file"))
    found = await stage.registered(7)
    assert found is not None and found == joined.record and found.session == joined.session
    assert (found.node_id, found.host, found.port, found.rack, found.lock) == (
        7,
        "broker.example",
        9092,
        "eu-1a",
        "file",
    )
    assert found.started_at_ms == stage.clock.now_ms()


async def test_a_proven_dead_predecessor_makes_room_at_once(stage: Stage) -> None:
    old = await stage.join(place(lock="same file"))
    await crash(old)
    new = await stage.join(place(lock="same file", port=9093))
    assert stage.clock.monotonic() == 0, "nobody waited"
    assert await stage.registered() == new.record
    assert [state.id for state in await stage.store.sessions()] == [new.session]
    with pytest.raises(Fenced):
        await stage.store.renew_session(old.session)


@pytest.mark.parametrize(("old_lock", "new_lock"), [(None, None), ("one", "other"), (None, "some"), ("some", None)])
async def test_without_proof_a_dead_predecessor_is_waited_for_and_the_log_says_why(
    stage: Stage, old_lock: str | None, new_lock: str | None
) -> None:
    await crash(await stage.join(place(lock=old_lock)))
    new, waited_s = await stage.until(stage.join(place(lock=new_lock)))
    assert isinstance(new, Membership)
    assert TIMEOUT_S <= waited_s <= 2 * TIMEOUT_S
    assert await stage.registered() == new.record
    (line,) = stage.events()
    assert "waiting until its session times out" in str(line["event"])
    assert line["node"] == 1 and line["holder"] == "broker.example:9092" and line["timeout_ms"] == TIMEOUT_MS


async def test_a_node_id_that_lives_elsewhere_is_refused_and_left_alone(stage: Stage) -> None:
    living = await stage.join(place(port=1234))
    refusal, _ = await stage.until(stage.join(place()))
    assert isinstance(refusal, Invalid)
    assert "node id 1 is alive at broker.example:1234: give this broker another --node-id" in str(refusal)
    assert living.is_surely_alive() and await stage.registered() == living.record
    assert [state.id for state in await stage.store.sessions()] == [living.session], "the refused one left nothing"


async def test_one_renewal_that_was_still_on_its_way_is_no_sign_of_life(stage: Stage) -> None:
    old = await stage.join(place())
    await crash(old)
    joining = asyncio.ensure_future(stage.join(place()))
    await stage.clock.advance(1.0)
    await stage.store.renew_session(old.session)
    new, _ = await stage.until(joining)
    assert isinstance(new, Membership)


async def test_a_predecessor_that_leaves_makes_room_before_its_timeout(stage: Stage) -> None:
    old = await stage.join(place(), timeout_ms=60_000)
    joining = asyncio.ensure_future(stage.join(place(), timeout_ms=60_000))
    await stage.clock.advance(1.0)
    assert not joining.done()
    await old.leave()
    new, waited_s = await stage.until(joining)
    assert isinstance(new, Membership) and waited_s < 10


async def test_a_session_that_nobody_can_end_is_not_waited_for_for_ever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crash(await stage.join(place()))

    async def refuse(seen: SessionState) -> bool:
        return False

    monkeypatch.setattr(stage.store, "expire_session", refuse)
    refusal, waited_s = await stage.until(stage.join(place()))
    assert isinstance(refusal, Retryable) and "neither renewed nor ended within 9000 ms" in str(refusal)
    assert waited_s <= (MAX_WAIT_TIMEOUTS + 1) * TIMEOUT_S


async def test_two_brokers_that_race_for_a_node_id_do_not_both_get_it(stage: Stage) -> None:
    racing = asyncio.gather(*(stage.join(place(port=port)) for port in (1, 2)), return_exceptions=True)
    ended, _ = await stage.until(racing)
    assert isinstance(ended, list)
    assert sorted(type(one).__name__ for one in ended) == ["Invalid", "Membership"]


async def test_a_waiting_broker_whose_own_session_ends_is_fenced(stage: Stage) -> None:
    await crash(await stage.join(place()))
    joining = asyncio.ensure_future(stage.join(place(port=2)))
    await stage.clock.advance(1.0)
    (own,) = [state.id for state in await stage.store.sessions() if state.id != await _holder(stage)]
    await stage.store.end_session(own)
    ended, _ = await stage.until(joining)
    assert isinstance(ended, Fenced)


async def _holder(stage: Stage) -> SessionId:
    record = await stage.registered()
    assert record is not None
    return record.session
