"""All groups of one job in one event loop, and what is taken down of them: CPU, heartbeats, the loop's own delay."""

import asyncio
import contextlib
import gc
import random
import resource
import time
import uuid
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field

from benchmarks.beside_kafka.process_cost import cpu_seconds
from benchmarks.groups_beside_kafka import jobs
from benchmarks.groups_beside_kafka.actions import Machine
from benchmarks.groups_beside_kafka.classic_member import ClassicMember
from benchmarks.groups_beside_kafka.connection import open_network
from benchmarks.groups_beside_kafka.consumer_member import ConsumerMember
from benchmarks.groups_beside_kafka.group import Group
from benchmarks.groups_beside_kafka.shell import Counts

LAG_PAUSE_SECONDS = 0.005
MS_PER_SECOND = 1000


@dataclass(slots=True, kw_only=True)
class Stage:
    """The groups of one job, connected and ready to begin."""

    groups: list[Group]
    broker_pid: int
    rng: random.Random
    counts: Counts
    lags_seconds: list[float] = field(default_factory=list)

    @property
    def owned_twice(self) -> int:
        return sum(group.ledger.owned_twice for group in self.groups)

    async def pause(self, spread_seconds: float) -> None:
        """Wait for a random time within the spread."""
        await asyncio.sleep(self.rng.uniform(0, spread_seconds))

    async def all_join(self, spread_seconds: float) -> list[float]:
        """Let every group form, each at a random moment of the spread; return how long each took."""

        async def play(group: Group) -> float:
            await self.pause(spread_seconds)
            return await group.all_join()

        return await asyncio.gather(*(play(group) for group in self.groups))

    async def watch(self, work: Awaitable[object]) -> jobs.Window:
        """Do the work and take what the broker and this process spend meanwhile."""
        heartbeats, load_cpu, broker_cpu = self.counts.heartbeats, _own_cpu_seconds(), cpu_seconds(self.broker_pid)
        began_s = time.monotonic()
        await work
        return jobs.Window(
            seconds=time.monotonic() - began_s,
            heartbeats=self.counts.heartbeats - heartbeats,
            broker_cpu_seconds=cpu_seconds(self.broker_pid) - broker_cpu,
            load_cpu_seconds=_own_cpu_seconds() - load_cpu,
        )


@contextlib.asynccontextmanager
async def set_up(job: jobs.Job) -> AsyncIterator[Stage]:
    """Connect all members, and let all of them leave in the end, so that nothing of them burdens the next job."""
    rng = random.Random(job.seed)
    counts = Counts()
    async with open_network(job.bootstrap) as network, asyncio.TaskGroup() as tasks:
        topic_id, partitions = await network.topic(job.topic)

        def make_machine(group_id: str) -> Machine:
            if job.protocol == jobs.CONSUMER:
                member_id = str(uuid.UUID(int=rng.getrandbits(128), version=4))
                return ConsumerMember(group_id=group_id, member_id=member_id, topic=job.topic, topic_id=topic_id)
            return ClassicMember(
                group_id=group_id,
                topic=job.topic,
                partitions=partitions,
                heartbeat_seconds=job.heartbeat_ms / MS_PER_SECOND,
            )

        groups = [
            Group(
                group_id=f"{job.topic}-group-{number}",
                partitions=partitions,
                make_machine=make_machine,
                network=network,
                counts=counts,
                tasks=tasks,
                rng=rng,
            )
            for number in range(job.groups)
        ]
        for group in groups:
            await group.connect(job.members)
        # A collection of all that stays anyway would stop the clocks of all members at once.
        gc.collect()
        gc.freeze()
        stage = Stage(groups=groups, broker_pid=job.broker_pid, rng=rng, counts=counts)
        lag_watch = tasks.create_task(_watch_lag(stage.lags_seconds))
        yield stage
        lag_watch.cancel()
        for group in groups:
            await group.disband()


async def _watch_lag(lags_seconds: list[float]) -> None:
    while True:
        began_s = time.monotonic()
        await asyncio.sleep(LAG_PAUSE_SECONDS)
        lags_seconds.append(time.monotonic() - began_s - LAG_PAUSE_SECONDS)


def _own_cpu_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime
