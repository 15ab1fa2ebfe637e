"""One history: brokers that crash, stop and start, clients that do not give up, then calm, then the checks.

1. A seed chooses the shape: how many brokers, segments or single objects, how rough the stores are, who dies when.
2. Clients work until they are done, while processes are killed (at any moment, and at crash points), paused, and
   started again, and wall clocks jump.
3. Faults end. What must come about in the end is waited for: every client is done, everything is collected.
4. The stored log is compared with what clients were told.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.index.objects import CollectingAges
from headrace.index.pins import list_pins, release_pin
from headrace.index.streams import create_streams
from headrace.index.values import StreamKind
from headrace.metadata.keys import DomainKeys
from headrace.model.ids import DomainId, ObjectId, StreamId
from headrace.model.topics import Retention
from headrace.runtime.crash_points import CrashPoint
from headrace.runtime.rng import Rng
from headrace.testing.inline import at_once
from headrace.testing.simulation.checkers import (
    CheckedObjects,
    StoredLog,
    check_leaks,
    check_log,
    check_objects,
    check_packed,
    check_sink_writes,
)
from headrace.testing.simulation.clients import Client, Consumer, Deleter, PinnedReader, Producer
from headrace.testing.simulation.history import History, Violation
from headrace.testing.simulation.loop import SimLoop, run_simulation
from headrace.testing.simulation.node import STREAM_COUNT, Node, NodeShape
from headrace.testing.simulation.plan import FaultPlan, FaultRates
from headrace.testing.simulation.process import CrashAt, SimClock, SimCrashPoints, SimProcess
from headrace.testing.simulation.repacker import draw_repack_shape
from headrace.testing.simulation.report import Report
from headrace.testing.simulation.retention import RetentionChecker, WatchedMetadata
from headrace.testing.simulation.sink import Sink, SinkTry
from headrace.testing.simulation.trouble import Roughness, TroubledScenario

C = TypeVar("C", bound=Client)

STREAMS = [StreamId(number) for number in range(STREAM_COUNT)]
TROUBLE_SECONDS = 25.0
"""For how long faults are injected; clients may need longer."""

CALM_LIMIT_SECONDS = 120.0
"""How long, after the last fault, clients may take to finish before that counts as a violation."""

COLLECTING_SECONDS = 60.0
"""What the collectors get before leaks are looked for."""

DOOMED_TRIES = 0.3
"""How often the driver of a sink dies at one of its crash points."""

SINK_CRASH_POINTS = [point for point in CrashPoint if point.startswith("sink.")]
ELSEWHERE = ("object.", "metadata.", "group.", "saga.", "tidy.", "keep.", "compaction.")
SIMULATED_CRASH_POINTS = [point for point in CrashPoint if not point.startswith(ELSEWHERE)]
"""Crash points of code that runs in this scenario; the others are in real backends, in groups and in pipelines."""


ROUGHNESS = Roughness(
    min_look_seconds=0.2,
    max_look_seconds=4.0,
    crash_rate=0.15,
    pause_rate=0.15,
    jump_rate=0.1,
    max_pause_seconds=15.0,
)


class Scenario(TroubledScenario[Node]):
    """The world of one history."""

    _roughness = ROUGHNESS

    def __init__(self, loop: SimLoop, seed: int) -> None:
        super().__init__()
        self._loop = loop
        self._rng: Rng = loop.rng("scenario")
        self._clock = SimClock(loop)
        self._plan = FaultPlan(loop.rng("faults"), self._rates())
        self._keys = DomainKeys(DomainId(0))
        self._metadata = WatchedMetadata(loop.rng("sessions"))
        self._objects = CheckedObjects(self._clock, has_segments=self._rng.random() < 0.5)
        self._stored = StoredLog(self._keys, self._metadata, self._objects)
        self._objects.is_named = self._is_named
        self._history = History()
        self._shape = NodeShape(
            linger_ms=self._rng.randrange(0, 2) * 20,
            frames_in_flight=self._rng.randrange(1, 5),
            segment_max_bytes=self._rng.randrange(500, 4_000),
            buffer_max_bytes=self._rng.randrange(100, 500),
            # Sometimes so short that objects are collected under their writers and readers.
            ages=CollectingAges(
                staged_max_age_ms=(600, 3_000, 12_000)[self._rng.randrange(0, 3)],
                sealed_grace_ms=(0, 400, 3_000)[self._rng.randrange(0, 3)],
            ),
            repack=draw_repack_shape(self._rng),
            # One stream goes by age, one by size, one stays.
            retention={
                STREAMS[0]: Retention(max_age_ms=self._rng.randrange(6_000, 15_000)),
                STREAMS[1]: Retention(max_bytes=self._rng.randrange(200, 2_000)),
                STREAMS[2]: Retention(),
            },
        )
        self._retention_checker = RetentionChecker(
            self._stored, self._history, keys=self._keys, clock=self._clock, retention=self._shape.retention
        )
        self._metadata.observe = self._retention_checker.observe
        self._write_max_age_ms = (4_000, 10_000, 20_000)[loop.rng("write age").randrange(0, 3)]
        self._tries: list[SinkTry] = []
        self._incarnations = 0
        self._started_at = loop.time()
        self.report = Report(seed)

    def _rates(self) -> FaultRates:
        chance = self._rng.random()
        if chance < 0.1:
            return FaultRates.calm()
        return FaultRates.rough()

    def _is_named(self, object_id: ObjectId) -> bool:
        return self._stored.named(STREAMS)[object_id] > 0

    async def run(self) -> Report:
        """Live through the history and check it."""
        owners = [f"partition-{stream}" for stream in STREAMS]
        create = create_streams(self._keys, owners, kind=StreamKind.PARTITION, now_ms=self._clock.now_ms())
        assert at_once(create.apply(self._metadata)) == STREAMS
        self._slots = [self._start_node(slot) for slot in range(self._rng.randrange(1, 4))]
        troubles = [asyncio.create_task(self._trouble(slot)) for slot in range(len(self._slots))]
        clients = [asyncio.create_task(work) for work in self._client_work()]
        await self._work_through(clients)
        await self._finish()
        for trouble in troubles:
            trouble.cancel()
        return self.report

    def _client_work(self) -> list[Coroutine[Any, Any, None]]:
        """Return everything that clients do in this history."""

        def made(kind: type[C], name: str) -> C:
            rng = self._loop.rng(name)
            return kind(nodes=self._nodes, clock=self._clock, rng=rng, history=self._history)

        producers = [
            Producer(
                number,
                is_idempotent=number < 3,
                nodes=self._nodes,
                clock=self._clock,
                rng=self._loop.rng(f"producer {number}"),
                history=self._history,
            ).run(rounds=9)
            for number in range(5)
        ]
        consumers = [made(Consumer, f"consumer {number}").run(rounds=40) for number in range(2)]
        pinned = made(PinnedReader, "pinned reader").run(rounds=3, stored=self._stored)
        sinks = [
            Sink(
                f"sink-{number}",
                start=self._start_try,
                clock=self._clock,
                rng=self._loop.rng(f"sink {number}"),
                history=self._history,
            ).run(batches=4)
            for number in range(2)
        ]
        return [*producers, *consumers, *sinks, made(Deleter, "deleter").run(rounds=4), pinned]

    def _nodes(self) -> list[Node]:
        return self._slots

    async def _work_through(self, clients: "list[asyncio.Task[None]]") -> None:
        """Let clients and troubles go side by side, then end the troubles and insist that the clients finish."""
        await asyncio.wait(clients, timeout=TROUBLE_SECONDS)
        self._calm_down()
        await self._insist_on(clients, limit_seconds=CALM_LIMIT_SECONDS)

    # Brokers

    def _start_node(self, slot: int) -> Node:
        self._incarnations += 1
        name = f"node-{slot}.{self._incarnations}"
        clock = SimClock(
            self._loop,
            wall_offset_ms=self._rng.randrange(-2_000, 2_000),
            monotonic_base=self._rng.uniform(0, 1_000),
        )
        process = SimProcess(name, self._loop, clock=clock)
        plan = [CrashAt(self._any_crash_point(), self._rng.randrange(1, 4))] if self._in_trouble else []
        crash_points = SimCrashPoints(process, plan)
        node = Node(
            process,
            shape=self._shape,
            metadata=self._metadata,
            objects=self._objects,
            plan=self._plan,
            crash_points=crash_points,
            rng=self._loop.rng(name),
        )
        node.slot = slot
        node.start()
        return node

    def _any_crash_point(self) -> CrashPoint:
        points = [point for point in SIMULATED_CRASH_POINTS if point not in SINK_CRASH_POINTS]
        return points[self._rng.randrange(0, len(points))]

    def _start_try(self) -> SinkTry:
        """Start the process of a driver that brings one batch of a sink into the log, or dies of it."""
        name = f"try-{len(self._tries)}"
        rng = self._loop.rng(name)
        process = SimProcess(
            name, self._loop, clock=SimClock(self._loop, wall_offset_ms=rng.randrange(-2_000, 2_000))
        )
        is_doomed = self._in_trouble and rng.random() < DOOMED_TRIES
        point = SINK_CRASH_POINTS[rng.randrange(0, len(SINK_CRASH_POINTS))]
        attempt = SinkTry(
            process,
            metadata=self._metadata,
            objects=self._objects,
            plan=self._plan,
            crash_points=SimCrashPoints(process, [CrashAt(point)] if is_doomed else []),
            rng=rng,
            write_max_age_ms=self._write_max_age_ms,
        )
        self._tries.append(attempt)
        return attempt

    # The end

    async def _finish(self) -> None:
        """Check the log as the last fault left it, give the collectors their time, and check everything again."""
        check_log(self._stored, self._history, STREAMS)
        check_objects(self._stored, STREAMS)
        await self._clock.sleep(ROUGHNESS.max_pause_seconds)
        self._end_pins()
        await self._clock.sleep(COLLECTING_SECONDS)
        self.report.record_count = check_log(self._stored, self._history, STREAMS)
        check_objects(self._stored, STREAMS)
        await check_leaks(self._stored, now_ms=self._clock.now_ms())
        check_packed(self._stored, STREAMS, self._shape.repack.plan)
        await self._check_retention()
        check_sink_writes(self._stored)
        for attempt in self._tries:
            self.report.crash_points.update(attempt.crash_points.arrivals)
        for node in self._slots:
            self._bury(node)
        self.report.read_count = self._history.read_count
        self.report.faults = self._plan.injected
        self.report.virtual_seconds = self._loop.time() - self._started_at
        self.report.digest = self._loop.trace_digest

    def _end_pins(self) -> None:
        """End the pins that a broker, paused in the middle of a request, put after they were released."""
        for pin in at_once(list_pins(self._metadata, self._keys)):
            at_once(release_pin(self._keys, pin.id).apply(self._metadata))

    async def _check_retention(self) -> None:
        """Check that what retention asked for has come about, and that nobody reads what is gone."""
        for stream in STREAMS:
            head = self._stored.head(stream)
            if self._shape.retention[stream].max_age_ms is not None and head.log_start < head.high_watermark:
                raise Violation(f"stream {stream}: every record has expired, and it is {head}")
            for node in self._slots:
                if head.log_start > 0 and not node.process.is_dead:
                    runs = await node.process.call(node.read(stream, head.log_start - 1))
                    if runs:
                        raise Violation(f"stream {stream}: {node.process.name} reads below the log start of {head}")
        self.report.retained_count = self._history.retained_count
        self.report.pinned_count = self._history.pinned_count


def run_seed(seed: int) -> Report:
    """Run one history; raise what it finds."""

    async def main(loop: SimLoop) -> Report:
        return await Scenario(loop, seed).run()

    return run_simulation(seed, main)
