"""The process around a pipeline: signals, the bar or the log lines, and how it ends.

SIGTERM and SIGINT end it in good order, a second one at once. One that a broker has started also ends when the pipe
on its stdin closes, which is how it learns of the broker's death.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO, cast

from rich.console import Console

from headrace.broker.pipeline import running_pipeline
from headrace.broker.pipeline_child import START_ANEW
from headrace.broker.pipeline_rounds import Interrupted, LoopLimits, run_on_and_on, run_until_caught_up
from headrace.broker.storage import Runtime, assemble_runtime
from headrace.cli.exits import DONE, FAILED, INTERRUPTED
from headrace.cli.pipeline_progress import Counted, LinesAbove, LoggedProgress, shown_bar
from headrace.cli.printing import complain, print_line
from headrace.errors import HeadraceError
from headrace.pipeline.ports import Progress
from headrace.settings import HeadraceConfiguration

ORPHAN_LIMIT_S = 10.0
"""How long a process whose broker has died may take to end in good order."""


def run_pipeline(configuration: HeadraceConfiguration, *, once: bool, supervised: bool) -> int:
    """Run the pipeline until it is done or told to end; return the exit code."""
    counted = Counted()
    has_terminal = sys.stderr.isatty() and not supervised
    with (
        _watched(configuration, counted, has_terminal=has_terminal) as (runtime, progress),
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        code = runner.run(_Process(configuration, runtime, progress).run(once=once, supervised=supervised))
    if once and not supervised:
        print_line(f"{counted.rows:,} rows in {counted.runs} runs; tables that grew: {len(counted.topics)}")
    return code


@contextlib.contextmanager
def _watched(
    configuration: HeadraceConfiguration, counted: Counted, *, has_terminal: bool
) -> Iterator[tuple[Runtime, Progress]]:
    settings = configuration.tree
    if not has_terminal:
        runtime = assemble_runtime(settings, environment=os.environ, log_to=sys.stderr)
        yield runtime, LoggedProgress(runtime.log, counted)
        return
    console = Console(stderr=True)
    lines = cast(TextIO, LinesAbove(console, sys.stderr))
    runtime = assemble_runtime(settings, environment=os.environ, log_to=lines)
    with shown_bar(console, counted) as progress:
        yield runtime, progress


class _Process:
    """What the parts below share: the settings, who is told, and whether it is time to end."""

    def __init__(self, configuration: HeadraceConfiguration, runtime: Runtime, progress: Progress) -> None:
        self.settings = configuration.tree
        self.runtime = runtime
        self.progress = progress
        self.stopping = asyncio.Event()
        self.is_ready = False

    async def run(self, *, once: bool, supervised: bool) -> int:
        """Open everything, make rounds, close everything."""
        working = asyncio.ensure_future(self._work(once=once, supervised=supervised))

        def stop() -> None:
            self.stopping.set()
            if not self.is_ready:  # Rounds end by themselves; starting Spark does not.
                working.cancel()

        self._listen(stop, supervised=supervised)
        try:
            return await working
        except (Interrupted, asyncio.CancelledError):
            if not self.stopping.is_set():
                raise
            return INTERRUPTED if once else DONE
        except HeadraceError as error:
            if not supervised:
                raise
            self.runtime.log.error("the pipeline cannot run", error=error)
            return FAILED

    async def _work(self, *, once: bool, supervised: bool) -> int:
        settings, runtime, clock = self.settings, self.runtime, self.runtime.clock
        pipeline = settings.pipeline
        async with running_pipeline(settings, runtime, progress=self.progress) as running:
            self.is_ready = True
            runtime.log.info("the pipeline is ready", master=running.spark.options.master)
            if once:
                problems = await run_until_caught_up(
                    running.host, clock=clock, interval_ms=pipeline.interval_ms, stopping=self.stopping
                )
                for topic, problem in sorted(problems.items()):
                    complain(f"{topic}: {problem}")
                return FAILED if problems else DONE
            limits = LoopLimits(
                interval_ms=pipeline.interval_ms,
                max_backoff_ms=pipeline.failure_backoff_max_ms,
                max_rounds=pipeline.child_max_runs if supervised else None,
                max_memory_bytes=pipeline.child_max_memory_bytes if supervised else None,
            )
            is_to_begin_anew = await run_on_and_on(
                running.host, clock=clock, log=runtime.log, limits=limits, stopping=self.stopping
            )
            return START_ANEW if is_to_begin_anew else DONE

    def _listen(self, stop: Callable[[], None], *, supervised: bool) -> None:
        loop, log = asyncio.get_running_loop(), self.runtime.log

        def told(why: str) -> None:
            if self.stopping.is_set():
                log.warning("told to stop a second time: ending at once", why=why)
                os._exit(1)
            log.info("told to stop: finishing what is under way", why=why)
            stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told, number.name)
        if supervised:
            threading.Thread(
                target=_watch_stdin, args=(loop, stop), name="headrace-broker-watch", daemon=True
            ).start()


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Wait until the broker's end of the pipe closes; then end, in good order if that does not take long."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    with contextlib.suppress(RuntimeError):  # the loop has ended already
        loop.call_soon_threadsafe(stop)
    threading.Event().wait(ORPHAN_LIMIT_S)
    os._exit(1)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
