"""A process that runs the pipeline: stores, a session of its own, the catalog, one warm Spark, and rounds.

It needs no broker, and any number of them may run: a lease per topic keeps them apart, and the table itself fences
whoever acts too late.

Must stay true: Spark is started once, and proved with a probe before the first run; a session that was lost is
replaced, and what was begun under it is resumed like anybody else's.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from headrace.broker.collecting import make_orphan_sweeper
from headrace.broker.live_settings import defaults_reader
from headrace.broker.spark import objects_address, spark_options
from headrace.broker.storage import DOMAIN, MAX_FOLDED_ENTRIES, Runtime, Storage, opened_storage, topic_defaults
from headrace.broker.tables import expiry_rule, open_table_catalog
from headrace.cluster.identity import require_identity
from headrace.errors import HeadraceError
from headrace.gc.folding import Folder, FoldLimits
from headrace.gc.leased import CollectorLease
from headrace.index.cache import IndexCache
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.metadata.sessions import SessionKeeper, SessionReaper
from headrace.model.topics import TopicId
from headrace.pipeline.bundling import BundlingWriter
from headrace.pipeline.compaction_plan import CompactionLimits
from headrace.pipeline.keeping import KeepLimits
from headrace.pipeline.merging import MergeLimits
from headrace.pipeline.named_files import IndexNames
from headrace.pipeline.orphans import TableOrphanSweeper
from headrace.pipeline.planner import PlanLimits
from headrace.pipeline.ports import Progress, TableWriter
from headrace.pipeline.runner import Pipeline, PipelineLimits, RunReport
from headrace.pipeline.sagas import Sagas
from headrace.pipeline.scans import ScanLimits
from headrace.pipeline.spark.probe import probe_executors
from headrace.pipeline.spark.session import SparkHandle, open_spark
from headrace.pipeline.spark.writer import SparkWriter
from headrace.pipeline.swapping import Swapper
from headrace.pipeline.topic_run import RunParts, WriteLimits
from headrace.runtime.clock import Clock
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.services import Follower, TickMetrics
from headrace.settings import Settings
from headrace.tables.port import TableCatalog, TableNames
from headrace.topics.directory import TopicDirectory
from headrace.topics.tables import table_rules_of

FOLD_STEPS_PER_TICK = 16
SPARE_SPARK_THREADS = 4
"""Beside one for each topic at once: jobs of small runs, and cancelling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a pipeline that runs once is to reach: of every topic with a table, the ends of its partitions."""

    ends: Mapping[TopicId, Mapping[int, int]]
    names: Mapping[TopicId, str]


class PipelineHost:
    """Makes rounds in a session that lives."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        storage: Storage,
        catalog: TableCatalog,
        progress: Progress,
        *,
        names: TableNames | None = None,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._storage = storage
        self._catalog = catalog
        self._progress = progress
        self._keys = DomainKeys(DOMAIN)
        self._topics = TopicDirectory(
            storage.metadata,
            defaults=topic_defaults(settings),
            clock=runtime.clock,
            read_defaults=defaults_reader(settings, storage.metadata),
        )
        self._index = IndexCache(storage.metadata, self._keys, max_folded_entries=MAX_FOLDED_ENTRIES)
        self._sagas = Sagas(storage.metadata, self._keys)
        self._sessions = SessionHolder(storage.metadata, runtime.clock, timeout_ms=settings.broker.session_timeout_ms)
        self._pipeline: Pipeline | None = None
        self._orphans: TableOrphanSweeper | None = None
        if names is not None:
            self._orphans = make_orphan_sweeper(
                settings, runtime, storage, self._keys, names=names, topics=self._topics
            )
        self._lease = CollectorLease(storage.metadata, lambda: self._sessions.keeper.session)
        self._next_sweep = runtime.clock.monotonic() + settings.pipeline.orphan_interval_ms / 1000

    async def begin(self, writer: TableWriter, *, parallel_files: int = 1) -> None:
        """Open a session; from now on rounds can be made, whose writer can write so many files at once."""
        await self._sessions.renew()
        self._pipeline = self._assemble(writer, parallel_files)

    async def end(self) -> None:
        """End the session, and with it every lease that is still held."""
        await self._sessions.close()

    async def round(self, *, force: bool = False) -> RunReport:
        """Make one round, in a new session if the last one was lost."""
        assert self._pipeline is not None, "begin comes first"
        await self._sessions.renew()
        report = await self._pipeline.run_once(force=force)
        await self._sweep_orphans()
        return report

    async def _sweep_orphans(self) -> None:
        """Once in a long while go through all tables, a page per round, while no other process collects."""
        clock = self._runtime.clock
        if self._orphans is None or clock.monotonic() < self._next_sweep or not await self._lease.take():
            return
        try:
            removed = await self._orphans.tick()
        except HeadraceError as error:
            self._runtime.log.warning("files that nothing names were not looked for", error=error)
            removed = []
        if removed:
            self._runtime.log.info("files that nothing named were deleted", count=len(removed))
        if self._orphans.is_round_over:
            self._next_sweep = clock.monotonic() + self._settings.pipeline.orphan_interval_ms / 1000
            await self._lease.give_back()

    async def goal(self) -> Goal:
        """Return what is in the log now and belongs into tables."""
        await self._topics.refresh()
        await self._index.refresh()
        ends: dict[TopicId, dict[int, int]] = {}
        names: dict[TopicId, str] = {}
        for topic in self._topics.known():
            if not table_rules_of(topic.overrides).enable:
                continue
            names[topic.id] = topic.name
            ends[topic.id] = {}
            for partition, stream in enumerate(topic.streams):
                head = await self._index.fresh_head(stream)
                if head is not None and not head.is_deleted and head.high_watermark > head.log_start:
                    ends[topic.id][partition] = head.high_watermark
        return Goal(ends=ends, names=names)

    async def left_of(self, goal: Goal) -> list[str]:
        """Return the topics whose tables have not reached the goal; one that was deleted meanwhile has."""
        await self._topics.refresh()
        states = await self._sagas.states()
        left = []
        for topic_id, wanted in goal.ends.items():
            topic = self._topics.get_by_id(topic_id)
            if topic is None:
                continue
            reached = states[topic_id].ends if topic_id in states else {}
            behind = [partition for partition, end in wanted.items() if reached.get(partition, 0) < end]
            heads = [await self._index.fresh_head(topic.streams[partition]) for partition in behind]
            # What retention has taken meanwhile will not come any more.
            if any(
                head is not None and head.log_start < wanted[partition]
                for partition, head in zip(behind, heads, strict=True)
            ):
                left.append(goal.names[topic_id])
        return left

    def _assemble(self, writer: TableWriter, parallel_files: int) -> Pipeline:
        settings, runtime, storage, keys = self._settings, self._runtime, self._storage, self._keys
        metadata, clock, crash_points = storage.metadata, runtime.clock, runtime.crash_points
        return Pipeline(
            store=metadata,
            keys=keys,
            topics=self._topics,
            folder=Folder(
                keys=keys,
                metadata=metadata,
                clock=clock,
                crash_points=crash_points,
                limits=FoldLimits(
                    records_per_step=settings.index.fold_batch_records,
                    entries_per_step=settings.index.fold_batch_entries,
                    steps_per_tick=FOLD_STEPS_PER_TICK,
                    lag_records=0,
                ),
            ),
            parts=RunParts(
                sagas=self._sagas,
                swapper=Swapper(
                    store=metadata,
                    keys=keys,
                    clock=clock,
                    crash_points=crash_points,
                    max_entries=settings.index.swap_max_entries,
                ),
                catalog=self._catalog,
                writer=writer,
                objects=storage.objects,
                clock=clock,
                rng=runtime.rng,
                crash_points=crash_points,
                progress=self._progress,
                expiry=expiry_rule(settings),
                write=WriteLimits(
                    row_group_bytes=settings.pipeline.row_group_bytes,
                    max_open_bytes=settings.topics.decompression_max_bytes,
                ),
                names=IndexNames(metadata, keys),
                domain=DOMAIN,
            ),
            session=lambda: self._sessions.keeper.session,
            limits=pipeline_limits(settings, parallel_files),
            log=runtime.log,
        )


class SessionHolder:
    """The session of this process; a lost one is replaced by the next."""

    def __init__(self, store: MetadataStore, clock: Clock, *, timeout_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._keeper: SessionKeeper | None = None

    @property
    def keeper(self) -> SessionKeeper:
        """Who keeps the session now."""
        assert self._keeper is not None, "renew comes first"
        return self._keeper

    async def renew(self) -> None:
        """Open a session if there is none, or none any more."""
        if self._keeper is not None and self._keeper.is_surely_alive():
            return
        if self._keeper is not None:
            await self._keeper.abandon()
        self._keeper = await SessionKeeper.open(self._store, self._clock, timeout_ms=self._timeout_ms)

    async def close(self) -> None:
        """End the session; its leases go with it."""
        if self._keeper is not None:
            await self._keeper.close()
            self._keeper = None


def pipeline_limits(settings: Settings, parallel_files: int) -> PipelineLimits:
    """Return how much a round takes, over how many tasks it spreads, and how patient it is."""
    pipeline = settings.pipeline
    return PipelineLimits(
        plan=PlanLimits(
            file_target_bytes=pipeline.file_target_bytes,
            run_max_bytes=pipeline.run_max_bytes,
            run_max_entries=pipeline.run_max_entries,
            parallel_files=parallel_files,
        ),
        keep=KeepLimits(
            merge=MergeLimits(
                file_target_bytes=pipeline.file_target_bytes,
                min_files=pipeline.merge_min_files,
                max_bytes=pipeline.merge_max_bytes,
            ),
            merge_enable=pipeline.merge_enable,
            max_topics=pipeline.keeping_max_topics,
            release_interval_ms=pipeline.release_interval_ms,
            quiet_expiry_ms=pipeline.quiet_expiry_ms,
        ),
        compaction=CompactionLimits(
            scan=ScanLimits(map_bytes=pipeline.compaction_keys_bytes),
            max_bytes=pipeline.compaction_max_bytes,
            look_interval_ms=pipeline.compaction_interval_ms,
        ),
        topics_at_once=pipeline.topics_at_once,
        failure_backoff_max_ms=pipeline.failure_backoff_max_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPipeline:
    """A host that is ready, and the Spark it works with."""

    host: PipelineHost
    spark: SparkHandle


@asynccontextmanager
async def running_pipeline(
    settings: Settings, runtime: Runtime, *, progress: Progress
) -> AsyncIterator[RunningPipeline]:
    """Open everything, start Spark beside that, and prove it; close all in the end.

    Raises `Unsupported` where Java, Spark or an executor will not do, and what opening the stores raises.
    """
    options = spark_options(settings)
    threads = ThreadExecutor("spark", threads=settings.pipeline.topics_at_once + SPARE_SPARK_THREADS)
    async with AsyncExitStack() as parts:
        parts.callback(threads.close)
        # Spark takes seconds to start; what it does not need is opened meanwhile.
        starting = asyncio.create_task(threads.run(lambda: open_spark(options)))
        parts.push_async_callback(_close_spark, starting, threads)
        storage = await parts.enter_async_context(opened_storage(settings, runtime))
        await require_identity(storage.metadata, storage.objects, rng=runtime.rng)
        catalog = await parts.enter_async_context(open_table_catalog(settings, runtime))
        reaper = Follower(
            "session-reaper",
            SessionReaper(storage.metadata, runtime.clock).run,
            clock=runtime.clock,
            log=runtime.log,
            metrics=TickMetrics(runtime.metrics),
        )
        await reaper.start()
        parts.push_async_callback(reaper.stop)
        spark = await asyncio.shield(starting)
        address = objects_address(settings)
        await probe_executors(spark, storage.objects, address, executor=threads, rng=runtime.rng)
        writer = BundlingWriter(SparkWriter(spark, objects=address, executor=threads, rng=runtime.rng))
        parts.push_async_callback(writer.close)
        host = PipelineHost(settings, runtime, storage, catalog, progress, names=catalog)
        parts.push_async_callback(host.end)
        await host.begin(writer, parallel_files=max(1, spark.context.defaultParallelism))
        yield RunningPipeline(host=host, spark=spark)


async def _close_spark(starting: "asyncio.Task[SparkHandle]", threads: ThreadExecutor) -> None:
    """End Spark, also one that is just starting: its Java process would stay otherwise as long as we do."""
    await asyncio.wait([starting])
    if not starting.cancelled() and starting.exception() is None:
        await threads.run(starting.result().close)
