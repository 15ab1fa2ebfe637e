"""A deterministic asyncio event loop: virtual time, one seed, one history.

When nothing is ready, time jumps to the next timer. There are no threads, no sockets and no signals.

Must stay true:
- The same seed and the same program give the same history. Ready callbacks run first come, first served, because
  asyncio promises that and its own primitives rely on it. Timers that are due at the same instant are shuffled by the
  seed, because asyncio promises nothing there: with the delays of the faulty stores, that explores interleavings.
- Each callback belongs to the owner (a simulated process) in whose context it was made. A callback whose owner
  is not running is handed to its owner instead of being run: so a dead process never runs again, not even its
  `finally:` blocks, and a paused one does nothing until it is resumed.
- Waiting for something that can no longer happen ends in `SimulationStuck`, never in a hang.

What the loop cannot do for a program: the order of a set of strings changes with PYTHONHASHSEED, and that of a set
of plain objects with their addresses. Tasks have a hash of their own (`SimTask`), so sets of tasks are safe.
"""

import asyncio
import contextlib
import contextvars
import gc
import heapq
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar, TypeVarTuple

from crc32c import crc32c

from headrace.runtime.rng import Rng, seeded_rng

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TIME_LIMIT_SECONDS = 24 * 3600.0
"""How much virtual time a simulation may take before it counts as stuck."""

MAX_CALLBACKS_PER_INSTANT = 200_000
"""How many callbacks may run without time moving before that counts as an endless loop."""

MAX_TRACE_LINES = 2_000
"""How many of the last events are kept for the report; the digest covers all of them."""

REPORTED_TRACE_LINES = 40
"""How many events an exception that leaves a simulation brings along."""

MAX_CLOSING_ROUNDS = 100
"""How often what is left at the end is cancelled; code that outlives this swallows cancellation."""

_START_SECONDS = 1_000.0  # Not zero, so that code which takes the time for a truth value shows itself.
_MIN_CANCELLED_TO_SWEEP = 500


class Owner(Protocol):
    """A simulated process, as the loop sees it."""

    @property
    def is_running(self) -> bool: ...

    @property
    def is_dead(self) -> bool: ...

    def hold(self, handle: "SimHandle") -> None:
        """Take a callback that came up while the owner was not running."""
        ...

    def take_held(self) -> "list[SimHandle]":
        """Give back the callbacks that were held."""
        ...


OWNER: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("headrace-simulation-owner", default=None)
"""Whose code is running. Contexts are inherited by tasks, timers and callbacks, and so is this."""


class SimulationStuck(Exception):
    """Nothing can happen any more, or nothing ends: the message lists who waits where."""


class SimulationFailed(Exception):
    """A background task ended with an exception that nobody looked at."""


class SimHandle(asyncio.TimerHandle):
    """A callback that waits for its turn or its time.

    It replaces the attributes of asyncio's handle, which are private, and skips what only debugging needs.
    """

    __slots__ = ("args", "callback", "context", "due_at", "is_cancelled", "loop")

    def __init__(
        self,
        loop: "SimLoop",
        due_at: float | None,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self.loop = loop
        self.due_at = due_at
        self.callback = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.args = ()
            if self.due_at is not None:
                self.loop.timer_cancelled()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        assert self.due_at is not None
        return self.due_at

    def __repr__(self) -> str:
        return f"<SimHandle {self.callback!r} due_at={self.due_at}>"


class SimTask(asyncio.Task[T]):
    """A task that hashes by its number, so that a set of tasks has the same order in every run."""

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        loop: "SimLoop",
        number: int,
        name: str | None,
        context: contextvars.Context | None,
    ) -> None:
        self.number = number
        super().__init__(coro, loop=loop, name=name or f"task-{number}", context=context)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimLoop(asyncio.AbstractEventLoop):
    """The loop. `run_simulation` makes one, runs one coroutine on it, and takes it down."""

    def __init__(self, seed: int | str, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> None:
        self.seed = seed
        self.root_context = contextvars.copy_context()
        """The context outside all processes: what runs in it belongs to the stores and the network."""
        self._owners: list[Owner] = []
        self._unseen: list[Exception] = []
        self._now = _START_SECONDS
        self._end_at = _START_SECONDS + time_limit_seconds
        self._ready: deque[SimHandle] = deque()
        self._timers: list[tuple[float, float, int, SimHandle]] = []
        self._timer_count = 0
        self._cancelled_timers = 0
        self._task_count = 0
        self._ties = self.rng("ties")
        self._is_running = False
        self._is_closed = False
        self._failed: list[asyncio.Task[Any]] = []
        self._generators: dict[int, contextvars.Context] = {}
        self._shelf: list[SimHandle] = []
        self._trace: deque[str] = deque(maxlen=MAX_TRACE_LINES)
        self._digest = 0

    # --- chance and the record of what happened

    def rng(self, name: str) -> Rng:
        """Return a generator of its own for `name`: who draws more from one does not change another."""
        return seeded_rng(f"{self.seed}/{name}")

    def note(self, text: str) -> None:
        """Write an event into the trace."""
        line = f"{self._now:.6f} {text}"
        self._digest = crc32c(line.encode(), self._digest)
        self._trace.append(line)

    @property
    def trace(self) -> list[str]:
        """The last events, oldest first."""
        return list(self._trace)

    @property
    def trace_digest(self) -> int:
        """A checksum of all events so far: equal for equal histories."""
        return self._digest

    # --- what asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> SimTask[T]:
        self._task_count += 1
        return SimTask(coro, loop=self, number=self._task_count, name=name, context=context)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(self, None, callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(self, when, callback, args, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._ties.random(), self._timer_count, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> SimHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note what asyncio would log. A failure that gets here was seen by nobody: the history fails with it."""
        error = context.get("exception")
        if not self._is_closed:
            self.note(f"asyncio: {context.get('message')}: {error!r}")
            if isinstance(error, Exception):
                self._unseen.append(error)

    # --- for simulated processes

    def requeue(self, handle: SimHandle) -> None:
        """Take back a callback that an owner held."""
        self._ready.append(handle)

    def shelve(self, handle: SimHandle) -> None:
        """Keep a callback that shall never run, until the end: a task without one could not be unwound."""
        self._shelf.append(handle)

    def adopt(self, owner: Owner) -> None:
        """Get to know an owner: what it holds must be unwound in the end."""
        self._owners.append(owner)

    def watch_failure(self, task: asyncio.Task[Any]) -> None:
        """Remember a task that failed; unless somebody looks at its exception, the simulation fails with it."""
        self._failed.append(task)

    def timer_cancelled(self) -> None:
        """Sweep the timers once most of them are cancelled: long time-outs that are rarely reached pile up."""
        self._cancelled_timers += 1
        if self._cancelled_timers > max(_MIN_CANCELLED_TO_SWEEP, len(self._timers) // 2):
            self._timers = [timer for timer in self._timers if not timer[3].is_cancelled]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    # --- running

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until `future` is done and return its result; raises `SimulationStuck` if it cannot be done."""
        task: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._generator_started, finalizer=self._generator_dropped)
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while not task.done():
                if not self._ready:
                    self._advance()
                self._run_ready(task)
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
        return task.result()

    def _run_ready(self, task: asyncio.Future[Any]) -> None:
        """Run what is ready, until nothing is or `task` is done. Time stands still meanwhile."""
        ready = self._ready
        left = MAX_CALLBACKS_PER_INSTANT
        while ready and not task.done():
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            owner = handle.context.get(OWNER)
            if owner is not None and not owner.is_running:
                owner.hold(handle)
                continue
            left -= 1
            if left == 0:
                raise SimulationStuck(self._report(f"{MAX_CALLBACKS_PER_INSTANT} callbacks ran and time stood still"))
            try:
                handle.context.run(handle.callback, *handle.args)
            except BaseException:
                # A process that died inside a plain callback unwinds to here; everything else is a mistake.
                if owner is None or not owner.is_dead:
                    raise

    def _advance(self) -> None:
        """Move time to the next timer, and make all timers of that instant ready."""
        timers = self._timers
        while timers and timers[0][3].is_cancelled:
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        if not timers:
            raise SimulationStuck(self._report("nothing is ready and no timer is set: everybody waits"))
        due_at = max(timers[0][0], self._now)
        if due_at > self._end_at:
            raise SimulationStuck(self._report(f"the limit of {self._end_at - _START_SECONDS:.0f} s is over"))
        self._now = due_at
        while timers and timers[0][0] <= due_at:
            handle = heapq.heappop(timers)[3]
            handle.due_at = None
            if handle.is_cancelled:
                self._cancelled_timers -= 1
            else:
                self._ready.append(handle)

    def _report(self, reason: str) -> str:
        waiting = [f"  {task.get_name()}: {_where(task)}" for task in self._tasks()]
        return "\n".join([f"seed {self.seed}, after {self._now - _START_SECONDS:.3f} s: {reason}; tasks:", *waiting])

    def _tasks(self) -> list[SimTask[Any]]:
        found = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]
        return sorted(found, key=lambda task: task.number)

    def _generator_started(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[id(generator)] = contextvars.copy_context()

    def _generator_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Let a generator that was left half-way run its `finally:` blocks, in the process it belongs to."""
        context = self._generators.pop(id(generator), None)
        owner = None if context is None else context.get(OWNER)
        if not self._is_closed and (owner is None or not owner.is_dead):
            self.call_soon(self._close_generator, generator, context=context)

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.create_task(_close_generator(generator))

    # --- ending

    def finish(self) -> None:
        """Unwind what is left and close the loop; raises `SimulationFailed` for failures nobody looked at.

        This is outside of the history: time stands still, and tasks of dead and paused processes are unwound,
        too, so that no coroutine is left half-way. Nothing that happens now reaches a store.
        """
        unseen = [task for task in self._failed if getattr(task, "_log_traceback", False)]
        asyncio._set_running_loop(self)
        try:
            self._unwind()
        finally:
            asyncio._set_running_loop(None)
            self._ready.clear()
            self._timers.clear()
            self._is_closed = True
        if unseen:
            names = ", ".join(task.get_name() for task in unseen)
            failure = unseen[0].exception()
            raise SimulationFailed(
                f"seed {self.seed}: nobody looked at the failure of {names}: {failure!r}"
            ) from failure
        if self._unseen:
            raise SimulationFailed(f"seed {self.seed}: nobody looked at {self._unseen[0]!r}") from self._unseen[0]

    def _unwind(self) -> None:
        # A task whose first step never ran ends only by that step: also those that a paused owner holds.
        self._ready.extend(self._shelf)
        self._shelf.clear()
        for owner in self._owners:
            self._ready.extend(owner.take_held())
        for _ in range(MAX_CLOSING_ROUNDS):
            tasks = self._tasks()
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            # Each task ends, or waits for something that the next round cancels.
            for _ in range(MAX_CALLBACKS_PER_INSTANT):
                if not self._ready:
                    break
                handle = self._ready.popleft()
                if not handle.is_cancelled:
                    with contextlib.suppress(Exception):
                        handle.context.run(handle.callback, *handle.args)
        raise SimulationStuck(self._report(f"something outlives {MAX_CLOSING_ROUNDS} cancellations"))


def run_simulation(
    seed: int | str,
    main: Callable[[SimLoop], Coroutine[Any, Any, T]],
    *,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
) -> T:
    """Run `main` on a loop of its own and return its result: the same one for the same seed.

    Whatever is still running then is unwound. Raises what `main` raises, `SimulationStuck` when it waits for
    something that cannot happen, and `SimulationFailed` when a task of a process failed unseen.
    """
    loop = SimLoop(seed, time_limit_seconds=time_limit_seconds)  # type: ignore[abstract]
    # The garbage collector runs whenever enough was allocated since the process began, and what it drops may have
    # finalisers: with it on, a history would depend on what ran before.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        try:
            result = loop.run_until_complete(main(loop))
        except BaseException as error:
            error.add_note("\n".join([f"seed {seed}; what happened last:", *loop.trace[-REPORTED_TRACE_LINES:]]))
            with contextlib.suppress(SimulationFailed, SimulationStuck):
                loop.finish()
            raise
        loop.finish()
        return result
    finally:
        if was_enabled:
            gc.enable()
            gc.collect()  # Thousands of histories may run in one process; what one leaves in circles is large.


async def _close_generator(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def _where(task: asyncio.Task[Any]) -> str:
    """Return where a task waits: the innermost line of its own code."""
    place = "not started"
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            place = f"{frame.f_code.co_qualname} line {frame.f_lineno}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return place
