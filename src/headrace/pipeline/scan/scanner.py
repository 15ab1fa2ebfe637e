"""Plan reads of the log: pin, look, cut.

1. Put a pin, so that nothing that is found from here on is deleted before it was read.
2. Resolve where the read begins and ends, against what the log holds.
3. Read the entries between, and cut them into tasks.

`StreamScan` does so trigger by trigger. Spark asks for the latest offset before it asks for the initial one, says
nothing of where the query stands, and after a restart plans the last batch of its checkpoint before anything else:
so the end of the last plan is where the next trigger starts from.

Spark writes down where a batch ends before it runs, but not where the first one begins: a query that dies in its
first batch asks for the initial offset again. Where that means the end of the log it is another one by then. So the
first batch is empty there, and where it is planned again, which we know by an end that we have not told, it begins
where it ends.

Must stay true: a plan is pinned before it is looked up, and what a checkpoint says is read exactly, from the very
topics that it was taken from, or is a loss.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.model.ids import StreamId
from headrace.pipeline.scan.log_look import LogLook
from headrace.pipeline.scan.offsets import (
    JsonVector,
    LogBounds,
    Losses,
    Place,
    Vector,
    limited,
    made_vector,
    places_at_the_end,
    ranges_between,
    resolve,
    starts_of,
    vector_of,
)
from headrace.pipeline.scan.options import ScanOptions
from headrace.pipeline.scan.pinning import PinNote, ReadPins
from headrace.pipeline.scan.planning import TaskLimits, plan_tasks
from headrace.pipeline.scan.tasks import ScanTask
from headrace.runtime.clock import Clock

MAX_UNCOMMITTED_PINS = 100
"""How many pins of batches that are not committed yet are remembered, to be released; others end by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedScan:
    """The tasks of a read, the pin that keeps what they read, and what is lost of what was asked for."""

    tasks: list[ScanTask]
    pin: PinNote | None = None
    losses: list[str] = field(default_factory=list)


class Scanner:
    """Plans one read after the other with the same options."""

    def __init__(self, options: ScanOptions, *, look: LogLook, pins: ReadPins, domain: int) -> None:
        self.options = options
        self.look = look
        self._pins = pins
        self._domain = domain

    async def plan_batch(self) -> PlannedScan:
        """Plan everything between the two positions of the options.

        Raises `Invalid` for options that do not fit the log, `Missing` where a loss is to fail the read.
        """
        options = self.options
        pin = await self._pins.put()
        try:
            streams = (await self.look.partitions(options.choice, must_exist=True)).streams
            bounds = await self.look.bounds(streams)
            starts = resolve(options.starting, bounds, await self.look.by_time(options.starting, streams))
            ends = resolve(options.ending, bounds, await self.look.by_time(options.ending, streams))
            return await self._plan(pin, streams, bounds, starts, ends, Losses())
        except BaseException:
            await self._pins.release(pin)
            raise

    async def plan_between(self, start: Vector, end: Vector) -> PlannedScan:
        """Plan what lies between two vectors; a partition without a start begins at 0. Raises `Missing`."""
        pin = await self._pins.put()
        try:
            chosen, losses = await self.look.partitions(self.options.choice, must_exist=False), Losses()
            bounds = await self.look.bounds(chosen.streams)
            # Offsets of a topic that was created again since are of a log that is gone: they are lost, not looked up.
            replaced = end.replaced(chosen.topic_ids)
            bounds = {place: log for place, log in bounds.items() if place[0] not in replaced}
            starts = starts_of(start, end.offsets, end.topic_ids, losses)
            return await self._plan(pin, chosen.streams, bounds, starts, end.offsets, losses)
        except BaseException:
            await self._pins.release(pin)
            raise

    async def release(self, pin: PinNote) -> None:
        """End a plan's pin."""
        await self._pins.release(pin)

    async def _plan(
        self,
        pin: PinNote,
        streams: Mapping[Place, StreamId],
        bounds: Mapping[Place, LogBounds],
        starts: Mapping[Place, int],
        ends: Mapping[Place, int],
        losses: Losses,
    ) -> PlannedScan:
        options = self.options
        wanted = ranges_between(starts, ends, bounds, losses)
        wanted = {place: range_ for place, range_ in wanted.items() if options.condition.allows_partition(*place)}
        losses.judge(fails=options.fails_on_data_loss)
        ranges = await self.look.ranges(wanted, streams, losses)
        told = losses.judge(fails=options.fails_on_data_loss)
        limits = TaskLimits(
            task_bytes=options.task_bytes, min_tasks=options.min_tasks, max_records=options.max_records_per_task
        )
        tasks = plan_tasks(ranges, condition=options.condition, limits=limits, domain=self._domain)
        if tasks:
            return PlannedScan(tasks=tasks, pin=pin, losses=told)
        await self._pins.release(pin)
        return PlannedScan(tasks=[], losses=told)


class StreamScan:
    """One query's reads."""

    def __init__(self, scanner: Scanner, *, clock: Clock) -> None:
        self._scanner = scanner
        self._clock = clock
        self._reached: Vector | None = None
        self._initial: Vector | None = None
        self._at_the_end: frozenset[Place] = frozenset()
        self._offered: Vector | None = None
        self._grown_at_ms = clock.now_ms()
        self._uncommitted: deque[tuple[Vector, PinNote]] = deque(maxlen=MAX_UNCOMMITTED_PINS)

    async def initial(self) -> JsonVector:
        """Return where a query without a checkpoint begins; the same answer every time."""
        return (await self._begin()).as_json()

    async def latest(self) -> JsonVector:
        """Return where the next batch is to end: at the end of the log, or where the limits per trigger say.

        Raises `Missing` where partitions have vanished, or a topic is another one, and a loss is to fail the read.
        Where it is not, the batch that is planned up to here tells of it.
        """
        options, look = self._scanner.options, self._scanner.look
        reached = self._reached if self._reached is not None else await self._begin()
        chosen, losses = await look.partitions(options.choice, must_exist=False), Losses()
        bounds = await look.bounds(chosen.streams)
        ends = {place: log.high_watermark for place, log in bounds.items()}
        if self._reached is None:
            replaced = reached.replaced(chosen.topic_ids)
            still = {place for place in self._at_the_end & set(ends) if place[0] not in replaced}
            ends |= {place: reached.offsets[place] for place in still}
        starts = starts_of(reached, ends, chosen.topic_ids, losses)
        losses.judge(fails=options.fails_on_data_loss)
        self._offered = made_vector(self._within_limits(starts, ends), chosen.topic_ids)
        return self._offered.as_json()

    async def plan(self, start: JsonVector, end: JsonVector) -> PlannedScan:
        """Plan a batch, a new one or one that a checkpoint asks for again; Spark may ask more than once for each."""
        starts, ends = vector_of(start), vector_of(end)
        if starts == self._initial and ends != self._offered:
            starts = self._first_start(starts, ends)
        self._reached = ends
        if starts == ends:
            return PlannedScan(tasks=[])
        planned = await self._scanner.plan_between(starts, ends)
        if planned.pin is not None:
            self._uncommitted.append((ends, planned.pin))
        return planned

    async def committed(self, end: JsonVector) -> None:
        """Take note that the batch that ends there will not be read again, and none before it."""
        ends = vector_of(end)
        if all(planned != ends for planned, _ in self._uncommitted):
            return
        is_last = False
        while not is_last:
            planned, pin = self._uncommitted.popleft()
            is_last = planned == ends
            await self._scanner.release(pin)

    async def end(self) -> None:
        """Let go of what is pinned for batches that were not committed: a query that has ended reads none of them."""
        while self._uncommitted:
            _, pin = self._uncommitted.popleft()
            await self._scanner.release(pin)

    async def _begin(self) -> Vector:
        if self._initial is None:
            options, look = self._scanner.options, self._scanner.look
            chosen = await look.partitions(options.choice, must_exist=True)
            bounds = await look.bounds(chosen.streams)
            found = await look.by_time(options.starting, chosen.streams)
            self._initial = made_vector(resolve(options.starting, bounds, found), chosen.topic_ids)
            self._at_the_end = places_at_the_end(options.starting, bounds, found)
        return self._initial

    def _first_start(self, starts: Vector, ends: Vector) -> Vector:
        """Return where the first batch of a checkpoint begins; it knows the partitions of its time only."""
        offsets = {place: offset for place, offset in starts.offsets.items() if place in ends.offsets}
        offsets |= {place: min(offsets[place], ends.offsets[place]) for place in self._at_the_end & set(offsets)}
        return Vector(offsets, starts.topic_ids)

    def _within_limits(self, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> Mapping[Place, int]:
        limits, now_ms = self._scanner.options.trigger, self._clock.now_ms()
        grown = sum(max(0, end - starts[place]) for place, end in ends.items())
        is_waiting = now_ms - self._grown_at_ms < limits.max_delay_ms
        if limits.min_offsets is not None and grown < limits.min_offsets and is_waiting:
            return starts
        self._grown_at_ms = now_ms
        return ends if limits.max_offsets is None else limited(starts, ends, limits.max_offsets)
