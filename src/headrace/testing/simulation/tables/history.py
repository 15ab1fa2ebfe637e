"""What clients of topics were told; a stream's records outlive its topic here, for its table may do so, too."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from headrace.model.ids import StreamId
from headrace.model.topics import Topic, TopicId
from headrace.testing.simulation.history import History


@dataclass(slots=True)
class TableHistory(History):
    """Values are imprints (`records.py`). Topics are those that clients have created, in their order."""

    topics: dict[TopicId, Topic] = field(default_factory=dict)
    deleted: set[StreamId] = field(default_factory=set)
    """Streams of topics whose deletion somebody has asked for."""

    @property
    def streams(self) -> list[StreamId]:
        """Every stream that has ever been."""
        return [stream for topic in self.topics.values() for stream in topic.streams]

    @property
    def living_streams(self) -> list[StreamId]:
        return [stream for stream in self.streams if stream not in self.deleted]

    @property
    def living_topics(self) -> list[Topic]:
        return [topic for topic in self.topics.values() if topic.streams[0] not in self.deleted]

    def of(self, topics: Iterable[Topic]) -> "TableHistory":
        """Return what there is of some topics only. Both go on together."""
        return replace(self, topics={topic.id: topic for topic in topics})

    def created(self, topic: Topic) -> None:
        """Remember a topic that is there now."""
        self.topics[topic.id] = topic

    def deletes(self, topic: Topic) -> None:
        """Remember that a topic is about to go: from now on nothing is promised of its log."""
        self.deleted.update(topic.streams)

    def known(self, stream: StreamId, offset: int) -> bytes | None:
        """Return what clients know of an offset, from whom ever."""
        place = (stream, offset)
        return self.acknowledged.get(place, self.seen.get(place))
