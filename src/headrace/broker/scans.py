"""Open the stores for Spark's source, as options and settings say, and plan its reads.

Planning runs in a Python process of Spark's driver: for a batch in one that lives for this plan only, for a stream in
one that lives as long as the query. No broker is asked, and none need run.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TypeVar

from headrace.broker.spark import objects_address, settings_of
from headrace.broker.storage import DOMAIN, MAX_FOLDED_ENTRIES, Runtime, opened_storage, topic_defaults
from headrace.errors import HeadraceError
from headrace.fetch.reader import LogReader
from headrace.fetch.timestamps import TimestampFinder
from headrace.index.cache import IndexCache
from headrace.metadata.keys import DomainKeys
from headrace.pipeline.scan.log_look import LogLook
from headrace.pipeline.scan.offsets import JsonVector
from headrace.pipeline.scan.options import ScanOptions
from headrace.pipeline.scan.patience import patiently
from headrace.pipeline.scan.pinning import ReadPins
from headrace.pipeline.scan.scanner import PlannedScan, Scanner, StreamScan
from headrace.pipeline.spark.scan_messages import messages_of
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import system_rng
from headrace.settings import Settings
from headrace.topics.directory import TopicDirectory

T = TypeVar("T")


def planned_scan(options: ScanOptions) -> list[bytes]:
    """Plan a batch read and return one message per task. Raises `Invalid`, `Missing` and what the stores raise."""

    settings, runtime = settings_of(options.storage), _runtime()

    async def plan() -> list[bytes]:
        async with _opened(options, settings, runtime) as scanner:
            return _messages(await scanner.plan_batch(), options, settings, runtime)

    return asyncio.run(patiently(plan, clock=runtime.clock))


class OpenStreamScan:
    """A stream's reads, for a caller that waits for each answer. The stores stay open until `close`."""

    def __init__(self, options: ScanOptions) -> None:
        self._options = options
        self._settings = settings_of(options.storage)
        self._runtime = _runtime()
        self._runner = asyncio.Runner()
        self._open_parts = AsyncExitStack()
        self._stream = self._wait(self._open)

    def initial(self) -> JsonVector:
        """Return where a query without a checkpoint begins."""
        return self._wait(self._stream.initial)

    def latest(self) -> JsonVector:
        """Return where the next batch is to end."""
        return self._wait(self._stream.latest)

    def plan(self, start: JsonVector, end: JsonVector) -> list[bytes]:
        """Plan a batch and return one message per task."""
        planned = self._wait(lambda: self._stream.plan(start, end))
        return _messages(planned, self._options, self._settings, self._runtime)

    def committed(self, end: JsonVector) -> None:
        """Take note that a batch will not be read again."""
        self._wait(lambda: self._stream.committed(end))

    def close(self) -> None:
        """Let go of what is pinned, and close the stores."""
        with suppress(HeadraceError):  # pins end by themselves, too
            self._runner.run(self._stream.end())
        self._runner.run(self._open_parts.aclose())
        self._runner.close()

    async def _open(self) -> StreamScan:
        opened = _opened(self._options, self._settings, self._runtime)
        return StreamScan(await self._open_parts.enter_async_context(opened), clock=self._runtime.clock)

    def _wait(self, ask: Callable[[], Awaitable[T]]) -> T:
        return self._runner.run(patiently(ask, clock=self._runtime.clock))


def open_stream_scan(options: ScanOptions) -> OpenStreamScan:
    """Open the stores for a stream."""
    return OpenStreamScan(options)


def _runtime() -> Runtime:
    clock = SystemClock()
    return Runtime(
        clock=clock,
        rng=system_rng(),
        crash_points=NoCrashes(),
        metrics=Metrics(),
        log=open_log(sys.stderr, clock=clock),
    )


@asynccontextmanager
async def _opened(options: ScanOptions, settings: Settings, runtime: Runtime) -> AsyncIterator[Scanner]:
    async with opened_storage(settings, runtime, makes_directory=False) as storage:
        keys = DomainKeys(DOMAIN)
        index = IndexCache(storage.metadata, keys, max_folded_entries=MAX_FOLDED_ENTRIES)
        executor = InlineExecutor()
        times = TimestampFinder(
            index=index,
            reader=LogReader(domain=DOMAIN, cache=index, objects=storage.objects, executor=executor),
            executor=executor,
            max_open_bytes=settings.topics.decompression_max_bytes,
        )
        topics = TopicDirectory(storage.metadata, defaults=topic_defaults(settings), clock=runtime.clock)
        yield Scanner(
            options,
            look=LogLook(topics=topics, index=index, times=times),
            pins=ReadPins(storage.metadata, keys, clock=runtime.clock, rng=runtime.rng, owner="spark source"),
            domain=DOMAIN,
        )


def _messages(planned: PlannedScan, options: ScanOptions, settings: Settings, runtime: Runtime) -> list[bytes]:
    for sentence in planned.losses:
        runtime.log.warning("data is lost to a read", what=sentence)
    return messages_of(
        planned,
        objects=objects_address(settings),
        columns=options.columns,
        condition=options.condition,
        max_open_bytes=settings.topics.decompression_max_bytes,
    )
