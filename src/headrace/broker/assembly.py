"""Put the parts of a broker together, as the settings say."""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.dynamic_configs import BrokerConfigRules
from headrace.broker.groups import group_defaults, make_group_parts
from headrace.broker.live_settings import LiveSettings
from headrace.broker.storage import DOMAIN, MAX_FOLDED_ENTRIES, Runtime, Storage
from headrace.cluster.broker_configs import BrokerConfigs
from headrace.cluster.membership import Membership
from headrace.cluster.view import ClusterView
from headrace.fetch.catchup import CatchUp, CatchUpLimits
from headrace.fetch.damage import DamageBook
from headrace.fetch.fetcher import Fetcher
from headrace.fetch.reader import LogReader
from headrace.fetch.row_groups import RowGroupCache
from headrace.fetch.sessions import FetchSessions, SessionLimits
from headrace.fetch.table_reads import GroupKey, TableReader
from headrace.fetch.tail import TailCache
from headrace.fetch.timestamps import TimestampFinder
from headrace.groups.configs import GroupConfigs
from headrace.groups.coordinator import GroupCoordinator
from headrace.groups.meters import GroupMetrics
from headrace.groups.seats import Seats
from headrace.groups.topic_news import TopicNews
from headrace.handlers.all_topics import AllTopics
from headrace.handlers.node import LiveLimits, Node
from headrace.index.cache import IndexCache
from headrace.metadata.keys import DomainKeys
from headrace.metadata.rewinds import Rewinds
from headrace.produce.log import ProduceLog
from headrace.produce.placement import PlacementLimits, open_placement
from headrace.produce.producer_ids import ProducerIds
from headrace.produce.settlement import WriterLimits
from headrace.produce.writer import LogWriter, WriterMetrics
from headrace.runtime.executor import Executor
from headrace.runtime.setting_kinds import Address
from headrace.runtime.turns import LoopTurns
from headrace.settings import HeadraceConfiguration, Settings
from headrace.topics.admin import TopicAdmin
from headrace.topics.directory import TopicDirectory

LOCAL_FAR_READS = 2
REMOTE_FAR_READS = 16
"""How many reads for readers far behind are under way at once."""

LOCAL_SMALL_FRAMES = 1
"""At 1,000 requests a second of 1 KiB, one at a time has half the latency of two or four (p50 5.6 ms against 12)."""

COMMIT_ATTEMPTS = 5
COMMIT_BACKOFF_MS = 50
STAGED_AHEAD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything a broker is made of, before it starts."""

    node: Node
    live: LiveSettings
    tail: TailCache
    catch_up: CatchUp
    row_groups: RowGroupCache[GroupKey]
    writer_metrics: WriterMetrics
    seats: Seats
    topic_news: TopicNews
    rewinds: Rewinds


def assemble(
    configuration: HeadraceConfiguration,
    runtime: Runtime,
    storage: Storage,
    *,
    cluster_id: str,
    executor: Executor,
    table_executor: Executor,
    pattern_executor: Executor,
    told: Callable[[], Address],
) -> Parts:
    """Make the parts; nothing runs yet. `told` says where clients reach this broker, once it listens."""
    settings = configuration.tree
    clock, metadata = runtime.clock, storage.metadata
    keys = DomainKeys(DOMAIN)
    rewinds = Rewinds(log=runtime.log, metrics=runtime.metrics)
    index = IndexCache(metadata, keys, max_folded_entries=MAX_FOLDED_ENTRIES, on_rewind=rewinds.noticed)
    rules = BrokerConfigRules(configuration, told=told)
    broker_configs = BrokerConfigs(metadata, node_id=settings.broker.node_id, rules=rules, clock=clock)
    live = LiveSettings(settings, broker_configs, log=runtime.log)
    defaults = live.topic_defaults
    topics = TopicDirectory(metadata, defaults=defaults, clock=clock)
    admin = TopicAdmin(
        store=metadata,
        keys=keys,
        directory=topics,
        clock=clock,
        rng=runtime.rng,
        defaults=defaults,
        default_partition_count=settings.topics.num_partitions,
    )
    tail = TailCache(max_bytes=settings.fetch.tail_cache_max_bytes)
    row_groups = RowGroupCache[GroupKey](max_bytes=settings.fetch.table_cache_max_bytes)
    tables = TableReader(
        objects=storage.objects, executor=table_executor, cache=row_groups, rules_of=topics.rules_of_stream
    )
    reader = LogReader(
        domain=DOMAIN,
        cache=index,
        objects=storage.objects,
        executor=executor,
        tables=tables,
        damages=DamageBook(log=runtime.log, partition_of=topics.partition_of_stream),
    )
    catch_up = CatchUp(
        reader=reader,
        view=index.view,
        tail=tail,
        clock=clock,
        limits=CatchUpLimits(
            far_bytes=settings.fetch.catch_up_max_bytes,
            # On local disk one reader at a time keeps the disk busy, and more would only slow the appends down.
            far_reads=LOCAL_FAR_READS if storage.objects.segments is not None else REMOTE_FAR_READS,
        ),
    )
    cluster = ClusterView(metadata, cluster_id=cluster_id, clock=clock)
    group_configs = GroupConfigs(metadata, defaults=group_defaults(settings), clock=clock)
    group_metrics = GroupMetrics(runtime.metrics)
    groups = make_group_parts(
        settings, runtime, metadata, keys, topics, group_configs, group_metrics, live, executor=pattern_executor
    )
    limits = live_limits(settings)
    node = Node(
        node_id=settings.broker.node_id,
        clock=clock,
        rng=runtime.rng,
        log=runtime.log,
        executor=executor,
        turns=LoopTurns(),
        metadata=metadata,
        keys=keys,
        index=index,
        topics=topics,
        all_topics=AllTopics(),
        admin=admin,
        cluster=cluster,
        log_in=ProduceLog(),
        producer_ids=ProducerIds(metadata),
        fetcher=Fetcher(
            index=index,
            tail=tail,
            catch_up=catch_up,
            clock=clock,
            log=runtime.log,
            rules_of=topics.rules_of_stream,
        ),
        fetch_sessions=FetchSessions(rng=runtime.rng, limits=SessionLimits(sessions=settings.fetch.max_sessions)),
        timestamps=TimestampFinder(
            index=index,
            reader=reader,
            executor=executor,
            max_open_bytes=settings.topics.decompression_max_bytes,
        ),
        groups=GroupCoordinator(
            node_id=settings.broker.node_id,
            store=metadata,
            keys=keys,
            cluster=cluster,
            topics=topics,
            seats=groups.seats,
            metrics=group_metrics,
            patterns=groups.patterns,
        ),
        group_configs=group_configs,
        broker_configs=broker_configs,
        live=limits,
        max_open_bytes=settings.topics.decompression_max_bytes,
    )

    def use(now: Settings) -> None:
        admin.use_defaults(live.topic_defaults, partition_count=now.topics.num_partitions)
        limits.auto_create_topics = now.topics.auto_create
        limits.offset_metadata_max_bytes = now.groups.offset_metadata_max_bytes

    live.used_by(use)
    rewinds.forget_with(index.forget, topics.forget, node.fetcher.forget, node.producer_ids.forget, groups.seats.end)
    return Parts(
        node=node,
        live=live,
        tail=tail,
        catch_up=catch_up,
        row_groups=row_groups,
        writer_metrics=WriterMetrics(runtime.metrics),
        seats=groups.seats,
        topic_news=groups.news,
        rewinds=rewinds,
    )


def live_limits(settings: Settings) -> LiveLimits:
    """Return what handlers go by and may change while the broker runs."""
    return LiveLimits(
        auto_create_topics=settings.topics.auto_create,
        offset_metadata_max_bytes=settings.groups.offset_metadata_max_bytes,
    )


def make_writer(
    settings: Settings, runtime: Runtime, storage: Storage, parts: Parts, membership: Membership
) -> LogWriter:
    """Make the writer of one incarnation."""
    wal = settings.wal
    keys = parts.node.keys
    placement = open_placement(
        keys=keys,
        writer=membership.incarnation,
        metadata=storage.metadata,
        objects=storage.objects,
        clock=runtime.clock,
        crash_points=runtime.crash_points,
        limits=PlacementLimits(
            segment_max_bytes=wal.segment_max_bytes,
            segment_max_age_ms=wal.segment_max_age_ms,
            staged_ahead=STAGED_AHEAD,
            staged_max_age_ms=wal.staged_max_age_ms,
        ),
    )
    is_local = storage.objects.segments is not None
    return LogWriter(
        keys=keys,
        writer=membership.incarnation,
        metadata=storage.metadata,
        placement=placement,
        clock=runtime.clock,
        crash_points=runtime.crash_points,
        limits=WriterLimits(
            buffer_max_bytes=wal.buffer_max_bytes,
            frame_max_bytes=wal.frame_max_bytes,
            frames_in_flight=wal.frames_in_flight,
            small_frames_in_flight=LOCAL_SMALL_FRAMES if is_local else wal.frames_in_flight,
            # An append to a local segment is so cheap that waiting for company only costs time.
            linger_ms=0 if is_local else wal.linger_ms,
            commit_attempts=COMMIT_ATTEMPTS,
            retry_backoff_ms=COMMIT_BACKOFF_MS,
            producer_expiration_ms=settings.topics.producer_id_expiration_ms,
        ),
        cache=parts.node.index,
        tail=parts.tail,
        metrics=parts.writer_metrics,
        given_up=parts.node.log_in.given_up,
    )
