"""What the members of a KIP-848 group subscribe to: names, regular expressions, and the topics these stand for now.

Members of one group mostly want the same. So subscriptions are counted, and each different one is resolved once per
image of the topics, however many members have it.

Must stay true: whatever is asked is answered from the last image that was given, for all members alike.
"""

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

from headrace.groups.protocol import TopicsImage
from headrace.groups.regexes import InvalidPattern
from headrace.model.topics import TopicId

HASH_BYTES = 16


class Wish(NamedTuple):
    """A subscription: `topics` are sorted, each once. Two members with equal ones want the same."""

    topics: tuple[str, ...]
    regex: str | None


NO_WISH = Wish((), None)


class Subscriptions:
    """The subscriptions of one group, over one image of the topics."""

    def __init__(self, image: TopicsImage) -> None:
        self._image = image
        self._counts: Counter[Wish] = Counter()
        self._resolved: dict[Wish, frozenset[TopicId]] = {}
        self._partition_counts: dict[TopicId, int] | None = None
        self._hash: bytes | None = None

    @property
    def image(self) -> TopicsImage:
        """The topics as they are known here."""
        return self._image

    def turn_to(self, image: TopicsImage) -> None:
        """Look at the topics as they are now."""
        self._image = image
        self._resolved.clear()
        self._forget_totals()

    def add(self, wish: Wish) -> None:
        """Count one more member with this subscription."""
        self._counts[wish] += 1
        if self._counts[wish] == 1:
            self._forget_totals()

    def remove(self, wish: Wish) -> None:
        """Count one member less with this subscription."""
        left = self._counts[wish] - 1
        assert left >= 0, "only what was counted is removed"
        if left:
            self._counts[wish] = left
        else:
            del self._counts[wish]
            self._resolved.pop(wish, None)
            self._forget_totals()

    def topic_ids(self, wish: Wish) -> frozenset[TopicId]:
        """Return the topics that a subscription stands for."""
        found = self._resolved.get(wish)
        if found is None:
            by_name = self._image.by_name
            found = frozenset(by_name[name].id for name in self._names(wish) if name in by_name)
            if wish in self._counts:
                self._resolved[wish] = found
        return found

    def names(self) -> frozenset[str]:
        """Return the names of all topics that somebody wants, also of those that do not exist."""
        return frozenset().union(*map(self._names, self._counts))

    def partition_counts(self) -> Mapping[TopicId, int]:
        """Return all topics that somebody wants, with their partition counts."""
        if self._partition_counts is None:
            wanted = frozenset[TopicId]().union(*map(self.topic_ids, self._counts))
            by_id = self._image.by_id
            self._partition_counts = {topic_id: by_id[topic_id].partition_count for topic_id in sorted(wanted)}
        return self._partition_counts

    def topics_hash(self) -> bytes:
        """Return a hash of `partition_counts`: while it stays the same, topics are no reason for a new target."""
        if self._hash is None:
            digest = blake2b(digest_size=HASH_BYTES)
            for topic_id, count in self.partition_counts().items():
                digest.update(topic_id)
                digest.update(count.to_bytes(4, "big"))
            self._hash = digest.digest()
        return self._hash

    def _names(self, wish: Wish) -> frozenset[str]:
        names = frozenset(wish.topics)
        if wish.regex is None:
            return names
        try:
            by_name = self._image.by_name
            return names.union(name for name in self._image.matching(wish.regex, by_name) if name in by_name)
        except InvalidPattern:
            # It was valid when it was taken; a release with other limits must still be able to load the group.
            return names

    def _forget_totals(self) -> None:
        self._partition_counts = None
        self._hash = None
