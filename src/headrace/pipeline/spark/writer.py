"""Write the files of a run with Spark, or scan its keys: one job per call, one task per file or stream, the largest
first.

Calls of several topics run side by side. Each holds a thread of its own, because Spark ties what belongs to a job
(its group, its pool) to the thread that asked for it; its scheduler then shares the cores between the pools.

Must stay true: when a call was cancelled, its job has ended before the call does. So nobody writes for a saga that
its driver has given up, but for executors that cannot be reached any more.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Sequence

from headrace.errors import HeadraceError, Retryable
from headrace.pipeline.rewrites import TableTask
from headrace.pipeline.scans import ScannedStream, ScanTask
from headrace.pipeline.spark.address import ObjectsAddress
from headrace.pipeline.spark.executing import (
    ANSWERS,
    RAISED,
    Failed,
    Scanned,
    Written,
    message,
    perform,
)
from headrace.pipeline.spark.session import SparkFailed, SparkHandle, first_line, text_of
from headrace.runtime.executor import Executor
from headrace.runtime.rng import Rng
from headrace.tables.files import WrittenFile

GROUP_BITS = 64
MAX_REASON_CHARS = 500


class SparkWriter:
    """A `TableWriter` on a Spark that runs. The executor needs as many threads as there are calls, and one more."""

    def __init__(self, spark: SparkHandle, *, objects: ObjectsAddress, executor: Executor, rng: Rng) -> None:
        self._spark = spark
        self._objects = objects
        self._executor = executor
        self._rng = rng

    async def write(self, tasks: Sequence[TableTask]) -> list[WrittenFile]:
        """Write one file per task and return them in the order of the tasks; see the port."""
        answers = await self._perform(tasks, [task.file.size_bytes for task in tasks])
        return [answer.file for answer in answers if isinstance(answer, Written)]

    async def scan(self, tasks: Sequence[ScanTask]) -> list[ScannedStream]:
        """Scan the keys of one stream per task; see the port."""
        answers = await self._perform(tasks, [task.size_bytes for task in tasks])
        return [answer.stream for answer in answers if isinstance(answer, Scanned)]

    async def _perform(
        self, tasks: Sequence[TableTask] | Sequence[ScanTask], sizes: Sequence[int]
    ) -> list[Written | Scanned]:
        """Do all tasks and return their answers, in their order; raise what one of them has failed with."""
        if not tasks:
            return []
        # Spark starts tasks in order: a large one that comes last would keep one core busy and the others waiting.
        order = sorted(range(len(tasks)), key=lambda number: -sizes[number])
        attempts = self._spark.options.task_attempts
        messages = [message(tasks[number], self._objects, attempts=attempts) for number in order]
        group = f"headrace-{self._rng.getrandbits(GROUP_BITS):016x}"
        packed_answers = await self._run(group, messages, tasks[0].saga_id)
        answers: dict[int, Written | Scanned] = {}
        for number, packed in zip(order, packed_answers, strict=True):
            answer = ANSWERS.decode(packed)
            if isinstance(answer, Failed):
                raise RAISED.get(answer.error, Retryable)(answer.reason)
            answers[number] = answer
        return [answers[number] for number in range(len(tasks))]

    async def _run(self, group: str, messages: list[bytes], saga_id: str) -> list[bytes]:
        job = asyncio.ensure_future(self._executor.run(lambda: self._job(group, messages, saga_id)))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            if not job.done():
                await _to_the_end(self._executor.run(lambda: self._cancel(group)))
                await _to_the_end(job)
            raise

    def _job(self, group: str, messages: list[bytes], saga_id: str) -> list[bytes]:
        context = self._spark.context
        try:
            context.setJobGroup(group, f"files of run {saga_id}", interruptOnCancel=True)
            # Pools are never forgotten by Spark, so they are named after threads, of which there are few.
            context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
            answers: list[bytes] = context.parallelize(messages, len(messages)).map(perform).collect()
        except Exception as error:  # Py4J's own are a hundred lines long; sockets raise theirs where Java is gone.
            raise self._failure(error) from None
        return answers

    def _cancel(self, group: str) -> None:
        try:
            # Also the jobs of this group that are yet to come: the thread may just be about to submit it.
            self._spark.context._jsc.sc().cancelJobGroupAndFutureJobs(group)
        except Exception as error:  # As above.
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> HeadraceError:
        if not self._spark.is_alive():
            return SparkFailed(f"Spark has ended on {self._spark.options.master}: start the pipeline again")
        return Retryable(f"the Spark job failed: {reason_of(error)}")


def reason_of(error: BaseException) -> str:
    """Return the one line of a failed job that tells why.

    Spark puts the Python traceback of a task into the middle of its own: what is not indented there ends it.
    """
    lines = text_of(error).splitlines()
    begins = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    for line in lines[begins[0] + 1 :] if begins else ():
        if line and not line[0].isspace():
            return line[:MAX_REASON_CHARS]
    spark = [line for line in lines if line.startswith(("org.apache.spark", ": org.apache.spark"))]
    return (spark[0].lstrip(": ") if spark else first_line(error))[:MAX_REASON_CHARS]


async def _to_the_end(work: Awaitable[object]) -> None:
    """Wait for work whose outcome nobody wants any more, however often we are cancelled meanwhile."""
    future = asyncio.ensure_future(work)
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    if not future.cancelled():
        future.exception()
