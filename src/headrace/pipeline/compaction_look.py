"""Read what a round of compaction is planned from: all folded entries of a topic's streams that are in its table.

What is read may change while it is read: entries are trimmed, a stream is deleted. The swap checks every entry again
in its transaction, and whoever plans holds the topic's lease, so nobody else swaps.
"""

from headrace.index.values import INDEX_ENTRY, IndexEntry, StreamHead
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import StreamId
from headrace.model.topics import Topic
from headrace.pipeline.backlog import MAX_ENTRIES_PER_READ, read_heads
from headrace.pipeline.compaction import CompactedStream
from headrace.pipeline.compaction_state import CompactionState, StreamCompaction

MAX_ENTRIES_PER_STREAM = 100_000
"""How many entries of a stream are looked at. Merging keeps them far below; beyond, the rest waits for that."""


async def look_at_streams(
    metadata: MetadataStore, keys: DomainKeys, topic: Topic, ends: dict[int, int], state: CompactionState
) -> list[CompactedStream]:
    """Return the streams that have anything in the table; `ends` is the table's vector."""
    heads = await read_heads(metadata, keys, topic.streams)
    streams = []
    for partition, stream in enumerate(topic.streams):
        head, end = heads.get(stream), ends.get(partition, 0)
        if head is None or end <= head.log_start:
            continue
        entries = await _read_entries(metadata, keys, stream, head, end)
        streams.append(
            CompactedStream(
                partition=partition,
                stream=stream,
                log_start=head.log_start,
                table_end=end,
                entries=entries,
                state=state.streams.get(partition, StreamCompaction()),
            )
        )
    return streams


async def _read_entries(
    metadata: MetadataStore, keys: DomainKeys, stream: StreamId, head: StreamHead, end: int
) -> list[IndexEntry]:
    entries: list[IndexEntry] = []
    offset = head.log_start
    while offset < end and len(entries) < MAX_ENTRIES_PER_STREAM:
        page = await metadata.range(keys.entries(stream, after_offset=offset, limit=MAX_ENTRIES_PER_READ))
        found = [INDEX_ENTRY.decode(item.value, item.key) for item in page]
        entries += [entry for entry in found if entry.start_offset < end]
        if len(found) < MAX_ENTRIES_PER_READ:
            break
        offset = found[-1].end_offset
    return entries
