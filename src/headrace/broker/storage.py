"""What every process runs on: clock, chance, log, metrics, and the two stores.

Only in this package are the real clock and the real rng made, and only here are settings read: everything below
receives plain values and ports through its constructor. The brokers of a simulation are put together elsewhere.
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from headrace.errors import Invalid, Unusable
from headrace.metadata.format import require_format
from headrace.metadata.metered import MeteredMetadata
from headrace.metadata.open import open_metadata
from headrace.metadata.port import MetadataStore
from headrace.model.ids import DomainId
from headrace.objects.metered import MeteredObjects
from headrace.objects.open import open_objects
from headrace.objects.port import ObjectStore
from headrace.objects.probe import probe
from headrace.objects.retrying import RetryPolicy
from headrace.runtime.clock import Clock, SystemClock
from headrace.runtime.crash_points import CrashPoints, crash_points_from
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.logs import Log, LogHandler, open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import Rng, system_rng
from headrace.settings import Settings
from headrace.topics.configs import DefaultLayer, TopicDefaults

DOMAIN = DomainId(0)
"""The one domain there is, until a decision page says how a transaction crosses two."""

MAX_FOLDED_ENTRIES = 100_000
"""How many folded index entries of all streams are remembered."""

DISK_THREADS = 8
"""Threads for local files: several appends, zeros ahead of them, and readers, all at once."""

UPLOAD_SYNC_BYTES = 4 * 1024 * 1024
"""How much of a packed object goes to the disk at once. An append's sync waits for others on the same disk: decision
14 has the figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What every component of a process runs on."""

    clock: Clock
    rng: Rng
    crash_points: CrashPoints
    metrics: Metrics
    log: Log


def assemble_runtime(settings: Settings, *, environment: Mapping[str, str], log_to: TextIO) -> Runtime:
    """Make the real clock, rng, metrics and log of this process, and bring what libraries log onto the same lines."""
    clock = SystemClock()
    log = open_log(log_to, clock=clock, level=settings.logging.level, format=settings.logging.format)
    try:
        crash_points = crash_points_from(environment)
    except ValueError as error:
        raise Invalid(f"HEADRACE_CRASH_AT: {error}; it takes point[:arrival]") from error
    # `force` replaces what an earlier call in this process installed, so that no line is written twice.
    logging.basicConfig(handlers=[LogHandler(log)], level=logging.WARNING, force=True)
    return Runtime(clock=clock, rng=system_rng(), crash_points=crash_points, metrics=Metrics(), log=log)


def topic_defaults(settings: Settings, layers: Sequence[DefaultLayer] = ()) -> TopicDefaults:
    """Return what a topic is unless its own configuration says otherwise; the layers were set while brokers run."""
    return TopicDefaults(
        message_max_bytes=settings.topics.message_max_bytes,
        retention_ms=settings.retention.default_ms,
        retention_bytes=settings.retention.bytes,
        layers=layers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The two places where truth lives: facts and bytes."""

    metadata: MetadataStore
    objects: ObjectStore

    def metered(self, runtime: Runtime) -> "Storage":
        """Return the same stores, with every call counted; once per runtime."""
        return Storage(
            metadata=MeteredMetadata(self.metadata, metrics=runtime.metrics, clock=runtime.clock),
            objects=MeteredObjects(self.objects, metrics=runtime.metrics, clock=runtime.clock),
        )


@asynccontextmanager
async def opened_storage(
    settings: Settings, runtime: Runtime, *, makes_directory: bool = True
) -> AsyncIterator[Storage]:
    """Open both stores and prove that the object store keeps its promises; close them in the end.

    Whoever only reads what is there does not want a data directory made.

    Raises `Unsupported` for a store that does not, or data of a newer format, and `Unusable` for a directory that
    cannot be made.
    """
    async with AsyncExitStack() as open_parts:
        if makes_directory:
            _make_directory(settings.broker.data_dir)
        disk = ThreadExecutor("disk", threads=DISK_THREADS)
        open_parts.callback(disk.close)
        objects = open_objects(
            settings.objects.url,
            executor=disk,
            clock=runtime.clock,
            rng=runtime.rng,
            crash_points=runtime.crash_points,
            drops_cache=settings.wal.page_cache_drop,
            sync_every_bytes=UPLOAD_SYNC_BYTES,
            policy=RetryPolicy(
                attempts=settings.objects.retry_max_attempts, max_backoff_ms=settings.objects.retry_max_delay_ms
            ),
        )
        open_parts.push_async_callback(objects.close)
        metadata = await open_metadata(
            settings.metadata.url,
            clock=runtime.clock,
            rng=runtime.rng,
            crash_points=runtime.crash_points,
            busy_limit_s=settings.metadata.sqlite_busy_timeout_ms / 1000,
            postgres_pool_size=settings.metadata.postgres_pool_size,
            postgres_lock_timeout_ms=settings.metadata.postgres_lock_timeout_ms,
            log=runtime.log,
        )
        open_parts.push_async_callback(metadata.close)
        await require_format(metadata)
        await probe(objects, rng=runtime.rng)
        yield Storage(metadata=metadata, objects=objects)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unusable(
            f"the data directory {path} cannot be used ({error.strerror}): choose another --data-dir"
        ) from error
