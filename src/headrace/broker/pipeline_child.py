"""`headrace serve --pipeline`: the pipeline in a process of its own, beside the broker, as long as the broker lives.

A Java process and tasks full of rows have no place in a process that answers clients. So the broker starts another
one with its own settings, and starts it anew when it ends: with growing pauses when it ends badly.

Must stay true:
- The broker serves, whatever becomes of the pipeline: without Java or Spark it says so once and goes on.
- No child outlives its broker: it reads a pipe that closes when the broker dies, however that happens, and its Java
  process reads one from the child.
- No setting stands on the child's command line, where every user of the host could read it.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.broker.storage import Runtime
from headrace.errors import HeadraceError, Invalid
from headrace.runtime.clock import Clock
from headrace.runtime.configuration import Origin
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.logs import Log
from headrace.settings import HeadraceConfiguration, all_settings

START_ANEW = 75
"""The exit code of a child that is well and wants a fresh process: enough rounds, or too much memory."""

COMMAND = (sys.executable, "-m", "headrace.cli", "pipeline", "run", "--loop", "--supervised")

FIRST_PAUSE_S = 1.0
HEALTHY_AFTER_S = 60.0
"""A child that lived this long has not failed at its start: the pauses begin small again."""

END_LIMIT_S = 15.0
"""How long a child that was told to end may take, before it is killed with all that it has started."""


class PipelineChild:
    """A service that keeps one child process running."""

    def __init__(
        self,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        require: Callable[[], object],
        max_pause_s: float,
        clock: Clock,
        log: Log,
    ) -> None:
        """Take what to start. `require` may block; it raises `Unsupported` where the child could not run."""
        self._command = command
        self._environment = environment
        self._require = require
        self._max_pause_s = max_pause_s
        self._clock = clock
        self._log = log.bind(service=self.name)
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return "pipeline"

    async def start(self) -> None:
        """Begin; the broker does not wait for Java to be found or for Spark to start."""
        self._task = asyncio.create_task(self._supervise(), name="headrace-pipeline")

    async def drain(self) -> None:
        """Tell the child to end in good order, and wait for that."""
        self._ending.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def stop(self) -> None:
        """Kill what is left."""
        self._hurry.set()
        await self.drain()

    async def wait(self) -> None:
        """Return when the service was drained or stopped; raise why, if it ended by itself."""
        assert self._task is not None, "the pipeline's process was not started"
        await asyncio.wait({self._task})
        self._task.result()

    async def _supervise(self) -> None:
        if not await self._can_run():
            await self._ending.wait()
            return
        pause_s = FIRST_PAUSE_S
        while not self._ending.is_set():
            began = self._clock.monotonic()
            code = await self._run_child_if_it_starts()
            if self._ending.is_set():
                return
            if code == START_ANEW:
                self._log.info("the pipeline's process asked to be started anew")
                continue
            if self._clock.monotonic() - began >= HEALTHY_AFTER_S:
                pause_s = FIRST_PAUSE_S
            self._log.warning("the pipeline's process has ended and is started again", code=code, pause_s=pause_s)
            await _first_of(self._ending.wait(), self._clock.sleep(pause_s))
            pause_s = min(2 * pause_s, self._max_pause_s)

    async def _can_run(self) -> bool:
        executor = ThreadExecutor("pipeline", threads=1)
        try:
            await executor.run(self._require)
        except HeadraceError as error:
            self._log.warning("the pipeline does not run, the broker serves on", reason=str(error))
            return False
        finally:
            executor.close()
        return True

    async def _run_child_if_it_starts(self) -> int | None:
        """Run a child and return its exit code; `None` if the system could not start it (no memory, a full disk)."""
        try:
            # What a child that was killed leaves behind goes with this folder.
            with tempfile.TemporaryDirectory(prefix="headrace-pipeline-", ignore_cleanup_errors=True) as scratch:
                return await self._run_child(Path(scratch))
        except OSError as error:
            self._log.warning("the pipeline's process could not be started", error=str(error))
            return None

    async def _run_child(self, scratch: Path) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            env={**self._environment, "TMPDIR": str(scratch)},
            # A Ctrl-C in the broker's terminal is for the broker, which then tells the child.
            start_new_session=True,
        )
        self._log.info("the pipeline's process has started", process=process.pid)
        ended = asyncio.create_task(process.wait())
        try:
            await _first_of(self._ending.wait(), ended=ended)
            if not ended.done():
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await _first_of(self._hurry.wait(), self._clock.sleep(END_LIMIT_S), ended=ended)
            return await ended if ended.done() else await self._kill(process.pid, ended)
        finally:
            if process.stdin is not None:
                process.stdin.close()

    async def _kill(self, process_id: int, ended: "asyncio.Task[int]") -> int:
        self._log.warning("the pipeline's process did not end in time and is killed", process=process_id)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process_id, signal.SIGKILL)
        return await ended


async def _first_of(*ends: Coroutine[Any, Any, object], ended: "asyncio.Task[int] | None" = None) -> None:
    """Return when the first has come to its end, or the child has."""
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(end) for end in ends]
    try:
        await asyncio.wait([*waits, *([] if ended is None else [ended])], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)


def pipeline_services(
    configuration: HeadraceConfiguration, runtime: Runtime, *, environment: Mapping[str, str]
) -> list[PipelineChild]:
    """Return the service that keeps the pipeline running, if the settings ask for one."""
    settings = configuration.tree.pipeline
    if not settings.enable:
        return []

    def require() -> None:
        # Imported late, on the thread that asks: a broker starts without it.
        from headrace.pipeline.spark.requirements import require_spark

        require_spark(environment)

    child = PipelineChild(
        command=COMMAND,
        environment=child_environment(configuration, environment),
        require=require,
        max_pause_s=settings.failure_backoff_max_ms / 1000,
        clock=runtime.clock,
        log=runtime.log,
    )
    return [child]


def child_environment(configuration: HeadraceConfiguration, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that is to have the very same settings. Raises `Invalid`."""
    ours = {setting.variable for setting in all_settings()}
    plain = {name: value for name, value in environment.items() if name not in ours}
    given = {
        origin.setting.variable: _as_text(origin) for origin in configuration.origins if origin.source != "default"
    }
    return plain | given


def _as_text(origin: Origin) -> str:
    """Return a value as somebody would have written it, passwords included."""
    value = origin.value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        if any(";" in text for _, text in value):
            raise Invalid(
                f"{origin.setting.key} has a value with a semicolon in it, and cannot be handed to another process:"
                " run `headrace pipeline run --loop` with your settings file, instead of serve --pipeline"
            )
        return "; ".join(f"{name}={text}" for name, text in value)
    return str(value)
