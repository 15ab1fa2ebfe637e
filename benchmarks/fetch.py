"""What a fetch costs without the network: from the tail cache with 1 and 100 partitions, and from objects on disk.

The figures at the tail are those of the handler and everything below it: session, names, plan, answer; not of parsing
or encoding. A catch-up reads a partition from its start to its end in answers of 1 MiB, from files in the page cache;
its pause is the longest that the event loop came too late meanwhile. Beside backfills, batches are appended and read
at the tail, one after the other, while eight readers go through another partition again and again.
"""

import asyncio
import io
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from headrace.fetch.catchup import CatchUp, CatchUpLimits
from headrace.fetch.fetcher import Fetched, Fetcher, Wanted
from headrace.fetch.reader import LogReader
from headrace.fetch.sessions import FetchSessions
from headrace.fetch.tail import TailCache
from headrace.handlers import fetch as handler
from headrace.handlers.call import Call
from headrace.handlers.node import Node
from headrace.index.cache import IndexCache
from headrace.index.streams import create_streams
from headrace.index.values import StreamKind
from headrace.metadata.keys import DomainKeys
from headrace.metadata.memory import MemoryMetadata
from headrace.model.ids import DomainId, SessionId, StreamId, WriterId
from headrace.model.topics import Topic, TopicId, TopicRules
from headrace.objects.local import LocalObjects
from headrace.produce.placement import PlacementLimits, open_placement
from headrace.produce.settlement import WriterLimits
from headrace.produce.writer import LogWriter
from headrace.records.batch import iter_batches
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.logs import open_log
from headrace.runtime.rng import seeded_rng
from headrace.testing.batches import make_batch
from headrace.wire.messages import FetchRequest

NAME = "fetch"

KEYS = DomainKeys(DomainId(0))
WRITER = WriterId("f" * 32)
MIB = 1024 * 1024
TOPIC = Topic(id=TopicId(bytes(16)), name="t", streams=(), rules=TopicRules(max_message_bytes=MIB))
VERSION = 12
ROUNDS = 2_000
CATCH_UP_BYTES = 256 * MIB
RECORD_BYTES = 1024
RECORDS_PER_BATCH = 64
BATCHES_PER_FRAME = 16
BACKFILLS = 8
APPENDS_BESIDE = 500
PAUSE_CHECK_S = 0.001
SWITCH_INTERVAL_S = 1e-4
"""As the broker sets it: threads beside a busy loop wait for the interpreter's lock."""

Figures = list[tuple[str, float, str, float | None]]


class Broker:
    """A log on local disk and what fetches from it."""

    def __init__(self, directory: Path, *, tail_bytes: int, limits: CatchUpLimits) -> None:
        self.clock = SystemClock()
        self.threads = [ThreadExecutor("objects", threads=4), ThreadExecutor("fetch", threads=2)]
        self.metadata = MemoryMetadata(seeded_rng(1))
        self.objects = LocalObjects(directory, executor=self.threads[0])
        self.index = IndexCache(self.metadata, KEYS, max_folded_entries=10_000)
        self.tail = TailCache(max_bytes=tail_bytes)
        reader = LogReader(domain=KEYS.domain, cache=self.index, objects=self.objects, executor=self.threads[1])
        self.catch_up = CatchUp(reader=reader, view=self.index.view, tail=self.tail, clock=self.clock, limits=limits)
        log = open_log(io.StringIO(), clock=self.clock)
        self.fetcher = Fetcher(index=self.index, tail=self.tail, catch_up=self.catch_up, clock=self.clock, log=log)
        self.writer = self._writer()
        self.streams: list[StreamId] = []

    def _writer(self) -> LogWriter:
        placement = open_placement(
            keys=KEYS,
            writer=WRITER,
            metadata=self.metadata,
            objects=self.objects,
            clock=self.clock,
            crash_points=NoCrashes(),
            limits=PlacementLimits(
                segment_max_bytes=64 * MIB, segment_max_age_ms=10**9, staged_ahead=2, staged_max_age_ms=10**9
            ),
        )
        return LogWriter(
            keys=KEYS,
            writer=WRITER,
            metadata=self.metadata,
            placement=placement,
            clock=self.clock,
            crash_points=NoCrashes(),
            limits=WriterLimits(
                buffer_max_bytes=64 * MIB,
                frame_max_bytes=8 * MIB,
                frames_in_flight=2,
                small_frames_in_flight=2,
                linger_ms=0,
                commit_attempts=1,
                retry_backoff_ms=10,
                producer_expiration_ms=10**9,
            ),
            cache=self.index,
            tail=self.tail,
        )

    async def start(self, streams: int) -> None:
        owners = [str(n) for n in range(streams)]
        rule = create_streams(KEYS, owners, kind=StreamKind.PARTITION, now_ms=0)
        self.streams = await rule.apply(self.metadata)
        await self.writer.start(SessionId(await self.metadata.open_session(timeout_ms=600_000)))
        for stream in self.streams:
            await self.index.fresh_head(stream)

    async def append(self, stream: StreamId, produced: bytes) -> None:
        data = bytearray(produced)
        await self.writer.append(stream, data, [view.summary() for view in iter_batches(memoryview(data))])

    def node(self) -> Node:
        """Return what the handler needs."""
        topic = Topic(id=TOPIC.id, name="t", streams=tuple(self.streams), rules=TOPIC.rules)
        topics = SimpleNamespace(get=lambda name: topic)
        parts = SimpleNamespace(
            clock=self.clock,
            topics=topics,
            fetcher=self.fetcher,
            fetch_sessions=FetchSessions(rng=seeded_rng(2)),
        )
        return cast(Node, parts)

    async def close(self) -> None:
        self.catch_up.close()
        await self.writer.close()
        await self.objects.close()
        for executor in self.threads:
            executor.close()


async def measure_tail(directory: Path, partitions: int, *, in_session: bool) -> float:
    """Return the microseconds of one fetch that finds one batch in each partition."""
    broker = Broker(directory, tail_bytes=64 * MIB, limits=CatchUpLimits())
    await broker.start(partitions)
    batch = make_batch([os.urandom(RECORD_BYTES)] * 16)
    for stream in broker.streams:
        await broker.append(stream, batch)
    node = broker.node()
    wanted = [
        FetchRequest.FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=MIB) for n in range(partitions)
    ]
    topics = [FetchRequest.FetchTopic(topic="t", partitions=wanted)]
    full = FetchRequest(topics=topics, max_wait_ms=500, min_bytes=1, max_bytes=50 * MIB)
    session_id = 0
    if in_session:
        opening = FetchRequest(topics=topics, max_wait_ms=500, min_bytes=1, max_bytes=50 * MIB, session_epoch=0)
        session_id = (await handler.handle(node, _call(broker), opening)).session_id
    times = []
    for epoch in range(1, ROUNDS // max(1, partitions // 10) + 1):
        request = full
        if in_session:
            request = FetchRequest(
                max_wait_ms=500, min_bytes=1, max_bytes=50 * MIB, session_id=session_id, session_epoch=epoch
            )
        call = _call(broker)
        began = time.perf_counter()
        response = await handler.handle(node, call, request)
        times.append(time.perf_counter() - began)
        assert sum(len(topic.partitions) for topic in response.responses) == partitions
        assert all(data.records for topic in response.responses for data in topic.partitions)
    await broker.close()
    return statistics.median(times) * 1e6


def _call(broker: Broker) -> Call:
    return Call(api_key=1, version=VERSION, client_id="bench", peer="bench", arrived_at=broker.clock.monotonic())


async def measure_catch_up(directory: Path, *, reads_ahead: bool) -> tuple[float, float]:
    """Return MB/s of one reader from the start, and the longest pause of the event loop in milliseconds."""
    limits = CatchUpLimits() if reads_ahead else CatchUpLimits(read_bytes=0)
    broker = Broker(directory, tail_bytes=0, limits=limits)
    await broker.start(1)
    (stream,) = broker.streams
    written_bytes = await fill(broker, stream)
    pauses: list[float] = []
    watching = asyncio.create_task(_watch_pauses(pauses))
    began = time.perf_counter()
    size_bytes = await read_all(broker, stream)
    took = time.perf_counter() - began
    watching.cancel()
    assert size_bytes == written_bytes, "bytes were skipped"
    await broker.close()
    return size_bytes / took / 1e6, max(pauses) * 1000


async def fill(broker: Broker, stream: StreamId) -> int:
    """Append many batches, some of them together, and return how many bytes they have."""
    frame = make_batch([os.urandom(RECORD_BYTES) for _ in range(RECORDS_PER_BATCH)]) * BATCHES_PER_FRAME
    count = CATCH_UP_BYTES // len(frame)
    for _ in range(count):
        await broker.append(stream, frame)
    return count * len(frame)


async def read_all(broker: Broker, stream: StreamId) -> int:
    """Read a stream from its start to its end and return how many bytes came."""
    offset, size_bytes = 0, 0
    while True:
        found = await read_from(broker, stream, offset)
        if not found.records:
            return size_bytes
        offset, size_bytes = found.end_offset, size_bytes + found.size_bytes


async def measure_beside_backfills(directory: Path, readers: int) -> tuple[float, float]:
    """Return median and 99th percentile, in milliseconds, of appending one batch and reading it at the tail."""
    broker = Broker(directory, tail_bytes=16 * MIB, limits=CatchUpLimits())
    await broker.start(2)
    far, near = broker.streams
    await fill(broker, far)
    broker.tail.evict(16 * MIB)

    async def backfill() -> None:
        while True:
            await read_all(broker, far)

    backfills = [asyncio.create_task(backfill()) for _ in range(readers)]
    batch = make_batch([os.urandom(RECORD_BYTES)] * 16)
    times = []
    for n in range(APPENDS_BESIDE):
        began = time.perf_counter()
        await broker.append(near, batch)
        found = await read_from(broker, near, 16 * n)
        times.append(time.perf_counter() - began)
        assert found.size_bytes == len(batch)
    for task in backfills:
        task.cancel()
    await asyncio.gather(*backfills, return_exceptions=True)
    await broker.close()
    return statistics.median(times) * 1000, statistics.quantiles(times, n=100)[98] * 1000


async def read_from(broker: Broker, stream: StreamId, offset: int) -> Fetched:
    (found,) = await broker.fetcher.fetch(
        [Wanted(stream, offset, MIB)],
        max_bytes=50 * MIB,
        min_bytes=0,
        max_wait_ms=0,
        arrived_at=broker.clock.monotonic(),
    )
    return found


async def _watch_pauses(pauses: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(PAUSE_CHECK_S)
        pauses.append(time.perf_counter() - began - PAUSE_CHECK_S)


async def measure() -> Figures:
    figures: Figures = []
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for partitions, target in ((1, 30.0), (100, None)):
            for in_session in (False, True):
                name = f"at the tail, {partitions} partition{'s' * (partitions > 1)}{', in a session' * in_session}"
                took = await measure_tail(root / f"{partitions}{in_session}", partitions, in_session=in_session)
                figures.append((name, took, "µs", target))
        for reads_ahead in (False, True):
            name = f"catch-up {'with' if reads_ahead else 'without'} read-ahead"
            rate, pause = await measure_catch_up(root / f"far{reads_ahead}", reads_ahead=reads_ahead)
            figures += [(name, rate, "MB/s", None), (f"{name}, longest pause", pause, "ms", None)]
        for readers in (0, BACKFILLS):
            median, p99 = await measure_beside_backfills(root / f"beside{readers}", readers)
            name = f"append and read at the tail, beside {readers} backfills"
            figures += [(f"{name}, p50", median, "ms", None), (f"{name}, p99", p99, "ms", None)]
    return figures


def run() -> Figures:
    """Run the measurements; see the module's text."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        return asyncio.run(measure())
    finally:
        sys.setswitchinterval(before)
