"""Topics as groups see them: one image for all groups of a broker, made anew when topics have changed."""

from headrace.groups.protocol import TopicFacts, TopicsImage
from headrace.topics.directory import TopicDirectory


class TopicImages:
    """Makes images of the topic directory."""

    def __init__(self, topics: TopicDirectory) -> None:
        self._topics = topics
        self._image = TopicsImage(revision=0, by_name={}, by_id={})
        self._is_stale = True

    def outdate(self) -> None:
        """Take note that topics have changed."""
        self._is_stale = True

    def current(self) -> TopicsImage:
        """Return the topics as the directory knows them now."""
        if self._is_stale:
            facts = [
                TopicFacts(id=topic.id, name=topic.name, partition_count=len(topic.streams))
                for topic in self._topics.known()
            ]
            self._image = TopicsImage(
                revision=self._image.revision + 1,
                by_name={one.name: one for one in facts},
                by_id={one.id: one for one in facts},
            )
            self._is_stale = False
        return self._image
