"""Let small runs share a Spark job: what is asked for while jobs run goes out together when one of them ends.

A job costs some tens of milliseconds whatever its size, so a thousand quiet topics must not make a thousand of them.
A large run gets a job of its own at once, so that small ones never wait for it.

Must stay true: who asked gets its own files, or its own error; a bundle that fails is written again one by one.
"""

import asyncio
from collections.abc import Sequence

from headrace.errors import HeadraceError
from headrace.pipeline.ports import TableWriter
from headrace.pipeline.rewrites import TableTask
from headrace.pipeline.scans import ScannedStream, ScanTask
from headrace.tables.files import WrittenFile

SMALL_BYTES = 32 * 1024 * 1024
"""A run below this size may share a job."""

MAX_BUNDLE_BYTES = 256 * 1024 * 1024
MAX_BUNDLE_RUNS = 100

SMALL_JOBS_AT_ONCE = 2
"""How many jobs of small runs there are at once; what comes meanwhile is bundled."""


class BundlingWriter:
    """A `TableWriter` in front of another one."""

    def __init__(self, writer: TableWriter, *, jobs_at_once: int = SMALL_JOBS_AT_ONCE) -> None:
        self._writer = writer
        self._jobs_at_once = jobs_at_once
        self._waiting: list[tuple[Sequence[TableTask], asyncio.Future[list[WrittenFile]]]] = []
        self._jobs: set[asyncio.Task[None]] = set()

    async def write(self, tasks: Sequence[TableTask]) -> list[WrittenFile]:
        """Write the files of one run."""
        if sum(task.file.size_bytes for task in tasks) >= SMALL_BYTES:
            return await self._writer.write(tasks)
        done: asyncio.Future[list[WrittenFile]] = asyncio.get_running_loop().create_future()
        self._waiting.append((tasks, done))
        self._begin_jobs()
        return await done

    async def scan(self, tasks: Sequence[ScanTask]) -> list[ScannedStream]:
        """Scan keys in a job of their own: a round comes seldom, and reads more than it has to say."""
        return await self._writer.scan(tasks)

    async def close(self) -> None:
        """End the jobs that run."""
        for job in self._jobs:
            job.cancel()
        if self._jobs:
            await asyncio.wait(self._jobs)

    def _begin_jobs(self) -> None:
        while self._waiting and len(self._jobs) < self._jobs_at_once:
            job = asyncio.create_task(self._run(self._next_bundle()))
            self._jobs.add(job)
            job.add_done_callback(self._end_job)

    def _end_job(self, job: "asyncio.Task[None]") -> None:
        self._jobs.discard(job)
        self._begin_jobs()

    def _next_bundle(self) -> "list[tuple[Sequence[TableTask], asyncio.Future[list[WrittenFile]]]]":
        size_bytes = count = 0
        for tasks, _ in self._waiting[:MAX_BUNDLE_RUNS]:
            size_bytes += sum(task.file.size_bytes for task in tasks)
            if count and size_bytes > MAX_BUNDLE_BYTES:
                break
            count += 1
        bundle, self._waiting = self._waiting[:count], self._waiting[count:]
        return bundle

    async def _run(self, bundle: "list[tuple[Sequence[TableTask], asyncio.Future[list[WrittenFile]]]]") -> None:
        bundle = [(tasks, done) for tasks, done in bundle if not done.done()]
        try:
            files = await self._writer.write([task for tasks, _ in bundle for task in tasks])
        except HeadraceError as error:
            if len(bundle) == 1:
                _fail(bundle[0][1], error)
                return
            for one in bundle:
                await self._run([one])
            return
        except BaseException as error:  # it belongs to those who wait
            for _, done in bundle:
                _fail(done, error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        for tasks, done in bundle:
            if not done.done():
                done.set_result(files[: len(tasks)])
            files = files[len(tasks) :]


def _fail(done: "asyncio.Future[list[WrittenFile]]", error: BaseException) -> None:
    if done.done():
        return
    if isinstance(error, asyncio.CancelledError):
        done.cancel()
    else:
        done.set_exception(error)
