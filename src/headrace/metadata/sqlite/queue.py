"""From the event loop to the writer's thread and back: jobs queue up, the thread takes all there are.

So an idle store commits at once, and a busy one shares its fsyncs by itself. The thread takes the next group
without asking the event loop, which may be busy, and lingers for a moment after the last one: to start work on an
executor costs twice as much as to wake a thread that waits (110 against 58 µs here).
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

from headrace.errors import Throttled, Unusable
from headrace.metadata.sqlite.renewing import Turnstile
from headrace.metadata.sqlite.writer import Failed, GroupOutcome, GroupWriter, Job, WriteTransaction
from headrace.runtime.executor import Executor

MAX_GROUP_JOBS = 64
MAX_QUEUED_JOBS = 10_000
LINGER_S = 0.05

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Queued:
    job: Job
    answer: asyncio.Future[object]


class WriteQueue:
    """Queues jobs, has them run in groups, and gives each its answer."""

    def __init__(
        self,
        writer: GroupWriter,
        executor: Executor,
        *,
        linger_s: float,
        turnstile: Turnstile,
        on_outcome: Callable[[GroupOutcome], None],
    ) -> None:
        """With an executor that works on the caller's thread `linger_s` must be 0."""
        self._writer = writer
        self._executor = executor
        self._linger_s = linger_s
        self._turnstile = turnstile
        self._on_outcome = on_outcome
        self._lock = threading.Lock()
        self._queued: SimpleQueue[_Queued | None] = SimpleQueue()
        self._is_running = False
        self._running: asyncio.Task[None] | None = None
        self._is_closed = False

    async def run(self, job: Callable[[WriteTransaction], T]) -> T:
        """Run a job on the writer's thread, in one transaction with others, and return its answer once committed."""
        if self._is_closed:
            raise Unusable("this metadata store is closed: open it again")
        loop = asyncio.get_running_loop()
        queued = _Queued(job, loop.create_future())
        with self._lock:
            if self._queued.qsize() >= MAX_QUEUED_JOBS:
                raise Throttled(f"{MAX_QUEUED_JOBS} metadata transactions are waiting: the disk does not keep up")
            self._queued.put(queued)
            must_start = not self._is_running
            self._is_running = True
        if must_start:
            self._running = loop.create_task(self._executor.run(lambda: self._run_groups(loop)))
        try:
            return cast(T, await queued.answer)
        finally:
            del queued  # its future holds the error, whose traceback holds this frame

    async def close(self) -> None:
        """Refuse new jobs and wait for those under way."""
        self._is_closed = True
        self._queued.put(None)  # Ends the lingering.
        if self._running is not None:
            await asyncio.wait([self._running])

    def _run_groups(self, loop: asyncio.AbstractEventLoop) -> None:
        while (group := self._take()) or not self._may_stop():
            # A caller that was cancelled before its turn gets what it asked for: nothing happens.
            group = [queued for queued in group if not queued.answer.cancelled()]
            if group:
                with self._turnstile.turn():
                    outcome = self._writer.run([queued.job for queued in group])
                loop.call_soon_threadsafe(self._answer, group, outcome)

    def _take(self) -> list[_Queued]:
        group: list[_Queued] = []
        try:
            while len(group) < MAX_GROUP_JOBS:
                # Only the first one is waited for.
                queued = self._queued.get(block=not group, timeout=self._linger_s)
                if queued is None:
                    break
                group.append(queued)
        except Empty:
            pass
        return group

    def _may_stop(self) -> bool:
        with self._lock:
            self._is_running = not self._queued.empty()
            return not self._is_running

    def _answer(self, group: list[_Queued], outcome: GroupOutcome) -> None:
        self._on_outcome(outcome)
        for queued, answer in zip(group, outcome.answers, strict=True):
            if queued.answer.done():
                continue
            if isinstance(answer, Failed):
                queued.answer.set_exception(_for_future(answer.error))
            else:
                queued.answer.set_result(answer)


def _for_future(error: BaseException) -> BaseException:
    """Return the error, or what a coroutine would make of it: a future refuses `StopIteration`."""
    if not isinstance(error, StopIteration):
        return error
    replaced = RuntimeError("a decide function raised StopIteration")
    replaced.__cause__ = error
    return replaced
