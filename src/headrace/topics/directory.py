"""What this broker knows of all topics: follows the store, and may only say yes.

All topics are held in memory. The registry's revision says whether anything has changed since they were read, and
which topics did, so a refresh is one `get` while nothing changes, and a few more when little has.

Must stay true: a positive answer may come from memory at once; before any negative one (no such topic, all there are)
the caller refreshes. When `refresh` returns, everything that was committed before it was called is known here.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from headrace.metadata import keys
from headrace.metadata.paging import read_prefix
from headrace.metadata.port import Key, MetadataStore, Versioned
from headrace.metadata.refreshing import SharedRefresh, follow
from headrace.model.ids import StreamId
from headrace.model.topics import Retention, Topic, TopicId, TopicRules
from headrace.runtime.clock import Clock
from headrace.topics.configs import TopicDefaults, retention_of, rules_of
from headrace.topics.records import TOPIC_RECORD, TOPICS_REVISION, TopicRecord, TopicsRevision

TOPICS_PER_READ = 500


def topic_of(record: TopicRecord, defaults: TopicDefaults) -> Topic:
    """Return a topic as every part sees it, from what is stored of it."""
    return Topic(
        id=record.id,
        name=record.name,
        streams=record.streams,
        rules=rules_of(record.overrides, defaults),
        overrides=record.overrides,
        created_at_ms=record.created_at_ms,
        retention=retention_of(record.overrides, defaults),
        defaults=defaults.given,
    )


class TopicDirectory:
    """All topics in memory."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        defaults: TopicDefaults,
        clock: Clock,
        read_defaults: Callable[[], Awaitable[TopicDefaults]] | None = None,
    ) -> None:
        """Begin without topics. With `read_defaults`, each refresh asks what topics have by default now.

        A broker hears of other defaults by itself, and calls `use_defaults`.
        """
        self._store = store
        self._clock = clock
        self._defaults = defaults
        self._read_defaults = read_defaults
        self._revision: int | None = 0
        """The revision that is known here; `None` has everything read again."""
        self._revision_version = 0
        self._era = 0
        self.generation = 0
        """Grows whenever topics have come, gone or changed here."""
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[TopicId, Topic] = {}
        self._by_stream: dict[StreamId, Topic] = {}
        self._versions: dict[Key, int] = {}
        self._sorted: list[Topic] | None = []
        self._listeners: list[Callable[[], None]] = []
        self._refresh = SharedRefresh(self._catch_up)

    def get(self, name: str) -> Topic | None:
        """Return a topic as it is known here; `None` proves nothing."""
        return self._by_name.get(name)

    def get_by_id(self, topic_id: TopicId) -> Topic | None:
        """Return a topic as it is known here; `None` proves nothing."""
        return self._by_id.get(topic_id)

    def by_stream(self, stream: StreamId) -> Topic | None:
        """Return the topic that a stream is a partition of, as it is known here; `None` proves nothing."""
        return self._by_stream.get(stream)

    def partition_of_stream(self, stream: StreamId) -> tuple[str, int] | None:
        """Return the topic's name and the partition's number of a stream, as they are known here."""
        topic = self.by_stream(stream)
        return None if topic is None else (topic.name, topic.streams.index(stream))

    def rules_of_stream(self, stream: StreamId) -> TopicRules | None:
        """Return what the topic of a stream demands, as it is known here."""
        topic = self.by_stream(stream)
        return None if topic is None else topic.rules

    def known(self) -> list[Topic]:
        """Return all topics as they are known here, by name."""
        if self._sorted is None:
            self._sorted = [self._by_name[name] for name in sorted(self._by_name)]
        return list(self._sorted)

    @property
    def partition_count(self) -> int:
        """How many partitions all known topics have."""
        return len(self._by_stream)

    @property
    def topic_count(self) -> int:
        """How many topics are known here."""
        return len(self._by_name)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call a listener whenever topics have come, gone or changed here, from now on."""
        self._listeners.append(listener)

    def use_defaults(self, defaults: TopicDefaults) -> None:
        """Give all topics other defaults from now on."""
        before, self._defaults = self._defaults, defaults
        if defaults.given == before.given:
            return
        # Most topics have no configs of their own, or the same ones: what follows from them is computed once.
        computed: dict[frozenset[tuple[str, str]], tuple[TopicRules, Retention]] = {}
        changed = []
        for topic in self._by_name.values():
            same = frozenset(topic.overrides.items())
            if same not in computed:
                computed[same] = rules_of(topic.overrides, defaults), retention_of(topic.overrides, defaults)
            rules, retention = computed[same]
            changed.append(replace(topic, rules=rules, retention=retention, defaults=defaults.given))
        self._put(changed)

    async def refresh(self) -> None:
        """Catch up with everything that was committed before this call; concurrent calls share one read."""
        await self._refresh.run()

    def forget(self) -> None:
        """Have the next refresh read every topic: the store may have been taken back to an earlier state.

        Until then what was known goes on counting: topics that seem to vanish for a moment would move whole groups.
        """
        self._era += 1
        self._revision = None
        self._versions.clear()

    async def follow(self) -> None:
        """Stay fresh for ever; while the store cannot be reached, what was known last goes on counting."""
        await follow(self._store, keys.TOPICS, self.refresh, clock=self._clock)

    async def _catch_up(self) -> None:
        """Read the revision first: what is read after it is at least as new, and newer changes come next time."""
        if self._read_defaults is not None:
            self.use_defaults(await self._read_defaults())
        raw = await self._store.get(keys.TOPICS_REVISION)
        revision = TopicsRevision() if raw is None else TOPICS_REVISION.decode(raw.value, raw.key)
        version = 0 if raw is None else raw.version
        era = self._era
        if self._revision is not None and version == self._revision_version:
            return
        # A store that was taken back to an earlier state has an older version, or reaches a number a second time.
        behind = 0 if self._revision is None or version < self._revision_version else revision.number - self._revision
        if 0 < behind <= len(revision.changed):
            await self._read_some(sorted(set(revision.changed[-behind:])))
        else:
            await self._read_all()
        if era == self._era:
            self._revision, self._revision_version = revision.number, version

    async def _read_some(self, names: Sequence[str]) -> None:
        found = [await self._store.get(keys.topic(name)) for name in names]
        gone = [name for name, item in zip(names, found, strict=True) if item is None]
        self._apply([item for item in found if item is not None], gone)

    async def _read_all(self) -> None:
        found = await read_prefix(self._store, keys.TOPICS, keys_per_read=TOPICS_PER_READ)
        there = {item.key for item in found}
        self._apply(found, [name for name in self._by_name if keys.topic(name) not in there])

    def _apply(self, found: Iterable[Versioned], gone: Iterable[str]) -> None:
        """Take what was read, all at once; a topic that has not changed stays the same object."""
        newer = [item for item in found if self._versions.get(item.key) != item.version]
        topics = [topic_of(TOPIC_RECORD.decode(item.value, item.key), self._defaults) for item in newer]
        for name in (*gone, *(topic.name for topic in topics)):
            self._forget(name)
        self._versions.update((item.key, item.version) for item in newer)
        self._put(topics)

    def _put(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            self._by_name[topic.name] = self._by_id[topic.id] = topic
            self._by_stream.update(dict.fromkeys(topic.streams, topic))
        self._sorted = None
        self.generation += 1
        for listener in self._listeners:
            listener()

    def _forget(self, name: str) -> None:
        known = self._by_name.pop(name, None)
        if known is not None:
            del self._by_id[known.id]
            for stream in known.streams:
                del self._by_stream[stream]
            self._versions.pop(keys.topic(name), None)
