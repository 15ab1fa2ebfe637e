"""Write records into a topic as fast as a broker takes them: the same ones on both sides, with keys and headers.

No client library that Python has sends headers at a rate that would not be the limit. So batches are made once, with
our own encoder, and sent again and again as an idempotent producer sends them: before each sending the producer's id,
the sequence and the times are put into the header, and the checksum is taken anew.
"""

import asyncio
import math
import os
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from benchmarks.groups_beside_kafka.connection import Connection, connect
from headrace.model.error_codes import ErrorCode
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.wire.messages import InitProducerIdRequest, MetadataRequest, ProduceRequest

BATCH_BYTES = 64 * 1024
"""Between the 16 KiB of a Java client and the 1 MB of librdkafka."""

POOL_BYTES = 24_000_000
"""More than any page, dictionary or window of a codec sees at once, so that repetition helps nobody."""

IN_FLIGHT = 5
"""What an idempotent producer may have under way."""

KEYS = 1_000_000
KEY_BYTES = 16
TRACE_BYTES = 16
SOURCE = b"orders-api"

TOPIC_LIMIT_SECONDS = 60.0
PAUSE_SECONDS = 0.1

_PRODUCE_KEY, _PRODUCE_VERSION = 0, 9
_METADATA_KEY, _METADATA_VERSION = 3, 12
_PRODUCER_ID_KEY, _PRODUCER_ID_VERSION = 22, 4
_TIMEOUT_MS = 60_000

_TIMES_AND_PRODUCER = struct.Struct(">qqqhi")
_TIMES_AT = 27
_CRC = struct.Struct(">I")
_CRC_AT = 17
_CRC_FROM = 21


class NotLeader(Exception):
    """The broker does not lead a partition, or not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch that can be sent: its bytes, its records, and how far apart its first and last timestamp are."""

    data: bytearray
    records: int
    span_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is written to a topic: as many records, spread evenly over the partitions, each with a key and headers."""

    record_bytes: int
    records: int
    partitions: int

    @property
    def content_bytes(self) -> int:
        """The bytes of all keys, values and headers."""
        headers = len("trace") + TRACE_BYTES + len("source") + len(SOURCE)
        return self.records * (self.record_bytes + KEY_BYTES + headers)


def make_pool(record_bytes: int, partitions: int) -> list[Batch]:
    """Return batches of random values, random keys out of many, and two headers per record.

    Their number has no divisor in common with that of the partitions: going round, every partition gets all of them.
    """
    per_record = record_bytes + KEY_BYTES + 64
    per_batch = max(1, BATCH_BYTES // per_record)
    count = max(1, POOL_BYTES // (per_batch * per_record))
    while math.gcd(count, partitions) != 1:
        count += 1
    return [_make_batch(record_bytes, per_batch) for _ in range(count)]


def _make_batch(record_bytes: int, count: int) -> Batch:
    numbers = struct.unpack(f">{count}I", os.urandom(4 * count))
    values = os.urandom(record_bytes * count)
    traces = os.urandom(TRACE_BYTES * count)
    records = [
        Record(
            offset=n,
            timestamp_ms=n // 100,
            key=b"key-%012d" % (number % KEYS),
            value=values[n * record_bytes : (n + 1) * record_bytes],
            headers=(
                (b"trace", traces[n * TRACE_BYTES : (n + 1) * TRACE_BYTES]),
                (b"source", SOURCE),
            ),
        )
        for n, number in enumerate(numbers)
    ]
    columns = columns_of(records, producer_id=1, producer_epoch=0, base_sequence=0)
    data = bytearray(BatchEncoder(max_batch_bytes=1 << 24).encode(columns))
    return Batch(data=data, records=count, span_ms=(count - 1) // 100)


def stamp(batch: Batch, *, now_ms: int, producer_id: int, epoch: int, sequence: int) -> bytes:
    """Return the batch as that producer sends it now."""
    _TIMES_AND_PRODUCER.pack_into(batch.data, _TIMES_AT, now_ms, now_ms + batch.span_ms, producer_id, epoch, sequence)
    _CRC.pack_into(batch.data, _CRC_AT, crc32c(memoryview(batch.data)[_CRC_FROM:]))
    return bytes(batch.data)


def write_load(bootstrap: str, topic: str, load: Load, pool: Sequence[Batch]) -> dict[int, int]:
    """Write at least so many records, in whole batches; return how many each partition got."""
    return asyncio.run(_write(bootstrap, topic, load, pool))


async def _write(bootstrap: str, topic: str, load: Load, pool: Sequence[Batch]) -> dict[int, int]:
    host, _, port = bootstrap.rpartition(":")
    connection = await connect((host, int(port)))
    try:
        await wait_for_topic(connection, topic, load.partitions)
        producer_id, epoch = await _producer_id(connection)
        return await _send_all(connection, topic, load, pool, producer_id, epoch)
    finally:
        await connection.close()


async def _producer_id(connection: Connection) -> tuple[int, int]:
    """Ask for a producer id and its epoch, until a broker that has just started has one to give."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_TIMEOUT_MS)
    async with asyncio.timeout(TOPIC_LIMIT_SECONDS):
        while True:
            told = await connection.ask(_PRODUCER_ID_KEY, _PRODUCER_ID_VERSION, request)
            if told.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                _require(told.error_code, "no producer id")
                return told.producer_id, told.producer_epoch
            await asyncio.sleep(PAUSE_SECONDS)


async def _send_all(
    connection: Connection, topic: str, load: Load, pool: Sequence[Batch], producer_id: int, epoch: int
) -> dict[int, int]:
    written = dict.fromkeys(range(load.partitions), 0)
    under_way: deque[asyncio.Task[None]] = deque()
    sent = number = 0
    try:
        while sent < load.records:
            now_ms = time.time_ns() // 1_000_000
            parts = []
            for partition in written:
                batch = pool[number % len(pool)]
                number += 1
                sequence = written[partition]
                data = stamp(batch, now_ms=now_ms, producer_id=producer_id, epoch=epoch, sequence=sequence)
                parts.append((partition, data))
                written[partition] += batch.records
                sent += batch.records
            if number == len(parts):
                await _produce_first(connection, topic, parts)
                continue
            under_way.append(asyncio.create_task(_produce(connection, topic, parts)))
            # The frame is on its way before the next one is made: batches of a producer must not overtake.
            await asyncio.sleep(0)
            if len(under_way) >= IN_FLIGHT:
                await under_way.popleft()
        while under_way:
            await under_way.popleft()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    return written


async def _produce_first(connection: Connection, topic: str, parts: Sequence[tuple[int, bytes]]) -> None:
    """Send the first batches alone, again and again: a fresh topic's leader may not know yet that it is one."""
    async with asyncio.timeout(TOPIC_LIMIT_SECONDS):
        while True:
            try:
                return await _produce(connection, topic, parts)
            except NotLeader:
                await asyncio.sleep(PAUSE_SECONDS)


async def _produce(connection: Connection, topic: str, parts: Sequence[tuple[int, bytes]]) -> None:
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=_TIMEOUT_MS,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=partition, records=data) for partition, data in parts
                ],
            )
        ],
    )
    answer = await connection.ask(_PRODUCE_KEY, _PRODUCE_VERSION, request)
    for each in answer.responses[0].partition_responses:
        if each.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            raise NotLeader(f"the broker does not lead partition {each.index} of {topic}")
        _require(each.error_code, f"partition {each.index} of {topic} took no records")


async def wait_for_topic(connection: Connection, topic: str, partitions: int) -> None:
    """Wait until the broker knows the topic and a leader for each of its partitions."""
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
    async with asyncio.timeout(TOPIC_LIMIT_SECONDS):
        while True:
            (found,) = (await connection.ask(_METADATA_KEY, _METADATA_VERSION, request)).topics
            leaders = [part for part in found.partitions if part.leader_id >= 0]
            if found.error_code == ErrorCode.NONE and len(leaders) == partitions:
                return
            await asyncio.sleep(PAUSE_SECONDS)


def _require(error_code: int, what: str) -> None:
    if error_code != ErrorCode.NONE:
        raise RuntimeError(f"{what}: {ErrorCode(error_code).name}")
