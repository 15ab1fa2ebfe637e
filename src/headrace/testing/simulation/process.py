"""Simulated operating-system processes: they run, stop, go on, and are killed between any two steps.

A process is a context: whatever its code starts (tasks, timers, callbacks) belongs to it, because contexts are
inherited (`loop.OWNER`). The simulated world outside (stores, network, clients without a process) has no owner.

- `crash()` is kill -9. From that instant none of its code runs, no `finally:` block either. What it had sent to a
  store may still arrive: each request in flight is asked whether it gets through.
- `pause()` and `resume()` are SIGSTOP and SIGCONT. Meanwhile requests in flight take effect and time passes;
  answers and timers wait for the process to go on. What this approximates: a real process stops between two machine
  instructions, ours between two awaits. Code that has no await in between sees no pause.
- A crash point kills the process in the middle of its own code. That code is left by raising `SimulatedCrash`, so
  `finally:` blocks on the stack do run, but they reach no store: the handles of a dead process hang for ever.
"""

import asyncio
import functools
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from headrace.errors import OutcomeUnknown, Retryable
from headrace.runtime.crash_points import CrashPoint
from headrace.testing.simulation.loop import OWNER, SimHandle, SimLoop, SimTask

T = TypeVar("T")

_EPOCH_MS = 1_700_000_000_000


class SimulatedCrash(BaseException):
    """Leaves the code of a process that has just died. Nothing may catch it and go on."""


class SimClock:
    """A host's clocks. `rate` makes them run fast or slow; only the wall clock can be wrong, or jump.

    `tempo` lets the wall clock alone go so many times faster: what ages does so in days, while all that waits
    (periods, sessions, time-outs, delays) waits for seconds. To what ages, all waits are that much longer.
    """

    def __init__(
        self,
        loop: SimLoop,
        *,
        wall_offset_ms: int = 0,
        rate: float = 1.0,
        monotonic_base: float = 0.0,
        tempo: int = 1,
    ) -> None:
        self._loop = loop
        self._tempo = tempo
        self._wall_offset_ms = wall_offset_ms
        self._rate = rate
        self._monotonic_base = monotonic_base

    def now_ms(self) -> int:
        return _EPOCH_MS + self._wall_offset_ms + int(self._loop.time() * self._rate * self._tempo * 1000)

    def monotonic(self) -> float:
        return self._monotonic_base + self._loop.time() * self._rate

    async def sleep(self, seconds: float) -> None:
        woken = self._loop.create_future()
        timer = self._loop.call_later(max(seconds, 0.0) / self._rate, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()

    def jump_wall(self, milliseconds: int) -> None:
        """Set the wall clock forward or back; monotonic time does not notice."""
        self._wall_offset_ms += milliseconds

    def correct_wall(self) -> None:
        """Set the wall clock right."""
        self._wall_offset_ms = 0


class InFlight(Protocol):
    """Something that a process has under way in the world outside: a request, or a watch."""

    def sender_died(self) -> None:
        """Decide what becomes of it."""
        ...


class SimProcess:
    """One incarnation of one process; a restart is a new one."""

    def __init__(self, name: str, loop: SimLoop, *, clock: SimClock | None = None) -> None:
        self.name = name
        self.loop = loop
        self.clock = clock or SimClock(loop)
        self.is_running = True
        self.is_dead = False
        self.requests: dict[int, InFlight] = {}
        """What the process has under way at its stores, by running number."""
        self._held: list[SimHandle] = []
        self._callers: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._context = loop.root_context.copy()
        self._context.run(OWNER.set, self)
        loop.adopt(self)

    def __repr__(self) -> str:
        return f"<SimProcess {self.name}>"

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> SimTask[T]:
        """Start a task inside the process. If it fails and nobody looks at its exception, the simulation fails."""
        assert not self.is_dead, f"{self.name} is dead and starts nothing"
        task = self.loop.create_task(
            work, name=f"{self.name}/{name or getattr(work, '__qualname__', 'task')}", context=self._context.copy()
        )
        task.add_done_callback(self._task_ended, context=self.loop.root_context)
        return task

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` inside the process for a caller outside, as a request over the network would.

        Raises `Retryable` if the process is dead already, and `OutcomeUnknown` if it dies meanwhile. A caller
        who gives up does not stop the work.
        """
        if self.is_dead:
            work.close()
            raise Retryable(f"{self.name} is dead: nobody listens there")
        number = self.next_number()
        answer = self._callers[number] = self.loop.create_future()
        task = self.spawn(work)
        task.add_done_callback(functools.partial(_hand_over, answer), context=self.loop.root_context)
        try:
            result: T = await answer
            return result
        finally:
            self._callers.pop(number, None)

    def crash(self) -> None:
        """Kill the process. Called from its own code, this raises `SimulatedCrash`."""
        if not self.is_dead:
            self._die()
        if OWNER.get() is self:
            raise SimulatedCrash(self.name)

    def pause(self) -> None:
        """Stop the process where it is."""
        if self.is_running:
            self.loop.note(f"{self.name} paused")
            self.is_running = False

    def resume(self) -> None:
        """Let a paused process go on; what came up meanwhile runs in the order in which it came."""
        if self.is_running or self.is_dead:
            return
        self.loop.note(f"{self.name} resumed")
        self.is_running = True
        for handle in self.take_held():
            self.loop.requeue(handle)

    def take_held(self) -> list[SimHandle]:
        """Give back what came up while the process was paused."""
        held, self._held = self._held, []
        return held

    def next_number(self) -> int:
        """Return a running number, for what the process has under way outside of itself."""
        self._number += 1
        return self._number

    async def hang(self) -> NoReturn:
        """Wait for ever: what a dead process gets from everything outside."""
        await self.loop.create_future()
        raise AssertionError("nobody resolves this")

    def hold(self, handle: SimHandle) -> None:
        """Take a callback that came up while the process was not running."""
        if self.is_dead:
            self.loop.shelve(handle)
        else:
            self._held.append(handle)

    def _die(self) -> None:
        self.loop.note(f"{self.name} crashed")
        self.is_running, self.is_dead = False, True
        for handle in self.take_held():
            self.loop.shelve(handle)
        for request in list(self.requests.values()):
            request.sender_died()
        self.requests.clear()
        for answer in self._callers.values():
            if not answer.done():
                answer.set_exception(OutcomeUnknown(f"{self.name} died before it answered"))
        self._callers.clear()

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or self.is_dead:
            return
        if task._exception is not None:  # exception() would mark it as seen
            self.loop.watch_failure(task)


@dataclass(frozen=True, slots=True)
class CrashAt:
    """Die at the n-th arrival at one point."""

    point: CrashPoint
    arrival: int = 1


class SimCrashPoints:
    """Kills a process at the crash points that the plan names, and counts the arrivals at all of them."""

    def __init__(self, process: SimProcess, plan: Sequence[CrashAt] = ()) -> None:
        self._process = process
        self._plan = frozenset(plan)
        self.arrivals: dict[CrashPoint, int] = {}

    def reach(self, point: CrashPoint) -> None:
        arrival = self.arrivals.get(point, 0) + 1
        self.arrivals[point] = arrival
        if CrashAt(point, arrival) in self._plan:
            self._process.loop.note(f"{self._process.name} reached {point} for the {arrival}. time")
            self._process.crash()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _hand_over(answer: asyncio.Future[Any], task: asyncio.Task[Any]) -> None:
    failure = None if task.cancelled() else task.exception()
    if answer.done():
        return
    if task.cancelled():
        answer.cancel()
    elif failure is not None:
        answer.set_exception(failure)
    else:
        answer.set_result(task.result())
