"""The driver's side of Spark's writes, as the options say: stores opened for one call, and closed again.

Spark calls from Python processes of its own, which have no event loop and may end after any call.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from headrace.broker.live_settings import defaults_reader
from headrace.broker.spark import objects_address, settings_of
from headrace.broker.storage import DOMAIN, topic_defaults
from headrace.cluster.identity import require_identity
from headrace.metadata.format import require_format
from headrace.metadata.keys import DomainKeys
from headrace.metadata.open import open_metadata
from headrace.pipeline.sink.driver import SinkDriver, SinkLimits
from headrace.pipeline.sink.options import SinkOptions
from headrace.pipeline.sink.plans import SinkPlan, TaskAnswer
from headrace.pipeline.spark.address import open_address
from headrace.pipeline.spark.executing import DISK_THREADS
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import CrashPoints, crash_points_from
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.rng import system_rng
from headrace.settings import Settings
from headrace.topics.directory import TopicDirectory

T = TypeVar("T")


class StoreDesk:
    """A `SinkDesk` over the stores that the options of a write name."""

    def __init__(self) -> None:
        self.crash_points: CrashPoints = crash_points_from(os.environ)

    def begin(self, options: SinkOptions) -> SinkPlan:
        """Announce a write and return its plan."""
        return self._run(options, lambda driver: driver.begin(options))

    def commit(self, options: SinkOptions, answers: Sequence[TaskAnswer], batch_id: int) -> None:
        """Append a batch, once."""
        self._run(options, lambda driver: driver.commit(options, answers, batch_id=batch_id))

    def give_up(self, options: SinkOptions, answers: Sequence[TaskAnswer]) -> None:
        """End a write without appending anything."""
        self._run(options, lambda driver: driver.give_up(options, answers))

    def _run(self, options: SinkOptions, work: Callable[[SinkDriver], Awaitable[T]]) -> T:
        settings = settings_of(options.storage)

        async def run() -> T:
            async with _opened_driver(settings, self.crash_points) as driver:
                return await work(driver)

        return asyncio.run(run())


@asynccontextmanager
async def _opened_driver(settings: Settings, crash_points: CrashPoints) -> AsyncIterator[SinkDriver]:
    """Open both stores, and check that they belong together."""
    url = settings.metadata.url
    clock, rng, address, keys = SystemClock(), system_rng(), objects_address(settings), DomainKeys(DOMAIN)
    async with AsyncExitStack() as parts:
        disk = ThreadExecutor("disk", threads=DISK_THREADS)
        parts.callback(disk.close)
        objects = open_address(address, disk)
        parts.push_async_callback(objects.close)
        metadata = await open_metadata(
            url,
            clock=clock,
            rng=rng,
            crash_points=crash_points,
            busy_limit_s=settings.metadata.sqlite_busy_timeout_ms / 1000,
            postgres_pool_size=settings.metadata.postgres_pool_size,
            postgres_lock_timeout_ms=settings.metadata.postgres_lock_timeout_ms,
        )
        parts.push_async_callback(metadata.close)
        await require_format(metadata)
        await require_identity(metadata, objects, rng=rng)
        yield SinkDriver(
            keys=keys,
            metadata=metadata,
            objects=objects,
            topics=TopicDirectory(
                metadata,
                defaults=topic_defaults(settings),
                clock=clock,
                read_defaults=defaults_reader(settings, metadata),
            ),
            address=address,
            clock=clock,
            rng=rng,
            crash_points=crash_points,
            limits=SinkLimits(
                write_max_age_ms=settings.sinks.write_max_age_ms,
                max_open_bytes=settings.topics.decompression_max_bytes,
            ),
        )
