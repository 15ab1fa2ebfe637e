"""Put the group side of a broker together, as the settings say."""

import time
from dataclasses import dataclass

from headrace.broker.live_settings import LiveSettings
from headrace.broker.storage import Runtime, Storage
from headrace.groups.configs import GroupConfigs
from headrace.groups.images import TopicImages
from headrace.groups.keeping import GroupKeeper, KeepLimits
from headrace.groups.machine import GroupMachine
from headrace.groups.meters import GroupMetrics
from headrace.groups.pace import BrokerPace
from headrace.groups.patterns import Patterns
from headrace.groups.protocol import ConfigChanged, GroupConfig, GroupLimits, LimitsChanged, Moment
from headrace.groups.records import Loaded
from headrace.groups.seats import Seats
from headrace.groups.topic_news import TopicNews
from headrace.handlers.node import Node
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.runtime.executor import Executor
from headrace.settings import Settings
from headrace.settings.units import MINUTE_MS
from headrace.topics.directory import TopicDirectory

GROUPS_PER_TICK = 200
"""How many groups one step of a round reads. A round over 100,000 groups has 500 steps and takes a few minutes."""

LONE_LEASE_MS = 600_000
"""How long the lease of a deleted group is kept: longer than anything that was sent under it can be on its way."""


def group_defaults(settings: Settings) -> GroupConfig:
    """Return what a group is unless its own configuration says otherwise."""
    groups = settings.groups
    return GroupConfig(
        session_timeout_ms=groups.consumer_session_timeout_ms,
        heartbeat_interval_ms=groups.consumer_heartbeat_interval_ms or None,
    )


def group_limits(settings: Settings) -> GroupLimits:
    """Return what a broker allows of every group."""
    groups = settings.groups
    return GroupLimits(
        max_members=groups.max_size,
        min_session_timeout_ms=groups.min_session_timeout_ms,
        max_session_timeout_ms=groups.max_session_timeout_ms,
        initial_rebalance_delay_ms=groups.initial_rebalance_delay_ms,
        max_metadata_bytes=groups.member_metadata_max_bytes,
        max_subscribed_topics=groups.max_subscribed_topics,
    )


def keep_limits(settings: Settings) -> KeepLimits:
    """Return how long offsets are kept, and how many groups are looked at together."""
    return KeepLimits(
        retention_ms=settings.groups.offsets_retention_minutes * MINUTE_MS,
        groups_per_tick=GROUPS_PER_TICK,
        lone_lease_ms=LONE_LEASE_MS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupParts:
    """The seats of this broker's groups, and what they hear of topics and patterns."""

    seats: Seats
    patterns: Patterns
    news: TopicNews


def make_group_parts(
    settings: Settings,
    runtime: Runtime,
    metadata: MetadataStore,
    keys: DomainKeys,
    topics: TopicDirectory,
    configs: GroupConfigs,
    metrics: GroupMetrics,
    live: LiveSettings,
    *,
    executor: Executor,
) -> GroupParts:
    """Make the seats of this broker's groups; they hear of topics and configs that change.

    The executor matches regular expressions. It has a thread of its own, because that may take long.
    """
    groups, limits = settings.groups, group_limits(settings)
    pace = BrokerPace(beats_per_second=groups.heartbeats_per_second)
    images = TopicImages(topics)
    patterns = Patterns(names=lambda: images.current().by_name, executor=executor, worked_s=time.thread_time)
    images.match_by(patterns.matching)

    def make_machine(loaded: Loaded, now: Moment) -> GroupMachine:
        return GroupMachine(
            loaded,
            limits=limits,
            rng=runtime.rng,
            now=now,
            image=images.current(),
            config=configs.of(loaded.group_id),
            pace=pace,
        )

    async def before_load() -> None:
        await topics.refresh()
        await configs.refresh()

    seats = Seats(
        store=metadata,
        keys=keys,
        make_machine=make_machine,
        before_load=before_load,
        clock=runtime.clock,
        crash_points=runtime.crash_points,
        log=runtime.log,
        metrics=metrics,
        pace=pace,
        max_groups=groups.max_groups,
        idle_s=groups.idle_timeout_ms / 1000,
        patterns=patterns,
    )
    news = TopicNews(images=images, patterns=patterns, seats=seats, clock=runtime.clock)

    def config_changed(group_id: str) -> None:
        seat = seats.held(group_id)
        if seat is not None:
            seat.tell(ConfigChanged(config=configs.of(group_id)))

    def use(now: Settings) -> None:
        nonlocal limits
        limits = group_limits(now)
        pace.beats_per_second = now.groups.heartbeats_per_second
        seats.use_limits(max_groups=now.groups.max_groups, idle_s=now.groups.idle_timeout_ms / 1000)
        configs.defaults, configs.sources = group_defaults(now), live.sources
        for seat in seats:
            seat.tell(LimitsChanged(limits=limits))
            seat.tell(ConfigChanged(config=configs.of(seat.group_id)))

    live.used_by(use)
    topics.on_change(news.changed)
    configs.on_change(config_changed)
    return GroupParts(seats=seats, patterns=patterns, news=news)


def group_keeper(
    settings: Settings, runtime: Runtime, storage: Storage, node: Node, seats: Seats, live: LiveSettings
) -> GroupKeeper:
    """Make what forgets offsets and groups."""
    keeper = GroupKeeper(
        store=storage.metadata,
        keys=node.keys,
        topics=node.topics,
        answers_for=node.groups.answers_for,
        session=lambda: seats.session,
        clock=runtime.clock,
        crash_points=runtime.crash_points,
        limits=keep_limits(settings),
    )
    live.used_by(lambda now: keeper.use_limits(keep_limits(now)))
    return keeper
