"""Topics and partitions that a request names: what is not known here is looked up before it is denied."""

from collections.abc import Iterable

from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode


class NamedTopics:
    """How many partitions each named topic has."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def code_of(self, topic: str, partition: int) -> ErrorCode:
        """Return NONE where there is such a partition."""
        exists = 0 <= partition < self._counts.get(topic, 0)
        return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def look_up(node: Node, named: Iterable[tuple[str, Iterable[int]]]) -> NamedTopics:
    """Return what is there of the topics; reads the store if a partition seems to be missing."""
    wanted = [(topic, list(partitions)) for topic, partitions in named]
    found = _known(node, wanted)
    if any(found.code_of(topic, partition) for topic, partitions in wanted for partition in partitions):
        await node.topics.refresh()
        found = _known(node, wanted)
    return found


def _known(node: Node, wanted: list[tuple[str, list[int]]]) -> NamedTopics:
    topics = {name: node.topics.get(name) for name, _ in wanted}
    return NamedTopics({name: len(topic.streams) for name, topic in topics.items() if topic is not None})
