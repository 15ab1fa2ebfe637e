"""Repacking on local disk with SQLite: how fast and at which cost, and what a producer notices of it.

- *unbounded*: as fast as it goes, while nothing else happens: bytes per second, CPU, entries before and after;
- *beside a producer*: at the default pace, while one caller appends batches of 4 KiB, the next one after the answer.
  Rounds with and without a repack take turns, so that a noisy neighbour hits both; the ratio is what counts.

The log is filled by many callers with batches of 4 KiB, so that every frame holds batches of six streams.
"""

import asyncio
import io
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.writer import CALLERS, KEYS, STREAMS, opened_writer
from headrace.broker.storage import UPLOAD_SYNC_BYTES
from headrace.gc.copying import Copier
from headrace.gc.folding import Folder, FoldLimits
from headrace.gc.packing import Packer
from headrace.gc.repacking import Repacker, RepackerLimits, RepackMetrics
from headrace.index.repack import RepackLimits
from headrace.metadata.keys import prefix_range
from headrace.metadata.open import open_metadata
from headrace.metadata.port import MetadataStore
from headrace.model.batches import BatchSummary
from headrace.model.ids import SessionId, StreamId
from headrace.model.topics import Topic, TopicId, TopicRules
from headrace.objects.local import LocalObjects
from headrace.produce.writer import LogWriter
from headrace.records.batch import iter_batches
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import system_rng
from headrace.testing.batches import make_batch

NAME = "repack"
HAS_QUICK_FORM = True

MIB = 1024 * 1024
PACE = 32 * MIB
UNBOUNDED = 1 << 50
MAX_PAGE = 10_000
APPENDS = 300

Figures = list[tuple[str, float, str, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log that is written to, and the stores behind it, opened a second time; uploads go as in a broker."""

    writer: LogWriter
    streams: list[StreamId]
    metadata: MetadataStore
    objects: LocalObjects
    threads: ThreadExecutor

    def repacker(self, metrics: RepackMetrics, *, session: SessionId, bytes_per_second: int) -> Repacker:
        """Make one that takes everything that is folded."""
        clock = SystemClock()
        rules = TopicRules(max_message_bytes=MIB)
        topic = Topic(id=TopicId(bytes(16)), name="t", streams=tuple(self.streams), rules=rules)

        async def table_ends(topic_id: TopicId) -> Mapping[int, int]:
            return {}

        async def always() -> bool:
            return True

        copier = Copier(
            domain=KEYS.domain,
            objects=self.objects,
            executor=self.threads,
            clock=clock,
            bytes_per_second=bytes_per_second,
        )
        packer = Packer(
            keys=KEYS,
            metadata=self.metadata,
            objects=self.objects,
            copier=copier,
            clock=clock,
            rng=system_rng(),
            crash_points=NoCrashes(),
            entries_per_step=300,
        )
        return Repacker(
            keys=KEYS,
            metadata=self.metadata,
            packer=packer,
            topics=lambda: [topic],
            table_ends=table_ends,
            high_watermark=lambda stream: None,
            turn=always,
            session=lambda: session,
            executor=self.threads,
            clock=clock,
            limits=RepackerLimits(
                plan=RepackLimits(min_age_ms=1, entry_bytes=MIB, object_bytes=64 * MIB),
                looks_per_tick=1_000,
                bytes_per_tick=UNBOUNDED,
            ),
            metrics=metrics,
            log=open_log(io.StringIO(), clock=clock),
        )

    async def fill(self, count: int) -> None:
        """Append so many batches and fold all of them."""
        data = make_batch([bytes(4_000)])
        summaries = [view.summary() for view in iter_batches(memoryview(data))]

        async def call(number: int) -> None:
            for _ in range(count // CALLERS):
                await self.writer.append(self.streams[number % STREAMS], data, summaries)

        await asyncio.gather(*(call(number) for number in range(CALLERS)))
        limits = FoldLimits(records_per_step=100, steps_per_tick=1_000, lag_records=0)
        clock = SystemClock()
        folder = Folder(keys=KEYS, metadata=self.metadata, clock=clock, crash_points=NoCrashes(), limits=limits)
        await folder.tick()

    async def entry_count(self) -> int:
        """Return how many entries the index has, of all streams."""
        pages = [
            await self.metadata.range(prefix_range(KEYS.index_prefix(stream), limit=MAX_PAGE))
            for stream in self.streams
        ]
        return sum(len(page) for page in pages)


@asynccontextmanager
async def opened_log(directory: Path) -> AsyncIterator[Log]:
    async with opened_writer(directory) as (writer, streams):
        metadata = await open_metadata(f"sqlite:{directory}/meta.db", clock=SystemClock(), rng=system_rng())
        threads = ThreadExecutor("repack", threads=4)
        objects = LocalObjects(
            directory / "objects", executor=threads, drops_cache=True, sync_every_bytes=UPLOAD_SYNC_BYTES
        )
        try:
            yield Log(writer=writer, streams=streams, metadata=metadata, objects=objects, threads=threads)
        finally:
            await objects.close()
            await metadata.close()
            threads.close()


async def unbounded(log: Log, count: int) -> Figures:
    await log.fill(count)
    before = await log.entry_count()
    metrics = RepackMetrics(Metrics())
    session = await log.metadata.open_session(timeout_ms=600_000)
    began, cpu_began = time.perf_counter(), time.process_time()
    await log.repacker(metrics, session=session, bytes_per_second=UNBOUNDED).tick()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    copied = metrics.bytes.value
    return [
        ("unbounded: bytes", copied / seconds / 1e6, "MB/s", None),
        ("unbounded: CPU per GB", cpu_seconds / (copied / 1e9), "s", None),
        ("unbounded: entries before", before, "", None),
        ("unbounded: entries after", await log.entry_count(), "", None),
        ("unbounded: copies of each byte", copied / (count // CALLERS * CALLERS * batch_bytes()), "", None),
    ]


async def beside_a_producer(log: Log, count: int, rounds: int) -> Figures:
    data = make_batch([bytes(4_000)])
    summaries = [view.summary() for view in iter_batches(memoryview(data))]
    alone: list[float] = []
    beside: list[float] = []
    metrics = RepackMetrics(Metrics())
    session = await log.metadata.open_session(timeout_ms=600_000)
    for _ in range(rounds):
        await log.fill(count)
        alone += [await _append_ms(log, n, data, summaries) for n in range(APPENDS)]
        repacker = log.repacker(metrics, session=session, bytes_per_second=PACE)
        repacking = asyncio.create_task(repacker.tick())
        while not repacking.done():
            beside.append(await _append_ms(log, len(beside), data, summaries))
        await repacking
    p50, p50_beside = statistics.median(alone), statistics.median(beside)
    p99, p99_beside = _p99(alone), _p99(beside)
    return [
        ("append of 4 KiB alone: median", p50, "ms", None),
        ("append of 4 KiB beside a repack: median", p50_beside, "ms", None),
        ("append beside a repack, to alone: median", p50_beside / p50, "times", None),
        ("append of 4 KiB alone: p99", p99, "ms", None),
        ("append of 4 KiB beside a repack: p99", p99_beside, "ms", None),
    ]


async def _append_ms(log: Log, number: int, data: bytes, summaries: list[BatchSummary]) -> float:
    began = time.perf_counter()
    await log.writer.append(log.streams[number % STREAMS], data, summaries)
    return (time.perf_counter() - began) * 1000


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def batch_bytes() -> int:
    return len(make_batch([bytes(4_000)]))


async def measure(*, is_quick: bool) -> Figures:
    # Threads beside a busy loop wait for the interpreter's lock; a broker sets this, too.
    sys.setswitchinterval(1e-4)
    figures: Figures = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        async with opened_log(Path(directory)) as log:
            figures += await unbounded(log, 12_000 if is_quick else 48_000)
            figures += await beside_a_producer(log, 12_000, 2 if is_quick else 5)
    return figures


def run(*, is_quick: bool = False) -> Figures:
    """Run both cases; see the module's text."""
    return asyncio.run(measure(is_quick=is_quick))
