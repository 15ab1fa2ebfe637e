"""The partitions that a request names, as they are at the moment of the request.

Caches may only say yes: what is read here was validated against the store after the request arrived, with one read
of the index and at most one of the topics, however many partitions are named.
"""

from dataclasses import dataclass

from headrace.handlers.call import Refused
from headrace.handlers.node import Node
from headrace.index.values import StreamHead
from headrace.model.error_codes import ErrorCode
from headrace.model.ids import StreamId
from headrace.model.topics import Topic
from headrace.runtime.text import one_line

MAX_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshPartition:
    """A partition that exists."""

    topic: Topic
    stream: StreamId
    head: StreamHead


class FreshPartitions:
    """Finds partitions for one request; make a new one for the next."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_index_fresh = False
        self._are_topics_fresh = False

    async def find(self, name: str, partition: int) -> FreshPartition:
        """Return the partition; raise `Refused` if there is none."""
        found = await self._find(name, partition)
        if found is None and not self._are_topics_fresh:
            # The topic may be new, may have grown, or may have been deleted and created again.
            await self._node.topics.refresh()
            self._are_topics_fresh = True
            found = await self._find(name, partition)
        if found is None:
            shown = one_line(name, max_chars=MAX_SHOWN_CHARS)
            raise Refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition} of topic '{shown}'"
            )
        return found

    async def head(self, stream: StreamId) -> StreamHead | None:
        """Return a stream's head; `None` if it was deleted."""
        if not self._is_index_fresh:
            await self._node.index.refresh()
            self._is_index_fresh = True
        view = self._node.index.view
        head = view.head(stream)
        if head is None or head.seq >= view.position:
            return await self._node.index.fresh_head(stream)
        return None if head.is_deleted else head

    async def _find(self, name: str, partition: int) -> FreshPartition | None:
        topic = self._node.topics.get(name)
        if topic is None or not 0 <= partition < len(topic.streams):
            return None
        stream = topic.streams[partition]
        head = await self.head(stream)
        return None if head is None else FreshPartition(topic=topic, stream=stream, head=head)
