"""Topics as groups see them: one image for all groups of a broker, made anew when topics have changed."""

from collections.abc import Callable, Collection

from headrace.groups import regexes
from headrace.groups.protocol import TopicFacts, TopicsImage
from headrace.topics.directory import TopicDirectory


class TopicImages:
    """Makes images of the topic directory."""

    def __init__(self, topics: TopicDirectory) -> None:
        self._topics = topics
        self._image = TopicsImage(revision=0, by_name={}, by_id={})
        self._is_stale = True
        self._matching: Callable[[str, Collection[str]], frozenset[str]] = regexes.matching

    def match_by(self, matching: Callable[[str, Collection[str]], frozenset[str]]) -> None:
        """Let groups ask this for what a regular expression stands for; it needs the images, so it comes second."""
        self._matching = matching

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
                matching=self._matching,
            )
            self._is_stale = False
        return self._image
