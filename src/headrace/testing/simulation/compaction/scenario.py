"""A history of compacted topics: clients and troubles as for tables, and a watcher that judges all that goes.

Wall clocks differ by up to two seconds here and do not jump: what compaction promises of times it promises by the
clocks of the pipelines, as Kafka does by that of its broker.
"""

from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from headrace.pipeline.compaction_plan import CompactionLimits
from headrace.pipeline.scans import ScanLimits
from headrace.runtime.crash_points import CrashPoint
from headrace.testing.simulation.checkers import check_leaks, check_objects
from headrace.testing.simulation.compaction.checkers import StoredCompaction, Watcher, check_compacted
from headrace.testing.simulation.compaction.clients import HoleConsumer, KeyedProducer
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.loop import SimLoop, run_simulation
from headrace.testing.simulation.process import CrashAt
from headrace.testing.simulation.tables.checkers import check_table_leaks
from headrace.testing.simulation.tables.clients import RecordDeleter, TopicOwner
from headrace.testing.simulation.tables.pipeline import PipelineShape
from headrace.testing.simulation.tables.scenario import (
    CALM_LIMIT_SECONDS,
    COLLECTING_SECONDS,
    LOOK_SECONDS,
    TIDY_AGE_MS,
    TableReport,
    TableScenario,
)
from headrace.testing.simulation.tables.scenario import CRASH_POINTS as TABLE_CRASH_POINTS
from headrace.topics.admin import NewTopic

CRASH_POINTS = [*TABLE_CRASH_POINTS, *(point for point in CrashPoint if point.startswith("compaction."))]
"""Crash points of code that runs in this scenario: all of them, and no others."""

DELETE_RETENTION_MS = 20_000
ROUND_CRASH_RATE = 0.4
ROUND_CRASH_POINTS = (CrashPoint.COMPACTION_AFTER_SCAN, CrashPoint.SAGA_AFTER_FILES, CrashPoint.SWAP_AFTER_STEP)
"""Where rounds are left most often: twice where they are given up, and between two steps of a swap."""

WATCH_SECONDS = 0.5


@dataclass(slots=True)
class CompactionReport(TableReport):
    """What one history of compaction was like."""

    round_count: int = 0
    dropped_count: int = 0
    gone_count: int = 0


class CompactionScenario(TableScenario):
    """The world of one history."""

    report: CompactionReport

    def __init__(self, loop: SimLoop, seed: int) -> None:
        super().__init__(loop, seed)
        self._roughness = replace(self._roughness, jump_rate=0.0)
        self._tidy_age_ms = TIDY_AGE_MS
        self._stored: StoredCompaction = StoredCompaction(self._keys, self._metadata, self._objects, self._catalog)
        self._is_trimmed = self._rng.random() < 0.3
        self._watcher = Watcher(self._stored, self._history, is_strict=not self._is_trimmed)
        self.report = CompactionReport(seed)

    def _draw_pipeline_shape(self) -> PipelineShape:
        shape = super()._draw_pipeline_shape()
        draw = self._rng.randrange
        compaction = CompactionLimits(
            scan=ScanLimits(map_bytes=draw(60, 400), chunk_bytes=draw(60, 400), max_obsolete=draw(2, 40)),
            max_streams=draw(1, 4),
            max_bytes=draw(1_000, 50_000),
            max_files=draw(1, 8),
            look_interval_ms=draw(0, 3_000),
        )
        return replace(shape, compaction=compaction)

    def _draw_topic(self, name: str) -> NewTopic:
        new = super()._draw_topic(name)
        configs = {
            "cleanup.policy": "compact,delete" if self._is_trimmed else "compact",
            "min.cleanable.dirty.ratio": ("0", "0.01", "0.3")[self._rng.randrange(0, 3)],
            "min.compaction.lag.ms": ("0", "10000")[self._rng.randrange(0, 2)],
            "max.compaction.lag.ms": "15000",
            "delete.retention.ms": str(DELETE_RETENTION_MS),
            "headrace.table.compaction": "latest" if self._rng.random() < 0.4 else "history",
            "headrace.table.retention": "keep",
        }
        return NewTopic(name=new.name, partition_count=new.partition_count, configs={**new.configs, **configs})

    def _draw_points(self, prefixes: tuple[str, ...]) -> list[CrashAt]:
        if "saga." in prefixes and self._in_trouble and self._rng.random() < ROUND_CRASH_RATE:
            # Later than elsewhere: the runs that come before a round pass most of these, too.
            point = ROUND_CRASH_POINTS[self._rng.randrange(0, len(ROUND_CRASH_POINTS))]
            return [CrashAt(point, self._rng.randrange(1, 10))]
        return super()._draw_points(prefixes)

    def _client_work(self, owner: TopicOwner) -> list[Coroutine[Any, Any, None]]:
        producers = [
            KeyedProducer(
                number,
                is_idempotent=True,
                brokers=self._brokers,
                clock=self._clock,
                rng=self._loop.rng(f"producer {number}"),
                history=self._history,
            ).run(rounds=14)
            for number in range(2)
        ]
        work = [*producers, self._made(HoleConsumer, "consumer").run(rounds=30)]
        if self._is_trimmed:
            work.append(self._made(RecordDeleter, "deleter").run(rounds=3))
        return work

    async def run(self) -> CompactionReport:
        """Live through the history and check it."""
        await self._watched(super().run(), self._watch())
        return self.report

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(WATCH_SECONDS)
            self._watcher.look(self._clock.now_ms())

    async def _finish(self) -> None:
        """Let everything be compacted and tombstones expire, rest, and check."""
        await self._compact_to_the_end()
        self._is_resting = True  # those that start from here on rest, too
        for node in self._pipelines():
            node.is_resting = True
        while any(node.is_busy for node in self._pipelines()):
            await self._clock.sleep(LOOK_SECONDS)
        self._watcher.look(self._clock.now_ms())
        check_objects(self._stored, self._history.streams)
        self.report.record_count = check_compacted(
            self._stored, self._history, self._watcher, is_strict=not self._is_trimmed
        )
        self._wall_ahead_ms = 2 * self._tidy_age_ms
        for clock in (self._clock, *(node.clock for node in self._slots)):
            clock.jump_wall(self._wall_ahead_ms)
        began_at = self._clock.monotonic()
        await self._clock.sleep(COLLECTING_SECONDS)
        # Every round leaves something to collect, and there are many of them.
        while self._stored.records_left() and self._clock.monotonic() - began_at < CALM_LIMIT_SECONDS:
            await self._clock.sleep(LOOK_SECONDS)
        if self._objects.violation is not None:
            raise self._objects.violation
        check_compacted(self._stored, self._history, self._watcher, is_strict=not self._is_trimmed)
        await check_leaks(self._stored, now_ms=self._clock.now_ms())
        await check_table_leaks(self._stored)
        self._sum_up()

    async def _compact_to_the_end(self) -> None:
        began_at = self._clock.monotonic()
        while left := self._dirty():
            if self._clock.monotonic() - began_at > CALM_LIMIT_SECONDS:
                raise Violation(f"{CALM_LIMIT_SECONDS} s after the last record these are dirty: {left}")
            await self._clock.sleep(LOOK_SECONDS)

    def _dirty(self) -> list[str]:
        """Return the partitions that are not compacted yet, or have a tombstone that may go."""
        left = []
        for topic in self._history.living_topics:
            state = self._stored.compaction(topic)
            for partition, stream in enumerate(topic.streams):
                head = self._stored.head(stream)
                known = state.streams.get(partition)
                cleaned_to = 0 if known is None else known.cleaned_to
                if max(cleaned_to, head.log_start) < head.high_watermark:
                    left.append(f"{topic.name} {partition}: {cleaned_to} of {head.high_watermark}")
                elif known is not None and not self._is_trimmed and any(mark.tombstones for mark in known.marks):
                    left.append(f"{topic.name} {partition}: tombstones {known.marks}")
        return left

    def _sum_up(self) -> None:
        super()._sum_up()
        states = [self._stored.compaction(topic) for topic in self._history.living_topics]
        self.report.round_count = sum(state.rounds for state in states)
        self.report.dropped_count = sum(state.dropped_rows for state in states)
        self.report.gone_count = self._watcher.gone_count


def run_compaction_seed(seed: int) -> CompactionReport:
    """Run one history of compaction; raise what it finds."""

    async def main(loop: SimLoop) -> CompactionReport:
        return await CompactionScenario(loop, seed).run()

    return run_simulation(seed, main)
