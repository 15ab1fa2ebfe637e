"""One history of tables: brokers and pipelines that crash and stop, a catalog that fails, then calm, then the checks.

1. A seed chooses the shape: how many brokers and pipelines, how finely runs and files are cut, how rough everything
   is, which topics are deleted and created again on the way.
2. Clients produce, read and delete while processes are killed (at any moment, and at crash points) and paused for
   longer than their sessions live.
3. Faults end. Pipelines run until every table has caught up with its log; collectors run until all ages are over.
4. Logs, index, tables and stored objects are compared with each other and with what clients were told.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.index.objects import CollectingAges
from headrace.metadata.keys import DomainKeys
from headrace.model.ids import DomainId, ObjectId
from headrace.model.topics import Topic
from headrace.pipeline.keeping import KeepLimits
from headrace.pipeline.merging import MergeLimits
from headrace.pipeline.planner import PlanLimits
from headrace.pipeline.tidying import TableFileLimits
from headrace.runtime.crash_points import CrashPoint
from headrace.runtime.rng import Rng
from headrace.testing.memory_catalog import MemoryCatalog
from headrace.testing.simulation.checkers import check_leaks, check_objects
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.loop import SimLoop, run_simulation
from headrace.testing.simulation.node import NodeShape
from headrace.testing.simulation.plan import FaultPlan, FaultRates
from headrace.testing.simulation.process import CrashAt, SimClock, SimCrashPoints, SimProcess
from headrace.testing.simulation.repacker import draw_repack_shape
from headrace.testing.simulation.report import Report
from headrace.testing.simulation.retention import WatchedMetadata
from headrace.testing.simulation.tables.broker import TableBroker
from headrace.testing.simulation.tables.catalog import CatalogServer
from headrace.testing.simulation.tables.checkers import (
    CheckedTableObjects,
    StoredTables,
    check_logs,
    check_table_leaks,
    check_tables,
    file_rows,
    open_ends,
)
from headrace.testing.simulation.tables.clients import (
    RecordDeleter,
    TopicClient,
    TopicConsumer,
    TopicOwner,
    TopicProducer,
)
from headrace.testing.simulation.tables.history import TableHistory
from headrace.testing.simulation.tables.pipeline import PipelineNode, PipelineShape
from headrace.testing.simulation.tables.points import StoppingPoints
from headrace.testing.simulation.trouble import Roughness, TroubledScenario
from headrace.topics.admin import NewTopic
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory

C = TypeVar("C", bound=TopicClient)

TROUBLE_SECONDS = 25.0
CALM_LIMIT_SECONDS = 120.0
COLLECTING_SECONDS = 40.0
LOOK_SECONDS = 1.0

MAX_JUMP_MS = 3_600_000
TIDY_AGE_MS = 40_000
"""Longer than faults last: no attempt may still be writing when what it wrote is tidied away. That age is all that
keeps a late attempt from leaving a file behind, so wall clocks that jump by an hour need one of many hours."""

TIDY_AGE_WITH_JUMPS_MS = 40 * MAX_JUMP_MS

TOPICS = ("bills", "orders")
SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'
SCHEMA_RATE = 0.4
PARTITION_BY = ("day(append_time)", "hour(append_time)", "partition", "hour(append_time),partition")

BROKER_POINTS = ("writer.", "fold.", "collect.", "tidy.", "repack.", "trim.")
PIPELINE_POINTS = ("saga.", "swap.", "fold.", "keep.")
CRASH_POINTS = [point for point in CrashPoint if point.startswith(BROKER_POINTS + PIPELINE_POINTS)]
"""Crash points of code that runs in this scenario: all of them, and no others."""


@dataclass(slots=True)
class TableReport(Report):
    """What one history of tables was like."""

    row_count: int = 0
    commit_count: int = 0
    topic_count: int = 0
    held_back_count: int = 0
    merge_count: int = 0
    released_count: int = 0
    person_count: int = 0


class TableScenario(TroubledScenario[TableBroker | PipelineNode]):
    """The world of one history. The first slots are brokers, the others pipelines."""

    report: TableReport
    _tempo = 1
    _topic_names: tuple[str, ...] = TOPICS
    _broker_points: tuple[str, ...] = BROKER_POINTS
    """How the names of the crash points begin that a broker may die at."""
    _pipeline_points: tuple[str, ...] = PIPELINE_POINTS

    def __init__(self, loop: SimLoop, seed: int) -> None:
        super().__init__()
        self._loop = loop
        self._rng: Rng = loop.rng("scenario")
        self._clock = SimClock(loop, tempo=self._tempo)
        is_calm = self._rng.random() < 0.1
        self._plan = FaultPlan(loop.rng("faults"), FaultRates.calm() if is_calm else FaultRates.rough())
        self._has_jumps = self._rng.random() < 0.5
        self._roughness = Roughness(
            min_look_seconds=0.2,
            max_look_seconds=4.0,
            crash_rate=0.12,
            pause_rate=0.2,
            jump_rate=0.1 if self._has_jumps else 0.0,
            max_pause_seconds=12.0,
            max_jump_ms=MAX_JUMP_MS,
        )
        self._keys = DomainKeys(DomainId(0))
        self._metadata = WatchedMetadata(loop.rng("sessions"))
        self._objects = CheckedTableObjects(self._clock, has_segments=self._rng.random() < 0.5)
        self._catalog = MemoryCatalog()
        self._server = CatalogServer(self._catalog, clock=self._clock, rng=loop.rng("catalog"), plan=self._plan)
        self._stored = StoredTables(self._keys, self._metadata, self._objects, self._catalog)
        self._history = TableHistory()
        self._objects.is_named = self._is_named
        self._objects.who_names = lambda path: self._stored.names_file(path, self._history.living_streams)
        self._directory = TopicDirectory(self._metadata, defaults=TopicDefaults(), clock=self._clock)
        self._broker_shape = self._draw_broker_shape()
        self._pipeline_shape = self._draw_pipeline_shape()
        self._tidy_age_ms = TIDY_AGE_WITH_JUMPS_MS if self._has_jumps else TIDY_AGE_MS
        self._broker_count = self._rng.randrange(1, 3)
        self._pipeline_count = (1, 2, 2, 3, 3)[self._rng.randrange(0, 5)]
        self._incarnations = 0
        self._is_resting = False
        self._wall_ahead_ms = 0
        self._started_at = loop.time()
        self.report = TableReport(seed)

    def _draw_broker_shape(self) -> NodeShape:
        draw = self._rng.randrange
        return NodeShape(
            linger_ms=draw(0, 2) * 20,
            frames_in_flight=draw(1, 5),
            segment_max_bytes=draw(1_000, 6_000),
            buffer_max_bytes=draw(200, 1_000),
            ages=CollectingAges(
                staged_max_age_ms=(600, 3_000, 12_000)[draw(0, 3)], sealed_grace_ms=(0, 400, 3_000)[draw(0, 3)]
            ),
            repack=draw_repack_shape(self._rng),
        )

    def _draw_pipeline_shape(self) -> PipelineShape:
        draw = self._rng.randrange
        return PipelineShape(
            plan=PlanLimits(
                file_target_bytes=draw(300, 4_000),
                file_max_slices=draw(1, 4),
                run_max_bytes=draw(500, 12_000),
                run_max_entries=draw(3, 60),
                run_max_files=draw(1, 6),
            ),
            row_group_bytes=draw(50, 1_500),
            swap_max_entries=draw(1, 8),
            topics_at_once=draw(1, 3),
            keep=KeepLimits(
                merge=MergeLimits(
                    file_target_bytes=draw(8_000, 60_000),
                    min_files=draw(2, 4),
                    max_bytes=draw(10_000, 80_000),
                    max_files=draw(2, 20),
                    file_max_slices=draw(1, 4),
                ),
                max_topics=draw(1, 4),
                release_interval_ms=draw(200, 4_000),
                quiet_expiry_ms=draw(2_000, 20_000),
            ),
        )

    def _is_named(self, object_id: ObjectId) -> bool:
        return self._stored.named(self._history.streams)[object_id] > 0

    async def run(self) -> TableReport:
        """Live through the history and check it."""
        self._slots = [self._start_node(slot) for slot in range(self._broker_count + self._pipeline_count)]
        troubles = [asyncio.create_task(self._trouble(slot)) for slot in range(len(self._slots))]
        owner = self._made(TopicOwner, "owner")
        for name in self._topic_names:
            await owner.create(self._draw_topic(name), self._find)
        clients = [asyncio.create_task(work) for work in self._client_work(owner)]
        await self._work_through(clients)
        await self._catch_up()
        await self._finish()
        for trouble in troubles:
            trouble.cancel()
        return self.report

    # Clients and topics

    def _made(self, kind: type[C], name: str) -> C:
        return kind(brokers=self._brokers, clock=self._clock, rng=self._loop.rng(name), history=self._history)

    def _client_work(self, owner: TopicOwner) -> list[Coroutine[Any, Any, None]]:
        """Return everything that clients do in this history."""
        producers = [
            TopicProducer(
                number,
                is_idempotent=number < 2,
                brokers=self._brokers,
                clock=self._clock,
                rng=self._loop.rng(f"producer {number}"),
                history=self._history,
            ).run(rounds=16)
            for number in range(3)
        ]
        consumer = self._made(TopicConsumer, "consumer").run(rounds=40)
        deleter = self._made(RecordDeleter, "deleter").run(rounds=4)
        again = [self._draw_topic(self._any_name()) for _ in range(max(0, self._rng.randrange(-1, 3)))]
        return [*producers, consumer, deleter, owner.run(again, self._find), self._person()]

    async def _person(self) -> None:
        """Work on `main` as people do: delete some rows of a file, or take a file out."""
        for _ in range(self._rng.randrange(0, 4)):
            await self._clock.sleep(self._rng.uniform(1, 10))
            tables = [table for table in self._catalog.tables.values() if table.main]
            if not tables:
                continue
            table = tables[self._rng.randrange(0, len(tables))]
            file = table.main[self._rng.randrange(0, len(table.main))]
            rows = {partition: set(found) for partition, found in file_rows(self._stored, file).items()}
            if self._rng.random() < 0.7:
                table.touch(file.path, rows)
            else:
                table.take_out(file.path, rows)
            self.report.person_count += 1

    def _any_name(self) -> str:
        return TOPICS[self._rng.randrange(0, len(TOPICS))]

    def _draw_topic(self, name: str) -> NewTopic:
        return NewTopic(
            name=name,
            partition_count=self._rng.randrange(2, 4),
            configs={
                "headrace.table.target.lag.ms": "5000",
                "headrace.table.partition.by": PARTITION_BY[self._rng.randrange(0, len(PARTITION_BY))],
                "headrace.table.delete.with.topic": "true" if self._rng.random() < 0.5 else "false",
                "headrace.table.retention": "follow" if self._rng.random() < 0.5 else "keep",
                # No value of the clients fits it: every row of such a topic has a dead letter.
                "headrace.table.schema": SCHEMA if self._rng.random() < SCHEMA_RATE else "",
            },
        )

    async def _find(self, name: str) -> Topic | None:
        await self._directory.refresh()
        return self._directory.get(name)

    def _brokers(self) -> list[TableBroker]:
        return [node for node in self._slots if isinstance(node, TableBroker)]

    def _pipelines(self) -> list[PipelineNode]:
        return [node for node in self._slots if isinstance(node, PipelineNode)]

    # Processes

    def _start_node(self, slot: int) -> TableBroker | PipelineNode:
        self._incarnations += 1
        is_broker = slot < self._broker_count
        name = f"{'broker' if is_broker else 'pipeline'}-{slot}.{self._incarnations}"
        clock = SimClock(
            self._loop,
            wall_offset_ms=self._rng.randrange(-2_000, 2_000) * self._tempo + self._wall_ahead_ms,
            monotonic_base=self._rng.uniform(0, 1_000),
            tempo=self._tempo,
        )
        process = SimProcess(name, self._loop, clock=clock)
        crashes = self._draw_points(self._broker_points if is_broker else self._pipeline_points)
        stops = {} if is_broker else self._draw_stops()
        crash_points = StoppingPoints(process, crashes, stops, may_stop=lambda: self._in_trouble)
        node = self._make_broker(process, crash_points) if is_broker else self._make_pipeline(process, crash_points)
        if isinstance(node, TableBroker):
            node.slot = slot
        node.start()
        return node

    def _draw_points(self, prefixes: tuple[str, ...]) -> list[CrashAt]:
        """Choose where a process dies, if it does; nothing of this kind happens once there is calm."""
        if not self._in_trouble or self._rng.random() < 0.3:
            return []
        possible = [point for point in CrashPoint if point.startswith(prefixes)]
        return [CrashAt(possible[self._rng.randrange(0, len(possible))], self._rng.randrange(1, 4))]

    def _draw_stops(self) -> dict[CrashAt, float]:
        """Choose where a pipeline stops, for how many seconds; often where its commit is due, and not all of them."""
        if not self._in_trouble or self._rng.random() < 0.4:
            return {}
        points = [at.point for _ in range(2) for at in self._draw_points(("saga.", "swap."))]
        points += [CrashPoint.SAGA_AFTER_WRITTEN]
        return {CrashAt(point, self._rng.randrange(1, 4)): self._rng.uniform(5, 20) for point in points}

    def _make_broker(self, process: SimProcess, crash_points: SimCrashPoints) -> TableBroker:
        return TableBroker(
            process,
            shape=self._broker_shape,
            files=TableFileLimits(
                attempt_age_floor_ms=self._tidy_age_ms,
                grace_ms=self._tidy_age_ms,
                records_per_tick=10,
                files_per_tick=5,
            ),
            metadata=self._metadata,
            objects=self._objects,
            plan=self._plan,
            crash_points=crash_points,
            rng=self._loop.rng(process.name),
        )

    def _make_pipeline(self, process: SimProcess, crash_points: SimCrashPoints) -> PipelineNode:
        node = PipelineNode(
            process,
            shape=self._pipeline_shape,
            metadata=self._metadata,
            objects=self._objects,
            catalog=self._server,
            plan=self._plan,
            crash_points=crash_points,
            rng=self._loop.rng(process.name),
        )
        node.is_forced = not self._in_trouble
        node.is_resting = self._is_resting
        return node

    # Calm

    def _calm_down(self) -> None:
        for node in self._slots:
            node.process.resume()
        super()._calm_down()

    async def _work_through(self, clients: "list[asyncio.Task[None]]") -> None:
        """Let clients and troubles go side by side, then end the troubles and insist that the clients finish."""
        await asyncio.wait(clients, timeout=TROUBLE_SECONDS)
        self._calm_down()
        await self._insist_on(clients, limit_seconds=CALM_LIMIT_SECONDS)

    async def _catch_up(self) -> None:
        """Wait until every table has caught up with its log, and no run is under way."""
        began_at = self._clock.monotonic()
        while left := open_ends(self._stored, self._history):
            if self._clock.monotonic() - began_at > CALM_LIMIT_SECONDS:
                raise Violation(f"{CALM_LIMIT_SECONDS} s after the last record: {'; '.join(left)}")
            for node in self._pipelines():
                node.is_forced = True
            await self._clock.sleep(LOOK_SECONDS)

    async def _finish(self) -> None:
        """Let rounds end and all ages pass, give the collectors their time, and check everything."""
        self._is_resting = True
        for node in self._pipelines():
            node.is_resting = True
        while any(node.is_busy for node in self._pipelines()):
            await self._clock.sleep(LOOK_SECONDS)
        check_objects(self._stored, self._history.streams)
        self._wall_ahead_ms = 2 * self._tidy_age_ms
        for clock in (self._clock, *(node.clock for node in self._slots)):
            clock.jump_wall(self._wall_ahead_ms)
        await self._clock.sleep(COLLECTING_SECONDS)
        if self._objects.violation is not None:
            raise self._objects.violation  # it has killed whoever did it, and that shows in other places first
        self.report.record_count = check_logs(self._stored, self._history)
        self.report.row_count = check_tables(self._stored, self._history)
        check_objects(self._stored, self._history.streams)
        await check_leaks(self._stored, now_ms=self._clock.now_ms())
        await check_table_leaks(self._stored)
        self._sum_up()

    def _sum_up(self) -> None:
        for node in self._slots:
            self._bury(node)
        report = self.report
        report.commit_count = self._catalog.commits
        report.merge_count = self._catalog.merges
        report.released_count = self._catalog.released
        report.topic_count = len(self._history.topics)
        report.held_back_count = sum(state.held_back_batches for state in self._stored.states().values())
        report.read_count = self._history.read_count
        report.faults = self._plan.injected
        report.virtual_seconds = self._loop.time() - self._started_at
        report.digest = self._loop.trace_digest


def run_table_seed(seed: int) -> TableReport:
    """Run one history of tables; raise what it finds."""

    async def main(loop: SimLoop) -> TableReport:
        return await TableScenario(loop, seed).run()

    return run_simulation(seed, main)
