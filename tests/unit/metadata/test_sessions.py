"""Keeper, observer and reaper, on a clock that the test moves."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Fenced, Retryable, Unusable
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import SessionState
from headrace.metadata.sessions import SessionKeeper, SessionObserver, SessionReaper
from headrace.model.ids import SessionId
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock

TIMEOUT_MS = 3000


def state(name: str, version: int, timeout_ms: int = TIMEOUT_MS) -> SessionState:
    return SessionState(id=SessionId(name), timeout_ms=timeout_ms, version=version)


class FlakyStore(MemoryMetadata):
    """A store whose renewals fail or hang for as long as the test wishes."""

    def __init__(self) -> None:
        super().__init__(seeded_rng(1))
        self.error: Exception | None = None
        self.hold: asyncio.Event | None = None
        self.on_expire: Callable[[], None] = lambda: None

    async def renew_session(self, session: SessionId) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        await super().renew_session(session)

    async def expire_session(self, seen: SessionState) -> bool:
        self.on_expire()
        return await super().expire_session(seen)

    async def sessions(self) -> list[SessionState]:
        if self.error is not None:
            raise self.error
        return await super().sessions()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> FlakyStore:
    return FlakyStore()


@pytest.fixture
async def keeper(store: FlakyStore, clock: ManualClock) -> AsyncIterator[SessionKeeper]:
    opened = await SessionKeeper.open(store, clock, timeout_ms=TIMEOUT_MS)
    yield opened
    await opened.abandon()


@pytest.fixture
async def reaper(store: FlakyStore, clock: ManualClock) -> AsyncIterator[None]:
    running = asyncio.ensure_future(SessionReaper(store, clock).run())
    yield
    running.cancel()
    await asyncio.wait([running])


def test_a_session_times_out_when_its_version_stood_still_for_its_timeout() -> None:
    observer = SessionObserver()
    assert observer.next_deadline() is None
    observer.observe([state("a", 1), state("b", 2, 5000)], 10.0)
    assert observer.next_deadline() == 13.0
    observer.observe([state("a", 1), state("b", 2, 5000)], 12.9)
    assert observer.timed_out(12.9) == []
    assert observer.timed_out(13.0) == [state("a", 1)]


def test_a_renewal_begins_the_count_anew() -> None:
    observer = SessionObserver()
    observer.observe([state("a", 1)], 10.0)
    observer.observe([state("a", 7)], 12.0)
    assert observer.timed_out(14.9) == []
    assert observer.timed_out(15.0) == [state("a", 7)]


def test_a_session_that_is_gone_is_forgotten() -> None:
    observer = SessionObserver()
    observer.observe([state("a", 1)], 10.0)
    observer.observe([], 11.0)
    assert observer.next_deadline() is None
    assert observer.timed_out(99.0) == []


@given(st.lists(st.tuples(st.floats(0, 2), st.booleans()), max_size=30))
def test_a_session_never_times_out_earlier_than_its_timeout_after_a_renewal(steps: list[tuple[float, bool]]) -> None:
    observer = SessionObserver()
    now, version, renewed_at = 0.0, 1, 0.0
    for wait_s, is_renewed in steps:
        now += wait_s
        if is_renewed:
            version, renewed_at = version + 1, now
        observer.observe([state("a", version)], now)
        if observer.timed_out(now):
            assert now >= renewed_at + TIMEOUT_MS / 1000


async def test_the_keeper_renews_and_moves_its_deadline(
    store: FlakyStore, clock: ManualClock, keeper: SessionKeeper
) -> None:
    assert keeper.deadline == 3.0
    await clock.advance(30.0)
    assert keeper.is_surely_alive()
    assert keeper.deadline == 33.0
    assert not keeper.lost.is_set()


async def test_the_deadline_counts_from_before_the_renewal_was_sent(
    store: FlakyStore, clock: ManualClock, keeper: SessionKeeper
) -> None:
    store.hold = asyncio.Event()
    await clock.advance(1.5)  # the renewal was sent at 1.0 and hangs
    store.hold.set()
    await clock.settle()
    assert keeper.deadline == 4.0


async def test_a_renewal_that_hangs_beyond_the_deadline_loses_the_session_for_good(
    store: FlakyStore, clock: ManualClock, keeper: SessionKeeper
) -> None:
    store.hold = asyncio.Event()
    await clock.advance(2.9)
    assert keeper.is_surely_alive()
    await clock.advance(0.1)
    assert not keeper.is_surely_alive()
    assert keeper.lost.is_set()
    store.hold.set()  # the renewal succeeds after all, and nobody may act on it
    await clock.advance(1.0)
    assert not keeper.is_surely_alive()


async def test_failed_renewals_are_tried_again_before_the_deadline(
    store: FlakyStore, clock: ManualClock, keeper: SessionKeeper
) -> None:
    store.error = Retryable("down")
    await clock.advance(2.5)
    assert keeper.is_surely_alive()
    store.error = None
    await clock.advance(0.4)
    assert keeper.deadline > 5.0
    store.error = Retryable("down again")
    await clock.advance(3.0)
    assert keeper.lost.is_set()


@pytest.mark.parametrize("error", [Fenced("ended"), Unusable("bad disk")])
async def test_an_ended_session_is_reported_at_once(
    store: FlakyStore, clock: ManualClock, keeper: SessionKeeper, error: Exception
) -> None:
    store.error = error
    await clock.advance(1.0)
    assert keeper.lost.is_set()
    store.error = None
    renewals = await store.sessions()
    await clock.advance(10.0)
    assert await store.sessions() == renewals, "it never acts again"


async def test_closing_ends_the_session(store: FlakyStore, clock: ManualClock) -> None:
    keeper = await SessionKeeper.open(store, clock, timeout_ms=TIMEOUT_MS)
    await keeper.close()
    assert await store.sessions() == []
    assert not keeper.is_surely_alive()


@pytest.mark.usefixtures("reaper")
async def test_the_reaper_ends_a_silent_session_exactly_at_its_timeout(store: FlakyStore, clock: ManualClock) -> None:
    await clock.settle()
    await store.open_session(timeout_ms=TIMEOUT_MS)
    await clock.advance(2.999)
    assert len(await store.sessions()) == 1
    await clock.advance(0.002)
    assert await store.sessions() == []


@pytest.mark.usefixtures("reaper")
async def test_the_reaper_leaves_renewed_sessions_alone(
    store: FlakyStore, clock: ManualClock, keeper: SessionKeeper
) -> None:
    await store.open_session(timeout_ms=TIMEOUT_MS)
    await clock.advance(60.0)
    assert [found.id for found in await store.sessions()] == [keeper.session]
    assert keeper.is_surely_alive()


@pytest.mark.usefixtures("reaper")
async def test_the_keeper_stops_before_the_reaper_strikes(
    store: FlakyStore, clock: ManualClock, keeper: SessionKeeper
) -> None:
    alive_when_expired: list[bool] = []
    store.on_expire = lambda: alive_when_expired.append(keeper.is_surely_alive())
    store.hold = asyncio.Event()
    await clock.advance(10.0)
    assert alive_when_expired == [False]
    assert await store.sessions() == []


@pytest.mark.usefixtures("reaper")
async def test_the_reaper_goes_on_after_the_store_was_away(store: FlakyStore, clock: ManualClock) -> None:
    await store.open_session(timeout_ms=TIMEOUT_MS)
    await clock.advance(1.0)
    store.error = Retryable("down")
    await clock.advance(10.0)
    store.error = None
    assert len(await store.sessions()) == 1
    await clock.advance(0.5)
    assert await store.sessions() == []


async def test_a_reaper_that_was_just_started_gives_every_session_its_full_timeout(
    store: FlakyStore, clock: ManualClock
) -> None:
    await store.open_session(timeout_ms=TIMEOUT_MS)
    await clock.advance(100.0)
    running = asyncio.ensure_future(SessionReaper(store, clock).run())
    await clock.advance(2.9)
    assert len(await store.sessions()) == 1
    await clock.advance(0.2)
    assert await store.sessions() == []
    running.cancel()
    await asyncio.wait([running])
