"""`df.write` and `df.writeStream` `.format("headrace")`: Spark's writers around `pipeline/sink/`.

Spark makes a writer in a process beside the driver, sends it to every task, and hands what the tasks answer to
`commit` or `abort` in a third process. For a single write that is the same writer, unpacked; for a batch of a stream
it is a fresh one that has never seen the tasks. So whatever the end needs comes in the tasks' answers, and the write
of a stream is announced when its writer is packed for the tasks, not when it is made.

A stream is known by its query's id, which lies in its checkpoint and which every task is told.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.errors import Invalid
from headrace.index.sinks import ATTEMPT_BITS
from headrace.pipeline.sink.columns import check_columns
from headrace.pipeline.sink.driver import require_same_release
from headrace.pipeline.sink.framing import FrameWriter
from headrace.pipeline.sink.options import SinkOptions, parse_options
from headrace.pipeline.sink.plans import ANSWERS, PLANS, SinkPlan, TaskAnswer
from headrace.pipeline.sink.storing import TaskFrames
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import CrashPoints
from headrace.runtime.rng import system_rng

QUERY_ID = "sql.streaming.queryId"
ONLY_BATCH = 0
"""What the one batch of a write without a batch id is called."""

T = TypeVar("T")


class SinkDesk(Protocol):
    """What the driver's process can do with the stores that the options name, each call from opening to closing."""

    crash_points: CrashPoints

    def begin(self, options: SinkOptions) -> SinkPlan: ...

    def commit(self, options: SinkOptions, answers: Sequence[TaskAnswer], batch_id: int) -> None: ...

    def give_up(self, options: SinkOptions, answers: Sequence[TaskAnswer]) -> None: ...


DeskFactory = Callable[[], SinkDesk]


class SinkMessage(WriterCommitMessage):
    """A task's answer on its way through Java."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, desk: DeskFactory
) -> "BatchSinkWriter":
    """Return the writer of one job, its write announced. Raises `Invalid` and `Missing` before anything runs."""
    told, names = _understood(options, schema, overwrite, is_stream=False)
    return BatchSinkWriter(told, names, desk, msgspec.msgpack.encode(desk().begin(told)))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, desk: DeskFactory
) -> "StreamSinkWriter":
    """Return the writer of one batch of a stream. Raises `Invalid`."""
    told, names = _understood(options, schema, overwrite, is_stream=True)
    return StreamSinkWriter(told, names, desk)


def _understood(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, is_stream: bool
) -> tuple[SinkOptions, dict[str, str]]:
    if overwrite:
        raise Invalid(
            'a topic is only ever appended to: say mode("append"), or outputMode("append") of a stream; what changes '
            "goes through foreachBatch"
        )
    told = parse_options(options, is_stream=is_stream)
    columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return told, check_columns(columns, topic=told.topic, includes_headers=told.includes_headers)


class BatchSinkWriter(DataSourceArrowWriter):
    """One `save()`."""

    def __init__(self, options: SinkOptions, names: Mapping[str, str], desk: DeskFactory, plan: bytes) -> None:
        self._options = options
        self._names = names
        self._desk = desk
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write a task's rows, in an executor.

        A job inside of `foreachBatch` has a query, too, which may make many such jobs: it says nothing of this one.
        """
        return _write(self._plan, self._names, self._desk().crash_points, iterator, query="")

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append everything, in one transaction."""
        batch_id = ONLY_BATCH if self._options.batch_id is None else self._options.batch_id
        self._desk().commit(self._options, _all_answers(messages), batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give the write up."""
        plan = PLANS.decode(self._plan)
        told = TaskAnswer(write=plan.write, task=0, query="", frames=())
        self._desk().give_up(self._options, [told])


class StreamSinkWriter(DataSourceStreamArrowWriter):
    """One batch of a stream, on either side of its tasks."""

    def __init__(self, options: SinkOptions, names: Mapping[str, str], desk: DeskFactory) -> None:
        self._options = options
        self._names = names
        self._desk = desk
        self._plan: bytes | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Announce the write: whoever packs this writer sends it to tasks. The one that commits is never packed."""
        if self._plan is None:
            self._plan = msgspec.msgpack.encode(self._desk().begin(self._options))
        return dict(self.__dict__)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write a task's rows, in an executor."""
        assert self._plan is not None, "a task's writer was packed"
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        if not query:
            raise Invalid(f"Spark does not tell this task its query ({QUERY_ID}), by which a batch is recognised")
        return _write(self._plan, self._names, self._desk().crash_points, iterator, query=query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append everything, in one transaction; a batch without tasks has nothing."""
        answers = _all_answers(messages)
        if answers:
            self._desk().commit(self._options, answers, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give the write up: the one that its tasks tell of, or whatever its checkpoint has under way."""
        answers = _answers(messages)
        if answers or self._options.checkpoint is not None:
            self._desk().give_up(self._options, answers)


def _write(
    packed: bytes, names: Mapping[str, str], crash_points: CrashPoints, batches: Iterator[Any], *, query: str
) -> WriterCommitMessage:
    plan = PLANS.decode(packed)
    require_same_release(plan)
    context = TaskContext.get()
    assert context is not None, "tasks run in executors"
    task = context.partitionId()
    with TaskFrames(plan.objects, plan.domain, crash_points=crash_points) as store:
        writer = FrameWriter(
            plan,
            names,
            task=task,
            attempt=system_rng().getrandbits(ATTEMPT_BITS),
            store=store,
            clock=SystemClock(),
        )
        frames = writer.write(batches)
    return SinkMessage(msgspec.msgpack.encode(TaskAnswer(write=plan.write, task=task, query=query, frames=frames)))


def _answers(messages: Sequence[WriterCommitMessage | None]) -> list[TaskAnswer]:
    return [ANSWERS.decode(message.packed) for message in messages if isinstance(message, SinkMessage)]


def _all_answers(messages: Sequence[WriterCommitMessage | None]) -> list[TaskAnswer]:
    answers = _answers(messages)
    if len(answers) < len(messages):
        raise Invalid(f"{len(messages) - len(answers)} of {len(messages)} tasks gave no answer: nothing is committed")
    return answers
