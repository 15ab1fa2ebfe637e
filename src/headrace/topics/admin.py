"""Create, change and delete topics: each call is one transaction (`changing.py`), and this broker knows of it after.

A transaction whose outcome was lost is applied again: it recognises its own work, by the topic's id or by what is
there now. So a caller hears of an unknown outcome only when the store stays away.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.errors import Exists, HeadraceError, Missing, OutcomeUnknown, Retryable
from headrace.index.rule import StalePlan
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.topics import Topic, TopicId
from headrace.runtime.clock import Clock
from headrace.runtime.rng import Rng
from headrace.topics.changing import (
    TopicChange,
    TopicDraft,
    configure_topic,
    create_topic,
    delete_topic,
    grow_topic,
)
from headrace.topics.configs import TopicDefaults, check_change, check_configs
from headrace.topics.directory import TopicDirectory, topic_of
from headrace.topics.names import check_name
from headrace.topics.problems import InvalidPartitionCount
from headrace.topics.records import TopicRecord

MAX_PARTITIONS_PER_TOPIC = 10_000
MAX_TRIES = 5
"""How often a change is tried whose outcome was lost, or that was planned from what was no longer true."""

FIRST_PAUSE_S = 0.05
"""How long to wait before a change is tried again; each further pause is twice as long."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """What is asked for; `partition_count` of `None` takes the cluster's default."""

    name: str
    partition_count: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)


class TopicAdmin:
    """Performs what clients ask for, each call one transaction."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        keys: DomainKeys,
        directory: TopicDirectory,
        clock: Clock,
        rng: Rng,
        defaults: TopicDefaults,
        default_partition_count: int,
    ) -> None:
        self._store = store
        self._keys = keys
        self._directory = directory
        self._clock = clock
        self._rng = rng
        self.defaults = defaults
        self.default_partition_count = default_partition_count

    def use_defaults(self, defaults: TopicDefaults, *, partition_count: int) -> None:
        """Give all topics, and those to come, other defaults from now on."""
        self.defaults = defaults
        self.default_partition_count = partition_count
        self._directory.use_defaults(defaults)

    async def create(self, new: NewTopic, *, validate_only: bool = False) -> Topic:
        """Create a topic and return it; with `validate_only`, say what it would be.

        Raises `InvalidTopicName`, `InvalidPartitionCount`, `InvalidTopicConfig` or `Exists`.
        """
        check_name(new.name)
        count = self.default_partition_count if new.partition_count is None else new.partition_count
        _check_count(count)
        check_configs(new.configs)
        draft = TopicDraft(id=new_topic_id(self._rng), name=new.name, partition_count=count, overrides=new.configs)
        change = create_topic(self._keys, draft, now_ms=self._clock.now_ms(), validate_only=validate_only)
        return await self._done(await self._apply(lambda _: change))

    async def delete(self, topic_id: TopicId) -> None:
        """Delete a topic. Raises `Missing` if there is none with this id."""
        for _ in range(MAX_TRIES):
            topic = self._directory.get_by_id(topic_id)
            if topic is None:
                await self._directory.refresh()
                topic = self._directory.get_by_id(topic_id)
            if topic is None:
                raise Missing(f"there is no topic with the id {topic_id.hex()}")
            try:
                await self._apply(self._deletion_of(topic))
            except StalePlan:
                await self._directory.refresh()
            else:
                await self._catch_up()
                return
        raise Retryable(f"the topic {topic_id.hex()} changes faster than it can be deleted: try again")

    async def add_partitions(self, name: str, total_count: int, *, validate_only: bool = False) -> Topic:
        """Give a topic more partitions, `total_count` in all, and return it; those it has are not touched.

        Raises `Missing`, or `InvalidPartitionCount` if the topic would not grow.
        """
        check_name(name)
        _check_count(total_count)
        now_ms = self._clock.now_ms()
        record = await self._apply(
            lambda is_repeat: grow_topic(
                self._keys, name, total_count, now_ms=now_ms, is_repeat=is_repeat, validate_only=validate_only
            )
        )
        return await self._done(record)

    async def set_configs(
        self, name: str, changes: Mapping[str, str | None], *, replace: bool = False, validate_only: bool = False
    ) -> Topic:
        """Set (or with `None` unset) configs; with `replace`, everything that is not named goes back to default.

        Raises `Missing`, or `InvalidTopicConfig`.
        """
        check_name(name)
        change = configure_topic(name, changes, replace=replace, check=check_change, validate_only=validate_only)
        return await self._done(await self._apply(lambda _: change))

    async def auto_create(self, names: Sequence[str]) -> dict[str, HeadraceError]:
        """Create topics with all defaults, where there are none yet; return why some could not be created."""
        failed: dict[str, HeadraceError] = {}
        for name in names:
            try:
                await self.create(NewTopic(name=name))
            except Exists:
                await self._catch_up()
            except HeadraceError as error:
                failed[name] = error
        return failed

    def _deletion_of(self, topic: Topic) -> Callable[[bool], TopicChange[None]]:
        now_ms = self._clock.now_ms()
        return lambda is_repeat: delete_topic(
            self._keys, topic.id, topic.name, topic.streams, now_ms=now_ms, is_repeat=is_repeat
        )

    async def _apply(self, change: Callable[[bool], TopicChange[T]]) -> T:
        """Apply a change, and once more while its outcome is unknown; `change` is told that it is a repetition."""
        lost: OutcomeUnknown | None = None
        for attempt in range(MAX_TRIES):
            if lost is not None:
                await self._clock.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                return await change(lost is not None).apply(self._store)
            except OutcomeUnknown as error:
                lost = error
            except StalePlan:
                raise
            except Retryable:
                # This try had no effect. Whether an earlier one had is still unknown: say no less than that.
                if lost is None:
                    raise
        assert lost is not None, "a loop that ends here has lost an outcome"
        raise lost

    async def _done(self, record: TopicRecord) -> Topic:
        await self._catch_up()
        return topic_of(record, self.defaults)

    async def _catch_up(self) -> None:
        """Let the next request on this broker see what was committed; that this can fail does not undo it."""
        with contextlib.suppress(HeadraceError):
            await self._directory.refresh()


def new_topic_id(rng: Rng) -> TopicId:
    """Return a random UUID (version 4) whose usual text form does not begin with a dash, as a command's option would.

    Kafka writes these ids in base64, where 62 stands for the dash.
    """
    while True:
        drawn = bytearray(rng.getrandbits(128).to_bytes(16, "big"))
        drawn[6] = drawn[6] & 0x0F | 0x40
        drawn[8] = drawn[8] & 0x3F | 0x80
        if drawn[0] >> 2 != 62:
            return TopicId(bytes(drawn))


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_PARTITIONS_PER_TOPIC:
        raise InvalidPartitionCount(f"a topic has 1 to {MAX_PARTITIONS_PER_TOPIC} partitions, not {count}")
