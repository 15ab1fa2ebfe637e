"""Spark's writers without a JVM: when a write is announced, and what reaches the driver's side in the end."""

import pickle
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from headrace.errors import Invalid
from headrace.model.ids import WriterId
from headrace.pipeline.sink.options import SinkOptions
from headrace.pipeline.sink.plans import SinkPlan, TaskAnswer
from headrace.pipeline.spark.sink import SinkMessage, batch_writer, stream_writer
from headrace.runtime.crash_points import CrashPoints, NoCrashes
from tests.unit.pipeline.sink.sink_kit import WRITE, plan_of

SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", StringType())])
OPTIONS = {"topic": "orders", "datadir": "/data"}


class NotingDesk:
    """A `SinkDesk` that notes what it is asked for, in all of its instances together."""

    calls: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self) -> None:
        self.crash_points: CrashPoints = NoCrashes()

    def begin(self, options: SinkOptions) -> SinkPlan:
        self.calls.append(("begin", options.topic))
        return plan_of()

    def commit(self, options: SinkOptions, answers: Sequence[TaskAnswer], batch_id: int) -> None:
        self.calls.append(("commit", [answer.task for answer in answers], batch_id))

    def give_up(self, options: SinkOptions, answers: Sequence[TaskAnswer]) -> None:
        self.calls.append(("give up", {answer.write for answer in answers}, options.checkpoint))


@pytest.fixture(autouse=True)
def calls() -> list[tuple[Any, ...]]:
    NotingDesk.calls.clear()
    return NotingDesk.calls


def answer(task: int, write: str = WRITE) -> WriterCommitMessage:
    told = TaskAnswer(write=WriterId(write), task=task, query="q", frames=())
    return SinkMessage(msgspec.msgpack.encode(told))


def test_a_single_write_is_announced_at_once_and_committed_by_the_very_same_writer(calls: list[Any]) -> None:
    writer = batch_writer(OPTIONS, SCHEMA, False, desk=NotingDesk)
    assert calls == [("begin", "orders")]
    sent = pickle.loads(pickle.dumps(writer))
    sent.commit([answer(0), answer(1)])
    assert calls[1:] == [("commit", [0, 1], 0)]


def test_a_single_write_takes_its_batch_id_from_the_options(calls: list[Any]) -> None:
    writer = batch_writer({**OPTIONS, "sinkId": "s", "batchId": "9"}, SCHEMA, False, desk=NotingDesk)
    writer.commit([answer(0)])
    assert calls[-1] == ("commit", [0], 9)


def test_a_single_write_is_given_up_by_name_even_if_no_task_answered(calls: list[Any]) -> None:
    batch_writer(OPTIONS, SCHEMA, False, desk=NotingDesk).abort([None, None])
    assert calls[-1] == ("give up", {WRITE}, None)


def test_a_batch_of_a_stream_is_announced_when_its_writer_goes_to_the_tasks_and_once(calls: list[Any]) -> None:
    planned = stream_writer(OPTIONS, SCHEMA, False, desk=NotingDesk)
    assert calls == []
    sent = [pickle.loads(pickle.dumps(planned)) for _ in range(2)]
    assert calls == [("begin", "orders")]
    assert pickle.loads(pickle.dumps(sent[0]))._plan == sent[1]._plan
    assert len(calls) == 1


def test_a_writer_that_only_commits_announces_nothing(calls: list[Any]) -> None:
    stream_writer(OPTIONS, SCHEMA, False, desk=NotingDesk).commit([answer(1), answer(0)], 5)
    assert calls == [("commit", [1, 0], 5)]


def test_a_batch_without_tasks_has_nothing_to_commit(calls: list[Any]) -> None:
    writer = stream_writer(OPTIONS, SCHEMA, False, desk=NotingDesk)
    writer.commit([], 5)
    assert calls == []


def test_a_batch_that_fails_is_given_up_by_what_its_tasks_tell_or_by_its_checkpoint(calls: list[Any]) -> None:
    stream_writer(OPTIONS, SCHEMA, False, desk=NotingDesk).abort([None], 5)
    assert calls == [], "nothing tells which write it is"
    writer = stream_writer({**OPTIONS, "checkpointLocation": "/c"}, SCHEMA, False, desk=NotingDesk)
    writer.abort([None], 6)
    writer.abort([None, answer(3)], 7)
    assert calls == [("give up", set(), "/c"), ("give up", {WRITE}, "/c")]


def test_nothing_is_committed_while_an_answer_is_missing(calls: list[Any]) -> None:
    writer = stream_writer(OPTIONS, SCHEMA, False, desk=NotingDesk)
    with pytest.raises(Invalid, match="1 of 2 tasks gave no answer"):
        writer.commit([answer(0), None], 5)
    assert calls == []


def test_what_cannot_be_written_is_refused_before_a_write_is_announced(calls: list[Any]) -> None:
    for make in (batch_writer, stream_writer):
        with pytest.raises(Invalid, match="only ever appended to"):
            make(OPTIONS, SCHEMA, True, desk=NotingDesk)
        with pytest.raises(Invalid, match="column 'value' has type bigint"):
            make(OPTIONS, StructType([StructField("value", LongType())]), False, desk=NotingDesk)
        with pytest.raises(Invalid, match="there is no option topik"):
            make({"topik": "x"}, SCHEMA, False, desk=NotingDesk)
    assert calls == []
