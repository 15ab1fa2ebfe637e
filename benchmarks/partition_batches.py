"""Partition batches per second on SQLite and PostgreSQL: requests that touch very many partitions, folding included.

Each producer is idempotent and keeps five requests in flight, as Java's does. A request has one small batch for
each of many partitions, so nearly all of the work is the metadata of parts: heads, producer states, commit records,
index keys. The whole way is measured: frames are gathered, written to a segment on local disk, committed, answered,
and folded into the per-stream index beside it. The clock stops when everything is answered and folded.

*Wide* requests have 250 batches of 1 KiB, *narrow* ones have 10. *Frames* are commits alone, without requests and
bytes: each has 1,000 parts, one per partition and all of one idempotent producer, and commits one by one or four
together; every eight of them are folded. CPU is that of this process: on PostgreSQL the server's comes on top.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.writer import PLACEMENT
from headrace.gc.folding import Folder, FoldLimits
from headrace.index.commit import AppendPart, FrameCommit, commit_frames
from headrace.index.objects import stage_objects, wal_object_id
from headrace.index.streams import create_streams
from headrace.index.values import PartResult, PartStatus, StreamKind
from headrace.index.writers import register_writer
from headrace.metadata.keys import DomainKeys
from headrace.metadata.open import open_metadata
from headrace.metadata.port import MetadataStore
from headrace.model.batches import BatchSummary
from headrace.model.ids import DomainId, ProducerId, StreamId, WriterId
from headrace.objects.local import LocalObjects
from headrace.produce.offers import Appended, NewPart
from headrace.produce.placement import open_placement
from headrace.produce.settlement import WriterLimits
from headrace.produce.writer import LogWriter
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.rng import system_rng
from tests.servers.postgres import running_postgres

NAME = "partition_batches"
HAS_QUICK_FORM = True

KEYS = DomainKeys(DomainId(0))
STREAMS = 1_000
BATCH_BYTES = 1024
RECORDS_PER_BATCH = 10
IN_FLIGHT = 5
MIB = 1024 * 1024
LIMITS = WriterLimits(
    buffer_max_bytes=64 * MIB,
    frame_max_bytes=8 * MIB,
    frames_in_flight=4,
    small_frames_in_flight=1,
    linger_ms=0,
    commit_attempts=5,
    retry_backoff_ms=50,
    producer_expiration_ms=86_400_000,
)
"""As a broker has them on local disk."""

FOLD_LIMITS = FoldLimits(records_per_step=32, steps_per_tick=16, lag_records=0)
FOLD_PAUSE_S = 0.1

Figures = list[tuple[str, float, str, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many producers there are, how many parts each request has, and how many batches are sent in all."""

    name: str
    producers: int
    parts: int
    batches: int


LOADS = (
    Load(name="wide requests", producers=4, parts=250, batches=80_000),
    Load(name="narrow requests", producers=40, parts=10, batches=40_000),
)


FRAMES = 64
FRAMES_PER_FOLD = 8
GROUPS = (1, 4)


class Frames:
    """Commits frames of one part per stream, through the rules alone, and folds behind itself."""

    def __init__(self, metadata: MetadataStore, writer: WriterId) -> None:
        self._metadata = metadata
        self._writer = writer
        self._segment = wal_object_id(writer, 0)
        self._streams: list[StreamId] = []
        self._next_frame = 0
        self._folder = Folder(
            keys=KEYS, metadata=metadata, clock=SystemClock(), crash_points=NoCrashes(), limits=FOLD_LIMITS
        )

    async def prepare(self) -> None:
        owners = [f"frames-{n}" for n in range(STREAMS)]
        self._streams = await create_streams(KEYS, owners, kind=StreamKind.PARTITION, now_ms=0).apply(self._metadata)
        session = await self._metadata.open_session(timeout_ms=600_000)
        await register_writer(KEYS, self._writer, session=session, now_ms=0).apply(self._metadata)
        stage = stage_objects(KEYS, [self._segment], writer=self._writer, is_segment=True, now_ms=0)
        await stage.apply(self._metadata)

    async def run(self, frames: int, group: int) -> tuple[float, float]:
        """Commit and fold frames, so many together; return the figures as `Bench.run` does."""
        began, cpu_began = time.perf_counter(), time.process_time()
        for number in range(0, frames, group):
            outcomes = await commit_frames(KEYS, [self._next() for _ in range(group)]).apply(self._metadata)
            assert len(outcomes) == group
            if (number + group) % FRAMES_PER_FOLD == 0:
                while await self._folder.tick():
                    pass
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        return frames * STREAMS / seconds, cpu_seconds * 1000 / (frames * STREAMS / 1000)

    def _next(self) -> FrameCommit:
        number = self._next_frame
        self._next_frame += 1
        start_byte = number * STREAMS * BATCH_BYTES
        batches = [batch_of(ProducerId(1_000_000), number)]
        return FrameCommit(
            writer=self._writer,
            frame_number=number,
            object_id=self._segment,
            end_byte=start_byte + STREAMS * BATCH_BYTES,
            created_at_ms=1_700_000_000_000 + number,
            parts=[AppendPart(one, start_byte + n * BATCH_BYTES, batches) for n, one in enumerate(self._streams)],
            producer_expiration_ms=86_400_000,
        )


class Bench:
    """One writer and one folder on one store."""

    def __init__(self, writer: LogWriter, folder: Folder, streams: list[StreamId]) -> None:
        self._writer = writer
        self._folder = folder
        self._streams = streams
        self._next_producer = 0

    async def run(self, load: Load, batches: int) -> tuple[float, float]:
        """Send so many batches and fold them; return batches per second, and CPU milliseconds per 1,000 batches."""
        requests = batches // (load.producers * load.parts)
        producers = [Producer(self._writer, self._next_id(), self._some(load, n)) for n in range(load.producers)]
        began, cpu_began = time.perf_counter(), time.process_time()
        folding = asyncio.create_task(self._fold())
        await asyncio.gather(*(producer.send(requests) for producer in producers))
        folding.cancel()
        await asyncio.wait([folding])
        while await self._folder.tick():
            pass
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        done = load.producers * requests * load.parts
        return done / seconds, cpu_seconds * 1000 / (done / 1000)

    def _next_id(self) -> ProducerId:
        self._next_producer += 1
        return ProducerId(self._next_producer)

    def _some(self, load: Load, number: int) -> list[StreamId]:
        """Return the partitions that a producer writes to."""
        return [self._streams[(number * load.parts + n) % len(self._streams)] for n in range(load.parts)]

    async def _fold(self) -> None:
        while True:
            await self._folder.tick()
            await asyncio.sleep(FOLD_PAUSE_S)


def batch_of(producer_id: ProducerId, number: int) -> BatchSummary:
    """Return a producer's n-th batch of a partition."""
    return BatchSummary(
        size_bytes=BATCH_BYTES,
        record_count=RECORDS_PER_BATCH,
        base_timestamp_ms=1_700_000_000_000 + number,
        max_timestamp_ms=1_700_000_000_100 + number,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=number * RECORDS_PER_BATCH,
    )


class Producer:
    """Sends one batch to each of its partitions per request, several requests in flight."""

    def __init__(self, writer: LogWriter, producer_id: ProducerId, streams: list[StreamId]) -> None:
        self._writer = writer
        self._id = producer_id
        self._streams = streams
        self._data = memoryview(bytearray(os.urandom(BATCH_BYTES)))

    async def send(self, requests: int) -> None:
        sent: deque[Appended] = deque()
        for number in range(requests):
            if len(sent) == IN_FLIGHT:
                await self._take_answer(sent)
            batches = [batch_of(self._id, number)]
            sent.append(
                await self._writer.append_all([NewPart(stream, self._data, batches) for stream in self._streams])
            )
        while sent:
            await self._take_answer(sent)

    async def _take_answer(self, sent: deque[Appended]) -> None:
        appended = sent.popleft()
        await appended.done
        for result in appended.results:
            assert isinstance(result, PartResult) and result.status is PartStatus.ACCEPTED, result


@asynccontextmanager
async def opened_bench(url: str, directory: Path) -> AsyncIterator[Bench]:
    clock, writer_id = SystemClock(), WriterId(f"{system_rng().getrandbits(128):032x}")
    metadata = await open_metadata(url, clock=clock, rng=system_rng())
    executor = ThreadExecutor("disk", threads=4)
    objects = LocalObjects(directory / "objects", executor=executor)
    owners = [f"stream-{n}" for n in range(STREAMS)]
    streams = await create_streams(KEYS, owners, kind=StreamKind.PARTITION, now_ms=clock.now_ms()).apply(metadata)
    placement = open_placement(
        keys=KEYS,
        writer=writer_id,
        metadata=metadata,
        objects=objects,
        clock=clock,
        crash_points=NoCrashes(),
        limits=PLACEMENT,
    )
    writer = LogWriter(
        keys=KEYS,
        writer=writer_id,
        metadata=metadata,
        placement=placement,
        clock=clock,
        crash_points=NoCrashes(),
        limits=LIMITS,
    )
    folder = Folder(keys=KEYS, metadata=metadata, clock=clock, crash_points=NoCrashes(), limits=FOLD_LIMITS)
    await writer.start(await metadata.open_session(timeout_ms=600_000))
    try:
        yield Bench(writer, folder, streams)
    finally:
        await writer.close()
        await objects.close()
        await metadata.close()
        executor.close()


async def measure_store(engine: str, url: str, directory: Path, *, is_quick: bool) -> Figures:
    figures: Figures = []
    async with opened_bench(url, directory) as bench:
        for load in LOADS:
            batches = load.batches // 4 if is_quick else load.batches
            await bench.run(load, batches // 4)  # warms all up
            rate, cpu_ms = await bench.run(load, batches)
            figures.append((f"{engine}, {load.name}: partition batches", rate, "/s", None))
            figures.append((f"{engine}, {load.name}: CPU per 1,000", cpu_ms, "ms", None))
    return figures + await measure_frames(engine, url, is_quick=is_quick)


async def measure_frames(engine: str, url: str, *, is_quick: bool) -> Figures:
    figures: Figures = []
    metadata = await open_metadata(url, clock=SystemClock(), rng=system_rng())
    try:
        frames = Frames(metadata, WriterId(f"{system_rng().getrandbits(128):032x}"))
        await frames.prepare()
        for group in GROUPS:
            await frames.run(FRAMES_PER_FOLD, group)  # warms all up
            rate, cpu_ms = await frames.run(FRAMES // 4 if is_quick else FRAMES, group)
            what = f"{engine}, frames of 1,000 parts, {group} together"
            figures.append((f"{what}: partition batches", rate, "/s", None))
            figures.append((f"{what}: CPU per 1,000", cpu_ms, "ms", None))
    finally:
        await metadata.close()
    return figures


async def measure(*, is_quick: bool) -> Figures:
    # Threads beside a busy loop wait for the interpreter's lock; a broker sets this, too.
    sys.setswitchinterval(1e-4)
    with tempfile.TemporaryDirectory() as directory:
        figures = await measure_store("SQLite", f"sqlite:{directory}/meta.db", Path(directory), is_quick=is_quick)
    with running_postgres() as server, tempfile.TemporaryDirectory() as directory:
        url = server.url_of("ours")
        return figures + await measure_store("PostgreSQL", url, Path(directory), is_quick=is_quick)


def run(*, is_quick: bool = False) -> Figures:
    """Run both loads on both stores; see the module's text."""
    return asyncio.run(measure(is_quick=is_quick))
