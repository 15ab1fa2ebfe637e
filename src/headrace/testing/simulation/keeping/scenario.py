"""A history of two weeks: four topics that are kept in four ways, and all jobs that keep them, while they fail.

A day of the wall clock takes a minute of the loop (`TEMPO`), so that what waits for seconds in the other scenarios
waits for hours here. Trouble and calm take turns. In every calm, and in the end, what is stored is compared with what
retention keeps (`bounds.py`): what grows slowly shows nowhere else.

    aged       kept for two days; its table follows
    kept       kept for ever; its table is partitioned by day
    sized      kept up to a size; it has no table
    compacted  the latest record per key, and tombstones for a day; its table follows or is the history
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.index.objects import CollectingAges
from headrace.index.repack import RepackLimits
from headrace.model.topics import Topic
from headrace.pipeline.compaction_plan import CompactionLimits
from headrace.pipeline.keeping import KeepLimits
from headrace.pipeline.merging import MergeLimits
from headrace.pipeline.planner import PlanLimits
from headrace.pipeline.scans import ScanLimits
from headrace.pipeline.tidying import TableFileLimits
from headrace.runtime.crash_points import CrashPoint
from headrace.testing.simulation.checkers import check_leaks, check_objects
from headrace.testing.simulation.compaction.checkers import Watcher, check_compacted
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.keeping.bounds import (
    DAY_MS,
    StoredWeeks,
    Usage,
    check_bounds,
    check_kept,
    shares_of_bounds,
)
from headrace.testing.simulation.keeping.broker import KeepingBroker
from headrace.testing.simulation.keeping.clients import Follower, HoleFollower, WeeksProducer
from headrace.testing.simulation.loop import SimLoop, run_simulation
from headrace.testing.simulation.node import NodeShape
from headrace.testing.simulation.process import SimCrashPoints, SimProcess
from headrace.testing.simulation.repacker import RepackShape
from headrace.testing.simulation.retention import RetentionChecker
from headrace.testing.simulation.tables.checkers import check_logs, check_table_leaks, check_tables, open_ends
from headrace.testing.simulation.tables.clients import TopicOwner
from headrace.testing.simulation.tables.pipeline import PipelineShape
from headrace.testing.simulation.tables.scenario import (
    BROKER_POINTS,
    CALM_LIMIT_SECONDS,
    COLLECTING_SECONDS,
    LOOK_SECONDS,
    PIPELINE_POINTS,
    TIDY_AGE_MS,
    TableReport,
    TableScenario,
)
from headrace.topics.admin import NewTopic

KEEPING_BROKER_POINTS = (*BROKER_POINTS, "retain.")
KEEPING_PIPELINE_POINTS = (*PIPELINE_POINTS, "compaction.")
CRASH_POINTS = [point for point in CrashPoint if point.startswith(KEEPING_BROKER_POINTS + KEEPING_PIPELINE_POINTS)]
"""Crash points of code that runs in this scenario."""

TEMPO = 1_440
"""A day takes a minute."""

DAY_SECONDS = 60.0
PERIODS = 7
TROUBLE_SECONDS = 1.7 * DAY_SECONDS
CALM_SECONDS = 0.3 * DAY_SECONDS
LAST_SECONDS = 2 * DAY_SECONDS
"""So long that tombstones, orphans and snapshots come due after the last record."""

WATCH_SECONDS = 1.0
SIZED_BYTES = 12_000


@dataclass(slots=True)
class KeepingReport(TableReport):
    """What one history of weeks was like."""

    compacted_count: int = 0
    usage: Usage | None = None
    """What was stored in the end."""
    most_of_bounds: dict[str, float] = field(default_factory=dict)
    """How much of each bound was ever used; 1 is all of it."""

    def bounds_line(self) -> str:
        """Say what was kept, and how near to their bounds all things came."""
        kept_bytes = 0 if self.usage is None else self.usage.kept_bytes
        shares = ", ".join(f"{name} {share:.2f}" for name, share in self.most_of_bounds.items())
        return f"seed {self.seed}: {kept_bytes:,} bytes kept in the end; of their bounds at most: {shares}"


class KeepingScenario(TableScenario):
    """The world of one history."""

    report: KeepingReport
    _tempo = TEMPO
    _topic_names = ("aged", "kept", "sized", "compacted")
    _broker_points = KEEPING_BROKER_POINTS
    _pipeline_points = KEEPING_PIPELINE_POINTS

    def __init__(self, loop: SimLoop, seed: int) -> None:
        super().__init__(loop, seed)
        self._has_jumps = False
        self._roughness = replace(self._roughness, jump_rate=0.0, min_look_seconds=1.0, max_look_seconds=12.0)
        self._tidy_age_ms = TIDY_AGE_MS * TEMPO
        self._stored: StoredWeeks = StoredWeeks(self._keys, self._metadata, self._objects, self._catalog)
        self._broker_count = self._pipeline_count = 2
        self._rates = self._plan.rates
        self.report = KeepingReport(seed)

    def _draw_broker_shape(self) -> NodeShape:
        shape = super()._draw_broker_shape()
        draw = self._rng.randrange
        return replace(
            shape,
            ages=CollectingAges(
                staged_max_age_ms=(6_000, 12_000)[draw(0, 2)] * TEMPO,
                sealed_grace_ms=(400, 3_000)[draw(0, 2)] * TEMPO,
            ),
            # The repacker waits for ages by its monotonic clock, so its ages are those of the other scenarios.
            repack=RepackShape(
                plan=RepackLimits(
                    min_age_ms=draw(1_000, 6_000),
                    entry_bytes=draw(300, 900),
                    object_bytes=draw(2_000, 6_000),
                    factor=draw(2, 5),
                    loose_max_entries=draw(4, 20),
                ),
                entries_per_step=draw(3, 8),
                takes_turns=self._rng.random() < 0.3,
            ),
            follows_topics=True,
            tempo=TEMPO,
            max_jump_ms=8_000 * TEMPO,
        )

    def _draw_pipeline_shape(self) -> PipelineShape:
        draw = self._rng.randrange
        return PipelineShape(
            plan=PlanLimits(
                file_target_bytes=draw(2_000, 8_000),
                file_max_slices=draw(2, 4),
                run_max_bytes=draw(4_000, 12_000),
                run_max_entries=draw(30, 60),
                run_max_files=draw(2, 6),
            ),
            row_group_bytes=draw(200, 1_500),
            swap_max_entries=draw(3, 12),
            topics_at_once=draw(1, 3),
            keep=KeepLimits(
                merge=MergeLimits(
                    file_target_bytes=draw(20_000, 60_000),
                    min_files=draw(3, 6),
                    max_bytes=draw(40_000, 80_000),
                    max_files=20,
                    file_max_slices=draw(2, 5),
                ),
                max_topics=4,
                release_interval_ms=draw(200, 4_000) * TEMPO,
                quiet_expiry_ms=draw(2_000, 20_000) * TEMPO,
            ),
            compaction=CompactionLimits(
                scan=ScanLimits(map_bytes=draw(200, 400), chunk_bytes=draw(100, 400), max_obsolete=draw(20, 100)),
                max_streams=draw(1, 4),
                max_bytes=draw(20_000, 90_000),
                max_files=draw(4, 12),
                look_interval_ms=draw(1_000, 5_000),
            ),
            tempo=TEMPO,
        )

    def _draw_topic(self, name: str) -> NewTopic:
        configs = {
            "aged": {"retention.ms": str(2 * DAY_MS), "headrace.table.retention": "follow"},
            "kept": {"retention.ms": "-1", "headrace.table.partition.by": "day(append_time)"},
            "sized": {"retention.ms": "-1", "retention.bytes": str(SIZED_BYTES), "headrace.table.enable": "false"},
            "compacted": {
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.3",
                "max.compaction.lag.ms": str(DAY_MS),
                "delete.retention.ms": str(DAY_MS),
                "headrace.table.compaction": "latest" if self._rng.random() < 0.5 else "history",
            },
        }[name]
        lag = {"headrace.table.target.lag.ms": str(5_000 * TEMPO)}
        return NewTopic(name=name, partition_count=2, configs={**lag, **configs})

    def _make_broker(self, process: SimProcess, crash_points: SimCrashPoints) -> KeepingBroker:
        broker = KeepingBroker(
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
        broker.catalog = self._catalog
        return broker

    # The history

    async def run(self) -> KeepingReport:
        """Live through the history and check it."""
        self._slots = [self._start_node(slot) for slot in range(self._broker_count + self._pipeline_count)]
        troubles = [asyncio.create_task(self._trouble(slot)) for slot in range(len(self._slots))]
        owner = self._made(TopicOwner, "owner")
        for name in self._topic_names:
            await owner.create(self._draw_topic(name), self._find)
        self._start_watching()
        await self._watched(self._live(), self._watch())
        for trouble in troubles:
            trouble.cancel()
        return self.report

    async def _live(self) -> None:
        """Go through all periods, and through the calm after them."""
        clients = [asyncio.create_task(work) for work in self._work_of_clients()]
        for _ in range(PERIODS):
            await self._go_through_trouble()
            await self._look()
        await self._insist_on(clients, limit_seconds=CALM_LIMIT_SECONDS)
        await self._catch_up()
        await self._finish()

    def _start_watching(self) -> None:
        """Let log starts and compacted logs be judged from now on."""
        self._topics = self._history.living_topics
        self._tables = self._history.of([topic for topic in self._topics if topic.name != "sized"])
        self._compacted = self._history.of([topic for topic in self._topics if topic.name == "compacted"])
        self._whole = self._history.of([topic for topic in self._topics if topic.name != "compacted"])
        self._watcher = Watcher(self._stored, self._compacted, is_strict=True, tempo=TEMPO)
        checker = RetentionChecker(
            self._stored,
            self._history,
            keys=self._keys,
            clock=self._clock,
            retention={stream: topic.retention for topic in self._topics for stream in topic.streams},
        )
        self._metadata.observe = checker.observe

    def _work_of_clients(self) -> list[Coroutine[Any, Any, None]]:
        end_at = self._clock.monotonic() + PERIODS * (TROUBLE_SECONDS + CALM_SECONDS)
        producers = [
            WeeksProducer(
                number,
                topic,
                brokers=self._brokers,
                clock=self._clock,
                rng=self._loop.rng(f"producer {number}"),
                history=self._history,
            )
            for number, topic in enumerate(self._topics)
        ]
        self._followers = [self._follower(topic, "follower") for topic in self._topics]
        return [
            *(producer.run_until(end_at) for producer in producers),
            *(follower.run_until(end_at) for follower in self._followers),
        ]

    def _follower(self, topic: Topic, name: str) -> Follower:
        kind = HoleFollower if topic.name == "compacted" else Follower
        rng = self._loop.rng(f"{name} of {topic.name}")
        return kind(topic, brokers=self._brokers, clock=self._clock, rng=rng, history=self._history)

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(WATCH_SECONDS)
            self._watcher.look(self._clock.now_ms())

    async def _go_through_trouble(self) -> None:
        self._in_trouble = True
        self._plan.change(self._rates)
        await self._clock.sleep(TROUBLE_SECONDS)
        self._calm_down()
        await self._clock.sleep(CALM_SECONDS)

    # Looks

    async def _look(self, *, is_over: bool = False) -> None:
        """Compare what is stored with what is kept, and read all of it from its beginning."""
        self._raise_violation()
        usage = await self._stored.usage(self._topics)
        shares = shares_of_bounds(usage, self._topics, self._broker_shape.repack.plan, is_over=is_over)
        check_bounds(shares, usage)
        for name, share in shares.items():
            self.report.most_of_bounds[name] = max(self.report.most_of_bounds.get(name, 0.0), round(share, 3))
        now_ms = self._clock.now_ms()
        for topic in self._topics:
            sent = {stream: self._watcher.known(stream) for stream in topic.streams}
            check_kept(self._stored, topic, sent, now_ms=now_ms)
            reader = self._follower(topic, f"reader at {now_ms}")
            await asyncio.wait_for(reader.read_all(), CALM_LIMIT_SECONDS)
        self.report.usage = usage

    def _raise_violation(self) -> None:
        """A deletion that was wrong has killed whoever did it, and that shows in other places first."""
        if self._objects.violation is not None:
            raise self._objects.violation

    async def _catch_up(self) -> None:
        began_at = self._clock.monotonic()
        while left := open_ends(self._stored, self._tables):
            if self._clock.monotonic() - began_at > CALM_LIMIT_SECONDS:
                raise Violation(f"{CALM_LIMIT_SECONDS} s after the last record: {'; '.join(left)}")
            for node in self._pipelines():
                node.is_forced = True
            await self._clock.sleep(LOOK_SECONDS)

    async def _finish(self) -> None:
        """Let days pass in which nothing comes in, and check everything."""
        await self._clock.sleep(LAST_SECONDS)
        self._is_resting = True
        for node in self._pipelines():
            node.is_resting = True
        while any(node.is_busy for node in self._pipelines()):
            await self._clock.sleep(LOOK_SECONDS)
        await self._clock.sleep(TIDY_AGE_MS / 1000 + COLLECTING_SECONDS)
        await self._look(is_over=True)
        self.report.record_count = check_logs(self._stored, self._whole)
        self.report.row_count = check_tables(self._stored, self._whole)
        self.report.record_count += check_compacted(self._stored, self._compacted, self._watcher, is_strict=True)
        check_objects(self._stored, self._history.streams)
        await check_leaks(self._stored, now_ms=self._clock.now_ms())
        await check_table_leaks(self._stored)
        self._check_followers()
        self._sum_up()

    def _check_followers(self) -> None:
        """Check that whoever has followed from the beginning has come to the end, and has seen all that is left."""
        for follower in self._followers:
            for stream, position in follower.positions.items():
                head = self._stored.head(stream)
                _, values = self._stored.log(stream)
                unseen = [offset for offset in values if (stream, offset) not in self._history.seen]
                if position != head.high_watermark or unseen:
                    raise Violation(f"stream {stream}: followed to {position} of {head}, and {unseen} were not seen")

    def _sum_up(self) -> None:
        super()._sum_up()
        self.report.retained_count = self._history.retained_count
        self.report.virtual_seconds *= TEMPO
        states = [self._stored.compaction(topic) for topic in self._compacted.living_topics]
        self.report.compacted_count = sum(state.dropped_rows for state in states)


def run_keeping_seed(seed: int) -> KeepingReport:
    """Run one history of weeks; raise what it finds."""

    async def main(loop: SimLoop) -> KeepingReport:
        return await KeepingScenario(loop, seed).run()

    return run_simulation(seed, main)
