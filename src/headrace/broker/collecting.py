"""The collectors as the settings say: for a broker, and for `headrace collect`, which runs them to the end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headrace.broker.storage import Runtime, Storage
from headrace.cluster.identity import require_identity
from headrace.cluster.registration import BROKER_CODEC
from headrace.errors import HeadraceError, Retryable
from headrace.gc.collecting import Collector, CollectorLimits
from headrace.gc.leased import COLLECTOR_LEASE, Collecting, CollectorLease
from headrace.gc.pins import PinKeeper, PinKeeperLimits, PinMetrics
from headrace.gc.removed import Removed, Waiting
from headrace.gc.sweeping import Sweeper
from headrace.index.objects import CollectingAges
from headrace.index.pins import PinLimits
from headrace.metadata import keys as all_keys
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.leases import LEASE_CODEC
from headrace.metadata.port import MetadataStore
from headrace.metadata.sessions import SessionKeeper, SessionReaper
from headrace.pipeline.orphans import OrphanLimits, TableOrphanSweeper
from headrace.pipeline.tidying import TableFileCollector, TableFileLimits
from headrace.settings import Settings
from headrace.tables.port import TableNames
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory

OBJECTS_PER_TICK = 500
"""How many objects of the store one tick of the sweeper lists, once a minute."""

RECORDS_PER_TICK = 2_000
"""How many object records one tick of the collector reads, every five seconds."""

WRITERS_PER_TICK = 1000
"""How many writers one tick of the collector reads, every five seconds."""

LOOK_AGAIN_S = 0.2
MAX_BROKERS = 1000
MAX_FAILED_PAGES = 10
"""After how many pages that failed in part the command gives up: the store itself may be away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectors:
    """All of them."""

    pins: PinKeeper
    objects: Collector
    table_files: TableFileCollector
    sweeper: Sweeper

    @property
    def all(self) -> list[Collecting]:
        return [self.pins, self.objects, self.table_files, self.sweeper]

    def waiting(self) -> Waiting:
        """Return what nothing names and is still there, as the last whole rounds have found it."""
        return self.objects.waiting.and_(self.table_files.waiting)


def make_collectors(
    settings: Settings,
    runtime: Runtime,
    storage: Storage,
    keys: DomainKeys,
    *,
    pin_metrics: PinMetrics | None = None,
) -> Collectors:
    """Make the collectors of one domain; nothing runs yet."""
    return Collectors(
        pins=PinKeeper(
            keys=keys,
            metadata=storage.metadata,
            objects=storage.objects,
            clock=runtime.clock,
            limits=PinKeeperLimits(
                pins=PinLimits(max_age_ms=settings.retention.pins_max_age_ms, skew_ms=settings.retention.pins_skew_ms)
            ),
            metrics=pin_metrics,
        ),
        objects=Collector(
            keys=keys,
            metadata=storage.metadata,
            objects=storage.objects,
            clock=runtime.clock,
            crash_points=runtime.crash_points,
            limits=CollectorLimits(
                ages=CollectingAges(
                    staged_max_age_ms=settings.wal.staged_max_age_ms, sealed_grace_ms=settings.wal.sealed_grace_ms
                ),
                records_per_tick=RECORDS_PER_TICK,
                writers_per_tick=WRITERS_PER_TICK,
            ),
        ),
        table_files=TableFileCollector(
            keys=keys,
            metadata=storage.metadata,
            objects=storage.objects,
            clock=runtime.clock,
            crash_points=runtime.crash_points,
            limits=TableFileLimits(
                attempt_age_floor_ms=settings.pipeline.attempt_age_floor_ms,
                grace_ms=settings.pipeline.files_grace_ms,
            ),
        ),
        sweeper=Sweeper(
            keys=keys,
            metadata=storage.metadata,
            objects=storage.objects,
            clock=runtime.clock,
            age_floor_ms=settings.retention.orphan_age_floor_ms,
            objects_per_tick=OBJECTS_PER_TICK,
        ),
    )


def make_orphan_sweeper(
    settings: Settings,
    runtime: Runtime,
    storage: Storage,
    keys: DomainKeys,
    *,
    names: TableNames,
    topics: TopicDirectory,
) -> TableOrphanSweeper:
    """Make the one collector that needs the catalog, and so does not run in brokers."""
    return TableOrphanSweeper(
        keys=keys,
        metadata=storage.metadata,
        objects=storage.objects,
        names=names,
        topics=topics.known,
        clock=runtime.clock,
        limits=OrphanLimits(age_floor_ms=settings.pipeline.orphan_age_floor_ms),
    )


async def _orphan_sweeper(
    settings: Settings, runtime: Runtime, storage: Storage, keys: DomainKeys, names: TableNames
) -> TableOrphanSweeper:
    topics = TopicDirectory(storage.metadata, defaults=TopicDefaults(), clock=runtime.clock)
    await topics.refresh()
    return make_orphan_sweeper(settings, runtime, storage, keys, names=names, topics=topics)


async def collect_all(
    settings: Settings,
    runtime: Runtime,
    storage: Storage,
    keys: DomainKeys,
    *,
    wait_s: float,
    told: Callable[[int], None],
    names: TableNames | None = None,
) -> list[Removed]:
    """Delete all that may go now and return it; `told` hears how many there are so far.

    With `names`, that includes files of tables that nothing names.

    Raises `Retryable` if another process collects for longer than `wait_s`. A page that fails holds up no other; the
    first failure is raised in the end.
    """
    await require_identity(storage.metadata, storage.objects, rng=runtime.rng)
    removed: list[Removed] = []
    failures: list[HeadraceError] = []
    collectors = make_collectors(settings, runtime, storage, keys).all
    if names is not None:
        collectors.append(await _orphan_sweeper(settings, runtime, storage, keys, names))
    async with _lease_held(settings, runtime, storage.metadata, wait_s):
        for collector in collectors:
            found = True
            while found or not collector.is_round_over:
                found = False
                try:
                    page = await collector.tick()
                except HeadraceError as error:
                    failures.append(error)
                    if len(failures) >= MAX_FAILED_PAGES:
                        raise
                    continue
                found = bool(page)
                removed += page
                told(len(removed))
    if failures:
        raise failures[0]
    return removed


async def survey_all(
    settings: Settings, runtime: Runtime, storage: Storage, keys: DomainKeys, *, names: TableNames | None = None
) -> list[Removed]:
    """Return all that would be deleted now, and touch nothing. A table that cannot be read is only logged."""
    await require_identity(storage.metadata, storage.objects, rng=runtime.rng)
    found: list[Removed] = []
    for collector in make_collectors(settings, runtime, storage, keys).all:
        found += await collector.survey()
        while not collector.is_round_over:
            found += await collector.survey()
    if names is not None:
        found += await _survey_tables(await _orphan_sweeper(settings, runtime, storage, keys, names), runtime)
    return found


async def _survey_tables(sweeper: TableOrphanSweeper, runtime: Runtime) -> list[Removed]:
    found: list[Removed] = []
    is_first = True
    while is_first or not sweeper.is_round_over:
        is_first = False
        try:
            found += await sweeper.survey()
        except HeadraceError as error:
            runtime.log.warning("a table cannot be read, so nothing of it would be deleted", error=error)
    return found


@asynccontextmanager
async def _lease_held(
    settings: Settings, runtime: Runtime, metadata: MetadataStore, wait_s: float
) -> AsyncIterator[None]:
    """Hold the collectors' lease in a session of our own. Who held it may be dead with nobody left to notice, so
    sessions that time out are ended here, too."""
    clock = runtime.clock
    deadline = clock.monotonic() + wait_s
    keeper = await SessionKeeper.open(metadata, clock, timeout_ms=settings.broker.session_timeout_ms)
    reaping = asyncio.create_task(SessionReaper(metadata, clock).run())
    lease = CollectorLease(metadata, lambda: keeper.session)
    try:
        while not await lease.take():
            if clock.monotonic() >= deadline:
                raise Retryable(
                    f"{await _holder(metadata)} collects already, and did for all of {wait_s:g} s: it needs no help; "
                    "--wait gives it longer, --dry-run shows what would go"
                )
            await clock.sleep(LOOK_AGAIN_S)
        yield
        await lease.give_back()
    finally:
        reaping.cancel()
        await asyncio.wait([reaping])
        await keeper.close()


async def _holder(metadata: MetadataStore) -> str:
    """Say who holds the lease: a broker, if its session is one's."""
    raw = await metadata.get(COLLECTOR_LEASE)
    session = None if raw is None else LEASE_CODEC.decode(raw.value, raw.key).session
    for item in await metadata.range(prefix_range(all_keys.BROKERS, limit=MAX_BROKERS)):
        broker = BROKER_CODEC.decode(item.value, item.key)
        if broker.session == session:
            return f"broker {broker.node_id} at {broker.host}:{broker.port}"
    return f"another process (session {session})"
