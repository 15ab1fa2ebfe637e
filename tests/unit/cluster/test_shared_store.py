"""Two brokers that share a database file, each with a handle of its own, as two processes have."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.cluster.identity import require_identity
from headrace.cluster.membership import Membership, Place
from headrace.cluster.view import ClusterView
from headrace.metadata.open import open_metadata
from headrace.metadata.port import MetadataStore
from headrace.metadata.sessions import SessionReaper
from headrace.model.ids import StreamId
from headrace.objects.memory import MemoryObjects
from headrace.runtime.clock import SystemClock
from headrace.runtime.logs import open_log
from headrace.runtime.rng import system_rng

TIMEOUT_MS = 1000
LIMIT_S = 120.0
CLOCK = SystemClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    store: MetadataStore
    membership: Membership
    view: ClusterView
    cluster_id: str

    def nodes(self) -> list[int]:
        return [info.node_id for info in self.view.brokers]


@asynccontextmanager
async def broker(directory: Path, objects: MemoryObjects, node_id: int) -> AsyncIterator[Broker]:
    store = await open_metadata(f"sqlite:{directory}/meta.db", clock=CLOCK, rng=system_rng())
    cluster_id = await require_identity(store, objects, rng=system_rng())
    view = ClusterView(store, cluster_id=cluster_id, clock=CLOCK)
    membership = await Membership.join(
        store,
        Place(node_id=node_id, host="host", port=node_id, rack=None, lock=f"file {node_id}"),
        session_timeout_ms=TIMEOUT_MS,
        clock=CLOCK,
        rng=system_rng(),
        log=open_log(io.StringIO(), clock=CLOCK),
    )
    view.count_self(membership.record, membership.is_present)
    services = [asyncio.ensure_future(view.follow()), asyncio.ensure_future(SessionReaper(store, CLOCK).run())]
    yield Broker(store=store, membership=membership, view=view, cluster_id=cluster_id)
    for service in services:
        service.cancel()
    await asyncio.wait(services)
    await membership.abandon()
    await store.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_brokers_of_one_file_find_and_lose_each_other(tmp_path: Path) -> None:
    objects = MemoryObjects(CLOCK)
    async with broker(tmp_path, objects, 1) as one:
        async with broker(tmp_path, objects, 2) as two:
            await until(lambda: one.nodes() == two.nodes() == [1, 2])
            assert one.cluster_id == two.cluster_id
            streams = [StreamId(number) for number in range(50)]
            assert [one.view.leader_of(stream) for stream in streams] == [two.view.leader_of(s) for s in streams]
        # The second is gone without a word: its session was abandoned, as by kill -9.
        await until(lambda: one.nodes() == [1])
        async with broker(tmp_path, objects, 2) as again:
            await until(lambda: one.nodes() == [1, 2])
            await again.membership.leave()
            await until(lambda: one.nodes() == [1])
