"""A node for handlers that look into partitions or tell of configs: the registry, the index and a log."""

from types import SimpleNamespace
from typing import cast

from headrace.broker.dynamic_configs import BrokerConfigRules
from headrace.cluster.broker_configs import BrokerConfigs
from headrace.groups.configs import GroupConfigs
from headrace.groups.protocol import GroupConfig
from headrace.handlers.node import Node
from headrace.index.cache import IndexCache
from headrace.model.ids import StreamId
from headrace.runtime.rng import seeded_rng
from headrace.settings import load_settings
from tests.log_kit import LogKit, batch
from tests.unit.handlers.topic_node import TopicNode
from tests.unit.topics.registry_kit import RegistryKit

NODE_ID = 1

GROUP_DEFAULTS = GroupConfig(session_timeout_ms=45_000, heartbeat_interval_ms=None)

STARTED_WITH = ("num.partitions=3", "objects.url=s3://user:hush@bucket/x?secret_key=hush")


class AdminNode(TopicNode):
    """Broker 1 of three, and a writer whose batches land in its partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.log = LogKit()
        self.log.store, self.log.keys = self.store, self.keys
        self.group_configs = self.another_group_configs()
        self.broker_configs = self.another_broker_configs(NODE_ID)
        self.node = cast(
            Node,
            SimpleNamespace(
                node_id=NODE_ID,
                clock=self.clock,
                rng=self.rng,
                metadata=self.store,
                keys=self.keys,
                index=IndexCache(self.store, self.keys, max_folded_entries=100),
                topics=self.directory,
                admin=self.admin,
                cluster=self.cluster,
                broker_configs=self.broker_configs,
                group_configs=self.group_configs,
            ),
        )

    def elsewhere(self) -> RegistryKit:
        """Return another broker's view of the same store: what it changes, this one has not heard of."""
        other = RegistryKit()
        other.store = self.store
        other.rng = seeded_rng(12)
        other.directory = other.another_directory()
        other.admin = other.admin_over(other.directory)
        return other

    def another_group_configs(self) -> GroupConfigs:
        """Return what another broker over the same store remembers of groups' configs."""
        return GroupConfigs(self.store, defaults=GROUP_DEFAULTS, clock=self.clock)

    def another_broker_configs(self, node_id: int) -> BrokerConfigs:
        """Return what a broker over the same store remembers of brokers' configs."""
        rules = BrokerConfigRules(load_settings(pairs=STARTED_WITH))
        return BrokerConfigs(self.store, node_id=node_id, rules=rules, clock=self.clock)

    def stream(self, topic: str, partition: int = 0) -> StreamId:
        return self.topic(topic).streams[partition]

    async def filled(self, topic: str, batches: int = 1, *, records: int = 10, size_bytes: int = 100) -> StreamId:
        """Create a topic of one partition and append to it."""
        await self.create(topic)
        stream = self.stream(topic)
        await self.log.writer()
        for _ in range(batches):
            await self.log.commit((stream, [batch(records, size_bytes=size_bytes)]))
        return stream
