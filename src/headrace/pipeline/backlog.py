"""Read what a run is planned from: the folded entries of a topic's streams that are not in its table yet.

`peek_backlog` reads one entry per stream, enough to choose among many topics; `read_backlog` reads at most about as
many entries and bytes as one run takes, the oldest of all streams first.

What is read may change while it is read: entries are trimmed, a stream is deleted. The planner refuses what does not
fit together, and the swap checks every entry again in its transaction.
"""

import asyncio
from collections.abc import Sequence

from headrace.index.values import INDEX_ENTRY, STREAM_HEAD, IndexEntry, StreamHead
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MAX_RANGE_LIMIT, MetadataStore
from headrace.model.extents import WalExtent
from headrace.model.ids import StreamId
from headrace.model.topics import Topic
from headrace.pipeline.planner import PlanLimits, PlannedStream, PlannedTopic
from headrace.pipeline.records import TableState
from headrace.topics.tables import table_rules_of

STREAMS_AT_ONCE = 32
MIN_ENTRIES_PER_READ = 16
MAX_ENTRIES_PER_READ = 2_000
assert MAX_ENTRIES_PER_READ <= MAX_RANGE_LIMIT


async def read_heads(
    metadata: MetadataStore, keys: DomainKeys, streams: Sequence[StreamId]
) -> dict[StreamId, StreamHead]:
    """Return the heads of those streams that live."""
    heads: dict[StreamId, StreamHead] = {}
    for first in range(0, len(streams), STREAMS_AT_ONCE):
        some = streams[first : first + STREAMS_AT_ONCE]
        found = await asyncio.gather(*(metadata.get(keys.head(stream)) for stream in some))
        for stream, raw in zip(some, found, strict=True):
            head = None if raw is None else STREAM_HEAD.decode(raw.value, raw.key)
            if head is not None and not head.is_deleted:
                heads[stream] = head
    return heads


async def peek_backlog(
    metadata: MetadataStore, keys: DomainKeys, topic: Topic, state: TableState | None
) -> PlannedTopic:
    """Return what says whether a topic is due: of each stream the first entry, and how much waits behind it.

    A run planned from this would be a short one: read the backlog for that.
    """
    reading = await _begun(metadata, keys, topic, state)
    await _read_page(metadata, keys, [one for one in reading if one.has_more], limit=1)
    waiting_bytes = 0
    for one in reading:
        one.has_more = False
        if one.entries:
            waiting_bytes += one.end_bytes - one.entries[0].cumulative_bytes + _size_bytes(one.entries)
    return _planned(topic, state, reading, waiting_bytes)


async def read_backlog(
    metadata: MetadataStore, keys: DomainKeys, topic: Topic, state: TableState | None, limits: PlanLimits
) -> PlannedTopic:
    """Return what waits of a topic. Only folded entries count: fold first, if the newest are wanted, too."""
    reading = await _begun(metadata, keys, topic, state)
    await _read(metadata, keys, [one for one in reading if one.has_more], limits)
    return _planned(topic, state, reading, 0)


class _Reading:
    """One stream, as far as it was read."""

    def __init__(self, partition: int, stream: StreamId, after: int | None, head: StreamHead) -> None:
        self.partition = partition
        self.stream = stream
        self.after = after
        self.log_start = head.log_start
        self.end_bytes = head.cumulative_bytes
        self.next_offset = head.log_start if after is None else max(after, head.log_start)
        self.has_more = self.next_offset < head.high_watermark
        self.entries: list[IndexEntry] = []

    @property
    def reached_ms(self) -> int:
        """How far the reading has come, by append time."""
        return self.entries[-1].append_time_ms if self.entries else 0

    async def read_on(self, metadata: MetadataStore, keys: DomainKeys, limit: int) -> None:
        found = await metadata.range(keys.entries(self.stream, after_offset=self.next_offset, limit=limit))
        self.entries += [INDEX_ENTRY.decode(item.value, item.key) for item in found]
        self.has_more = len(found) == limit
        if self.entries:
            self.next_offset = self.entries[-1].end_offset

    def planned(self) -> PlannedStream:
        return PlannedStream(
            partition=self.partition,
            stream=self.stream,
            after=self.after,
            log_start=self.log_start,
            entries=self.entries,
            has_more=self.has_more,
        )


async def _begun(metadata: MetadataStore, keys: DomainKeys, topic: Topic, state: TableState | None) -> list[_Reading]:
    """Return the streams that live, with nothing read of them yet."""
    ends = {} if state is None else state.ends
    heads = await read_heads(metadata, keys, topic.streams)
    return [
        _Reading(partition, stream, ends.get(partition), heads[stream])
        for partition, stream in enumerate(topic.streams)
        if stream in heads
    ]


async def _read_page(metadata: MetadataStore, keys: DomainKeys, reading: Sequence[_Reading], *, limit: int) -> None:
    for first in range(0, len(reading), STREAMS_AT_ONCE):
        some = reading[first : first + STREAMS_AT_ONCE]
        await asyncio.gather(*(one.read_on(metadata, keys, limit) for one in some))


async def _read(metadata: MetadataStore, keys: DomainKeys, reading: Sequence[_Reading], limits: PlanLimits) -> None:
    """Read one page of each stream, then go on with whoever has come least far, until a run is full."""
    per_read = limits.run_max_entries // max(len(reading), 1)
    limit = max(MIN_ENTRIES_PER_READ, min(per_read, MAX_ENTRIES_PER_READ))
    await _read_page(metadata, keys, reading, limit=limit)
    entry_count = sum(len(one.entries) for one in reading)
    size_bytes = sum(_size_bytes(one.entries) for one in reading)
    while entry_count < limits.run_max_entries and size_bytes < limits.run_max_bytes:
        behind = min((one for one in reading if one.has_more), key=lambda one: one.reached_ms, default=None)
        if behind is None:
            return
        already = len(behind.entries)
        await behind.read_on(metadata, keys, limit)
        entry_count += len(behind.entries) - already
        size_bytes += _size_bytes(behind.entries[already:])


def _planned(topic: Topic, state: TableState | None, reading: Sequence[_Reading], waiting_bytes: int) -> PlannedTopic:
    rules = table_rules_of(topic.overrides)
    return PlannedTopic(
        topic_id=topic.id,
        topic_name=topic.name,
        partitioning=rules.partitioning,
        target_lag_ms=rules.target_lag_ms,
        streams=[one.planned() for one in reading],
        last_run_at_ms=0 if state is None else state.committed_at_ms,
        waiting_bytes=waiting_bytes,
    )


def _size_bytes(entries: Sequence[IndexEntry]) -> int:
    return sum(entry.extent.size_bytes for entry in entries if isinstance(entry.extent, WalExtent))
