"""Write at a steady rate, and note when each request was sent and when it was acknowledged.

Requests are made from batches that were encoded before, and go out on a clock that does not wait for answers: a slow
broker shows as latency, never as a lower rate.
"""

import asyncio
import itertools
import os
import time
from dataclasses import dataclass

from benchmarks.groups_beside_kafka.connection import Connection, connect
from benchmarks.tables_beside_spark.load import Batch, stamp, wait_for_topic
from headrace.model.batches import NO_PRODUCER, NO_SEQUENCE
from headrace.model.error_codes import ErrorCode
from headrace.testing.batches import make_batch
from headrace.wire.messages import ProduceRequest

TICK_SECONDS = 0.01
"""How often a request goes out: as a client with a linger of 10 ms does it."""

VALUE_BYTES = 100
POOL = 64
NS_PER_MS = 1_000_000

_PRODUCE_KEY, _PRODUCE_VERSION = 0, 9
_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """A request's part for one partition, on the machine's monotonic clock."""

    partition: int
    end_offset: int
    records: int
    sent_ns: int
    acked_ns: int

    @property
    def latency_ms(self) -> float:
        return (self.acked_ns - self.sent_ns) / NS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast, and how many partitions a request touches: all of them, or one after the other at a low rate."""

    records_per_second: int
    partitions: int
    partitions_per_request: int

    @property
    def records_per_batch(self) -> int:
        return max(1, round(self.records_per_second * TICK_SECONDS / self.partitions_per_request))


async def write_steadily(bootstrap: str, topic: str, pace: Pace, *, until: asyncio.Event) -> list[Ack]:
    """Write until told to end; return what was acknowledged, in the order of sending."""
    host, _, port = bootstrap.rpartition(":")
    connection = await connect((host, int(port)))
    try:
        await wait_for_topic(connection, topic, pace.partitions)
        return await _write(connection, topic, pace, until)
    finally:
        await connection.close()


async def _write(connection: Connection, topic: str, pace: Pace, until: asyncio.Event) -> list[Ack]:
    partitions = itertools.cycle(range(pace.partitions))
    pool = itertools.cycle([small_batch(pace.records_per_batch) for _ in range(POOL)])
    requests: list[asyncio.Task[list[Ack]]] = []
    next_at = time.monotonic()
    while not until.is_set():
        chosen = [next(partitions) for _ in range(pace.partitions_per_request)]
        parts = {partition: stamped(next(pool)) for partition in chosen}
        requests.append(asyncio.create_task(_send(connection, topic, parts, pace.records_per_batch)))
        next_at += TICK_SECONDS
        await asyncio.sleep(max(0.0, next_at - time.monotonic()))
    return [ack for request in requests for ack in await request]


def small_batch(records: int) -> Batch:
    """Return a batch of that many random values."""
    values = [os.urandom(VALUE_BYTES) for _ in range(records)]
    return Batch(data=bytearray(make_batch(values)), records=records, span_ms=records - 1)


def stamped(batch: Batch) -> bytes:
    """Return the batch as it is sent now, by nobody in particular."""
    now_ms = time.time_ns() // NS_PER_MS
    return stamp(batch, now_ms=now_ms, producer_id=NO_PRODUCER, epoch=-1, sequence=NO_SEQUENCE)


async def _send(connection: Connection, topic: str, parts: dict[int, bytes], records: int) -> list[Ack]:
    sent_ns = time.monotonic_ns()
    answer = await connection.ask(_PRODUCE_KEY, _PRODUCE_VERSION, produce_request(topic, parts))
    acked_ns = time.monotonic_ns()
    acks = []
    for part in answer.responses[0].partition_responses:
        if part.error_code != ErrorCode.NONE:
            raise RuntimeError(f"partition {part.index} of {topic}: {ErrorCode(part.error_code).name}")
        end_offset = part.base_offset + records
        acks.append(
            Ack(partition=part.index, end_offset=end_offset, records=records, sent_ns=sent_ns, acked_ns=acked_ns)
        )
    return acks


def produce_request(topic: str, parts: dict[int, bytes]) -> ProduceRequest:
    """Return a request with one batch for each of some partitions."""
    data = [ProduceRequest.PartitionProduceData(index=index, records=batch) for index, batch in parts.items()]
    return ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=_TIMEOUT_MS,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=data)],
    )
