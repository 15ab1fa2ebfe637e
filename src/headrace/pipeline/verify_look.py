"""One consistent look at everything that is said of a topic: its streams, its index, its table's state, its saga.

The store gives no snapshot over many reads, so the look is taken again until nothing that matters has changed while
it was taken: no swap, no trim, no step of a saga. Appends and folding go on beside it and do no harm: commit records
are read before the per-stream index, so an entry that is folded in between is seen in both and counted once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import Missing, Retryable
from headrace.index.values import (
    DOMAIN_STATE,
    INDEX_ENTRY,
    LOG_RECORD,
    STREAM_HEAD,
    DomainState,
    IndexEntry,
    StreamHead,
)
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import StreamId
from headrace.model.topics import Topic
from headrace.pipeline.compaction_state import COMPACTION_STATE, CompactionState
from headrace.pipeline.records import SAGA_RECORD, TABLE_STATE, SagaRecord, TableState
from headrace.runtime.clock import Clock
from headrace.tables.port import TopicTable
from headrace.tables.scanning import TableLook, TableScanner

MAX_LOOKS = 60
"""How often a look is taken again because a swap, a trim or a saga's step came between."""

LOOK_AGAIN_S = 0.25
ENTRIES_PER_READ = 1000
RECORDS_PER_READ = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLook:
    """One partition: `entries` are all of its index from the log start to the high watermark, by end offset."""

    partition: int
    stream: StreamId
    head: StreamHead
    entries: Sequence[IndexEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLook:
    """What the metadata store and the catalog say of a topic, at one moment."""

    topic: Topic
    streams: Sequence[StreamLook]
    state: TableState | None
    saga: SagaRecord | None
    table: TableLook | None
    compaction: CompactionState | None = None


class TopicLooker:
    """Takes looks."""

    def __init__(self, *, metadata: MetadataStore, keys: DomainKeys, scanner: TableScanner, clock: Clock) -> None:
        self._clock = clock
        self._metadata = metadata
        self._keys = keys
        self._scanner = scanner

    async def look(self, topic: Topic, table: TopicTable) -> TopicLook:
        """Look at a topic. Raises `Retryable` if it never stands still, `Missing` if it is gone, `ForeignTable`."""
        for number in range(MAX_LOOKS):
            if number:
                await self._clock.sleep(LOOK_AGAIN_S)
            before = await self._stamp(topic)
            heads = [await self._head(topic, stream) for stream in topic.streams]
            tail = await self._tail(set(topic.streams))
            entries = [
                await self._entries(stream, head, tail.get(stream, []))
                for stream, head in zip(topic.streams, heads, strict=True)
            ]
            state = await self._state(topic)
            saga = await self._saga(topic)
            compaction = await self._compaction(topic)
            # The table last: a file was appended to it before the index could name it.
            found = await self._scanner.look(table)
            if before == await self._stamp(topic):
                streams = [
                    StreamLook(partition=partition, stream=stream, head=head, entries=own)
                    for partition, (stream, head, own) in enumerate(zip(topic.streams, heads, entries, strict=True))
                ]
                return TopicLook(
                    topic=topic, streams=streams, state=state, saga=saga, table=found, compaction=compaction
                )
        raise Retryable(
            f"the table of {topic.name} went on during each of {MAX_LOOKS} looks: try again when its pipeline rests"
        )

    async def still_names(self, stream: StreamId, entry: IndexEntry) -> bool:
        """Whether the index still has an entry that a look has seen; it may have been swapped or trimmed since."""
        raw = await self._metadata.get(self._keys.entry(stream, entry.end_offset))
        return raw is not None and INDEX_ENTRY.decode(raw.value, raw.key) == entry

    async def _stamp(self, topic: Topic) -> tuple[object, ...]:
        """Return what changes with every swap, trim and step of a saga."""
        epochs = []
        for stream in topic.streams:
            head = await self._head(topic, stream)
            epochs.append((head.index_epoch, head.log_start))
        versions = []
        for key in (self._keys.table(topic.id), self._keys.saga(topic.id)):
            raw = await self._metadata.get(key)
            versions.append(None if raw is None else raw.version)
        return (*epochs, *versions)

    async def _head(self, topic: Topic, stream: StreamId) -> StreamHead:
        raw = await self._metadata.get(self._keys.head(stream))
        head = None if raw is None else STREAM_HEAD.decode(raw.value, raw.key)
        if head is None or head.is_deleted:
            raise Missing(f"topic {topic.name} is being deleted: stream {stream} is gone")
        return head

    async def _state(self, topic: Topic) -> TableState | None:
        raw = await self._metadata.get(self._keys.table(topic.id))
        return None if raw is None else TABLE_STATE.decode(raw.value, raw.key)

    async def _saga(self, topic: Topic) -> SagaRecord | None:
        raw = await self._metadata.get(self._keys.saga(topic.id))
        return None if raw is None else SAGA_RECORD.decode(raw.value, raw.key)

    async def _compaction(self, topic: Topic) -> CompactionState | None:
        raw = await self._metadata.get(self._keys.compaction(topic.id))
        return None if raw is None else COMPACTION_STATE.decode(raw.value, raw.key)

    async def _tail(self, streams: set[StreamId]) -> dict[StreamId, list[IndexEntry]]:
        """Return the entries of these streams in commit records that were not folded when this began."""
        raw = await self._metadata.get(self._keys.state)
        domain = DomainState() if raw is None else DOMAIN_STATE.decode(raw.value, raw.key)
        found: dict[StreamId, list[IndexEntry]] = {}
        seq = domain.folded_to
        while seq < domain.next_seq:
            page = await self._metadata.range(self._keys.log_range(seq, limit=RECORDS_PER_READ))
            if not page:
                break
            for item in page:
                record = LOG_RECORD.decode(item.value, item.key)
                for entry in domain.unfolded(record):
                    if entry.stream in streams:
                        found.setdefault(entry.stream, []).append(record.index_entry(entry))
                seq = record.seq + 1
        return found

    async def _entries(self, stream: StreamId, head: StreamHead, tail: Sequence[IndexEntry]) -> list[IndexEntry]:
        """Return a stream's entries below its high watermark, folded ones and those of the tail, each once."""
        found: list[IndexEntry] = []
        offset = head.log_start
        while True:
            page = await self._metadata.range(self._keys.entries(stream, after_offset=offset, limit=ENTRIES_PER_READ))
            found += [INDEX_ENTRY.decode(item.value, item.key) for item in page]
            if len(page) < ENTRIES_PER_READ:
                break
            offset = found[-1].end_offset
        ends = {entry.end_offset for entry in found}
        found += [entry for entry in tail if entry.end_offset not in ends and entry.end_offset > head.log_start]
        found.sort(key=lambda entry: entry.end_offset)
        return [entry for entry in found if entry.start_offset < head.high_watermark]
