"""Headrace's pipeline with a warm session: what `headrace pipeline run --once` does, again and again in one process.

Settings are the defaults; the size of files and zstd level 1 are what the other side is told to use.
"""

import asyncio
import json
import os
import sys
import time

from benchmarks.tables_beside_spark.processes import Message, say
from headrace.broker.pipeline import RunningPipeline, running_pipeline
from headrace.broker.pipeline_rounds import run_until_caught_up
from headrace.broker.storage import assemble_runtime
from headrace.cli.options import configure
from headrace.runtime.clock import Clock

INTERVAL_MS = 50


class Steps:
    """Notes when a run reached which step, on the machine's monotonic clock."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []

    def planned(self, topic: str, *, files: int, size_bytes: int) -> None:
        self.taken.append(("planned", time.monotonic_ns()))

    def moved(self, topic: str, step: str) -> None:
        self.taken.append((step, time.monotonic_ns()))

    def ended(self, topic: str, *, rows: int, problem: str | None) -> None:
        self.taken.append(("ended", time.monotonic_ns()))


async def serve() -> None:
    """Open the pipeline of the data directory that the first line names; then make a run for every line."""
    settings = configure(None, None, {"data.dir": (await _next_line())["data_dir"]}).tree
    runtime = assemble_runtime(settings, environment=os.environ, log_to=sys.stderr)
    steps = Steps()
    async with running_pipeline(settings, runtime, progress=steps) as running:
        say({})
        while await _next_line():
            steps.taken.clear()
            seconds = await _run(running, runtime.clock)
            say({"seconds": seconds, "steps": steps.taken})


async def _run(running: RunningPipeline, clock: Clock) -> float:
    began = time.monotonic()
    problems = await run_until_caught_up(running.host, clock=clock, interval_ms=INTERVAL_MS, stopping=asyncio.Event())
    if problems:
        raise RuntimeError(f"the pipeline failed: {problems}")
    return time.monotonic() - began


async def _next_line() -> Message:
    """Return the next message; the loop goes on meanwhile, because a session has to be renewed. Empty at the end."""
    line = await asyncio.to_thread(sys.stdin.readline)
    message: Message = json.loads(line) if line else {}
    return message


if __name__ == "__main__":
    asyncio.run(serve())
