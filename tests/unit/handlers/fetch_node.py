"""A node that can fetch: a log on memory stores, two topics, and answers that went over the wire."""

from types import SimpleNamespace
from typing import Any, cast

from headrace.fetch.sessions import FetchSessions, SessionLimits
from headrace.handlers import fetch, list_offsets
from headrace.handlers.call import Call
from headrace.handlers.node import Node
from headrace.model.ids import StreamId
from headrace.model.topics import Topic, TopicId, TopicRules
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.rng import seeded_rng
from headrace.wire.compiler import read_message, write_message
from headrace.wire.messages import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse, Message
from tests.unit.fetch.kit import MAX_OPEN_BYTES, FetchKit

FETCH, LIST_OFFSETS = 1, 2


def topic_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


class Topics:
    """A directory whose topics may be known here, or only to the store."""

    def __init__(self) -> None:
        self.here: dict[str, Topic] = {}
        self.stored: dict[str, Topic] = {}
        self.refreshes = 0

    def add(self, name: str, number: int, streams: list[StreamId], *, is_here: bool = True, **rules: Any) -> None:
        topic = Topic(
            id=topic_id(number),
            name=name,
            streams=tuple(streams),
            rules=TopicRules(max_message_bytes=1_000_000, **rules),
        )
        self.stored[name] = topic
        if is_here:
            self.here[name] = topic

    def get(self, name: str) -> Topic | None:
        return self.here.get(name)

    def get_by_id(self, wanted: TopicId) -> Topic | None:
        return next((topic for topic in self.here.values() if topic.id == wanted), None)

    async def refresh(self) -> None:
        self.refreshes += 1
        self.here = dict(self.stored)


class FetchNode:
    """Everything that a fetch or a look-up of offsets touches."""

    def __init__(self, *, tail_bytes: int = 1_000_000, sessions: int = 10) -> None:
        self.kit = FetchKit(tail_bytes=tail_bytes)
        self.topics = Topics()
        self.sessions = FetchSessions(rng=seeded_rng(1), limits=SessionLimits(sessions=sessions))
        parts = SimpleNamespace(
            clock=self.kit.clock,
            topics=self.topics,
            index=self.kit.cache,
            fetcher=self.kit.fetcher,
            fetch_sessions=self.sessions,
            timestamps=self.kit.timestamps,
            executor=InlineExecutor(),
            max_open_bytes=MAX_OPEN_BYTES,
        )
        self.node = cast(Node, parts)
        self.streams: list[StreamId] = []

    async def start(self, partitions: int = 1) -> None:
        """Create topic `t`, id 1, with that many partitions."""
        self.streams = await self.kit.start(partitions)
        self.topics.add("t", 1, self.streams)

    async def put(self, partition: int, *values: bytes, at_ms: int = 0) -> int:
        return await self.kit.put(self.streams[partition], *values, at_ms=at_ms)

    def call(self, api_key: int, version: int) -> Call:
        return Call(
            api_key=api_key,
            version=version,
            client_id="test",
            peer="127.0.0.1:1",
            arrived_at=self.kit.clock.monotonic(),
        )

    async def fetch(self, version: int, request: FetchRequest) -> FetchResponse:
        """Bring a request over the wire, and its answer back."""
        received = over_the_wire("FetchRequest", version, request)
        response = await fetch.handle(self.node, self.call(FETCH, version), received)
        return cast(FetchResponse, over_the_wire("FetchResponse", version, response))

    async def list_offsets(self, version: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        received = over_the_wire("ListOffsetsRequest", version, request)
        response = await list_offsets.handle(self.node, self.call(LIST_OFFSETS, version), received)
        return cast(ListOffsetsResponse, over_the_wire("ListOffsetsResponse", version, response))


def over_the_wire(name: str, version: int, message: Message) -> Any:
    """Write a message, which fails for fields that the version does not have, and read it again."""
    return read_message(name, version, write_message(name, version, message))
