"""How late the broker's event loop is under a mixed load: what everybody waits for, whatever they ask for.

A broker with some thousand partitions has, all at once: producers of small batches, of 1 MB batches, and of one batch
for each of a thousand partitions; a reader from the beginning; parked fetches that one commit wakes together; clients
that ask for the metadata of all topics; KIP-848 groups that join with regular expressions; and new topics, after
which metadata is encoded again and every expression meets a new name. The broker measures its own lag, twenty times a
second (`headrace_loop_lag_seconds`), and counts stalls of 250 ms and more; both are read from `/metrics`.

Clients share the machine with the broker: on two cores, part of the lag is theirs.
"""

import asyncio
import itertools
import re
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.testing.batches import make_batch
from headrace.wire.headers import encode_request, parse_response
from headrace.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    CreateTopicsRequest,
    FetchRequest,
    Message,
    MetadataRequest,
    ProduceRequest,
)
from tests.servers.headrace import HeadraceProcess, running_headrace

NAME = "loop_lag"
HAS_QUICK_FORM = True

PRODUCE, FETCH, METADATA, CREATE_TOPICS, CONSUMER_HEARTBEAT = 0, 1, 3, 19, 68
VERSIONS = {PRODUCE: 9, FETCH: 12, METADATA: 12, CREATE_TOPICS: 7, CONSUMER_HEARTBEAT: 1}

TOPICS = 10
PARTITIONS = 500
WIDE_PARTITIONS = 1_000
PARKED = "parked"
LOAD_SECONDS = 30.0
QUICK_SECONDS = 5.0
MOST_LAG_MS = 250.0
PATIENCE_SECONDS = 60.0

Row = tuple[str, float, str, float | None]
Buckets = Mapping[float, float]

_BUCKET = re.compile(r'^headrace_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
_STALLS = re.compile(r"^headrace_loop_stalls_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What `/metrics` says of the loop: heartbeats that were late by up to so many seconds, and stalls."""

    buckets: Buckets
    stalls: float

    def since(self, earlier: "Readings") -> "Readings":
        """Return what came after an earlier reading."""
        buckets = {le: count - earlier.buckets.get(le, 0.0) for le, count in self.buckets.items()}
        return Readings(buckets=buckets, stalls=self.stalls - earlier.stalls)

    def within_ms(self, share: float) -> float:
        """Return the bound that this share of all heartbeats kept: the upper end of a bucket."""
        total = max(self.buckets.values(), default=0.0)
        bounds = sorted(le for le, count in self.buckets.items() if total and count >= share * total)
        return bounds[0] * 1000 if bounds else 0.0


def readings_of(text: str) -> Readings:
    """Take the readings from the text of `/metrics`."""
    buckets = {float(le): float(count) for le, count in _BUCKET.findall(text)}
    stalls = _STALLS.search(text)
    return Readings(buckets=buckets, stalls=float(stalls[1]) if stalls else 0.0)


def read(broker: HeadraceProcess) -> Readings:
    """Ask the broker."""
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=PATIENCE_SECONDS) as answer:
        return readings_of(answer.read().decode())


class Client:
    """One connection that asks one thing after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, broker: HeadraceProcess) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", broker.kafka_port))

    async def ask(self, api_key: int, request: Message) -> Any:
        """Send a request and return its answer."""
        version = VERSIONS[api_key]
        self._writer.write(encode_request(api_key, version, 1, NAME, request))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        frame = await self._reader.readexactly(size)
        return None if api_key in (METADATA, FETCH) else parse_response(api_key, version, memoryview(frame))[1]

    def close(self) -> None:
        self._writer.close()


class Load:
    """All clients of one run. Every one of them goes on until it is cancelled."""

    def __init__(self, broker: HeadraceProcess) -> None:
        self._broker = broker
        self._parked_end = 0
        self.counts = {"small produces": 0, "metadata of all": 0, "groups joined": 0}

    def jobs(self, *, parked: int) -> list[Callable[[Client], Awaitable[None]]]:
        return [
            *[self._produce_small] * 4,
            self._produce_large,
            self._produce_wide,
            self._read,
            self._wake,
            *[self._ask_for_all] * 2,
            self._join,
            self._create,
            *[self._park] * parked,
        ]

    async def run(self, seconds: float, *, parked: int) -> None:
        """Let all of them work for so long; raise what one of them raised."""
        jobs = self.jobs(parked=parked)
        clients = [await Client.connect(self._broker) for _ in jobs]
        tasks = [asyncio.ensure_future(job(client)) for job, client in zip(jobs, clients, strict=True)]
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for client in clients:
            client.close()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in done:
            task.result()

    async def prepare(self) -> None:
        """Create the topics."""
        client = await Client.connect(self._broker)
        for number in range(TOPICS):
            await _create(client, f"load-{number}", PARTITIONS)
        await _create(client, "wide", WIDE_PARTITIONS)
        await _create(client, PARKED, 1)
        client.close()

    async def _produce_small(self, client: Client) -> None:
        batch = memoryview(make_batch([b"x" * 1_000]))
        for number in itertools.count():
            await client.ask(PRODUCE, _produce("load-0", {number % PARTITIONS: batch}))
            self.counts["small produces"] += 1

    async def _produce_large(self, client: Client) -> None:
        batch = memoryview(make_batch([b"y" * 10_000] * 90))
        for number in itertools.count():
            await client.ask(PRODUCE, _produce("load-1", {number % PARTITIONS: batch}))
            await asyncio.sleep(0.05)

    async def _produce_wide(self, client: Client) -> None:
        batch = memoryview(make_batch([b"z" * 100]))
        while True:
            await client.ask(PRODUCE, _produce("wide", dict.fromkeys(range(WIDE_PARTITIONS), batch)))
            await asyncio.sleep(0.2)

    async def _read(self, client: Client) -> None:
        for number in itertools.count():
            topics = {"load-1": [(number % PARTITIONS, 0)], "load-0": [(one, 0) for one in range(100)]}
            await client.ask(FETCH, _fetch(topics, max_wait_ms=50))

    async def _wake(self, client: Client) -> None:
        batch = memoryview(make_batch([b"wake up"]))
        while True:
            await asyncio.sleep(1.0)
            answer = await client.ask(PRODUCE, _produce(PARKED, {0: batch}))
            self._parked_end = answer.responses[0].partition_responses[0].base_offset + 1

    async def _park(self, client: Client) -> None:
        """Wait at the end of the log, as a reader at the tail does: each wake-up brings one record."""
        while True:
            await client.ask(FETCH, _fetch({PARKED: [(0, self._parked_end)]}, max_wait_ms=10_000))

    async def _ask_for_all(self, client: Client) -> None:
        while True:
            await client.ask(METADATA, MetadataRequest(topics=None))
            self.counts["metadata of all"] += 1
            await asyncio.sleep(0.1)

    async def _join(self, client: Client) -> None:
        for number in itertools.count():
            request = ConsumerGroupHeartbeatRequest(
                group_id=f"group-{number}",
                member_id=f"member-{number}",
                member_epoch=0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_regex=f"(load|new)-[0-9]*{number % 10}",
                topic_partitions=[],
            )
            answer = await client.ask(CONSUMER_HEARTBEAT, request)
            assert answer.error_code == 0, answer
            self.counts["groups joined"] += 1
            await asyncio.sleep(0.25)

    async def _create(self, client: Client) -> None:
        for number in itertools.count():
            await asyncio.sleep(1.0)
            await _create(client, f"new-{number}", 10)


async def _create(client: Client, name: str, partitions: int) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = await client.ask(CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
    assert answer.topics[0].error_code == 0, answer


def _produce(topic: str, batches: Mapping[int, memoryview]) -> ProduceRequest:
    data = [ProduceRequest.PartitionProduceData(index=index, records=batch) for index, batch in batches.items()]
    sent = ProduceRequest.TopicProduceData(name=topic, partition_data=data)
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[sent])


def _fetch(topics: Mapping[str, list[tuple[int, int]]], *, max_wait_ms: int) -> FetchRequest:
    asked = [
        FetchRequest.FetchTopic(
            topic=name,
            partitions=[
                FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
                for partition, offset in partitions
            ],
        )
        for name, partitions in topics.items()
    ]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=8 << 20, topics=asked)


def run(*, is_quick: bool = False) -> list[Row]:
    """Load a broker and return how late its loop was."""
    seconds, parked = (QUICK_SECONDS, 100) if is_quick else (LOAD_SECONDS, 1_000)
    with (
        tempfile.TemporaryDirectory(prefix="loop-lag-") as directory,
        running_headrace(Path(directory)) as broker,
    ):
        load = Load(broker)
        asyncio.run(load.prepare())
        before, began = read(broker), time.monotonic()
        asyncio.run(load.run(seconds, parked=parked))
        lag, took = read(broker).since(before), time.monotonic() - began
    rates: list[Row] = [(f"{name} meanwhile", count / took, "/s", None) for name, count in load.counts.items()]
    return [
        ("lag of the loop, p50 within", lag.within_ms(0.5), "ms", None),
        ("lag of the loop, p99 within", lag.within_ms(0.99), "ms", None),
        ("lag of the loop, all within", lag.within_ms(1.0), "ms", MOST_LAG_MS),
        ("stalls of 250 ms or more", lag.stalls, "", None),
        *rates,
    ]
