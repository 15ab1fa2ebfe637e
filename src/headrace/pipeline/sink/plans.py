"""What travels between the driver of a write and its tasks, packed: the plan there, the frames back."""

import msgspec

from headrace.index.commit import AppendPart
from headrace.index.sinks import SinkFrame
from headrace.model.batches import BatchSummary
from headrace.model.ids import DomainId, ObjectId, StreamId, WriterId
from headrace.model.topics import TopicRules
from headrace.pipeline.spark.address import ObjectsAddress


class SinkTopic(msgspec.Struct, frozen=True):
    """A topic as it was when the write was planned; partition n is the nth stream."""

    name: str
    streams: tuple[StreamId, ...]
    rules: TopicRules


class SinkPlan(msgspec.Struct, frozen=True):
    """What a task needs to know. Without `topic` every row names one of the topics; `codec` is a number, if any."""

    write: WriterId
    domain: DomainId
    topic: str | None
    topics: tuple[SinkTopic, ...]
    codec: int | None
    max_open_bytes: int
    objects: ObjectsAddress
    version: str
    decoder: str


class WrittenBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record batch of a frame, as far as the index wants to know it."""

    size_bytes: int
    record_count: int
    base_timestamp_ms: int
    max_timestamp_ms: int


class WrittenRun(msgspec.Struct, frozen=True, array_like=True):
    """The batches of one stream in a frame, back to back."""

    stream: StreamId
    start_byte: int
    batches: tuple[WrittenBatch, ...]


class WrittenFrame(msgspec.Struct, frozen=True, array_like=True):
    """A frame that is durable, alone in its object."""

    object_id: ObjectId
    size_bytes: int
    runs: tuple[WrittenRun, ...]

    def offered(self) -> SinkFrame:
        """Return it as the rule takes it."""
        return SinkFrame(
            object_id=self.object_id,
            size_bytes=self.size_bytes,
            parts=[
                AppendPart(
                    run.stream,
                    run.start_byte,
                    [
                        BatchSummary(
                            size_bytes=batch.size_bytes,
                            record_count=batch.record_count,
                            base_timestamp_ms=batch.base_timestamp_ms,
                            max_timestamp_ms=batch.max_timestamp_ms,
                        )
                        for batch in run.batches
                    ],
                )
                for run in self.runs
            ],
        )


class TaskAnswer(msgspec.Struct, frozen=True):
    """What one attempt of a task has written, for which write, and which query it belongs to, if any."""

    write: WriterId
    task: int
    query: str
    frames: tuple[WrittenFrame, ...]


PLANS = msgspec.msgpack.Decoder(SinkPlan)
ANSWERS = msgspec.msgpack.Decoder(TaskAnswer)
