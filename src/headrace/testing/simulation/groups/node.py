"""A simulated broker's group side: membership, topics, seats, keepers, wired as the composition root wires them.

When its session is lost it joins the cluster anew, in the same process: whatever it had on its way is fenced.
"""

import io
from collections.abc import Awaitable, Callable

from headrace.cluster.membership import Membership, Place
from headrace.cluster.view import ClusterView
from headrace.errors import Fenced, HeadraceError, OutcomeUnknown, Retryable, Unusable
from headrace.groups.coordinator import GroupCoordinator
from headrace.groups.images import TopicImages
from headrace.groups.keeping import GroupKeeper, KeepLimits
from headrace.groups.machine import GroupMachine
from headrace.groups.meters import GroupMetrics
from headrace.groups.pace import BrokerPace
from headrace.groups.patterns import Patterns
from headrace.groups.protocol import GroupConfig, GroupLimits, Moment
from headrace.groups.records import Loaded
from headrace.groups.seats import Seats
from headrace.groups.topic_news import TopicNews
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.metadata.sessions import SessionReaper
from headrace.model.ids import DomainId
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import Rng
from headrace.testing.simulation.faults import FaultyMetadata
from headrace.testing.simulation.plan import FaultPlan
from headrace.testing.simulation.process import SimCrashPoints, SimProcess
from headrace.topics.admin import TopicAdmin
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory

BROKER_SESSION_MS = 5_000
MEMBER_SESSION_MS = 8_000
IDLE_S = 6.0
RETENTION_MS = 86_400_000
START_RETRY_S = 0.3

LIMITS = GroupLimits(
    max_members=100,
    min_session_timeout_ms=1_000,
    max_session_timeout_ms=60_000,
    initial_rebalance_delay_ms=200,
    max_metadata_bytes=100_000,
    max_subscribed_topics=100,
)
CONFIG = GroupConfig(session_timeout_ms=MEMBER_SESSION_MS, heartbeat_interval_ms=None)


class GroupNode:
    """One incarnation of one broker. Members reach it through `process.call`."""

    def __init__(
        self,
        process: SimProcess,
        *,
        node_id: int,
        metadata: MetadataStore,
        plan: FaultPlan,
        crash_points: SimCrashPoints,
        rng: Rng,
    ) -> None:
        self.process = process
        self.node_id = node_id
        self.clock = process.clock
        self.crash_points = crash_points
        self.metadata = FaultyMetadata(metadata, process, plan)
        self._rng = rng
        self._keys = DomainKeys(DomainId(0))
        self._log = open_log(io.StringIO(), clock=self.clock)
        self.topics = TopicDirectory(self.metadata, defaults=TopicDefaults(), clock=self.clock)
        self.cluster = ClusterView(self.metadata, cluster_id="simulated", clock=self.clock)
        self.seats, patterns, self._news = self._make_seats()
        self.coordinator = GroupCoordinator(
            node_id=node_id,
            store=self.metadata,
            keys=self._keys,
            cluster=self.cluster,
            topics=self.topics,
            seats=self.seats,
            metrics=GroupMetrics(Metrics()),
            patterns=patterns,
        )

    def start(self) -> None:
        """Start the process's main task."""
        self.process.spawn(self._run(), name="main")

    async def add_partitions(self, name: str, total_count: int) -> None:
        """Let a topic grow, as CreatePartitions does."""
        admin = TopicAdmin(
            store=self.metadata,
            keys=self._keys,
            directory=self.topics,
            clock=self.clock,
            rng=self._rng,
            defaults=TopicDefaults(),
            default_partition_count=1,
        )
        await admin.add_partitions(name, total_count)

    def _make_seats(self) -> tuple[Seats, Patterns, TopicNews]:
        pace = BrokerPace(beats_per_second=1_000)
        images = TopicImages(self.topics)
        patterns = Patterns(names=lambda: images.current().by_name, executor=InlineExecutor(), worked_s=lambda: 0.0)
        images.match_by(patterns.matching)

        def make_machine(loaded: Loaded, now: Moment) -> GroupMachine:
            return GroupMachine(
                loaded, limits=LIMITS, rng=self._rng, now=now, image=images.current(), config=CONFIG, pace=pace
            )

        seats = Seats(
            store=self.metadata,
            keys=self._keys,
            make_machine=make_machine,
            before_load=self.topics.refresh,
            clock=self.clock,
            crash_points=self.crash_points,
            log=self._log,
            metrics=GroupMetrics(Metrics()),
            pace=pace,
            max_groups=100,
            idle_s=IDLE_S,
            patterns=patterns,
        )
        news = TopicNews(images=images, patterns=patterns, seats=seats, clock=self.clock)
        self.topics.on_change(news.changed)
        return seats, patterns, news

    async def _run(self) -> None:
        self.process.spawn(SessionReaper(self.metadata, self.clock).run(), name="reaper")
        self._start_keepers()
        while True:
            membership = await self._joined()
            self.cluster.count_self(membership.record, membership.is_present)
            self.seats.begin(membership)
            await membership.lost.wait()
            self.seats.end()
            await membership.abandon()

    async def _joined(self) -> Membership:
        place = Place(node_id=self.node_id, host="host", port=1, rack=None, lock=f"slot {self.node_id}")
        while True:
            try:
                return await Membership.join(
                    self.metadata,
                    place,
                    session_timeout_ms=BROKER_SESSION_MS,
                    clock=self.clock,
                    rng=self._rng,
                    log=self._log,
                )
            except (Retryable, OutcomeUnknown, Fenced):
                await self.clock.sleep(START_RETRY_S)

    def _start_keepers(self) -> None:
        keeper = GroupKeeper(
            store=self.metadata,
            keys=self._keys,
            topics=self.topics,
            answers_for=self.coordinator.answers_for,
            session=lambda: self.seats.session,
            clock=self.clock,
            crash_points=self.crash_points,
            limits=KeepLimits(retention_ms=RETENTION_MS, groups_per_tick=2, lone_lease_ms=20_000),
        )
        self.process.spawn(self.seats.alarms.run(), name="alarms")
        self.process.spawn(self._news.run(), name="news")
        self._repeat("topics", self.topics.follow, 0.2)
        self._repeat("cluster", self.cluster.follow, 0.2)
        self._repeat("idle", self.seats.tick, 2.0)
        self._repeat("keeper", keeper.tick, 1.0)

    def _repeat(self, name: str, tick: Callable[[], Awaitable[object]], period_s: float) -> None:
        async def run() -> None:
            while True:
                await self.clock.sleep(period_s * self._rng.uniform(0.5, 1.5))
                # As the broker's services do: an expected error ends nobody (`runtime/services.py`).
                try:
                    await tick()
                except Unusable:
                    raise
                except HeadraceError:
                    continue

        self.process.spawn(run(), name=name)
