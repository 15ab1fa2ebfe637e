"""The way from a simulated process to a store, and back.

A request is sent, travels, takes effect at one instant, and its answer travels back. Both ways belong to the world,
not to the process: a request that was sent goes on when its sender is paused, gives up waiting, or dies; in the last
case the plan says whether it still arrives. The effect itself is never left half-way by the sender's death.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from headrace.errors import Exists, HeadraceError, OutcomeUnknown, Retryable, Throttled
from headrace.testing.simulation.plan import FaultKind, FaultPlan
from headrace.testing.simulation.process import SimProcess

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, Any]]

_REFUSED: dict[FaultKind, type[HeadraceError]] = {
    FaultKind.RETRYABLE: Retryable,
    FaultKind.THROTTLED: Throttled,
    FaultKind.RESET: OutcomeUnknown,
}
_HIDDEN = (FaultKind.LOST_ANSWER, FaultKind.TORN)


class Wire:
    """One process's connection to one store."""

    __slots__ = ("_store", "plan", "process")

    def __init__(self, process: SimProcess, plan: FaultPlan, store: str) -> None:
        self.process = process
        self.plan = plan
        self._store = store

    async def send(
        self,
        what: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        kinds: tuple[FaultKind, ...],
    ) -> T:
        """Have `work` done at the store; one of the faults `kinds` may strike it."""
        return await self.send_with(what, work, self.plan.draw(kinds))

    async def send_with(
        self,
        what: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        fault: FaultKind | None,
        *,
        torn: Work | None = None,
    ) -> T:
        """Have `work` done at the store, struck by this very fault; `torn` does a part of it."""
        if self.process.is_dead:
            await self.process.hang()
        request = _Request(self, f"{self._store}.{what}", work, fault, torn)
        request.send()
        result: T = await request.answer
        return result


class _Request:
    """One request on its way."""

    __slots__ = ("_back_seconds", "_fault", "_is_dropped", "_number", "_torn", "_what", "_wire", "_work", "answer")

    def __init__(self, wire: Wire, what: str, work: Work, fault: FaultKind | None, torn: Work | None) -> None:
        self._wire = wire
        self._what = what
        self._work = work
        self._fault = fault
        self._torn = torn
        self._is_dropped = False
        self._back_seconds = 0.0
        self._number = 0
        self.answer: asyncio.Future[Any] = wire.process.loop.create_future()

    def send(self) -> None:
        plan, process = self._wire.plan, self._wire.process
        self._number = process.next_number()
        process.requests[self._number] = self
        seconds = plan.latency_seconds()
        if self._fault is FaultKind.DELAY:
            if plan.is_heads():
                seconds += plan.delay_seconds()
            else:
                self._back_seconds = plan.delay_seconds()
        elif self._fault is FaultKind.LATE_EFFECT:
            self._after(seconds, self._deliver, None, OutcomeUnknown(f"injected: no answer to {self._what} in time"))
            seconds += plan.delay_seconds()
        self._after(seconds, self._arrive)

    def sender_died(self) -> None:
        """Decide whether the request still arrives."""
        fate = self._wire.plan.fate_of_orphan(can_tear=self._torn is not None)
        if fate is FaultKind.DROPPED_BY_CRASH:
            self._is_dropped = True
        elif fate is FaultKind.TORN_BY_CRASH:
            assert self._torn is not None
            self._work = self._torn

    def _arrive(self) -> None:
        process = self._wire.process
        process.requests.pop(self._number, None)
        if self._is_dropped:
            return
        refused = _REFUSED.get(self._fault) if self._fault is not None else None
        if refused is not None:
            process.loop.note(f"{process.name} {self._what}: {self._fault}")
            self._reply(None, refused(f"injected: {self._fault} at {self._what}"))
        elif self._fault is FaultKind.TORN and self._torn is not None:
            self._perform(self._torn)
        else:
            self._perform(self._work)

    def _perform(self, work: Work) -> None:
        """Begin the work, outside the process. In-memory stores finish it here; others go on in a task."""
        coroutine = work()
        try:
            waits_for = coroutine.send(None)
        except StopIteration as done:
            self._performed(done.value, None)
        except Exception as error:
            self._performed(None, error)
        else:
            loop = self._wire.process.loop
            task = loop.create_task(_go_on(coroutine, waits_for), context=loop.root_context.copy())
            task.add_done_callback(self._task_ended, context=loop.root_context)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._performed(None, OutcomeUnknown(f"{self._what} was cancelled"))
            return
        error = task.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        self._performed(None if error is not None else task.result(), error)

    def _performed(self, result: object, error: Exception | None) -> None:
        loop = self._wire.process.loop
        outcome = "done" if error is None else type(error).__name__
        loop.note(f"{self._wire.process.name} {self._what}: {outcome}{f', {self._fault}' if self._fault else ''}")
        if self._fault in _HIDDEN:
            error = OutcomeUnknown(f"injected: the answer to {self._what} was lost")
        elif self._fault is FaultKind.OWN_EXISTS and error is None:
            error = Exists(f"injected: {self._what} says that its own object is there already")
        self._reply(result, error)

    def _reply(self, result: object, error: Exception | None) -> None:
        if self._fault is not FaultKind.LATE_EFFECT:
            self._after(self._wire.plan.latency_seconds() + self._back_seconds, self._deliver, result, error)

    def _deliver(self, result: object, error: Exception | None) -> None:
        # Nobody may be waiting any more: cancelled, or dead.
        if self.answer.done() or self._wire.process.is_dead:
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)

    def _after(self, seconds: float, callback: Callable[..., object], *args: object) -> None:
        loop = self._wire.process.loop
        loop.call_later(seconds, callback, *args, context=loop.root_context)


@types.coroutine
def _go_on(coroutine: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """Drive a coroutine on from its first wait, which somebody else has received."""
    while True:
        try:
            try:
                received = yield waits_for
            except BaseException as error:
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(received)
        except StopIteration as done:
            result: T = done.value
            return result
