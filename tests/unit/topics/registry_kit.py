"""A topic registry over the memory store, with a store in between that can lose answers."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.errors import OutcomeUnknown, Retryable
from headrace.index.values import STREAM_HEAD, STREAM_INFO, StreamHead, StreamInfo
from headrace.metadata.keys import DELETED_TOPICS, DomainKeys, prefix_range
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Committed, Decision, Key, Range, Reads, Seen, Unit, Versioned
from headrace.model.ids import DomainId, SessionId, StreamId
from headrace.runtime.rng import seeded_rng
from headrace.topics.admin import NewTopic, TopicAdmin
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory
from headrace.topics.records import DELETED_TOPIC, DeletedTopic

T = TypeVar("T")


class SwiftClock:
    """A clock whose sleepers wake at once: what waits between two tries need not be waited for here."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


class UnsureStore(MemoryMetadata):
    """A memory store that counts reads, and whose transactions can go wrong, one plan entry each.

    `lost`: committed, and the answer lost; `never`: not committed, and nobody can tell; `busy`: nothing happened.
    """

    def __init__(self) -> None:
        super().__init__(seeded_rng(7))
        self.plan: list[str] = []
        self.gets: list[Key] = []
        self.ranges = 0
        self.reads_fail = False
        self.gate: asyncio.Event | None = None

    async def get(self, key: Key) -> Versioned | None:
        self._check_readable()
        self.gets.append(key)
        found = await super().get(key)
        if self.gate is not None:
            await self.gate.wait()
        return found

    async def range(self, range_: Range) -> list[Versioned]:
        self._check_readable()
        self.ranges += 1
        return await super().range(range_)

    async def transact(
        self,
        units: Sequence[Unit],
        reads: Reads,
        decide: Callable[[Seen], Decision[T]],
        *,
        session: SessionId | None = None,
    ) -> Committed[T]:
        fate = self.plan.pop(0) if self.plan else "fine"
        if fate == "never":
            raise OutcomeUnknown("the connection broke")
        if fate == "busy":
            raise Retryable("the store is locked")
        committed = await super().transact(units, reads, decide, session=session)
        await asyncio.sleep(0)
        if fate == "lost":
            raise OutcomeUnknown("the answer was lost")
        return committed

    def _check_readable(self) -> None:
        if self.reads_fail:
            raise Retryable("the store cannot be read")


class RegistryKit:
    """One domain, its registry, and as many brokers as a test asks for."""

    def __init__(self) -> None:
        self.store = UnsureStore()
        self.keys = DomainKeys(DomainId(0))
        self.clock = SwiftClock()
        self.rng = seeded_rng(11)
        self.defaults = TopicDefaults(message_max_bytes=1_000_000)
        self.directory = self.another_directory()
        self.admin = self.admin_over(self.directory)

    def another_directory(self) -> TopicDirectory:
        return TopicDirectory(self.store, defaults=self.defaults, clock=self.clock)

    def admin_over(self, directory: TopicDirectory) -> TopicAdmin:
        return TopicAdmin(
            store=self.store,
            keys=self.keys,
            directory=directory,
            clock=self.clock,
            rng=self.rng,
            defaults=self.defaults,
            default_partition_count=2,
        )

    async def create(self, *names: str, partitions: int = 1) -> None:
        for name in names:
            await self.admin.create(NewTopic(name=name, partition_count=partitions))

    async def head(self, stream: StreamId) -> StreamHead | None:
        raw = await self.store.get(self.keys.head(stream))
        return None if raw is None else STREAM_HEAD.decode(raw.value, raw.key)

    async def info(self, stream: StreamId) -> StreamInfo:
        raw = await self.store.get(self.keys.info(stream))
        assert raw is not None
        return STREAM_INFO.decode(raw.value, raw.key)

    async def deleted(self) -> list[DeletedTopic]:
        found = await self.store.range(prefix_range(DELETED_TOPICS, limit=1000))
        return [DELETED_TOPIC.decode(item.value, item.key) for item in found]

    async def stored_keys(self) -> set[Key]:
        """Return every key of registry and domain."""
        return {item.key for item in await self.store.range(Range(Key("/headrace/v1/"), Key("/headrace/v10")))}
