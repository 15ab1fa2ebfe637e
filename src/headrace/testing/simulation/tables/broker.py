"""A simulated broker whose partitions belong to topics: it creates and deletes these, and collects table files."""

from collections.abc import Mapping, Sequence

from headrace.gc.trimming import Trimmer
from headrace.metadata.port import MetadataStore
from headrace.metadata.sessions import SessionKeeper
from headrace.model.topics import Topic, TopicId
from headrace.objects.port import ObjectStore
from headrace.pipeline.sagas import Sagas
from headrace.pipeline.tidying import TableFileCollector, TableFileLimits
from headrace.produce.writer import LogWriter
from headrace.runtime.rng import Rng
from headrace.testing.simulation.node import Node, NodeShape
from headrace.testing.simulation.plan import FaultPlan
from headrace.testing.simulation.process import SimCrashPoints, SimProcess
from headrace.topics.admin import NewTopic, TopicAdmin
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory
from headrace.topics.removing import RemoverLimits, TopicRemover

REMOVER_LIMITS = RemoverLimits(topics_per_tick=10, steps_per_tick=8)


class TableBroker(Node):
    """One incarnation of one broker."""

    def __init__(
        self,
        process: SimProcess,
        *,
        shape: NodeShape,
        files: TableFileLimits,
        metadata: MetadataStore,
        objects: ObjectStore,
        plan: FaultPlan,
        crash_points: SimCrashPoints,
        rng: Rng,
    ) -> None:
        super().__init__(
            process,
            shape=shape,
            metadata=metadata,
            objects=objects,
            plan=plan,
            crash_points=crash_points,
            rng=rng,
        )
        self._files = files
        self.topics = TopicDirectory(self.metadata, defaults=TopicDefaults(), clock=self.clock)
        self._admin = TopicAdmin(
            store=self.metadata,
            keys=self.keys,
            directory=self.topics,
            clock=self.clock,
            rng=rng,
            defaults=TopicDefaults(),
            default_partition_count=1,
        )

    def _start_keepers(self, keeper: SessionKeeper, writer: LogWriter) -> None:
        super()._start_keepers(keeper, writer)
        trimmer = Trimmer(
            keys=self.keys,
            metadata=self.metadata,
            clock=self.clock,
            entries_per_step=3,
            crash_points=self.crash_points,
        )
        remover = TopicRemover(
            store=self.metadata, keys=self.keys, remove=trimmer.remove, fold=_no_hurry, limits=REMOVER_LIMITS
        )
        files = TableFileCollector(
            keys=self.keys,
            metadata=self.metadata,
            objects=self.objects,
            clock=self.clock,
            crash_points=self.crash_points,
            limits=self._files,
        )
        self._repeat("topics", self.topics.refresh, 0.7)
        self._repeat("remove", remover.tick, 1.1)
        self._repeat("tidy", files.tick, 1.3)

    def _topics(self) -> Sequence[Topic]:
        return self.topics.known()

    def _retained(self) -> Sequence[Topic]:
        return self.topics.known()

    async def _table_ends(self, topic_id: TopicId) -> Mapping[int, int]:
        state = await Sagas(self.metadata, self.keys).state(topic_id)
        return {} if state is None else state.ends

    async def _trim_all(self, trimmer: Trimmer) -> None:
        for topic in self.topics.known():
            for stream in topic.streams:
                await trimmer.trim(stream)

    async def create_topic(self, new: NewTopic) -> Topic:
        """Create a topic, as CreateTopics does."""
        return await self._admin.create(new)

    async def delete_topic(self, topic_id: TopicId) -> None:
        """Delete a topic, as DeleteTopics does."""
        await self._admin.delete(topic_id)


async def _no_hurry() -> None:
    """The log of a history is never quiet: what is not folded now will be."""
