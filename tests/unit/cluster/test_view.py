"""The living brokers, and leaders that every process names alike."""

import asyncio
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster import view as view_module
from headrace.cluster.view import NO_NODE, BrokerInfo, ClusterView, rendezvous
from headrace.errors import Retryable
from headrace.metadata.port import Range, Versioned
from headrace.metadata.sessions import SessionReaper
from headrace.model.ids import StreamId
from tests.unit.cluster.stage import TIMEOUT_MS, Stage, place


@pytest.fixture
def view(stage: Stage) -> ClusterView:
    return ClusterView(stage.store, cluster_id="id", clock=stage.clock)


@pytest.fixture
async def followed(stage: Stage, view: ClusterView) -> AsyncIterator[ClusterView]:
    following = asyncio.ensure_future(view.follow())
    await stage.clock.settle()
    yield view
    following.cancel()
    await asyncio.wait([following])


def nodes(view: ClusterView) -> list[int]:
    return [info.node_id for info in view.brokers]


async def test_brokers_come_and_go_by_watch(stage: Stage, followed: ClusterView) -> None:
    assert nodes(followed) == [] and followed.controller_id == NO_NODE and followed.cluster_id == "id"
    assert followed.leader_of(StreamId(1)) == NO_NODE
    ten, two = await stage.join(place(10)), await stage.join(place(2, port=1, rack="eu"))
    await stage.clock.settle()
    assert followed.brokers == (
        BrokerInfo(node_id=2, host="broker.example", port=1, rack="eu", session=two.session),
        BrokerInfo(node_id=10, host="broker.example", port=9092, rack=None, session=ten.session),
    )
    assert followed.broker(2) == followed.broker_of_session(two.session) == followed.brokers[0]
    assert followed.controller_id == 2
    await two.leave()
    await stage.clock.settle()
    assert nodes(followed) == [10] and followed.controller_id == 10
    assert followed.leader_of(StreamId(1)) == 10
    await ten.unregister()
    await stage.clock.settle()
    assert nodes(followed) == []


async def test_a_broker_that_knows_of_nobody_names_itself(view: ClusterView) -> None:
    view.introduce(node_id=7, host="broker.example", port=9, rack=None)
    assert nodes(view) == [7] and view.controller_id == 7
    assert view.leader_of(StreamId(1)) == 7
    found = view.coordinator_of("group")
    assert found is not None and found.node_id == 7


async def test_every_view_names_the_same_coordinator_and_names_are_spread(stage: Stage, view: ClusterView) -> None:
    assert view.coordinator_of("group") is None
    for number in (1, 2, 3):
        await stage.join(place(number))
    await view.refresh()
    found = [view.coordinator_of(f"group {number}") for number in range(60)]
    assert {broker.node_id for broker in found if broker is not None} == {1, 2, 3}


async def test_a_refresh_sees_what_was_there_when_it_was_called(stage: Stage, view: ClusterView) -> None:
    earlier = asyncio.ensure_future(view.refresh())
    await asyncio.sleep(0)
    await stage.join(place(1))
    await asyncio.gather(*(view.refresh() for _ in range(5)))
    assert nodes(view) == [1]
    await earlier


async def test_concurrent_refreshes_share_a_read(
    stage: Stage, view: ClusterView, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = 0, stage.store.range

    async def counted(range_: Range) -> list[Versioned]:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0)
        return await read(range_)

    monkeypatch.setattr(stage.store, "range", counted)
    await asyncio.gather(*(view.refresh() for _ in range(20)))
    assert reads == 1


async def test_a_slow_read_never_covers_a_newer_one(
    stage: Stage, view: ClusterView, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, arrive, reads = stage.store.range, asyncio.Event(), 0

    async def first_is_slow(range_: Range) -> list[Versioned]:
        nonlocal reads
        reads += 1
        found, is_first = await read(range_), reads == 1
        if is_first:
            await arrive.wait()
        return found

    monkeypatch.setattr(stage.store, "range", first_is_slow)
    slow = asyncio.ensure_future(view.refresh())
    await stage.clock.settle()
    await stage.join(place(1))
    newer = asyncio.ensure_future(view.refresh())
    await stage.clock.settle()
    arrive.set()
    await asyncio.gather(slow, newer)
    assert nodes(view) == [1]


async def test_a_store_that_is_down_changes_nothing_and_is_asked_again(
    stage: Stage, followed: ClusterView, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await stage.join(place(1))
    await stage.clock.settle()

    async def fail(range_: Range) -> list[Versioned]:
        raise Retryable("down")

    with monkeypatch.context() as down:
        down.setattr(stage.store, "range", fail)
        await one.leave()
        await stage.join(place(2))
        await stage.clock.advance(5)
        assert nodes(followed) == [1]
    await stage.clock.advance(5)
    assert nodes(followed) == [2]


async def test_a_broker_counts_itself_before_the_store_shows_it(stage: Stage, view: ClusterView) -> None:
    joined = await stage.join(place(3, rack="eu"))
    view.count_self(joined.record, joined.is_present)
    assert nodes(view) == [3] and view.controller_id == 3
    assert view.leader_of(StreamId(1), zone="eu") == 3
    await stage.join(place(1))
    await view.refresh()
    assert nodes(view) == [1, 3]


async def test_a_broker_does_not_count_itself_once_it_drains_or_its_session_may_be_gone(
    stage: Stage, view: ClusterView
) -> None:
    joined = await stage.join(place(3))
    view.count_self(joined.record, joined.is_present)
    await joined.unregister()
    assert nodes(view) == [] and view.leader_of(StreamId(1)) == NO_NODE

    again = await stage.join(place(3))
    view.count_self(again.record, again.is_present)
    assert nodes(view) == [3]
    await again.abandon()
    assert nodes(view) == []


async def test_a_broker_knows_its_own_address_better_than_its_predecessors_record(
    stage: Stage, view: ClusterView
) -> None:
    await stage.join(place(3, port=1, lock="file"))
    await view.refresh()
    new = await stage.join(place(3, port=2, lock="file"))
    view.count_self(new.record, new.is_present)
    assert [info.port for info in view.brokers] == [2]
    assert view.leader_of(StreamId(1)) == 3


async def test_a_dead_broker_leaves_within_its_timeout(stage: Stage, followed: ClusterView) -> None:
    reaping = asyncio.ensure_future(SessionReaper(stage.store, stage.clock).run())
    dead = await stage.join(place(1))
    await stage.join(place(2))
    await dead.abandon()
    await stage.clock.advance(2 * TIMEOUT_MS / 1000)
    assert nodes(followed) == [2]
    reaping.cancel()
    await asyncio.wait([reaping])


async def test_clients_are_sent_to_their_own_zone_and_to_all_where_it_has_none(
    stage: Stage, view: ClusterView
) -> None:
    for node_id, rack in ((1, "a"), (2, "a"), (3, "b"), (4, None)):
        await stage.join(place(node_id, rack=rack))
    await view.refresh()
    streams = [StreamId(number) for number in range(200)]
    assert {view.leader_of(stream, zone="a") for stream in streams} == {1, 2}
    assert {view.leader_of(stream, zone="b") for stream in streams} == {3}
    anywhere = [view.leader_of(stream) for stream in streams]
    assert set(anywhere) == {1, 2, 3, 4}
    assert [view.leader_of(stream, zone="elsewhere") for stream in streams] == anywhere


async def test_what_is_remembered_of_leaders_is_bounded(
    stage: Stage, view: ClusterView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "MAX_REMEMBERED_LEADERS", 10)
    for node_id in (1, 2, 3):
        await stage.join(place(node_id))
    await view.refresh()
    streams = [StreamId(number) for number in range(35)]
    first = [view.leader_of(stream) for stream in streams]
    assert [view.leader_of(stream) for stream in streams] == first
    assert first == [rendezvous(stream, [1, 2, 3]) for stream in streams]


brokers = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6, unique=True)
streams = st.integers(0, 2**63 - 1).map(StreamId)


@given(brokers, streams, st.randoms(use_true_random=False))
def test_the_order_of_brokers_does_not_matter(ids: list[int], stream: StreamId, shuffler: random.Random) -> None:
    shuffled = list(ids)
    shuffler.shuffle(shuffled)
    assert rendezvous(stream, ids) == rendezvous(stream, shuffled)


@given(brokers, streams)
def test_only_the_streams_of_a_lost_broker_move(ids: list[int], stream: StreamId) -> None:
    leader = rendezvous(stream, ids)
    assert leader in ids
    for gone in ids:
        if gone != leader:
            assert rendezvous(stream, [node for node in ids if node != gone]) == leader


def test_leaders_are_spread_evenly() -> None:
    led = Counter(rendezvous(StreamId(stream), [1, 2, 3, 4]) for stream in range(4000))
    assert all(800 < count < 1200 for count in led.values()), led


def test_every_process_names_the_same_leaders() -> None:
    ask = "from headrace.cluster.view import rendezvous; print([rendezvous(s, [1, 2, 3]) for s in range(20)])"
    other = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str([rendezvous(StreamId(stream), [1, 2, 3]) for stream in range(20)])
    # Written down, because brokers of two releases must agree while one is rolled out.
    assert other.stdout.strip() == "[1, 2, 1, 2, 3, 3, 3, 3, 3, 1, 3, 2, 1, 3, 1, 1, 1, 1, 1, 3]"
