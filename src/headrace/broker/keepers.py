"""What runs beside the requests of a broker: followers of the stores, and those who keep the log tidy."""

from collections.abc import Awaitable, Callable

from headrace.broker.assembly import Parts
from headrace.broker.collecting import make_collectors
from headrace.broker.gauges import Gauges
from headrace.broker.groups import group_keeper
from headrace.broker.repacking import make_repacker
from headrace.broker.storage import Runtime, Storage
from headrace.gc.clocks import ClockGuard
from headrace.gc.expiring import ProducerExpirer, SinkExpirer, SinkMetrics
from headrace.gc.folding import Folder, FoldLimits
from headrace.gc.leased import CollectorLease, CollectorMetrics, LeasedCollectors
from headrace.gc.pins import PinMetrics
from headrace.gc.retaining import Retainer, RetainerLimits, RetentionMetrics
from headrace.gc.trimming import LogTrimmer, LogTrimmerLimits, Trimmer
from headrace.groups.lag import LagMeter
from headrace.metadata.sessions import SessionReaper
from headrace.model.ids import SessionId, StreamId
from headrace.pipeline.meters import TableMeter
from headrace.pipeline.sagas import Sagas
from headrace.produce.incarnations import Incarnations
from headrace.runtime.memory import MemoryTrimmer
from headrace.runtime.services import Follower, Service, Ticker, TickMetrics
from headrace.settings import Settings
from headrace.topics.removing import RemoverLimits, TopicRemover

FOLD_STEPS_PER_TICK = 16
"""How many transactions one tick of the folder makes, five times a second."""

ENTRIES_PER_TRIM = 300
"""How many index entries, or producers of a deleted stream, one transaction removes."""

DELETED_TOPICS_PER_TICK = 20
"""How many deleted topics one tick looks at, once a second."""

REMOVALS_PER_TICK = 400
"""How many transactions one tick makes to remove what deleted topics have left, once a second."""

STREAMS_PER_EXPIRY = 500
"""Of how many streams one step of a round reads the producers. A round over 100,000 streams takes about a minute."""

PRODUCERS_PER_STEP = 500
"""How many producers one step reads, and one transaction forgets at most. Each has a few hundred bytes."""

SINKS_PER_STEP = 50
"""How many sinks, and how many writes, one transaction reads. A sink has up to half a MiB of ranges."""

FOLD_INTERVAL_MS = 200
COLLECT_INTERVAL_MS = 5_000
SWEEP_INTERVAL_MS = 60_000
REPACK_INTERVAL_MS = 5_000
REMOVE_INTERVAL_MS = 1_000
RETAIN_INTERVAL_MS = 1_000
"""How often a round of retention that is under way goes on; when one begins is a setting."""

TRIM_INTERVAL_MS = 1_000
SEAL_INTERVAL_MS = 1_000
EXPIRE_INTERVAL_MS = 30_000
"""How long after one round over all sinks and their writes the next one begins; over producers, at least."""

PRODUCER_ROUNDS = 24
"""How many rounds over all producers there are while one expires: it is forgotten late by a part of that time."""

MAX_PRODUCER_INTERVAL_MS = 3_600_000
"""How long after one round over all producers the next one begins, at most."""

GROUPS_IDLE_INTERVAL_MS = 5_000
GAUGES_INTERVAL_MS = 1_000
MEMORY_INTERVAL_MS = 5_000
LAG_INTERVAL_MS = 10_000
TABLE_LAG_INTERVAL_MS = 10_000


def keepers(
    settings: Settings, runtime: Runtime, storage: Storage, parts: Parts, incarnations: Incarnations
) -> list[Service]:
    """Make all of them, ready to be started, in the order in which they should be."""
    making = _Making(settings, runtime, storage, parts)
    return [
        *making.followers(),
        making.ticker("writer-tidy", incarnations.tick, SEAL_INTERVAL_MS),
        *making.log_keepers(),
        *making.collectors(),
        *making.expirers(),
        *making.group_keepers(),
        *making.meters(),
    ]


def producer_interval_ms(expiration_ms: int) -> int:
    """Return how long after one round over all producers the next one begins."""
    return max(EXPIRE_INTERVAL_MS, min(expiration_ms // PRODUCER_ROUNDS, MAX_PRODUCER_INTERVAL_MS))


class _Making:
    """Puts the keepers together; every one of them works on this broker's own parts."""

    def __init__(self, settings: Settings, runtime: Runtime, storage: Storage, parts: Parts) -> None:
        self._settings = settings
        self._runtime = runtime
        self._storage = storage
        self._parts = parts
        self._node = parts.node
        self._metrics = TickMetrics(runtime.metrics)

    def followers(self) -> list[Service]:
        """Return those who hear what others have changed."""
        node = self._node
        reaper = SessionReaper(self._storage.metadata, self._runtime.clock)
        return [
            self._follower("session-reaper", reaper.run),
            self._follower("index-follower", node.index.follow),
            self._follower("topic-follower", node.topics.follow),
            self._follower("cluster-follower", node.cluster.follow),
            self._follower("group-config-follower", node.group_configs.follow),
            self._follower("broker-config-follower", node.broker_configs.follow),
            self._follower("group-alarms", self._parts.seats.alarms.run),
            self._follower("group-topics", self._parts.topic_news.run),
        ]

    def log_keepers(self) -> list[Service]:
        """Return those who fold, repack and trim the log, and move its starts."""
        keys, metadata = self._node.keys, self._storage.metadata
        trimmer = Trimmer(
            keys=keys,
            metadata=metadata,
            clock=self._runtime.clock,
            entries_per_step=ENTRIES_PER_TRIM,
            crash_points=self._runtime.crash_points,
        )
        quick_folder = self._folder(lag_records=0)
        log_trimmer = LogTrimmer(
            trimmer=trimmer,
            folder=quick_folder,
            index=self._node.index,
            streams=self._streams,
            lease=CollectorLease(metadata, self._session),
            limits=LogTrimmerLimits(),
        )
        remover = TopicRemover(
            store=metadata,
            keys=keys,
            remove=trimmer.remove,
            fold=quick_folder.tick,
            limits=RemoverLimits(topics_per_tick=DELETED_TOPICS_PER_TICK, steps_per_tick=REMOVALS_PER_TICK),
        )
        folder = self._folder(lag_records=self._settings.index.fold_lag_records)
        repacker = make_repacker(self._settings, self._runtime, self._storage, self._node, self._session)
        retain_interval_ms = min(RETAIN_INTERVAL_MS, self._settings.retention.check_interval_ms)
        return [
            self.ticker("folder", folder.tick, FOLD_INTERVAL_MS),
            self.ticker("repacker", repacker.tick, REPACK_INTERVAL_MS, breaks_off=True),
            self.ticker("retainer", self._retainer().tick, retain_interval_ms),
            self.ticker("log-trimmer", log_trimmer.tick, TRIM_INTERVAL_MS),
            self.ticker("topic-remover", remover.tick, REMOVE_INTERVAL_MS),
        ]

    def collectors(self) -> list[Service]:
        """Return those who delete what nothing names."""
        metadata = self._storage.metadata
        pin_metrics = PinMetrics(self._runtime.metrics)
        made = make_collectors(self._settings, self._runtime, self._storage, self._node.keys, pin_metrics=pin_metrics)
        lease = CollectorLease(metadata, self._session)
        metrics = CollectorMetrics(self._runtime.metrics)
        collecting = LeasedCollectors(
            [made.pins, made.objects, made.table_files], lease=lease, metrics=metrics, waiting=made.waiting
        )
        sweeping = LeasedCollectors([made.sweeper], lease=lease, metrics=metrics)
        return [
            self.ticker("collector", collecting.tick, COLLECT_INTERVAL_MS),
            self.ticker("sweeper", sweeping.tick, SWEEP_INTERVAL_MS),
        ]

    def expirers(self) -> list[Service]:
        """Return those who forget producers and sinks that have been silent for long."""
        keys, metadata = self._node.keys, self._storage.metadata
        producers = ProducerExpirer(
            keys=keys,
            metadata=metadata,
            agreed_ms=self._clock_guard().look,
            streams=self._streams,
            expiration_ms=self._settings.topics.producer_id_expiration_ms,
            streams_per_tick=STREAMS_PER_EXPIRY,
            producers_per_step=PRODUCERS_PER_STEP,
        )
        sinks = SinkExpirer(
            keys=keys,
            metadata=metadata,
            agreed_ms=self._clock_guard().look,
            expiration_ms=self._settings.sinks.id_expiration_ms,
            sinks_per_step=SINKS_PER_STEP,
            metrics=SinkMetrics(self._runtime.metrics),
        )
        return [
            self.ticker(
                "producer-expirer",
                producers.tick,
                producer_interval_ms(self._settings.topics.producer_id_expiration_ms),
                goes_on=lambda: not producers.is_round_over,
            ),
            self.ticker("sink-expirer", sinks.tick, EXPIRE_INTERVAL_MS, goes_on=lambda: not sinks.is_round_over),
        ]

    def group_keepers(self) -> list[Service]:
        """Return those who let idle groups rest, and forget what nobody asks for."""
        parts = self._parts
        keeper = group_keeper(self._settings, self._runtime, self._storage, self._node, parts.seats, parts.live)
        interval_ms = self._settings.groups.offsets_retention_check_interval_ms
        return [
            self.ticker("group-idler", self._parts.seats.tick, GROUPS_IDLE_INTERVAL_MS),
            self.ticker("group-keeper", keeper.tick, interval_ms, goes_on=lambda: not keeper.is_round_over),
            self.ticker("group-patterns", self._parts.topic_news.tick, GROUPS_IDLE_INTERVAL_MS),
        ]

    def meters(self) -> list[Service]:
        """Return those who measure; one of them gives back memory that nothing uses."""
        node, parts, metrics = self._node, self._parts, self._runtime.metrics
        lag = LagMeter(metrics, seats=parts.seats, store=self._storage.metadata, topics=node.topics, index=node.index)
        tables = TableMeter(
            metrics,
            sagas=Sagas(self._storage.metadata, node.keys),
            topics=node.topics,
            index=node.index,
            clock=self._runtime.clock,
            file_target_bytes=self._settings.pipeline.file_target_bytes,
        )
        gauges = Gauges(
            metrics,
            node=node,
            tail=parts.tail,
            catch_up=parts.catch_up,
            row_groups=parts.row_groups,
            seats=parts.seats,
        )
        return [
            self.ticker("group-lag", lag.tick, LAG_INTERVAL_MS),
            self.ticker("table-lag", tables.tick, TABLE_LAG_INTERVAL_MS),
            self.ticker("gauges", gauges.tick, GAUGES_INTERVAL_MS),
            self.ticker("memory", MemoryTrimmer(executor=node.executor, metrics=metrics).tick, MEMORY_INTERVAL_MS),
        ]

    def _folder(self, *, lag_records: int) -> Folder:
        return Folder(
            keys=self._node.keys,
            metadata=self._storage.metadata,
            clock=self._runtime.clock,
            crash_points=self._runtime.crash_points,
            limits=FoldLimits(
                records_per_step=self._settings.index.fold_batch_records,
                entries_per_step=self._settings.index.fold_batch_entries,
                steps_per_tick=FOLD_STEPS_PER_TICK,
                lag_records=lag_records,
            ),
        )

    def _retainer(self) -> Retainer:
        metadata, clock = self._storage.metadata, self._runtime.clock
        return Retainer(
            keys=self._node.keys,
            metadata=metadata,
            index=self._node.index,
            topics=self._node.topics.known,
            guard=self._clock_guard(),
            lease=CollectorLease(metadata, self._session),
            session=self._session,
            clock=clock,
            crash_points=self._runtime.crash_points,
            metrics=RetentionMetrics(self._runtime.metrics),
            limits=RetainerLimits(interval_ms=self._settings.retention.check_interval_ms),
        )

    def _clock_guard(self) -> ClockGuard:
        return ClockGuard(
            node_id=self._node.node_id,
            metadata=self._storage.metadata,
            session=self._session,
            clock=self._runtime.clock,
            log=self._runtime.log,
            max_jump_ms=self._settings.retention.clock_jump_max_ms,
        )

    def _session(self) -> SessionId | None:
        return self._parts.seats.session

    def _streams(self) -> list[StreamId]:
        return [stream for topic in self._node.topics.known() for stream in topic.streams]

    def _follower(self, name: str, follow: Callable[[], Awaitable[object]]) -> Follower:
        return Follower(name, follow, clock=self._runtime.clock, log=self._runtime.log, metrics=self._metrics)

    def ticker(
        self,
        name: str,
        tick: Callable[[], Awaitable[object]],
        interval_ms: int,
        *,
        breaks_off: bool = False,
        goes_on: Callable[[], bool] = lambda: False,
    ) -> Ticker:
        """Return a service that does something every now and then."""
        return Ticker(
            name,
            tick,
            interval_ms=interval_ms,
            clock=self._runtime.clock,
            rng=self._runtime.rng,
            log=self._runtime.log,
            metrics=self._metrics,
            breaks_off=breaks_off,
            goes_on=goes_on,
        )
