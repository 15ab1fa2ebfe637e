"""Retention of very many partitions on SQLite: what one round costs that moves the log start of each of them.

Every partition has one entry that is too old. Ticks follow each other without a pause, where a broker waits a second
in between: so the number of ticks counts as well as the seconds.

- *move*: retention looks at every partition and moves its log start;
- *quiet round*: the next one, in which nothing is due;
- *trim*: the entries behind the log starts go. One caller appends meanwhile, the next batch after the answer, and
  tells what a producer notices of it.
"""

import asyncio
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.writer import KEYS, opened_writer
from headrace.gc.clocks import ClockGuard
from headrace.gc.folding import Folder, FoldLimits
from headrace.gc.leased import CollectorLease
from headrace.gc.retaining import Retainer, RetainerLimits, RetentionMetrics
from headrace.gc.trimming import LogTrimmer, LogTrimmerLimits, Trimmer
from headrace.index.cache import IndexCache
from headrace.index.streams import create_streams
from headrace.index.values import StreamKind
from headrace.metadata.open import open_metadata
from headrace.metadata.port import MetadataStore
from headrace.model.batches import BatchSummary
from headrace.model.ids import SessionId, StreamId
from headrace.model.topics import Retention, Topic, TopicId, TopicRules
from headrace.produce.writer import LogWriter
from headrace.records.batch import iter_batches
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import system_rng
from headrace.testing.batches import make_batch

NAME = "retention"
HAS_QUICK_FORM = True

ENTRIES_PER_TRIM = 300
APPENDS = 300
DAY_MS = 86_400_000

Figures = list[tuple[str, float, str, float | None]]


class Keepers:
    """Retention and trimming of one broker, over all streams."""

    def __init__(self, metadata: MetadataStore, session: SessionId, streams: list[StreamId]) -> None:
        clock = SystemClock()
        log = open_log(io.StringIO(), clock=clock)
        self.index = IndexCache(metadata, KEYS, max_folded_entries=100_000)
        topic = Topic(
            id=TopicId(bytes(16)),
            name="t",
            streams=tuple(streams),
            rules=TopicRules(max_message_bytes=1 << 20),
            retention=Retention(max_age_ms=DAY_MS),
        )
        self.retainer = Retainer(
            keys=KEYS,
            metadata=metadata,
            index=self.index,
            topics=lambda: [topic],
            guard=ClockGuard(
                node_id=1, metadata=metadata, session=lambda: session, clock=clock, log=log, max_jump_ms=60_000
            ),
            lease=CollectorLease(metadata, lambda: session),
            session=lambda: session,
            clock=clock,
            crash_points=NoCrashes(),
            metrics=RetentionMetrics(Metrics()),
            limits=RetainerLimits(interval_ms=DAY_MS),
        )
        self.folder = Folder(
            keys=KEYS,
            metadata=metadata,
            clock=clock,
            crash_points=NoCrashes(),
            limits=FoldLimits(records_per_step=32, steps_per_tick=10_000, lag_records=0),
        )
        self.trimmer = LogTrimmer(
            trimmer=Trimmer(keys=KEYS, metadata=metadata, clock=clock, entries_per_step=ENTRIES_PER_TRIM),
            folder=self.folder,
            index=self.index,
            streams=lambda: streams,
            lease=CollectorLease(metadata, lambda: session),
            limits=LogTrimmerLimits(),
        )

    def begin_another_round(self) -> None:
        """Let the next tick of retention begin anew, although its interval is not over."""
        self.retainer._next_round = None


async def ticked(tick: Callable[[], Awaitable[int]], total: int) -> tuple[float, int]:
    """Tick until so much was done; return the seconds, and how many ticks it took."""
    began, done, ticks = time.perf_counter(), 0, 0
    while done < total:
        done += await tick()
        ticks += 1
    return time.perf_counter() - began, ticks


async def fill(writer: LogWriter, streams: list[StreamId]) -> None:
    """Append one batch to each stream that was too old long ago, some hundred to a frame."""
    data, summaries = batch_of(at_ms=1_000_000_000)
    for start in range(0, len(streams), 500):
        await asyncio.gather(*(writer.append(one, data, summaries) for one in streams[start : start + 500]))


def batch_of(*, at_ms: int) -> tuple[bytes, list[BatchSummary]]:
    data = make_batch([bytes(100)], at_ms=at_ms)
    return data, [view.summary() for view in iter_batches(memoryview(data))]


async def append_until(writer: LogWriter, stream: StreamId, is_over: Callable[[], bool]) -> list[float]:
    """Append one batch after the other; return how many milliseconds each took."""
    data, summaries = batch_of(at_ms=SystemClock().now_ms())
    times: list[float] = []
    while not is_over():
        began = time.perf_counter()
        await writer.append(stream, data, summaries)
        times.append((time.perf_counter() - began) * 1000)
    return times


def counted(count: int) -> Callable[[], bool]:
    """Return what says that it is over after so many calls."""
    left = iter(range(count))
    return lambda: next(left, None) is None


async def measure(*, is_quick: bool) -> Figures:
    # Threads beside a busy loop wait for the interpreter's lock; a broker sets this, too.
    sys.setswitchinterval(1e-4)
    count = 2_000 if is_quick else 10_000
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        async with opened_writer(Path(directory)) as (writer, others):
            metadata = await open_metadata(f"sqlite:{directory}/meta.db", clock=SystemClock(), rng=system_rng())
            try:
                return await _measure(metadata, writer, others[0], count)
            finally:
                await metadata.close()


async def _measure(metadata: MetadataStore, writer: LogWriter, other: StreamId, count: int) -> Figures:
    owners = [f"many-{n}" for n in range(count)]
    rule = create_streams(KEYS, owners, kind=StreamKind.PARTITION, now_ms=SystemClock().now_ms())
    streams = await rule.apply(metadata)
    await fill(writer, streams)
    session = await metadata.open_session(timeout_ms=600_000)
    keepers = Keepers(metadata, session, streams)
    await keepers.folder.tick()
    move_s, move_ticks = await ticked(keepers.retainer.tick, count)
    keepers.begin_another_round()
    began = time.perf_counter()
    await keepers.retainer.tick()
    quiet_s = time.perf_counter() - began
    await keepers.folder.tick()
    alone = await append_until(writer, other, counted(APPENDS))
    trimming = asyncio.create_task(ticked(keepers.trimmer.tick, count))
    beside = await append_until(writer, other, trimming.done)
    trim_s, trim_ticks = await trimming
    return [
        ("partitions", count, "", None),
        ("move all log starts", move_s, "s", None),
        ("move all log starts: ticks", move_ticks, "", None),
        ("a quiet round", quiet_s * 1000, "ms", None),
        ("trim one entry of each", trim_s, "s", None),
        ("trim one entry of each: ticks", trim_ticks, "", None),
        ("append alone: median", statistics.median(alone), "ms", None),
        ("append beside trimming: median", statistics.median(beside), "ms", None),
        ("append alone: p99", statistics.quantiles(alone, n=100)[98], "ms", None),
        ("append beside trimming: p99", statistics.quantiles(beside, n=100)[98], "ms", None),
        ("append beside trimming: longest", max(beside), "ms", None),
    ]


def run(*, is_quick: bool = False) -> Figures:
    """Run all of it; see the module's text."""
    return asyncio.run(measure(is_quick=is_quick))
