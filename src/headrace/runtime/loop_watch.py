"""The watchdog of the event loop: measures how late the loop is, and names what held it up.

1. On the loop, a heartbeat comes every `BEAT_S`; how late it comes is the loop's lag, a histogram.
2. A thread looks every `LOOK_S`. When a beat is overdue it notes what the loop's thread runs just then, as text.
3. The beat that comes late by `stall_ms` or more writes one log line, with what was seen most often.

Looking from outside costs a request nothing, and sees also what no handler began: a callback, a parser, a service.

Must stay true: no frame of the loop's thread is kept beyond the look. It would pin the buffers of a request.
"""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType

from headrace.runtime.clock import Clock
from headrace.runtime.logs import Log
from headrace.runtime.metrics import Metrics

LOOP_STALL_MS = 250
"""A loop that lets everybody wait longer than this gets a line in the log."""

BEAT_S = 0.05
LOOK_S = 0.1
"""A stall that is worth a line lasts for more than one look, so that it is always seen."""

MAX_LOOKS = 1_000
"""How many looks at one stall are remembered: a hundred seconds of them."""

OUR_PACKAGE = "headrace."
HANDLERS = "headrace.handlers."
TASK_PREFIX = "headrace-"
_GENERATED = ("<read ", "<write ")


class LoopWatch:
    """Watches one event loop, as a service. `sight` says what the loop runs now; a test brings its own."""

    name = "loop-watch"

    def __init__(
        self,
        *,
        clock: Clock,
        log: Log,
        metrics: Metrics,
        stall_ms: int = LOOP_STALL_MS,
        sight: Callable[[], str] | None = None,
    ) -> None:
        self._clock = clock
        self._log = log
        self._stall_s = stall_ms / 1000
        self._sight = sight
        self._lag = metrics.histograms("loop_lag_seconds", "How late the event loop was at each heartbeat.").of()
        self._stalls = metrics.counters(
            "loop_stalls", "Times when the event loop made everybody wait for longer than a heartbeat may be late."
        ).of()
        self._due_at = 0.0
        self._seen: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._is_ending = threading.Event()

    async def start(self) -> None:
        """Begin to beat, and to look."""
        assert self._task is None, "the loop's watch was started twice"
        if self._sight is None:
            loop, thread = asyncio.get_running_loop(), threading.get_ident()
            self._sight = lambda: what_runs(loop, thread)
        self._due_at = self._clock.monotonic() + BEAT_S
        self._task = asyncio.create_task(self._beat(), name=f"{TASK_PREFIX}{self.name}")
        self._thread = threading.Thread(target=self._watch, name=f"{TASK_PREFIX}{self.name}", daemon=True)
        self._thread.start()

    async def drain(self) -> None:
        """Stop: nothing waits for it."""
        await self.stop()

    async def stop(self) -> None:
        """End the heartbeat and the thread."""
        self._is_ending.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._thread is not None:
            self._thread.join()

    async def wait(self) -> None:
        """Return when it was stopped; raise why, if it ended by itself."""
        assert self._task is not None, "the loop's watch was not started"
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()

    def beat(self) -> None:
        """Take note of a heartbeat, on the loop: how late it is, and if it is a stall, what was seen meanwhile."""
        now = self._clock.monotonic()
        lag = max(0.0, now - self._due_at)
        # The next beat is announced first: what the thread sees from here on belongs to that one.
        self._due_at = now + BEAT_S
        seen, self._seen = self._seen, []
        self._lag.observe(lag)
        if lag >= self._stall_s:
            self._stalls.inc()
            what, looks = Counter(seen).most_common(1)[0] if seen else ("not seen", 0)
            self._log.warning(
                "the event loop was held up", lag_ms=round(lag * 1000), what=what, looks=looks, looks_in_all=len(seen)
            )

    def look(self) -> None:
        """Take note of what the loop runs, if its heartbeat is overdue."""
        if self._clock.monotonic() - self._due_at < LOOK_S / 2 or len(self._seen) >= MAX_LOOKS:
            return
        assert self._sight is not None, "nobody looks before the start"
        self._seen.append(self._sight())

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep(BEAT_S)
            self.beat()

    def _watch(self) -> None:
        while not self._is_ending.wait(LOOK_S):
            self.look()


def what_runs(loop: asyncio.AbstractEventLoop, thread: int) -> str:
    """Return what the thread of a loop runs at this moment: a handler or a service, and the place in our code."""
    try:
        task = asyncio.current_task(loop)
    except RuntimeError:
        task = None
    name = None if task is None else task.get_name()
    service = name.removeprefix(TASK_PREFIX) if name is not None and name.startswith(TASK_PREFIX) else None
    return described(sys._current_frames().get(thread), service)


def described(frame: FrameType | None, service: str | None) -> str:
    """Return a name for a stack: its handler, else the service whose task it is, and our innermost function."""
    handler = place = None
    while frame is not None:
        module, code = str(frame.f_globals.get("__name__", "")), frame.f_code
        if place is None and code.co_filename.startswith(_GENERATED):
            place = code.co_filename
        elif place is None and module.startswith(OUR_PACKAGE):
            place = f"{module}.{code.co_name}:{frame.f_lineno}"
        if handler is None and module.startswith(HANDLERS):
            handler = module.removeprefix(HANDLERS)
        frame = frame.f_back
    owner = f"handler {handler}" if handler else f"service {service}" if service else "neither handler nor service"
    return f"{owner}, in {place or 'code that is not ours'}"
