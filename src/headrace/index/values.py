"""What the log keeps in the metadata store: every value, in the order its fields lie on disk.

Structs are arrays at rest: a field is never moved or removed, a new one goes last and has a default. Those that come
in hundreds per commit are left out of garbage collection (`gc=False`): what they hold can form no circle.
`docs/data-at-rest.md` shows which key holds which.
"""

import enum
from typing import NamedTuple

import msgspec

from headrace.metadata.values import ValueCodec
from headrace.model.extents import Extent, WalExtent
from headrace.model.ids import ObjectId, SessionId, StreamId, WriterId


class StreamKind(enum.IntEnum):
    PARTITION = 0
    DELAY = 1
    LANE = 2
    INTERNAL = 3


class EntryFlags(enum.IntFlag):
    """What at least one batch of an entry is; entries of one commit keep different kinds apart."""

    NONE = 0
    TRANSACTIONAL = 1
    CONTROL = 2


class ObjectState(enum.IntEnum):
    """staged → open (segments and packed objects) → sealed → condemned; never back."""

    STAGED = 0
    OPEN = 1
    SEALED = 2
    CONDEMNED = 3


class PartStatus(enum.IntEnum):
    """What became of one part of a commit."""

    ACCEPTED = 0
    DUPLICATE = 1
    UNKNOWN_STREAM = 2
    OUT_OF_ORDER_SEQUENCE = 3
    FENCED_PRODUCER = 4
    INVALID_SEQUENCE = 5
    DAMAGED = 6


class FoldPlace(NamedTuple):
    """How far folding has come: the fields of `DomainState` that say so."""

    folded_to: int
    folded_entries: int = 0
    run_end: int = 0
    run_stream: StreamId = StreamId(0)


class DomainState(msgspec.Struct, frozen=True, array_like=True):
    """Numbers that are given out once. Commit records below `folded_to` are in the per-stream index.

    So are the first `folded_entries` entries of record `folded_to`: a large record is folded in several steps. While
    a run of records is folded stream by stream, so are the entries of streams below `run_stream` in its records; they
    end before `run_end`. No record behind `starts_moved_at` has moved a log start; −1 says that this is not known.
    """

    next_seq: int = 0
    folded_to: int = 0
    next_stream_id: int = 0
    folded_entries: int = 0
    starts_moved_at: int = -1
    run_end: int = 0
    run_stream: StreamId = StreamId(0)

    @property
    def fold_place(self) -> FoldPlace:
        return FoldPlace(self.folded_to, self.folded_entries, self.run_end, self.run_stream)

    def may_be_overtaken(self, seq: int) -> bool:
        """Say whether a log start may have moved past entries of this commit record, or of later ones."""
        return self.starts_moved_at < 0 or self.starts_moved_at > seq

    def unfolded(self, record: "LogRecord") -> "tuple[CommitEntry, ...]":
        """Return those entries of a record that are not in the per-stream index."""
        if record.seq < self.folded_to:
            return ()
        if record.seq < self.run_end:
            return tuple([entry for entry in record.entries if entry.stream >= self.run_stream])
        return record.entries[self.folded_entries :] if record.seq == self.folded_to else record.entries


class StreamInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a stream is for; written once."""

    kind: StreamKind
    owner: str
    created_at_ms: int


class StreamHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a stream. `seq` is the commit record that changed it last."""

    high_watermark: int
    log_start: int
    cumulative_bytes: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    index_epoch: int
    seq: int
    is_deleted: bool = False


class IndexEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One contiguous run of accepted batches; its key holds the stream and, once more, `end_offset`.

    It covers every offset of its range, also those whose record compaction has taken away.
    `max_timestamp_offset` is the base offset of the batch that holds the greatest timestamp of this entry;
    `running_max_ms` is the greatest timestamp since the stream's birth, so that look-up by time is binary.
    """

    start_offset: int
    end_offset: int
    record_count: int
    cumulative_bytes: int
    append_time_ms: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    running_max_ms: int
    flags: int
    extent: Extent


class CommitEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An index entry as a commit record holds it: object and append time stand once, in the record."""

    stream: StreamId
    start_offset: int
    record_count: int
    cumulative_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    running_max_ms: int
    flags: int
    start_byte: int
    size_bytes: int

    @property
    def end_offset(self) -> int:
        return self.start_offset + self.record_count


class PartResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the caller of one part hears. For a duplicate, `base_offset` is that of the first time."""

    status: PartStatus
    base_offset: int = -1
    append_time_ms: int = -1
    log_start: int = -1


class HeadChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stream's new head, written by anything other than an append, so that caches can follow the log alone."""

    stream: StreamId
    head: StreamHead


class LogRecord(msgspec.Struct, frozen=True, array_like=True):
    """Commit record `seq`: everything one transaction did to the streams of a domain."""

    seq: int
    append_time_ms: int
    writer: WriterId = WriterId("")
    frame_number: int = -1
    object_id: ObjectId = ObjectId("")
    entries: tuple[CommitEntry, ...] = ()
    results: tuple[PartResult, ...] = ()
    changes: tuple[HeadChange, ...] = ()

    def index_entry(self, entry: CommitEntry) -> IndexEntry:
        """Return one of this record's entries as it stands in the per-stream index."""
        return IndexEntry(
            entry.start_offset,
            entry.end_offset,
            entry.record_count,
            entry.cumulative_bytes,
            self.append_time_ms,
            entry.min_timestamp_ms,
            entry.max_timestamp_ms,
            entry.max_timestamp_offset,
            entry.running_max_ms,
            entry.flags,
            WalExtent(self.object_id, entry.start_byte, entry.size_bytes),
        )


class ObjectRecord(msgspec.Struct, frozen=True, array_like=True):
    """A WAL object: where it lies, how many entries name it, and its one state."""

    path: str
    writer: WriterId
    is_segment: bool
    state: ObjectState
    size_bytes: int
    entry_count: int
    state_since_ms: int


class WriterState(msgspec.Struct, frozen=True, array_like=True):
    """One process incarnation. `last_seq` is where the last frame's results are; −1 if it was abandoned.

    The last `group_frames` frames were committed in one transaction; their commit records follow one another.
    """

    session: SessionId
    registered_at_ms: int
    last_frame: int = -1
    last_seq: int = -1
    group_frames: int = 1

    def seq_of(self, frame_number: int) -> int | None:
        """Return which commit record holds a frame's results; `None` if it is not one of the last group."""
        before_last = self.last_frame - frame_number
        return self.last_seq - before_last if self.last_seq >= 0 and 0 <= before_last < self.group_frames else None

    @property
    def kept_seqs(self) -> range:
        """The commit records whose results may be asked for again."""
        return range(self.last_seq - self.group_frames + 1, self.last_seq + 1) if self.last_seq >= 0 else range(0)


class ProducedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch that a producer may send again."""

    base_sequence: int
    record_count: int
    base_offset: int
    append_time_ms: int


class ProducerState(msgspec.Struct, frozen=True, array_like=True):
    """What a stream remembers of a producer: its epoch and its last five batches, oldest first."""

    epoch: int
    batches: tuple[ProducedBatch, ...]
    last_append_ms: int
    transaction_start_offset: int | None = None


class SinkWrite(msgspec.Struct, frozen=True, array_like=True):
    """A write of a sink that is under way: objects that bear its name may lie in the store without a record.

    `owner` is what the driver's processes of one stream have in common, its checkpoint; empty where there is none.
    """

    started_at_ms: int
    expires_at_ms: int
    owner: str = ""


class SinkRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The offsets that a batch was given in one stream: one run, because a batch is one commit."""

    stream: StreamId
    start_offset: int
    end_offset: int


class SinkState(msgspec.Struct, frozen=True, array_like=True):
    """The last batch that a sink has committed and where it lies; `query` is the query that it came from, if any."""

    sink_id: str
    batch_id: int
    query: str
    committed_at_ms: int
    ranges: tuple[SinkRange, ...]


class PinRecord(msgspec.Struct, frozen=True, array_like=True):
    """A read under way: what the index names after this was put stays until the pin ends. Written once.

    `task_count` is how many tasks will say that they are done, 0 where that is not known; `owner` is for people.
    """

    created_at_ms: int
    expires_at_ms: int
    task_count: int
    owner: str


class ClockStamp(msgspec.Struct, frozen=True, array_like=True):
    """What a broker's wall clock said when it last looked; its key holds the node and vanishes with its session."""

    wall_ms: int


DOMAIN_STATE = ValueCodec(DomainState)
STREAM_INFO = ValueCodec(StreamInfo)
STREAM_HEAD = ValueCodec(StreamHead)
INDEX_ENTRY = ValueCodec(IndexEntry)
LOG_RECORD = ValueCodec(LogRecord)
OBJECT_RECORD = ValueCodec(ObjectRecord)
WRITER_STATE = ValueCodec(WriterState)
PRODUCER_STATE = ValueCodec(ProducerState)
SINK_WRITE = ValueCodec(SinkWrite)
SINK_STATE = ValueCodec(SinkState)
PIN_RECORD = ValueCodec(PinRecord)
CLOCK_STAMP = ValueCodec(ClockStamp)
