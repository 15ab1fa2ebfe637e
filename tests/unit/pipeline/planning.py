"""Entries and topics for tests of planning, in short words."""

from collections.abc import Sequence

from headrace.index.values import IndexEntry
from headrace.model.extents import Extent, WalExtent
from headrace.model.ids import ObjectId, StreamId
from headrace.model.topics import TopicId
from headrace.pipeline.planner import PlannedStream, PlannedTopic
from headrace.tables.format import DAY_MS, Partitioning

TOPIC_ID = TopicId(bytes(range(16)))
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2
OBJECT = ObjectId("a" * 32 + "-00000001")


def entry(start: int, end: int, *, size: int = 100, at_ms: int = NOON_MS, extent: Extent | None = None) -> IndexEntry:
    """Return an entry whose records lie in the WAL unless an extent says otherwise."""
    where = WalExtent(OBJECT, start * 1000, size) if extent is None else extent
    return IndexEntry(start, end, end - start, end * 100, at_ms, at_ms, at_ms, start, at_ms, 0, where)


def entries(
    count: int, *, start: int = 0, records: int = 10, size: int = 100, at_ms: int = NOON_MS, step_ms: int = 1
) -> list[IndexEntry]:
    """Return contiguous entries, each `step_ms` younger than the one before."""
    return [
        entry(start + n * records, start + (n + 1) * records, size=size, at_ms=at_ms + n * step_ms)
        for n in range(count)
    ]


def stream(
    partition: int,
    found: Sequence[IndexEntry],
    *,
    after: int | None = None,
    log_start: int = 0,
    has_more: bool = False,
) -> PlannedStream:
    """Return partition n as stream 100 + n."""
    return PlannedStream(
        partition=partition,
        stream=StreamId(100 + partition),
        after=after,
        log_start=log_start,
        entries=found,
        has_more=has_more,
    )


def topic(
    *streams: PlannedStream,
    partitioning: Partitioning | None = None,
    target_lag_ms: int = 60_000,
    name: str = "orders",
    last_run_at_ms: int = 0,
) -> PlannedTopic:
    """Return a topic with these streams."""
    return PlannedTopic(
        topic_id=TOPIC_ID,
        topic_name=name,
        partitioning=partitioning or Partitioning(),
        target_lag_ms=target_lag_ms,
        streams=streams,
        last_run_at_ms=last_run_at_ms,
    )
