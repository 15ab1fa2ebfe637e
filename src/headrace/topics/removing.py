"""Remove what deleted topics have left behind, in bounded steps, until their records can go, too.

Deleting a topic ends its streams and leaves a record of them (`changing.delete_topic`). Each tick goes a number of
steps through these streams, in turns, and strikes off those that are gone. Any number of brokers may do it at once: a
step that another one has made already finds nothing to do, and streams are struck off in a transaction.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.index.values import DOMAIN_STATE
from headrace.metadata.keys import DELETED_TOPICS, DomainKeys, prefix_range
from headrace.metadata.port import Key, MetadataStore
from headrace.model.ids import StreamId
from headrace.model.topics import TopicId
from headrace.topics.changing import forget_streams
from headrace.topics.records import DELETED_TOPIC, DeletedTopic

RemoveStep = Callable[[StreamId], Awaitable[bool]]
"""Goes one step further in removing a deleted stream, and says whether it is gone; one that is gone stays so."""

Fold = Callable[[], Awaitable[object]]
"""Folds the newest commit records, too, which are otherwise left for later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoverLimits:
    """How many deleted topics one tick looks at, and how many steps it makes, the same number for each of them."""

    topics_per_tick: int
    steps_per_tick: int


class TopicRemover:
    """Walks the records of deleted topics, a page per tick, round and round.

    A stream can go when all commit records that speak of it are folded. Where the log is quiet, that is hurried
    along: otherwise the last records before the deletion would keep their objects until others are produced.
    """

    def __init__(
        self, *, store: MetadataStore, keys: DomainKeys, remove: RemoveStep, fold: Fold, limits: RemoverLimits
    ) -> None:
        self._store = store
        self._keys = keys
        self._remove = remove
        self._fold = fold
        self._limits = limits
        self._after: Key | None = None
        self._round = 0

    async def tick(self) -> int:
        """Go on with the next page of deleted topics and return how many streams went.

        A topic that fails now holds up no other; the first failure is raised in the end.
        """
        limit = self._limits.topics_per_tick
        found = await self._store.range(prefix_range(DELETED_TOPICS, limit=limit, after=self._after))
        folded_to = await self._folded_to() if found else 0
        steps = max(1, self._limits.steps_per_tick // max(1, len(found)))
        removed = 0
        has_unfolded = False
        failures: list[HeadraceError] = []
        for item in found:
            try:
                topic = DELETED_TOPIC.decode(item.value, item.key)
                has_unfolded |= topic.seq >= folded_to
                removed += await self._go_on(item.key, topic, steps, folded_to)
            except HeadraceError as error:
                failures.append(error)
        if has_unfolded:
            try:
                await self._fold()
            except HeadraceError as error:
                failures.append(error)
        self._after = found[-1].key if len(found) == limit else None
        self._round += self._after is None
        if failures:
            raise failures[0]
        return removed

    async def _go_on(self, key: Key, topic: DeletedTopic, steps: int, folded_to: int) -> int:
        """Make the steps of one topic, strike off what went, and return how much that is."""
        if topic.seq >= folded_to:
            # Before its last record is folded a stream cannot go, only shrink: one step for each is enough.
            steps = min(steps, len(topic.streams))
        gone, failure = await self._make_steps(topic.streams, steps)
        if gone:
            topic_id = TopicId(bytes.fromhex(key.removeprefix(DELETED_TOPICS)))
            await forget_streams(topic_id, gone).apply(self._store)
        if failure is not None:
            raise failure
        return len(gone)

    async def _make_steps(
        self, streams: Sequence[StreamId], steps: int
    ) -> tuple[frozenset[StreamId], HeadraceError | None]:
        """Go through the streams in turns; each round begins further on, so none waits for ever behind others."""
        ahead = deque(streams)
        ahead.rotate(-self._round * steps)
        gone: set[StreamId] = set()
        for _ in range(steps):
            if not ahead:
                break
            stream = ahead.popleft()
            try:
                is_gone = await self._remove(stream)
            except HeadraceError as error:
                return frozenset(gone), error
            if is_gone:
                gone.add(stream)
            else:
                ahead.append(stream)
        return frozenset(gone), None

    async def _folded_to(self) -> int:
        raw = await self._store.get(self._keys.state)
        return 0 if raw is None else DOMAIN_STATE.decode(raw.value, raw.key).folded_to
