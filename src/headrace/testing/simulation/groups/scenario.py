"""One history of groups: brokers that crash, stop and start, members that come and go, then calm, then the checks.

1. A seed chooses how many brokers and members there are, which protocols they speak, how rough the store is.
2. Members live in their groups while coordinators are killed, also at crash points, paused and started again, wall
   clocks jump, topics grow.
3. Faults end. Every group must come to rest: each partition has one owner, and all members agree.
4. What was committed is still there.
"""

import asyncio
from dataclasses import dataclass, field, replace

from headrace.groups.store import Partition
from headrace.metadata.keys import DomainKeys
from headrace.metadata.memory import MemoryMetadata
from headrace.model.ids import DomainId
from headrace.runtime.crash_points import CrashPoint
from headrace.runtime.rng import Rng
from headrace.testing.simulation.groups.classic_member import ClassicMember
from headrace.testing.simulation.groups.consumer_member import ConsumerMember
from headrace.testing.simulation.groups.janitor import Janitor
from headrace.testing.simulation.groups.ledger import Ledger
from headrace.testing.simulation.groups.members import Member, World
from headrace.testing.simulation.groups.node import GroupNode
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.loop import SimLoop, run_simulation
from headrace.testing.simulation.plan import FaultPlan, FaultRates
from headrace.testing.simulation.process import CrashAt, SimClock, SimCrashPoints, SimProcess
from headrace.testing.simulation.report import Report
from headrace.testing.simulation.trouble import Roughness, TroubledScenario
from headrace.topics.admin import NewTopic, TopicAdmin
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory

TROUBLE_S = 40.0
CALM_LIMIT_S = 150.0
"""How long, after the last fault, groups may take to come to rest: some members wait for a rebalance timeout."""

LOOK_S = 1.0
TOPICS = ("bills", "orders")

ROUGH = replace(FaultRates.rough(), late_effect=0.03)
"""A bad day on which what was given up often takes effect all the same: what leases with epochs are for."""

CRASH_POINTS = [point for point in CrashPoint if point.startswith("group.")]


@dataclass(slots=True)
class GroupReport(Report):
    """What one history of groups was like."""

    assignment_count: int = 0
    commit_count: int = 0
    fetch_count: int = 0
    rest_s: float = 0.0
    groups: list[str] = field(default_factory=list)


ROUGHNESS = Roughness(
    min_look_seconds=0.5,
    max_look_seconds=6.0,
    crash_rate=0.1,
    pause_rate=0.2,
    jump_rate=0.05,
    max_pause_seconds=12.0,
)


class GroupScenario(TroubledScenario[GroupNode]):
    """The world of one history."""

    _roughness = ROUGHNESS
    report: GroupReport

    def __init__(self, loop: SimLoop, seed: int) -> None:
        super().__init__()
        self._loop = loop
        self._rng: Rng = loop.rng("scenario")
        self._clock = SimClock(loop)
        self._plan = FaultPlan(loop.rng("faults"), FaultRates.calm() if self._rng.random() < 0.15 else ROUGH)
        self._metadata = MemoryMetadata(loop.rng("sessions"))
        self._directory = TopicDirectory(self._metadata, defaults=TopicDefaults(), clock=self._clock)
        self._incarnations = 0
        self._ledger = Ledger()
        self._started_at = loop.time()
        self.report = GroupReport(seed)

    async def run(self) -> GroupReport:
        """Live through the history and check it."""
        await self._create_topics()
        self._slots = [self._start_node(slot) for slot in range(self._rng.randrange(1, 4))]
        troubles = [asyncio.create_task(self._trouble(slot)) for slot in range(len(self._slots))]
        members = self._members()
        lives = [asyncio.create_task(member.run()) for member in members]
        growth = asyncio.create_task(self._grow())
        failed, _ = await asyncio.wait(lives, timeout=TROUBLE_S, return_when=asyncio.FIRST_COMPLETED)
        for life in failed:
            life.result()
        self._calm_down()
        await growth
        await self._come_to_rest(members, lives)
        for task in (*troubles, *lives):
            task.cancel()
        self._finish()
        return self.report

    # Members

    def _members(self) -> list[Member]:
        """Return the members of one group of each kind, of both kinds, and of one that changes between them."""
        world = World(
            nodes=lambda: self._slots, clock=self._clock, ledger=self._ledger, is_calm=lambda: not self._in_trouble
        )
        members: list[Member] = []

        def add(kind: type[ClassicMember] | type[ConsumerMember], group_id: str, count: int) -> None:
            for _ in range(count):
                name = f"{kind.__name__}-{len(members)}"
                topics = TOPICS if self._rng.random() < 0.8 else TOPICS[:1]
                made = kind(name, group_id, topics, world=world, rng=self._loop.rng(name))
                if isinstance(made, ClassicMember) and group_id == "mixed":
                    made.in_mixed_group()
                members.append(made)

        add(ClassicMember, "classic", self._rng.randrange(1, 4))
        add(ConsumerMember, "consumer", self._rng.randrange(1, 4))
        if self._rng.random() < 0.5:
            add(ClassicMember, "mixed", self._rng.randrange(1, 3))
            add(ConsumerMember, "mixed", self._rng.randrange(1, 3))
        self.report.groups = sorted({member.group_id for member in members})
        members.append(Janitor("janitor", "deleted", TOPICS[:1], world=world, rng=self._loop.rng("janitor")))
        return members

    async def _create_topics(self) -> None:
        admin = TopicAdmin(
            store=self._metadata,
            keys=DomainKeys(DomainId(0)),
            directory=self._directory,
            clock=self._clock,
            rng=self._loop.rng("topics"),
            defaults=TopicDefaults(),
            default_partition_count=4,
        )
        for name in TOPICS:
            await admin.create(NewTopic(name=name))

    async def _grow(self) -> None:
        """Let a topic have more partitions, once."""
        await self._clock.sleep(self._rng.uniform(0, TROUBLE_S))
        while True:
            node = self._slots[self._rng.randrange(0, len(self._slots))]
            try:
                async with asyncio.timeout(5.0):
                    await node.process.call(node.add_partitions(TOPICS[0], 6))
                    return
            except Exception:  # Whatever it is, it is tried until the topic has grown.
                if len(await self._partitions()) == 4 + 6:
                    return
                await self._clock.sleep(0.5)

    async def _partitions(self) -> set[Partition]:
        await self._directory.refresh()
        return {(topic.id, number) for topic in self._directory.known() for number in range(len(topic.streams))}

    # Brokers

    def _start_node(self, slot: int) -> GroupNode:
        self._incarnations += 1
        name = f"node-{slot}.{self._incarnations}"
        clock = SimClock(
            self._loop,
            wall_offset_ms=self._rng.randrange(-2_000, 2_000),
            monotonic_base=self._rng.uniform(0, 1_000),
        )
        process = SimProcess(name, self._loop, clock=clock)
        plan = []
        if self._in_trouble and self._rng.random() < 0.5:
            point = CRASH_POINTS[self._rng.randrange(0, len(CRASH_POINTS))]
            plan = [CrashAt(point, self._rng.randrange(1, 12))]
        node = GroupNode(
            process,
            node_id=slot + 1,
            metadata=self._metadata,
            plan=self._plan,
            crash_points=SimCrashPoints(process, plan),
            rng=self._loop.rng(name),
        )
        node.start()
        return node

    # The end

    async def _come_to_rest(self, members: list[Member], lives: "list[asyncio.Task[None]]") -> None:
        """Wait until every partition has one owner in every group, and stays there."""
        wanted = await self._partitions()
        began_at, calm_looks = self._clock.monotonic(), 0
        while calm_looks < 5:
            await self._clock.sleep(LOOK_S)
            for life in lives:
                if life.done():
                    life.result()
            open_ends = self._open_ends(members, wanted)
            calm_looks = 0 if open_ends else calm_looks + 1
            if open_ends and self._clock.monotonic() - began_at > CALM_LIMIT_S:
                raise Violation(f"{CALM_LIMIT_S} s after the last fault: {'; '.join(open_ends)}")
        self.report.rest_s = self._clock.monotonic() - began_at

    def _open_ends(self, members: list[Member], wanted: set[Partition]) -> list[str]:
        found = []
        for group_id in self.report.groups:
            owned = [part for member in members if member.group_id == group_id for part in member.holder.owned]
            reachable = {
                part
                for part in wanted
                if any(member.group_id == group_id and self._reads(member, part) for member in members)
            }
            if len(owned) != len(set(owned)):
                found.append(f"group {group_id} has partitions with two owners")
            elif set(owned) != reachable:
                found.append(f"group {group_id} has {len(owned)} of {len(reachable)} partitions")
        return found

    def _reads(self, member: Member, partition: Partition) -> bool:
        topic = self._directory.get_by_id(partition[0])
        return topic is not None and topic.name in member.topics

    def _finish(self) -> None:
        for node in self._slots:
            self._bury(node)
        report = self.report
        report.assignment_count = self._ledger.assignment_count
        report.commit_count = self._ledger.commit_count
        report.fetch_count = self._ledger.fetch_count
        report.faults = self._plan.injected
        report.virtual_seconds = self._loop.time() - self._started_at
        report.digest = self._loop.trace_digest


def run_group_seed(seed: int) -> GroupReport:
    """Run one history of groups; raise what it finds."""

    async def main(loop: SimLoop) -> GroupReport:
        return await GroupScenario(loop, seed).run()

    return run_simulation(seed, main)
