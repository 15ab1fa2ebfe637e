"""One process collects at a time, and gives others their turn."""

import pytest

from headrace.errors import Retryable
from headrace.gc.leased import COLLECTOR_LEASE, CollectorLease, CollectorMetrics, LeasedCollectors
from headrace.gc.removed import Removed, Waiting, Why
from headrace.metadata.leases import LEASE_CODEC
from headrace.metadata.memory import MemoryMetadata
from headrace.model.ids import ObjectKey, SessionId
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import seeded_rng

TIMEOUT_MS = 5000


class Pages:
    """A collector with so many pages; every one deletes an object, unless it is told to fail."""

    def __init__(self, page_count: int) -> None:
        self.page_count = page_count
        self.done = 0
        self.failure: Retryable | None = None

    @property
    def is_round_over(self) -> bool:
        return self.done % self.page_count == 0

    async def tick(self) -> list[Removed]:
        self.done += 1
        if self.failure is not None:
            raise self.failure
        return [Removed(key=ObjectKey(f"wal/{self.done}"), size_bytes=10, why=Why.WAL_OBJECT)]

    async def survey(self) -> list[Removed]:
        raise AssertionError("a broker surveys nothing")


class Process:
    """A process with a session and collectors."""

    def __init__(self, store: MemoryMetadata, *collectors: Pages) -> None:
        self.session: SessionId | None = None
        self.metrics = Metrics()
        self.collectors = LeasedCollectors(
            collectors,
            lease=CollectorLease(store, lambda: self.session),
            metrics=CollectorMetrics(self.metrics),
            waiting=lambda: Waiting(object_count=3, size_bytes=30),
        )

    async def tick(self) -> int:
        return len(await self.collectors.tick())


async def opened(store: MemoryMetadata, *collectors: Pages) -> Process:
    process = Process(store, *collectors)
    process.session = await store.open_session(timeout_ms=TIMEOUT_MS)
    return process


async def test_second_process_waits_until_the_first_has_done_its_round() -> None:
    store = MemoryMetadata(seeded_rng(1))
    first, second = await opened(store, Pages(2)), await opened(store, Pages(1))
    assert await first.tick() == 1
    assert await second.tick() == 0, "the first is in the middle of its round"
    assert await first.tick() == 1
    assert await second.tick() == 1


async def test_lease_of_a_process_that_died_is_free_with_its_session() -> None:
    store = MemoryMetadata(seeded_rng(1))
    first, second = await opened(store, Pages(2)), await opened(store, Pages(2))
    await first.tick()
    assert first.session is not None
    await store.end_session(first.session)
    assert await second.tick() == 1
    assert await first.tick() == 0, "its session is gone: that is no failure of the service"


async def test_without_a_session_nothing_is_done() -> None:
    store = MemoryMetadata(seeded_rng(1))
    pages = Pages(1)
    assert await Process(store, pages).tick() == 0
    assert pages.done == 0 and await store.get(COLLECTOR_LEASE) is None


async def test_round_is_over_when_all_collectors_are_through() -> None:
    store = MemoryMetadata(seeded_rng(1))
    process = await opened(store, Pages(2), Pages(3))
    held = []
    for _ in range(6):
        await process.tick()
        raw = await store.get(COLLECTOR_LEASE)
        assert raw is not None
        held.append(LEASE_CODEC.decode(raw.value, raw.key).session is not None)
    assert held == [True, True, True, True, True, False]


async def test_collector_that_fails_holds_up_no_other_and_is_told_of() -> None:
    store = MemoryMetadata(seeded_rng(1))
    broken, whole = Pages(1), Pages(1)
    broken.failure = Retryable("busy")
    process = await opened(store, broken, whole)
    with pytest.raises(Retryable, match="busy"):
        await process.tick()
    assert whole.done == 1
    other = await opened(store, Pages(1))
    assert await other.tick() == 1, "the lease is given back all the same"


async def test_metrics_show_what_went_and_what_waits() -> None:
    store = MemoryMetadata(seeded_rng(1))
    process = await opened(store, Pages(1))
    await process.tick()
    await process.tick()
    text = process.metrics.render().decode()
    assert 'headrace_collected_objects_total{why="wal-object"} 2.0' in text
    assert 'headrace_collected_bytes_total{why="wal-object"} 20.0' in text
    assert "headrace_collector_backlog_objects 3.0" in text
    assert "headrace_collector_backlog_bytes 30.0" in text
