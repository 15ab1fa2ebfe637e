"""`headrace collect` without its command line: everything that may go goes, once, by whoever has the lease."""

import asyncio
import io
from collections.abc import AsyncIterator

import pytest

from headrace.broker.collecting import collect_all, survey_all
from headrace.broker.storage import Runtime, Storage
from headrace.cluster.registration import BROKER_CODEC, BrokerRecord
from headrace.errors import Invalid, Retryable
from headrace.gc.leased import COLLECTOR_LEASE
from headrace.gc.removed import Why
from headrace.index.objects import wal_object_id, wal_object_key
from headrace.metadata import keys as all_keys
from headrace.metadata.keys import DomainKeys
from headrace.metadata.leases import LEASE_CODEC, take
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Decision, Reads
from headrace.model.ids import DomainId, ObjectKey, WriterId
from headrace.model.topics import TopicId
from headrace.objects.memory import MemoryObjects
from headrace.pipeline.records import TIDY_RECORD, TidyRecord
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import seeded_rng
from headrace.settings import load_settings
from headrace.testing.clock import ManualClock

KEYS = DomainKeys(DomainId(0))
SETTINGS = load_settings().tree
HOUR_S = 3600
LOST = ObjectKey("tables/t/data/s1/0.parquet")
ORPHAN = wal_object_key(KEYS.domain, wal_object_id(WriterId("0c" * 16), 0))


class Cluster:
    """Two stores in memory, and a clock that a test moves."""

    def __init__(self, *, seed: int = 2) -> None:
        self.clock = ManualClock()
        self.storage = Storage(metadata=MemoryMetadata(seeded_rng(1)), objects=MemoryObjects(self.clock))
        self.runtime = Runtime(
            clock=self.clock,
            rng=seeded_rng(seed),
            crash_points=NoCrashes(),
            metrics=Metrics(),
            log=open_log(io.StringIO(), clock=self.clock),
        )
        self.told: list[int] = []

    async def litter(self) -> None:
        """Leave a WAL object without a record, and a file of a lost attempt."""
        metadata, objects = self.storage.metadata, self.storage.objects
        await objects.put(LOST, [b"rows"])
        await objects.put(ORPHAN, [b"frame"])
        record = TidyRecord(TopicId(bytes(16)), "tables/t/data/s1/", (), self.clock.now_ms())
        puts = {KEYS.tidy("s1"): TIDY_RECORD.encode(record)}
        await metadata.transact([KEYS.unit], Reads(), lambda _: Decision(result=None, puts=puts))
        await self.clock.advance(HOUR_S)

    async def stored(self) -> list[str]:
        return [info.key async for info in self.storage.objects.list("") if info.key.startswith(("wal", "tables"))]

    async def collect(self, *, wait_s: float = 0) -> dict[str, Why]:
        removed = await collect_all(SETTINGS, self.runtime, self.storage, KEYS, wait_s=wait_s, told=self.told.append)
        return {one.key: one.why for one in removed}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await made.litter()
    yield made
    await made.storage.metadata.close()
    await made.storage.objects.close()


async def test_everything_that_may_go_is_told_of_beforehand_and_goes(cluster: Cluster) -> None:
    going = {LOST: Why.LOST_ATTEMPT, ORPHAN: Why.ORPHAN}
    surveyed = await survey_all(SETTINGS, cluster.runtime, cluster.storage, KEYS)
    assert {one.key: one.why for one in surveyed} == going
    assert len(await cluster.stored()) == 2, "a survey touches nothing"
    assert await cluster.collect() == going
    assert await cluster.stored() == [] and cluster.told[-1] == 2
    assert await cluster.collect() == {}


async def test_lease_is_given_back_and_the_session_ended(cluster: Cluster) -> None:
    await cluster.collect()
    raw = await cluster.storage.metadata.get(COLLECTOR_LEASE)
    assert raw is not None and LEASE_CODEC.decode(raw.value, raw.key).session is None
    assert await cluster.storage.metadata.sessions() == []


async def test_broker_that_collects_is_named_and_nothing_is_deleted(cluster: Cluster) -> None:
    metadata = cluster.storage.metadata
    session = await metadata.open_session(timeout_ms=60_000)
    await take(metadata, COLLECTOR_LEASE, session)
    broker = BrokerRecord(3, WriterId("a" * 32), "host", 9092, None, session, 0, None)
    puts = {all_keys.broker(3): BROKER_CODEC.encode(broker)}
    await metadata.transact([all_keys.REGISTRY], Reads(), lambda _: Decision(result=None, puts=puts))
    with pytest.raises(Retryable, match="broker 3 at host:9092 collects already"):
        await cluster.collect()
    assert len(await cluster.stored()) == 2


async def test_command_waits_for_the_session_of_a_holder_that_died_to_time_out(cluster: Cluster) -> None:
    metadata = cluster.storage.metadata
    await take(metadata, COLLECTOR_LEASE, await metadata.open_session(timeout_ms=5_000))
    collecting = asyncio.create_task(cluster.collect(wait_s=30))
    while not collecting.done():
        await cluster.clock.advance(1)
    assert len(collecting.result()) == 2, "no broker runs that would have ended it"


async def test_stores_of_two_clusters_are_refused(cluster: Cluster) -> None:
    """Every WAL object of another cluster would look like one without a record."""
    await cluster.collect()
    other = Cluster(seed=3)
    await other.litter()
    await other.collect()
    cluster.storage = Storage(metadata=cluster.storage.metadata, objects=other.storage.objects)
    await other.storage.objects.put(ORPHAN, [b"frame"])
    with pytest.raises(Invalid):
        await cluster.collect()
    assert await cluster.stored() == [ORPHAN]
