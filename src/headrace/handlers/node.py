"""What handlers work with: the flows and facts of this broker. Requests never travel further down than here."""

from dataclasses import dataclass

from headrace.cluster.broker_configs import BrokerConfigs
from headrace.cluster.view import ClusterView
from headrace.fetch.fetcher import Fetcher
from headrace.fetch.sessions import FetchSessions
from headrace.fetch.timestamps import TimestampFinder
from headrace.groups.configs import GroupConfigs
from headrace.groups.coordinator import GroupCoordinator
from headrace.handlers.all_topics import AllTopics
from headrace.index.cache import IndexCache
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.produce.log import ProduceLog
from headrace.produce.producer_ids import ProducerIds
from headrace.runtime.clock import Clock
from headrace.runtime.executor import Executor
from headrace.runtime.logs import Log
from headrace.runtime.rng import Rng
from headrace.runtime.turns import LoopTurns
from headrace.topics.admin import TopicAdmin
from headrace.topics.directory import TopicDirectory


@dataclass(slots=True, kw_only=True)
class LiveLimits:
    """What handlers go by and may change while the broker runs."""

    auto_create_topics: bool
    offset_metadata_max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The parts of one broker that answer requests.

    `executor` takes what would keep the event loop waiting; what is long and stays on the loop asks for `turns`.
    """

    node_id: int
    clock: Clock
    rng: Rng
    log: Log
    executor: Executor
    turns: LoopTurns
    metadata: MetadataStore
    keys: DomainKeys
    index: IndexCache
    topics: TopicDirectory
    all_topics: AllTopics
    admin: TopicAdmin
    cluster: ClusterView
    log_in: ProduceLog
    producer_ids: ProducerIds
    fetcher: Fetcher
    fetch_sessions: FetchSessions
    timestamps: TimestampFinder
    groups: GroupCoordinator
    group_configs: GroupConfigs
    broker_configs: BrokerConfigs
    live: LiveLimits
    max_open_bytes: int

    @property
    def auto_create_topics(self) -> bool:
        """Whether naming an unknown topic creates it."""
        return self.live.auto_create_topics

    @property
    def offset_metadata_max_bytes(self) -> int:
        """The most that a consumer may write down beside one committed offset."""
        return self.live.offset_metadata_max_bytes
