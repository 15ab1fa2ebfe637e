"""How often a pipeline process makes rounds: once until all is in the tables, or on and on.

Both end between two rounds when they are told to; a round under way gets a moment, and is broken off after that. That
does no harm: a run is a saga, and the next process goes on with it.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace.errors import Fenced, OutcomeUnknown, Retryable
from headrace.pipeline.runner import RunReport
from headrace.pipeline.spark.memory import memory_of_tree
from headrace.runtime.clock import Clock
from headrace.runtime.logs import Log

T = TypeVar("T")

FINISH_LIMIT_S = 5.0
"""What a round that is under way is given when the process is told to end."""

IDLE_ROUNDS = 20
"""After how many rounds in which nothing moved `--once` gives up on a topic that is not where it should be."""

MAX_DOUBLINGS = 20
"""Of the pause between rounds that fail; the limit of the pause is reached long before."""

MEMORY_LOOK_S = 30.0
"""How often the memory of the process tree is looked at."""


class Interrupted(Exception):
    """The process was told to end while it worked."""


GoalT = TypeVar("GoalT")


class Host(Protocol[GoalT]):
    """Who makes rounds; see `PipelineHost`."""

    async def round(self, *, force: bool = False) -> RunReport: ...
    async def goal(self) -> GoalT: ...
    async def left_of(self, goal: GoalT, /) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLimits:
    """How long a process that loops pauses, and when it has lived long enough; `None` is never."""

    interval_ms: int
    max_backoff_ms: int
    max_rounds: int | None = None
    max_memory_bytes: int | None = None


PASSING = (Retryable, OutcomeUnknown, Fenced)
"""What a round as a whole may fail with and another one may mend: a store that is away, a session that was lost."""


async def run_until_caught_up(
    host: Host[GoalT], *, clock: Clock, interval_ms: int, stopping: asyncio.Event
) -> dict[str, str]:
    """Bring all that is in the log now into the tables; return what failed: topic → problem. Raises `Interrupted`.

    What is produced meanwhile may come in or not: who runs this once wants to see it end.
    """
    goal = await host.goal()
    idle = 0
    while True:
        report = await unless_stopped(lambda: host.round(force=True), stopping, clock)
        left = await host.left_of(goal)
        if all(name in report.problems for name in left):
            return report.problems
        # Another pipeline that holds a topic's lease brings it in for us, or lets go of it.
        idle = 0 if report.runs or report.resumed or report.busy else idle + 1
        if idle >= IDLE_ROUNDS:
            return {**dict.fromkeys(left, "nothing moves, and its table is behind the log"), **report.problems}
        if not report.runs:
            await unless_stopped(lambda: clock.sleep(interval_ms / 1000), stopping, clock, limit_s=0)


async def run_on_and_on(
    host: Host[GoalT],
    *,
    clock: Clock,
    log: Log,
    limits: LoopLimits,
    stopping: asyncio.Event,
    memory: Callable[[], int | None] = lambda: memory_of_tree(os.getpid()),
) -> bool:
    """Make rounds until told to end; return False then, and True when the process should be started anew."""
    life = _Life(limits, clock, log, memory)
    try:
        while not life.is_over():
            pause_s = await _one_round(host, life, limits, stopping)
            await unless_stopped(lambda: clock.sleep(pause_s), stopping, clock, limit_s=0)  # noqa: B023
    except Interrupted:
        return False
    return True


async def _one_round(host: Host[GoalT], life: "_Life", limits: LoopLimits, stopping: asyncio.Event) -> float:
    """Make a round and return how long to pause after it."""
    try:
        report = await unless_stopped(host.round, stopping, life.clock)
    except PASSING as error:
        life.failures += 1
        pause_ms = min(limits.interval_ms << min(life.failures, MAX_DOUBLINGS), limits.max_backoff_ms)
        life.log.warning("a round failed and will be tried again", error=error, in_ms=pause_ms)
        return pause_ms / 1000
    life.failures = 0
    life.rounds += bool(report.runs or report.resumed or report.problems)
    # A run is bounded: where there was one, more may wait.
    return 0 if report.runs else limits.interval_ms / 1000


class _Life:
    """How long a process has been at it. A Spark session that lives for ever grows, so a fresh one follows."""

    def __init__(self, limits: LoopLimits, clock: Clock, log: Log, memory: Callable[[], int | None]) -> None:
        self.rounds = 0
        self.failures = 0
        self.clock = clock
        self.log = log
        self._limits = limits
        self._memory = memory
        self._next_look = clock.monotonic() + MEMORY_LOOK_S

    def is_over(self) -> bool:
        """Say whether it is time for a new process. Rounds in which nothing was to be done do not count."""
        limits = self._limits
        if limits.max_rounds is not None and self.rounds >= limits.max_rounds:
            self.log.info("enough rounds for one process", rounds=self.rounds)
            return True
        if limits.max_memory_bytes is None or self.clock.monotonic() < self._next_look:
            return False
        self._next_look = self.clock.monotonic() + MEMORY_LOOK_S
        held = self._memory()
        if held is None or held <= limits.max_memory_bytes:
            return False
        self.log.info("too much memory for one process", held_bytes=held, max_bytes=limits.max_memory_bytes)
        return True


async def unless_stopped(
    work: Callable[[], Awaitable[T]], stopping: asyncio.Event, clock: Clock, *, limit_s: float = FINISH_LIMIT_S
) -> T:
    """Do some work; when the process is told to end, give it a moment, break it off, and raise `Interrupted`."""
    if stopping.is_set():
        raise Interrupted
    doing = asyncio.ensure_future(work())
    timer = asyncio.ensure_future(_after(stopping, clock, limit_s))
    try:
        await asyncio.wait([doing, timer], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in (doing, timer):
            one.cancel()
        await asyncio.wait([doing, timer])
    if doing.cancelled():
        raise Interrupted
    return doing.result()


async def _after(stopping: asyncio.Event, clock: Clock, limit_s: float) -> None:
    await stopping.wait()
    await clock.sleep(limit_s)
