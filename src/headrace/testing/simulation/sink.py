"""A sink in the log's scenario: drivers and tasks that die at any moment, batches that are offered until they are in.

Each try of a batch is a process of its own, as a driver that was started again is. It announces a write, some of its
tasks write their frames twice or in vain, and it commits. Whatever happens to it, the next try offers the same batch:
its values must be in the log once, in order, at the offsets that whoever heard of them was told first.
"""

import asyncio
from collections.abc import Callable, Sequence

from headrace.errors import HeadraceError
from headrace.index.commit import AppendPart
from headrace.index.objects import wal_object_key
from headrace.index.sinks import (
    SinkCommit,
    SinkFrame,
    SinkOutcome,
    begin_write,
    commit_batch,
    end_write,
    sink_object_id,
)
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import DomainId, StreamId, WriterId
from headrace.objects.port import ObjectStore
from headrace.objects.retrying import RetryingObjects
from headrace.records.batch import BatchView
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint
from headrace.runtime.rng import Rng
from headrace.testing.batches import make_batch
from headrace.testing.simulation.faults import FaultyMetadata, FaultyObjects
from headrace.testing.simulation.history import History, Violation
from headrace.testing.simulation.node import RETRY_POLICY, STREAM_COUNT
from headrace.testing.simulation.plan import FaultPlan
from headrace.testing.simulation.process import SimCrashPoints, SimProcess
from headrace.wal.frame import FrameBuilder

TRY_TIMEOUT_SECONDS = 15.0
PAUSE_SECONDS = 1.0
MAX_TASKS = 3
LOST_ATTEMPT_RATE = 0.3
GIVE_UP_RATE = 0.1
SLOW_RATE = 0.2
SLOW_SECONDS = 6.0
"""How long a task may take beside others that are done: so long that collectors come by."""

KILL_RATE = 0.2
KILL_SECONDS = 0.05
REPEAT_RATE = 0.3

Contents = Sequence[tuple[StreamId, list[bytes]]]
"""Values by stream, in order: what a batch holds, however it is spread over tasks."""


class SinkTry:
    """One driver and its tasks, in one process: a try to bring a batch into the log."""

    def __init__(
        self,
        process: SimProcess,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        plan: FaultPlan,
        crash_points: SimCrashPoints,
        rng: Rng,
        write_max_age_ms: int,
    ) -> None:
        self.process = process
        self.clock = process.clock
        self.crash_points = crash_points
        self._keys = DomainKeys(DomainId(0))
        self._metadata = FaultyMetadata(metadata, process, plan)
        self._objects = RetryingObjects(
            FaultyObjects(objects, process, plan), clock=self.clock, rng=rng, policy=RETRY_POLICY
        )
        self._rng = rng
        self._write_max_age_ms = write_max_age_ms

    async def run(self, sink_id: str, batch_id: int, contents: Contents, *, at_ms: int) -> SinkOutcome:
        """Announce, write, commit; raises whatever went wrong. `at_ms` is the records' time."""
        write = WriterId(f"{self._rng.getrandbits(128):032x}")
        begin = begin_write(self._keys, write, now_ms=self.clock.now_ms(), max_age_ms=self._write_max_age_ms)
        await begin.apply(self._metadata)
        self.crash_points.reach(CrashPoint.SINK_AFTER_BEGIN)
        frames = []
        for task, part in enumerate(self._cut(contents)):
            if self._rng.random() < LOST_ATTEMPT_RATE:
                await self._write(write, task, part, at_ms)
            frames.append(await self._write(write, task, part, at_ms))
            self.crash_points.reach(CrashPoint.SINK_AFTER_WRITE)
            if self._rng.random() < SLOW_RATE:
                await self.clock.sleep(self._rng.uniform(0, SLOW_SECONDS))
        if self._rng.random() < GIVE_UP_RATE:
            await end_write(self._keys, write).apply(self._metadata)
        commit = SinkCommit(sink_id=sink_id, batch_id=batch_id, query="", write=write, frames=frames)
        outcome = await commit_batch(self._keys, commit, now_ms=self.clock.now_ms()).apply(self._metadata)
        self.crash_points.reach(CrashPoint.SINK_AFTER_COMMIT)
        return outcome

    def _cut(self, contents: Contents) -> list[Contents]:
        """Spread a batch over tasks; a stream's values stay in the order of the tasks."""
        tasks: list[list[tuple[StreamId, list[bytes]]]] = [[] for _ in range(self._rng.randrange(1, MAX_TASKS + 1))]
        for stream, values in contents:
            cuts = sorted(self._rng.randrange(0, len(values) + 1) for _ in tasks[1:])
            for task, start, end in zip(tasks, [0, *cuts], [*cuts, len(values)], strict=True):
                if start < end:
                    task.append((stream, values[start:end]))
        return [task for task in tasks if task]

    async def _write(self, write: WriterId, task: int, contents: Contents, at_ms: int) -> SinkFrame:
        """Write one frame under a name that no other attempt has."""
        builder = FrameBuilder()
        summaries = {}
        for stream, values in contents:
            data = make_batch(values, at_ms=at_ms)
            summaries[stream] = BatchView(memoryview(data)).summary()
            builder.add(stream, data, [summaries[stream]])
        frame = builder.seal(writer=write, frame_number=task, domain=self._keys.domain, created_at_ms=0)
        object_id = sink_object_id(write, task=task, attempt=self._rng.getrandbits(48), frame=0)
        await self._objects.put_if_absent(wal_object_key(self._keys.domain, object_id), frame.buffers)
        parts = [AppendPart(chunk.stream, chunk.start_byte, [summaries[chunk.stream]]) for chunk in frame.chunks]
        return SinkFrame(object_id=object_id, size_bytes=frame.size_bytes, parts=parts)


class Sink:
    """A query that writes batch after batch, and begins again wherever it was stopped."""

    def __init__(self, name: str, *, start: Callable[[], SinkTry], clock: Clock, rng: Rng, history: History) -> None:
        self._name = name
        self._start = start
        self._clock = clock
        self._rng = rng
        self._history = history
        self._value_count = 0
        self._first: dict[int, tuple[tuple[int, int, int], ...]] = {}

    async def run(self, batches: int) -> None:
        """Bring batches in, one after another; now and then one that is in already is offered again."""
        for batch_id in range(batches):
            at_ms = self._clock.now_ms()
            contents = self._next_batch(at_ms)
            await self._insist(batch_id, contents, at_ms)
            if self._rng.random() < REPEAT_RATE:
                await self._insist(batch_id, contents, at_ms)
            await self._clock.sleep(self._rng.uniform(0, 2 * PAUSE_SECONDS))

    def _next_batch(self, at_ms: int) -> Contents:
        streams = [StreamId(number) for number in range(STREAM_COUNT) if self._rng.random() < 0.7]
        contents = []
        for stream in streams or [StreamId(0)]:
            count = self._rng.randrange(1, 5)
            values = [f"{self._name}/{stream}/{self._value_count + n}".encode() for n in range(count)]
            self._value_count += count
            contents.append((stream, values))
            self._history.idempotent_values.update(values)
            self._history.timestamps.update(dict.fromkeys(values, at_ms))
        return contents

    async def _insist(self, batch_id: int, contents: Contents, at_ms: int) -> None:
        while True:
            attempt = self._start()
            is_killed = self._rng.random() < KILL_RATE
            limit_seconds = self._rng.uniform(0, KILL_SECONDS) if is_killed else TRY_TIMEOUT_SECONDS
            try:
                async with asyncio.timeout(limit_seconds):
                    outcome = await attempt.process.call(attempt.run(self._name, batch_id, contents, at_ms=at_ms))
                    break
            except (HeadraceError, TimeoutError):
                attempt.process.crash()
            await self._clock.sleep(self._rng.uniform(0, PAUSE_SECONDS))
        self._remember(batch_id, contents, outcome)

    def _remember(self, batch_id: int, contents: Contents, outcome: SinkOutcome) -> None:
        told = tuple((one.stream, one.start_offset, one.end_offset) for one in outcome.ranges)
        if self._first.setdefault(batch_id, told) != told:
            raise Violation(f"batch {batch_id} of {self._name} was told {told}, and first {self._first[batch_id]}")
        ranges = {stream: (start, end) for stream, start, end in told}
        for stream, values in contents:
            start, end = ranges[stream]
            if end - start != len(values):
                raise Violation(
                    f"batch {batch_id} of {self._name} has {len(values)} values in offsets {start} to {end}"
                )
            self._history.acknowledge(stream, start, values)
