"""Background services: what runs beside the requests, and how all of it starts, drains and stops.

A `Ticker` does one thing again and again, a `Follower` goes on for ever. What they may raise, and what happens then:
- a `HeadraceError`: expected. It is counted and logged in one line that says what to do, and the service tries again,
  after pauses that grow up to a few seconds. While it goes on failing, the log has a line for the failures number
  1, 2, 4, 8 and so on. `Fenced` is one of these: somebody else did this piece of work, or the session is gone.
  Whether this broker must begin a new incarnation is not for a service to say (`produce/incarnations.py` watches the
  session and the writer).
- `Unusable`: a store cannot be trusted in this process. The service ends, and `wait` raises.
- anything else is a mistake of ours: the service ends, loudly, and `wait` raises. So does a cancellation that
  nobody here asked for, because a service that is gone without a word is worse than one that has failed.

Must stay true: services start in order and stop in reverse, so that nothing outlives what it stands on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from headrace.errors import (
    Corrupt,
    Fenced,
    HeadraceError,
    Invalid,
    OutcomeUnknown,
    Retryable,
    Unsupported,
    Unusable,
)
from headrace.runtime.clock import Clock
from headrace.runtime.logs import Log
from headrace.runtime.metrics import Label, Metrics, one_of
from headrace.runtime.rng import Rng

JITTER = 0.1
"""Each pause is longer or shorter by up to this share, so that many brokers do not act in step."""

FOLLOW_AGAIN_S = 0.5
"""How long a follower pauses after its first failure, in seconds; after each further one twice as long."""

FOLLOW_WELL_S = 60.0
"""A follower that went on for this long, in seconds, is well: its next failure counts as the first one again."""

MAX_BACKOFF_S = 5.0
"""The longest pause after failures, in seconds, unless the interval itself is longer. A store that has returned must
be noticed soon: ten seconds after a fault has passed everything goes on, and one more try may be needed for that."""

MAX_DOUBLINGS = 16

ROUND_PAUSE_S = 0.2
"""How long a ticker pauses between two steps of a round, in seconds. Requests have the stores meanwhile."""

ADVICE: tuple[tuple[type[HeadraceError], str], ...] = (
    (Fenced, "another broker has done this, or this broker's session has ended: nothing to do"),
    (Retryable, "if this goes on, check that the stores can be reached"),
    (OutcomeUnknown, "if this goes on, check that the stores can be reached"),
    (Corrupt, "nothing was deleted: run `headrace verify`, and look at the store that the error names"),
    (Invalid, "if this goes on, check what the error names: settings, topic configuration, stored data"),
    (Unsupported, "change the configuration, or upgrade"),
    (Unusable, "mend what the error names, then start this process again"),
)
"""What an operator can do about an expected error, by its type."""

OTHER_ADVICE = "if this goes on, report it with the lines before it"

OUTCOMES = ("ok", "failed", "ended")


class Service(Protocol):
    """Something that runs in the background."""

    @property
    def name(self) -> str: ...

    async def start(self) -> None:
        """Begin. When this raises, nothing is left running."""
        ...

    async def drain(self) -> None:
        """Begin no new work and return when the work under way is done."""
        ...

    async def stop(self) -> None:
        """End, breaking off what is under way. Safe after a failure, and more than once."""
        ...

    async def wait(self) -> None:
        """Return when the service was drained or stopped; raise why, if it ended by itself."""
        ...


class TickMetrics:
    """What is counted of all tickers of one process."""

    def __init__(self, metrics: Metrics) -> None:
        self.ticks = metrics.counters(
            "service_ticks", "Ticks of background services.", Label("service"), one_of("outcome", OUTCOMES)
        )
        self.ends_logged: set[str] = set()
        """Why services have ended. A store that cannot be trusted ends many at once, and is worth one line."""


class _Runner:
    """One task from start to stop, whose end by itself is told loudly."""

    def __init__(self, name: str, *, clock: Clock, log: Log, metrics: TickMetrics) -> None:
        self.name = name
        self._clock = clock
        self._log = log.bind(service=name)
        self._ticks = {outcome: metrics.ticks.of(name, outcome) for outcome in OUTCOMES}
        self._ends_logged = metrics.ends_logged
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False
        self._failure: BaseException | None = None

    async def start(self) -> None:
        """Begin."""
        assert self._task is None, f"{self.name} was started twice"
        self._task = asyncio.create_task(self._run(), name=f"headrace-{self.name}")
        self._task.add_done_callback(self._note_end)

    async def stop(self) -> None:
        """Break off what is under way."""
        self._is_ending = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def wait(self) -> None:
        """Return when the service was drained or stopped; raise why, if it ended by itself."""
        assert self._task is not None, f"{self.name} was not started"
        await asyncio.wait({self._task})
        if self._failure is not None:
            raise self._failure

    async def _run(self) -> None:
        raise NotImplementedError

    def _note_failure(self, event: str, error: HeadraceError, failures: int) -> None:
        self._ticks["failed"].inc()
        if is_worth_a_line(failures):
            self._log.warning(event, error=error, failures=failures, advice=advice(error))

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            if self._is_ending:
                return
            self._failure = Unusable(f"service {self.name} was cancelled, and not by its stop: restart the process")
        else:
            self._failure = task.exception()
        if self._failure is not None:
            self._ticks["ended"].inc()
            if isinstance(self._failure, HeadraceError) and str(self._failure) in self._ends_logged:
                return
            self._ends_logged.add(str(self._failure))
            self._log.error("a service has ended", **explained(self._failure))


def advice(error: HeadraceError) -> str:
    """Return what an operator can do about an expected error."""
    return next((text for kind, text in ADVICE if isinstance(error, kind)), OTHER_ADVICE)


def explained(error: BaseException) -> dict[str, object]:
    """Return the values of a log line about an error: with advice if it is expected, else with a traceback."""
    if isinstance(error, HeadraceError):
        return {"error": error, "advice": advice(error)}
    return {"exc_info": error}


def backoff_s(first_s: float, failures: int) -> float:
    """Return the pause after so many failures in a row: `first_s` after one, and twice as long for each more."""
    doubled_s = first_s * (1 << min(failures - 1, MAX_DOUBLINGS))
    return min(doubled_s, max(first_s, MAX_BACKOFF_S))


def is_worth_a_line(failures: int) -> bool:
    """Say whether this one of many failures in a row is logged: the first, and each that doubles their number."""
    return failures & (failures - 1) == 0


class Ticker(_Runner):
    """Calls `tick`, waits for its end, pauses for the interval, and so on.

    The first pause is a random part of the interval: brokers that start together spread out. Where a tick is one step
    of a round over very many things, `goes_on` says after it whether the round is under way. Then the next step comes
    after a short pause, and the interval counts from the round's end.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], Awaitable[object]],
        *,
        interval_ms: int,
        clock: Clock,
        rng: Rng,
        log: Log,
        metrics: TickMetrics,
        breaks_off: bool = False,
        goes_on: Callable[[], bool] = lambda: False,
    ) -> None:
        """With `breaks_off`, a drain does not wait for the tick under way: it takes long, and loses nothing."""
        super().__init__(name, clock=clock, log=log, metrics=metrics)
        self._breaks_off = breaks_off
        self._tick = tick
        self._goes_on = goes_on
        self._interval_seconds = interval_ms / 1000
        self._rng = rng
        self._is_ticking = False
        self._failures = 0

    async def drain(self) -> None:
        """Let a tick under way end, unless it is one to be broken off, and begin no other."""
        self._is_ending = True
        if not self._is_ticking or self._breaks_off:
            await self.stop()
        elif self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        pause = self._rng.uniform(0, self._interval_seconds)
        while not self._is_ending:
            await self._clock.sleep(pause)
            self._is_ticking = True
            await self._tick_once()
            self._is_ticking = False
            pause = min(ROUND_PAUSE_S, self._interval_seconds) if self._goes_on() else self._interval_seconds
            if self._failures:
                pause = backoff_s(pause, self._failures)
            pause *= self._rng.uniform(1 - JITTER, 1 + JITTER)

    async def _tick_once(self) -> None:
        try:
            await self._tick()
        except Unusable:
            raise
        except HeadraceError as error:
            self._failures += 1
            self._note_failure("a tick failed and will be tried again", error, self._failures)
        else:
            self._failures = 0
            self._ticks["ok"].inc()


class Follower(_Runner):
    """Runs one coroutine for ever: a watch, a reaper. When it fails and may be tried again, it is begun anew.

    What it may raise is what a tick may raise; that it returns is a failure, too.
    """

    def __init__(
        self,
        name: str,
        follow: Callable[[], Awaitable[object]],
        *,
        clock: Clock,
        log: Log,
        metrics: TickMetrics,
    ) -> None:
        super().__init__(name, clock=clock, log=log, metrics=metrics)
        self._follow = follow

    async def drain(self) -> None:
        """Stop: what follows has no work of its own to finish."""
        await self.stop()

    async def _run(self) -> None:
        failures = 0
        while True:
            began = self._clock.monotonic()
            try:
                await self._follow()
            except Unusable:
                raise
            except HeadraceError as error:
                failures = 1 if self._clock.monotonic() - began >= FOLLOW_WELL_S else failures + 1
                self._note_failure("following failed and will be tried again", error, failures)
                await self._clock.sleep(backoff_s(FOLLOW_AGAIN_S, failures))
            else:
                raise Unusable(f"service {self.name} has come to an end, and it should not: restart the process")


class Services:
    """A group that lives and dies together."""

    def __init__(self, services: Sequence[Service], *, clock: Clock, log: Log) -> None:
        self._services = services
        self._clock = clock
        self._log = log
        self._started: list[Service] = []

    async def start(self) -> None:
        """Start all in order; if one cannot start, stop those before it and raise what it raised."""
        try:
            for service in self._services:
                await service.start()
                self._started.append(service)
        except BaseException:
            await self.stop(drain_ms=0)
            raise

    async def wait(self) -> None:
        """Wait until one fails, and raise why; return when all have ended in good order."""
        waiters = [asyncio.ensure_future(service.wait()) for service in self._started]
        try:
            await asyncio.gather(*waiters)
        finally:
            for waiter in waiters:
                waiter.cancel()

    async def stop(self, *, drain_ms: int) -> None:
        """Drain and stop each, the last one started first; after `drain_ms` in all, stop what has not drained.

        One that fails to drain or stop does not keep the others from it; the first failure is raised at the end.
        """
        deadline = self._clock.monotonic() + drain_ms / 1000
        failures: list[Exception] = []
        while self._started:
            service = self._started[-1]
            for step in (partial(self._drain, service, deadline), service.stop):
                try:
                    await step()
                except Exception as error:  # Whatever it is, the next service must still be stopped.
                    values = explained(error)
                    self._log.error("a service did not stop in good order", service=service.name, **values)
                    failures.append(error)
            self._started.pop()
        if failures:
            raise failures[0]

    async def _drain(self, service: Service, deadline: float) -> None:
        left = deadline - self._clock.monotonic()
        if left <= 0:
            return
        draining = asyncio.ensure_future(service.drain())
        timer = asyncio.ensure_future(self._clock.sleep(left))
        try:
            await asyncio.wait({draining, timer}, return_when=asyncio.FIRST_COMPLETED)
            if not draining.done():
                self._log.warning("a service had not drained in time", service=service.name)
        finally:
            draining.cancel()
            timer.cancel()
            await asyncio.wait({draining, timer})
        if not draining.cancelled():
            draining.result()
