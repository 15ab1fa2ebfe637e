"""The retention clock: the slowest of all living brokers, and none after a jump."""

import io

from headrace.cluster.registration import BROKER_CODEC, BrokerRecord
from headrace.gc.clocks import ClockGuard
from headrace.metadata import keys
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Decision, Reads
from headrace.model.ids import SessionId, WriterId
from headrace.runtime.logs import open_log
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock

HOUR_MS = 3_600_000
MAX_JUMP_MS = 1_000


class Host:
    """A broker's clock, session and guard."""

    def __init__(self, store: MemoryMetadata, node_id: int, session: SessionId | None, ahead_ms: int = 0) -> None:
        self.clock = ManualClock()
        self.clock.jump_wall(ahead_ms)
        self.session = session
        self.said = io.StringIO()
        self.guard = ClockGuard(
            node_id=node_id,
            metadata=store,
            session=lambda: self.session,
            clock=self.clock,
            log=open_log(self.said, clock=self.clock, level="info", format="json"),
            max_jump_ms=MAX_JUMP_MS,
        )


async def two_hosts(*, second_is_ahead_ms: int) -> tuple[MemoryMetadata, Host, Host]:
    store = MemoryMetadata(seeded_rng(1))
    first = Host(store, 1, await store.open_session(timeout_ms=5000))
    second = Host(store, 2, await store.open_session(timeout_ms=5000), second_is_ahead_ms)
    return store, first, second


async def test_clock_that_is_ahead_does_not_count() -> None:
    _, first, second = await two_hosts(second_is_ahead_ms=HOUR_MS)
    right_ms = first.clock.now_ms()
    assert await first.guard.look() == right_ms
    assert await second.guard.look() == right_ms


async def test_clock_that_is_behind_delays_everybody() -> None:
    _, first, second = await two_hosts(second_is_ahead_ms=-HOUR_MS)
    await second.guard.look()
    assert await first.guard.look() == first.clock.now_ms() - HOUR_MS


async def test_dead_broker_counts_no_more() -> None:
    store, first, second = await two_hosts(second_is_ahead_ms=-HOUR_MS)
    await second.guard.look()
    assert second.session is not None
    await store.end_session(second.session)
    assert await first.guard.look() == first.clock.now_ms()


async def test_after_a_jump_one_look_is_left_out_and_one_line_says_so() -> None:
    store = MemoryMetadata(seeded_rng(1))
    host = Host(store, 1, await store.open_session(timeout_ms=5000))
    assert await host.guard.look() is not None
    await host.clock.advance(300)
    assert await host.guard.look() is not None, "time that passes is no jump"
    for jump_ms in (HOUR_MS, -HOUR_MS):
        host.clock.jump_wall(jump_ms)
        assert await host.guard.look() is None
        assert await host.guard.look() == host.clock.now_ms()
    host.clock.jump_wall(MAX_JUMP_MS)
    assert await host.guard.look() is not None, "a clock that is corrected a little goes on"
    assert host.said.getvalue().count("the wall clock has jumped") == 2


async def test_without_a_living_session_there_is_no_clock() -> None:
    store = MemoryMetadata(seeded_rng(1))
    session = await store.open_session(timeout_ms=5000)
    host = Host(store, 1, session)
    await store.end_session(session)
    assert await host.guard.look() is None
    host.session = None
    assert await host.guard.look() is None


async def test_broker_that_has_told_nothing_yet_is_waited_for() -> None:
    store, first, second = await two_hosts(second_is_ahead_ms=0)
    assert second.session is not None
    record = BrokerRecord(2, WriterId("i"), "h", 1, None, second.session, 0, "l")
    puts = {keys.broker(2): BROKER_CODEC.encode(record)}
    await store.transact(
        [keys.REGISTRY], Reads(), lambda _: Decision(result=None, ephemerals=puts), session=second.session
    )
    assert await first.guard.look() is None
    await second.guard.look()
    assert await first.guard.look() == first.clock.now_ms()
