"""Client processes from the benchmark's side: start them, let them begin together, collect what came of it."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from benchmarks.beside_kafka.jobs import Done, Job, decode_done, encode_job

ROOT = Path(__file__).parents[2]
JOB_LIMIT_SECONDS = 300.0
FAREWELL_BYTES = 4000


class Worker:
    """One client process. It is ended with the `with` block, whatever happens."""

    def __init__(self, job: Job, errors: IO[str]) -> None:
        self._job = job
        self._errors = errors
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.beside_kafka.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
        )
        self._say(encode_job(job))

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *failure: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def wait_until_ready(self) -> None:
        """Wait until the client is connected and has its values. Raises `RuntimeError` if it failed."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise self._failure()

    def go(self) -> None:
        """Let it begin."""
        self._say("go")

    def collect(self) -> Done:
        """End its input, wait for the end, and return what came of it. Raises `RuntimeError` if it failed."""
        output, _ = self._process.communicate(timeout=JOB_LIMIT_SECONDS)
        if self._process.returncode != 0:
            raise self._failure()
        return decode_done(output)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _failure(self) -> RuntimeError:
        self._process.kill()
        self._process.communicate()
        self._errors.seek(0)
        return RuntimeError(f"a client failed at {self._job}:\n{self._errors.read()[-FAREWELL_BYTES:]}")


@contextlib.contextmanager
def prepared(jobs: list[Job]) -> Iterator[list[Worker]]:
    """Start a client for each job, in order, and yield them when all are ready."""
    with contextlib.ExitStack() as stack:
        workers = []
        for job in jobs:
            errors = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
            workers.append(stack.enter_context(Worker(job, errors)))
        for worker in workers:
            worker.wait_until_ready()
        yield workers


def finish(workers: list[Worker]) -> list[Done]:
    """Let all begin at once, and return what came of them, in order."""
    for worker in workers:
        worker.go()
    return [worker.collect() for worker in workers]
