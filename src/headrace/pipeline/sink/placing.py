"""Choose a stream for every row: the partition that it names, or that of its key, or any.

A key lands where Kafka's Java clients would put it, so records of one key stay in one partition whoever writes them.
Rows without a key and a partition go to one partition after another, a chunk to each.

Must stay true: rows of one stream stay in the order in which they came.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import Invalid
from headrace.model.ids import StreamId
from headrace.model.topics import TopicRules
from headrace.pipeline.sink.columns import Rows
from headrace.pipeline.sink.plans import SinkPlan, SinkTopic
from headrace.records.kernel import KERNEL, Fault, explain

MAX_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRows:
    """The rows of one stream, in order: contents (`columns.py`) and the rules that hold for them."""

    stream: StreamId
    rules: TopicRules
    content: Any


class Placer:
    """Places chunks of rows; `first_partition` is where rows that may go anywhere begin."""

    def __init__(self, plan: SinkPlan, *, first_partition: int) -> None:
        self._topics: Mapping[str, SinkTopic] = {topic.name: topic for topic in plan.topics}
        self._topic = None if plan.topic is None else self._topics[plan.topic]
        self._next_partition = first_partition

    def place(self, rows: Rows) -> Iterator[PlacedRows]:
        """Go through the streams of a chunk. Raises `Invalid` for a row that names what is not there."""
        anywhere, self._next_partition = self._next_partition, self._next_partition + 1
        if self._topic is not None:
            yield from _split(self._topic, rows.content, rows.partitions, anywhere)
            return
        assert rows.topics is not None, "without an option topic there is a column"
        if rows.topics.null_count:
            raise Invalid(f"{rows.topics.null_count} rows have no topic: name one in each, or set the option topic")
        for name in pc.unique(rows.topics).to_pylist():
            mask = pc.equal(rows.topics, name)
            partitions = None if rows.partitions is None else rows.partitions.filter(mask)
            yield from _split(self._named(name), rows.content.filter(mask), partitions, anywhere)

    def _named(self, name: str) -> SinkTopic:
        topic = self._topics.get(name)
        if topic is None:
            raise Invalid(
                f"a row names topic {name[:MAX_SHOWN_CHARS]!r}, which did not exist when the write was planned: "
                "create it first"
            )
        return topic


def _split(topic: SinkTopic, content: Any, given: Any | None, anywhere: int) -> Iterator[PlacedRows]:
    partitions = _partitions(topic, content, given, anywhere)
    if not len(partitions):
        return
    bounds = pc.min_max(partitions).as_py()
    if bounds["min"] == bounds["max"]:
        yield PlacedRows(stream=topic.streams[bounds["min"]], rules=topic.rules, content=content)
        return
    order = pc.sort_indices(partitions)  # a stable sort, Arrow promises
    sorted_content = content.take(order)
    runs = pc.run_end_encode(partitions.take(order))
    start = 0
    for partition, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        placed = sorted_content.slice(start, end - start)
        yield PlacedRows(stream=topic.streams[partition], rules=topic.rules, content=placed)
        start = end


def _partitions(topic: SinkTopic, content: Any, given: Any | None, anywhere: int) -> Any:
    """Return a partition for every row."""
    count = len(topic.streams)
    if given is not None and len(given) > given.null_count:
        bounds = pc.min_max(given).as_py()
        if bounds["min"] < 0 or bounds["max"] >= count:
            wrong = bounds["min"] if bounds["min"] < 0 else bounds["max"]
            raise Invalid(f"a row names partition {wrong} of {topic.name}, which has {count} partitions")
        if not given.null_count:
            return given
    by_key = partitions_of_keys(content.column("key"), count, anywhere=anywhere % count)
    return by_key if given is None else pc.coalesce(given, by_key)


def partitions_of_keys(keys: Any, partition_count: int, *, anywhere: int) -> Any:
    """Return where Kafka's Java clients put these keys; `anywhere` is for rows that have none."""
    if keys.null_count == len(keys) or partition_count == 1:
        return pa.repeat(pa.scalar(anywhere, pa.int32()), len(keys))
    placed = bytearray(4 * len(keys))
    validity, offsets, data = keys.buffers()
    code, row = KERNEL.place_keys(
        memoryview(offsets)[4 * keys.offset :].cast("B"),
        memoryview(b"" if data is None else data).cast("B"),
        memoryview(pc.is_valid(keys).buffers()[1] if validity is not None and keys.null_count else b"").cast("B"),
        partition_count,
        placed,
    )
    if code != Fault.OK:
        raise explain(code, row, "the column key")
    partitions = pa.Array.from_buffers(pa.int32(), len(keys), [None, pa.py_buffer(placed)])
    return (
        pc.if_else(pc.less(partitions, 0), anywhere, partitions).cast(pa.int32()) if keys.null_count else partitions
    )
