"""A node that can produce: a real writer on memory stores that follow a script. Answers go over the wire."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from headrace.handlers import produce
from headrace.handlers.call import Call
from headrace.handlers.node import Node
from headrace.model.ids import StreamId
from headrace.produce.log import ProduceLog
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.turns import LoopTurns
from headrace.testing.batches import make_batch
from headrace.wire.messages import ZERO_UUID, ProduceRequest, ProduceResponse
from tests.unit.fetch.kit import MAX_OPEN_BYTES, FetchKit
from tests.unit.handlers.fetch_node import Topics, over_the_wire, topic_id

PRODUCE = 0
FIRST_WITH_TOPIC_IDS = 13

Partition = ProduceResponse.PartitionProduceResponse
Sent = tuple[int, bytes | bytearray | memoryview | None]
"""A partition, and what is sent for it."""


class ProduceNode:
    """Topic `t`, id 1, over a log, a tail cache and a fetcher."""

    def __init__(self) -> None:
        self.kit = FetchKit()
        self.topics = Topics()
        self.log_in = ProduceLog()
        self.executor = InlineExecutor()
        self.node = cast(
            Node,
            SimpleNamespace(
                clock=self.kit.clock,
                topics=self.topics,
                log_in=self.log_in,
                executor=self.executor,
                turns=LoopTurns(),
                max_open_bytes=MAX_OPEN_BYTES,
            ),
        )
        self.streams: list[StreamId] = []

    async def start(self, partitions: int = 1, **rules: Any) -> None:
        """Create topic `t` and let the log take batches."""
        self.streams = await self.kit.start(partitions)
        self.topics.add("t", 1, self.streams, **rules)
        self.log_in.use(self.kit.writer)

    def call(self, version: int, *, size_bytes: int = 0) -> Call:
        return Call(
            api_key=PRODUCE,
            version=version,
            size_bytes=size_bytes,
            client_id="test",
            peer="127.0.0.1:1",
            arrived_at=self.kit.clock.monotonic(),
        )

    async def begin(
        self, version: int, request: ProduceRequest, *, size_bytes: int = 0
    ) -> "ProduceResponse | asyncio.Future[ProduceResponse] | None":
        """Bring a request over the wire, into memory of its own, as the server does; return what the handler does."""
        received = over_the_wire("ProduceRequest", version, request)
        return await produce.handle(self.node, self.call(version, size_bytes=size_bytes), writable(received))

    async def produce(self, version: int, request: ProduceRequest, *, size_bytes: int = 0) -> ProduceResponse:
        """Send a request and wait for its answer, as the wire brings it."""
        answer = await self.begin(version, request, size_bytes=size_bytes)
        return await self.answered(version, answer)

    async def answered(self, version: int, answer: object) -> ProduceResponse:
        response = await answer if isinstance(answer, asyncio.Future) else answer
        assert isinstance(response, ProduceResponse)
        return cast(ProduceResponse, over_the_wire("ProduceResponse", version, response))

    async def send(self, *sent: Sent, version: int = 9, acks: int = -1, timeout_ms: int = 60_000) -> list[Partition]:
        """Send batches to topic `t` and return its partitions' answers."""
        response = await self.produce(version, request_of(version, *sent, acks=acks, timeout_ms=timeout_ms))
        (topic,) = response.responses
        return topic.partition_responses


def request_of(version: int, *sent: Sent, topic: int = 1, acks: int = -1, timeout_ms: int = 60_000) -> ProduceRequest:
    """Return a request for one topic, named as the version names it: `t` has the id 1, `t2` the id 2, and so on."""
    has_ids = version >= FIRST_WITH_TOPIC_IDS
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="" if has_ids else "t" if topic == 1 else f"t{topic}",
                topic_id=topic_id(topic) if has_ids else ZERO_UUID,
                partition_data=[
                    ProduceRequest.PartitionProduceData(
                        index=index, records=None if records is None else memoryview(records)
                    )
                    for index, records in sent
                ],
            )
        ],
    )


def writable(request: ProduceRequest) -> ProduceRequest:
    """Return the request with its records in memory that may be written."""
    return ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_data=[
                    ProduceRequest.PartitionProduceData(
                        index=data.index,
                        records=None
                        if data.records is None
                        else memoryview(bytearray(cast(memoryview, data.records))),
                    )
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ],
    )


def idempotent(*values: bytes, sequence: int, producer: int = 7, epoch: int = 0) -> bytes:
    return make_batch(values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def codes(partitions: Sequence[Partition]) -> list[int]:
    return [partition.error_code for partition in partitions]
