"""Groups on one broker and on two: taken on first use, moved when their broker goes, never served by two."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.errors import OutcomeUnknown, Retryable
from headrace.groups.problems import GroupRefused
from headrace.groups.protocol import Beat, BeatReply, CommitClaim, GroupDescription
from headrace.metadata.leases import LEASE_CODEC
from headrace.model.error_codes import ErrorCode
from headrace.testing.clock import ManualClock
from tests.unit.groups.office import (
    IDLE_S,
    KEYS,
    NOBODY,
    SESSION_MS,
    TOPIC,
    FlakyMetadata,
    Office,
    join,
    joined,
    offset,
    open_office,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> FlakyMetadata:
    return FlakyMetadata()


@pytest.fixture
async def office(store: FlakyMetadata, clock: ManualClock) -> AsyncIterator[Office]:
    opened = await open_office(store, clock)
    yield opened
    await opened.close()


@pytest.fixture
async def other(store: FlakyMetadata, clock: ManualClock, office: Office) -> AsyncIterator[Office]:
    opened = await open_office(store, clock, 2)
    await office.cluster.refresh()
    yield opened
    await opened.close()


async def refusal_of(work: object) -> ErrorCode:
    with pytest.raises(GroupRefused) as caught:
        await work  # type: ignore[misc]
    return caught.value.code


def beat(member_id: str, generation: int) -> Beat:
    return Beat(member_id=member_id, instance_id=None, generation=generation)


async def test_a_member_joins_and_its_group_outlives_the_coordinator(
    store: FlakyMetadata, clock: ManualClock, office: Office, other: Office
) -> None:
    reply = await joined(office, "orders")
    assert await other.coordinator.find("orders", is_group=True) == other.cluster.broker(1)
    await office.membership.leave()
    assert await refusal_of(office.coordinator.call("orders", beat(reply.member_id, 1))) is ErrorCode.NOT_COORDINATOR
    assert await other.coordinator.find("orders", is_group=True) == other.cluster.broker(2)
    told = await other.coordinator.call("orders", beat(reply.member_id, reply.generation))
    assert told == BeatReply(), "the member goes on with its generation"
    described = await other.coordinator.describe("orders")
    assert isinstance(described, GroupDescription) and described.classic_members[0].assignment == b"all"


async def test_only_the_holder_of_the_lease_answers(office: Office, other: Office) -> None:
    reply = await joined(office, "orders")
    event = beat(reply.member_id, reply.generation)
    assert await refusal_of(other.coordinator.call("orders", event)) is ErrorCode.NOT_COORDINATOR
    assert await refusal_of(other.coordinator.commit("orders", NOBODY, {(TOPIC, 0): offset(1)})) is (
        ErrorCode.NOT_COORDINATOR
    )
    assert await office.coordinator.call("orders", event) == BeatReply()


async def test_a_paused_process_answers_nothing_when_its_session_may_be_gone(
    clock: ManualClock, store: FlakyMetadata, office: Office
) -> None:
    reply = await joined(office, "orders")
    store.hold = asyncio.Event()  # renewals need the store, too
    clock._monotonic += SESSION_MS / 1000  # all timers are late: the process was stopped
    event = beat(reply.member_id, reply.generation)
    assert await refusal_of(office.coordinator.call("orders", event)) is ErrorCode.NOT_COORDINATOR
    store.hold.set()


async def test_a_write_whose_outcome_is_unknown_makes_the_group_load_anew_under_a_higher_epoch(
    store: FlakyMetadata, office: Office
) -> None:
    reply = await joined(office, "orders")
    claim = CommitClaim(member_id=reply.member_id, instance_id=None, epoch=reply.generation, knows_epochs=True)
    store.after = OutcomeUnknown("the connection broke")
    first = await refusal_of(office.coordinator.commit("orders", claim, {(TOPIC, 0): offset(5)}))
    assert first is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    store.after = None
    assert await office.coordinator.commit("orders", claim, {(TOPIC, 0): offset(6)}) is ErrorCode.NONE
    row = await store.get(KEYS.group("orders").lease)
    assert row is not None and LEASE_CODEC.decode(row.value, row.key).epoch == 2
    assert (await office.coordinator.fetch("orders", None, None))[TOPIC, 0].offset == 6


async def test_a_write_that_surely_failed_is_tried_again(
    store: FlakyMetadata, clock: ManualClock, office: Office
) -> None:
    reply = await joined(office, "orders")
    claim = CommitClaim(member_id=reply.member_id, instance_id=None, epoch=reply.generation, knows_epochs=True)
    store.before = Retryable("locked")
    commit = asyncio.create_task(office.coordinator.commit("orders", claim, {(TOPIC, 0): offset(5)}))
    await clock.advance(0.3)
    assert not commit.done(), "nothing is acknowledged that is not durable"
    store.before = None
    await clock.advance(1.0)
    assert await commit is ErrorCode.NONE


async def test_commits_that_wait_go_together_and_in_order(store: FlakyMetadata, office: Office) -> None:
    assert await office.coordinator.commit("simple", NOBODY, {(TOPIC, 0): offset(1)}) is ErrorCode.NONE
    before = store.transactions
    codes = await asyncio.gather(
        *(office.coordinator.commit("simple", NOBODY, {(TOPIC, 0): offset(value)}) for value in range(2, 50))
    )
    assert set(codes) == {ErrorCode.NONE}
    assert store.transactions - before <= 3
    assert (await office.coordinator.fetch("simple", None, [(TOPIC, 0), (TOPIC, 1)])) == {(TOPIC, 0): offset(49)}


async def test_offsets_of_a_group_that_does_not_exist_are_absent_and_leave_nothing(
    store: FlakyMetadata, office: Office
) -> None:
    assert await office.coordinator.fetch("nobody", None, None) == {}
    assert await office.coordinator.describe("nobody") is None
    assert await office.coordinator.delete("nobody") is ErrorCode.GROUP_ID_NOT_FOUND
    assert await store.get(KEYS.group("nobody").lease) is None
    member = CommitClaim(member_id="m", instance_id=None, epoch=3, knows_epochs=True)
    assert await office.coordinator.fetch("nobody", member, None) == {}
    assert await office.coordinator.commit("nobody", member, {(TOPIC, 0): offset(1)}) is ErrorCode.GROUP_ID_NOT_FOUND
    old = CommitClaim(member_id="m", instance_id=None, epoch=3, knows_epochs=False)
    assert await office.coordinator.commit("nobody", old, {(TOPIC, 0): offset(1)}) is ErrorCode.ILLEGAL_GENERATION


async def test_a_group_with_members_is_not_deleted_and_an_empty_one_goes_with_its_offsets(
    clock: ManualClock, store: FlakyMetadata, office: Office
) -> None:
    await joined(office, "busy")
    assert await office.coordinator.delete("busy") is ErrorCode.NON_EMPTY_GROUP
    await office.coordinator.commit("old", NOBODY, {(TOPIC, part): offset(1) for part in range(1200)})
    assert await office.coordinator.delete("old") is ErrorCode.NONE
    assert await office.coordinator.fetch("old", None, None) == {}
    assert [line.group_id for line in await office.coordinator.listed()] == ["busy"]
    assert await office.coordinator.commit("old", NOBODY, {(TOPIC, 0): offset(7)}) is ErrorCode.NONE
    assert await office.coordinator.fetch("old", None, None) == {(TOPIC, 0): offset(7)}


async def test_each_group_is_listed_by_one_broker(clock: ManualClock, office: Office, other: Office) -> None:
    for number in range(10):
        await office.coordinator.commit(f"group {number}", NOBODY, {(TOPIC, 0): offset(1)})
    assert len(await office.coordinator.listed()) == 10
    assert await other.coordinator.listed() == []
    await clock.advance(IDLE_S + 1)
    await office.seats.tick()
    assert len(office.seats) == 0, "groups that nobody uses take no memory"
    mine = {line.group_id for line in await office.coordinator.listed()}
    theirs = {line.group_id for line in await other.coordinator.listed()}
    assert not mine & theirs and len(mine | theirs) == 10 and mine and theirs


async def test_draining_sends_members_elsewhere_at_once(office: Office, other: Office) -> None:
    reply = await joined(office, "orders")
    waiting = asyncio.create_task(office.coordinator.call("orders", join()))
    await asyncio.sleep(0)
    await office.seats.drain()
    assert await refusal_of(waiting) is ErrorCode.NOT_COORDINATOR
    told = await other.coordinator.call("orders", beat(reply.member_id, reply.generation))
    assert told == BeatReply(), "the lease was given back: nobody waits for the session to end"


async def test_a_broker_takes_no_more_groups_than_it_may(store: FlakyMetadata, clock: ManualClock) -> None:
    small = await open_office(store, clock, max_groups=2)
    for name in ("a", "b"):
        await small.coordinator.commit(name, NOBODY, {(TOPIC, 0): offset(1)})
    refused = await refusal_of(small.coordinator.commit("c", NOBODY, {(TOPIC, 0): offset(1)}))
    assert refused is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await small.close()


async def test_offsets_of_topics_that_are_read_are_not_deleted(office: Office) -> None:
    await office.coordinator.commit("simple", NOBODY, {(TOPIC, 0): offset(1), (TOPIC, 1): offset(2)})
    outcomes = await office.coordinator.delete_offsets("simple", [(TOPIC, 0)])
    assert outcomes == {(TOPIC, 0): ErrorCode.NONE}
    assert await office.coordinator.fetch("simple", None, None) == {(TOPIC, 1): offset(2)}
    assert await refusal_of(office.coordinator.delete_offsets("none", [(TOPIC, 0)])) is ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_mistake_in_a_machine_ends_its_group_alone(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = await joined(office, "orders")
    other = await joined(office, "other")
    seat = await office.seats.take("orders")

    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(seat.machine, "handle", fail)
    event = beat(reply.member_id, reply.generation)
    assert await refusal_of(office.coordinator.call("orders", event)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await office.coordinator.call("orders", event) == BeatReply(), "it was loaded anew"
    assert await office.coordinator.call("other", beat(other.member_id, other.generation)) == BeatReply()


async def test_silent_members_are_put_out_by_the_alarm(clock: ManualClock, office: Office) -> None:
    await joined(office, "orders")
    assert office.seats.member_count == 1
    await clock.advance(10.5)
    assert office.seats.member_count == 0
    described = await office.coordinator.describe("orders")
    assert described is not None and described.state == "Empty"
