"""The whole way in on local disk: batches gathered into frames, segment appends, SQLite commits, answers.

- *alone*: one small batch at a time, the next one after the answer: what an idle broker's client waits for;
- *small* and *large*: many callers at once, with batches of 4 KiB and of 100 KB, spread over streams.

Nothing arrives over a network and nothing is checked or copied on the way, so this is the ceiling for a broker.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.index.streams import create_streams
from headrace.index.values import StreamKind
from headrace.metadata.keys import DomainKeys
from headrace.metadata.open import open_metadata
from headrace.model.batches import BatchSummary
from headrace.model.ids import DomainId, StreamId, WriterId
from headrace.objects.local import LocalObjects
from headrace.produce.placement import PlacementLimits, open_placement
from headrace.produce.settlement import WriterLimits
from headrace.produce.writer import LogWriter
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.rng import system_rng

NAME = "writer"

KEYS = DomainKeys(DomainId(0))
STREAMS = 6
CALLERS = 48
MIB = 1024 * 1024
LIMITS = WriterLimits(
    buffer_max_bytes=64 * MIB,
    frame_max_bytes=8 * MIB,
    frames_in_flight=4,
    small_frames_in_flight=4,
    linger_ms=0,
    commit_attempts=5,
    retry_backoff_ms=50,
    producer_expiration_ms=86_400_000,
)
PLACEMENT = PlacementLimits(
    segment_max_bytes=64 * MIB, segment_max_age_ms=600_000, staged_ahead=16, staged_max_age_ms=3_600_000
)

Figures = list[tuple[str, float, str, float | None]]


@asynccontextmanager
async def opened_writer(directory: Path) -> AsyncIterator[tuple[LogWriter, list[StreamId]]]:
    clock, writer_id = SystemClock(), WriterId(f"{system_rng().getrandbits(128):032x}")
    metadata = await open_metadata(f"sqlite:{directory}/meta.db", clock=clock, rng=system_rng())
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
    await writer.start(await metadata.open_session(timeout_ms=600_000))
    try:
        yield writer, streams
    finally:
        await writer.close()
        await objects.close()
        await metadata.close()
        executor.close()


def batch_of(size_bytes: int) -> tuple[bytes, list[BatchSummary]]:
    """Return bytes of that size, which count as one batch: the writer does not look inside."""
    now_ms = 1_700_000_000_000
    summary = BatchSummary(
        size_bytes=size_bytes,
        record_count=size_bytes // 1024,
        base_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
    )
    return os.urandom(size_bytes), [summary]


async def median_alone_ms(writer: LogWriter, streams: list[StreamId]) -> float:
    data, batches = batch_of(4096)
    times = []
    for n in range(400):
        began = time.perf_counter()
        await writer.append(streams[n % STREAMS], data, batches)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


async def crowd(writer: LogWriter, streams: list[StreamId], size_bytes: int, count: int) -> tuple[float, float]:
    """Return requests per second and the CPU seconds per GB, with many callers that each wait for their answer."""
    data, batches = batch_of(size_bytes)

    async def call(number: int) -> None:
        for _ in range(count // CALLERS):
            await writer.append(streams[number % STREAMS], data, batches)

    began, cpu_began = time.perf_counter(), time.process_time()
    await asyncio.gather(*(call(number) for number in range(CALLERS)))
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    done = count // CALLERS * CALLERS
    return done / seconds, cpu_seconds / (done * size_bytes / 1e9)


async def measure() -> Figures:
    figures: Figures = []
    # Threads beside a busy loop wait for the interpreter's lock; a broker sets this, too.
    sys.setswitchinterval(1e-4)
    with tempfile.TemporaryDirectory() as directory:
        async with opened_writer(Path(directory)) as (writer, streams):
            figures.append(("alone, 4 KiB: median", await median_alone_ms(writer, streams), "ms", None))
            for name, size_bytes, count in (("small, 4 KiB", 4096, 24_000), ("large, 100 KB", 102_400, 9_600)):
                rate, cpu = await crowd(writer, streams, size_bytes, count)
                figures.append((f"{name}: appends", rate, "/s", None))
                figures.append((f"{name}: bytes", rate * size_bytes / 1e6, "MB/s", None))
                figures.append((f"{name}: CPU per GB", cpu, "s", None))
    return figures


def run() -> Figures:
    """Run the three cases; see the module's text."""
    return asyncio.run(measure())
