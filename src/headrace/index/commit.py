"""Commit frames: many parts, one transaction, each part fails alone.

1. The writer's record says whether the first frame is the next one, a repetition, or refused.
2. The object that holds the frame must still be staged or open.
3. Each part decides for itself against what earlier parts of the same frame have left; what it may refuse,
   it refuses before it changes anything.
4. One commit record `log/<seq>` takes all entries and results; heads, producers, writer, object and domain
   change beside it.

Several frames of one writer may share a transaction: each has its own number, commit record and results, and sees
what the frames before it have left. A frame that cannot be committed ends the group: those before it are committed,
it and those behind it are not.

Must stay true: offsets of a stream are contiguous and strictly increase (I1); a frame that is committed twice is
found by its number and answers with its first results, each frame of a group too (I4); nothing is committed into an
object that may be deleted (I8).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headrace.errors import Corrupt, Fenced, Retryable
from headrace.index import producers
from headrace.index.producers import Refused
from headrace.index.rule import Rule
from headrace.index.values import (
    DOMAIN_STATE,
    LOG_RECORD,
    OBJECT_RECORD,
    PRODUCER_STATE,
    STREAM_HEAD,
    WRITER_STATE,
    CommitEntry,
    DomainState,
    EntryFlags,
    LogRecord,
    ObjectRecord,
    ObjectState,
    PartResult,
    PartStatus,
    ProducerState,
    StreamHead,
    WriterState,
)
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Decision, Key, Reads, Seen
from headrace.model.batches import BatchSummary
from headrace.model.ids import ObjectId, StreamId, WriterId


class ObjectClosed(Retryable):
    """The object takes no more entries (sealed, condemned or gone): nothing was committed, use another object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCommit:
    """A frame whose bytes are durable, offered to the log."""

    writer: WriterId
    frame_number: int
    object_id: ObjectId
    end_byte: int
    created_at_ms: int
    parts: "Sequence[Part]"
    producer_expiration_ms: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Commit record `seq` holds the frame. `record` is `None` when an earlier try had committed it already:
    it is read from the store then, where it stays as long as it is of its writer's last transaction."""

    seq: int
    record: LogRecord | None


class Part(Protocol):
    """One thing a frame wants done. It can append to a stream and change other keys of the domain."""

    def read_keys(self, keys: DomainKeys) -> Sequence[Key]:
        """Return the keys that `decide` will look at."""
        ...

    def decide(self, draft: "CommitDraft") -> PartResult:
        """Change the draft and return the result; or raise `Refused` or `Corrupt` before the first change."""
        ...


class CommitDraft:
    """What a commit is about to write, as its parts see it: the store's state plus what earlier parts changed."""

    __slots__ = (
        "_appended",
        "_changed",
        "_entries",
        "_heads",
        "_last_entry_of",
        "_producer_states",
        "_seen",
        "append_time_ms",
        "keys",
        "producer_expiration_ms",
        "seq",
    )

    def __init__(self, keys: DomainKeys, seen: Seen, commit: FrameCommit, seq: int) -> None:
        self.keys = keys
        self._changed: dict[Key, bytes] = {}
        self._seen = seen
        self._heads: dict[StreamId, StreamHead] = {}
        self._appended: dict[StreamId, None] = {}
        self._producer_states: dict[Key, ProducerState] = {}
        self.begin_frame(commit, seq)

    def begin_frame(self, commit: FrameCommit, seq: int) -> None:
        """Take the parts of this frame from here on, into commit record `seq`; what was changed before stays."""
        self.seq = seq
        self.append_time_ms = commit.created_at_ms
        self.producer_expiration_ms = commit.producer_expiration_ms
        self._entries: list[CommitEntry] = []
        self._last_entry_of: dict[StreamId, int] = {}

    def head(self, stream: StreamId) -> StreamHead:
        """Return a stream's head, or raise `Refused` if the stream is not there or is being deleted."""
        head = self._heads.get(stream)
        if head is None:
            head = STREAM_HEAD.seen(self._seen, self.keys.head(stream))
            if head is None or head.is_deleted:
                raise Refused(PartStatus.UNKNOWN_STREAM)
            self._heads[stream] = head
        return head

    def producer(self, key: Key) -> ProducerState | None:
        """Return a producer's state, or `None` if it is unknown or has expired."""
        state = self._producer_states.get(key)
        if state is None:
            state = PRODUCER_STATE.seen(self._seen, key)
        return producers.living(state, now_ms=self.append_time_ms, expiration_ms=self.producer_expiration_ms)

    def set_producer(self, key: Key, state: ProducerState) -> None:
        self._producer_states[key] = state

    def get(self, key: Key) -> bytes | None:
        """Return any other key's value, as earlier parts have left it."""
        return self._changed[key] if key in self._changed else self._seen.get(key)

    def put(self, key: Key, value: bytes) -> None:
        """Change any other key of the domain in the same transaction: an offset, a transaction, a queue."""
        self._changed[key] = value

    def append(self, stream: StreamId, start_byte: int, batches: Sequence[BatchSummary]) -> int:
        """Append batches that lie back to back from `start_byte` on; return the first offset."""
        head = self.head(stream)
        first = batches[0]
        base_offset = max_offset = head.high_watermark
        next_offset, size_bytes = base_offset + first.record_count, first.size_bytes
        min_ms, max_ms = first.base_timestamp_ms, first.max_timestamp_ms
        if len(batches) > 1:
            for batch in batches[1:]:
                if batch.max_timestamp_ms > max_ms:
                    max_ms, max_offset = batch.max_timestamp_ms, next_offset
                min_ms = min(min_ms, batch.base_timestamp_ms)
                next_offset += batch.record_count
                size_bytes += batch.size_bytes
        running_ms, running_offset = head.max_timestamp_ms, head.max_timestamp_offset
        if max_ms > running_ms:
            running_ms, running_offset = max_ms, max_offset
        cumulative_bytes = head.cumulative_bytes + size_bytes
        self._heads[stream] = StreamHead(
            next_offset,
            head.log_start,
            cumulative_bytes,
            running_ms,
            running_offset,
            head.index_epoch,
            self.seq,
        )
        entry = CommitEntry(
            stream,
            base_offset,
            next_offset - base_offset,
            cumulative_bytes,
            min_ms,
            max_ms,
            max_offset,
            running_ms,
            _flags_of(first),
            start_byte,
            size_bytes,
        )
        position = self._last_entry_of.get(stream)
        if position is not None:
            last = self._entries[position]
            # The stream's last entry grows if the bytes continue it and the flags are the same.
            if last.start_byte + last.size_bytes == start_byte and last.flags == entry.flags:
                self._entries[position] = _joined(last, entry)
                return base_offset
        self._last_entry_of[stream] = len(self._entries)
        self._entries.append(entry)
        self._appended[stream] = None
        return base_offset

    def entries(self) -> tuple[CommitEntry, ...]:
        """Return the entries of the frame that was begun last."""
        return tuple(self._entries)

    def puts(self) -> dict[Key, bytes]:
        """Return everything the parts of all frames changed, encoded."""
        puts = self._changed
        head_key = self.keys.head
        encode = STREAM_HEAD.encode
        for stream in self._appended:
            puts[head_key(stream)] = encode(self._heads[stream])
        for key, state in self._producer_states.items():
            puts[key] = PRODUCER_STATE.encode(state)
        return puts


@dataclass(frozen=True, slots=True)
class AppendPart:
    """Batches of one produce request for one stream, back to back in the object.

    A batch with a producer id stands alone in its part, as Kafka's produce requests demand since version 3. Where the
    writer had to give an earlier batch of this producer up, `begins_by` is that one's sequence.
    """

    stream: StreamId
    start_byte: int
    batches: Sequence[BatchSummary]
    begins_by: int | None = None

    def read_keys(self, keys: DomainKeys) -> Sequence[Key]:
        head_key = keys.head(self.stream)
        producer_id = self.batches[0].producer_id
        return (head_key,) if producer_id < 0 else (head_key, keys.producer(self.stream, producer_id))

    def decide(self, draft: CommitDraft) -> PartResult:
        stream, batch = self.stream, self.batches[0]
        log_start = draft.head(stream).log_start
        if batch.producer_id < 0:
            base_offset = draft.append(stream, self.start_byte, self.batches)
            return PartResult(_ACCEPTED, base_offset, draft.append_time_ms, log_start)
        assert len(self.batches) == 1, f"{len(self.batches)} batches of producer {batch.producer_id} in one part"
        key = draft.keys.producer(stream, batch.producer_id)
        state = draft.producer(key)
        first = producers.find_duplicate(state, batch, begins_by=self.begins_by)
        if first is not None:
            return PartResult(PartStatus.DUPLICATE, first.base_offset, first.append_time_ms, log_start)
        append_time_ms = draft.append_time_ms
        base_offset = draft.append(stream, self.start_byte, self.batches)
        draft.set_producer(
            key, producers.remember(state, batch, base_offset=base_offset, append_time_ms=append_time_ms)
        )
        return PartResult(_ACCEPTED, base_offset, append_time_ms, log_start)


_ACCEPTED = PartStatus.ACCEPTED
"""To look it up in its class costs as much as to make a result, and every part has one."""


def commit_frame(keys: DomainKeys, commit: FrameCommit) -> Rule[Outcome]:
    """Return the rule that commits a frame.

    Raises `Fenced` if the writer is gone or the frame is neither one of its last nor its next one, and
    `ObjectClosed` if the object no longer takes entries; in both cases nothing was committed.
    """

    def decide(seen: Seen) -> Decision[Outcome]:
        decision = _commit_all(keys, [commit], seen)
        return Decision(result=decision.result[0], puts=decision.puts, deletes=decision.deletes)

    return Rule(keys.unit, _reads(keys, [commit]), decide)


def commit_frames(keys: DomainKeys, commits: Sequence[FrameCommit]) -> Rule[list[Outcome]]:
    """Return the rule that commits consecutive frames of one writer in one transaction.

    The result has an outcome for the first one at least, and for as many of the others as were committed with it; the
    rest may be offered again. Raises what `commit_frame` raises, on account of the first frame only.
    """
    first = commits[0]
    assert [(one.writer, one.frame_number - n) for n, one in enumerate(commits)] == (
        [(first.writer, first.frame_number)] * len(commits)
    ), "frames of a group follow each other"

    def decide(seen: Seen) -> Decision[list[Outcome]]:
        return _commit_all(keys, commits, seen)

    return Rule(keys.unit, _reads(keys, commits), decide)


def _reads(keys: DomainKeys, commits: Sequence[FrameCommit]) -> Reads:
    read_keys: dict[Key, None] = dict.fromkeys((keys.state, keys.writer(commits[0].writer)))
    for commit in commits:
        read_keys[keys.object(commit.object_id)] = None
        for part in commit.parts:
            for key in part.read_keys(keys):
                read_keys[key] = None
    return Reads(keys=list(read_keys))


def _commit_all(keys: DomainKeys, commits: Sequence[FrameCommit], seen: Seen) -> Decision[list[Outcome]]:
    first = commits[0]
    writer_key = keys.writer(first.writer)
    writer = WRITER_STATE.seen(seen, writer_key)
    if writer is None:
        raise Fenced(f"writer {first.writer} is not registered any more: start a new incarnation")
    known = [writer.seq_of(commit.frame_number) for commit in commits]
    if known[0] is not None:
        return Decision(result=[Outcome(seq, None) for seq in known if seq is not None])
    if first.frame_number != writer.last_frame + 1:
        raise Fenced(
            f"frame {first.frame_number} of writer {first.writer} comes after frame {writer.last_frame}: "
            "it was given up, or a newer process acts under this name"
        )
    domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
    draft = CommitDraft(keys, seen, first, domain.next_seq)
    targets: dict[Key, ObjectRecord] = {}
    records: list[LogRecord] = []
    for commit in commits:
        object_key = keys.object(commit.object_id)
        try:
            target = open_object(targets.get(object_key) or OBJECT_RECORD.seen(seen, object_key), commit.object_id)
        except (ObjectClosed, Corrupt):
            if not records:
                raise
            break  # It is told so when it comes first. Nothing behind it may pass.
        record = _record(commit, draft, domain.next_seq + len(records))
        records.append(record)
        targets[object_key] = _grown(target, commit, len(record.entries))
    puts = draft.puts()
    for record in records:
        puts[keys.log(record.seq)] = LOG_RECORD.encode(record)
    for object_key, target in targets.items():
        puts[object_key] = OBJECT_RECORD.encode(target)
    last = records[-1]
    puts[keys.state] = DOMAIN_STATE.encode(msgspec.structs.replace(domain, next_seq=last.seq + 1))
    puts[writer_key] = WRITER_STATE.encode(
        WriterState(writer.session, writer.registered_at_ms, last.frame_number, last.seq, len(records))
    )
    outcomes = [Outcome(record.seq, record) for record in records]
    return Decision(result=outcomes, puts=puts, deletes=superseded_records(keys, writer, domain))


def _record(commit: FrameCommit, draft: CommitDraft, seq: int) -> LogRecord:
    """Let the parts of one frame decide; return its commit record."""
    draft.begin_frame(commit, seq)
    results = tuple([_result(part, draft) for part in commit.parts])
    return LogRecord(
        seq, commit.created_at_ms, commit.writer, commit.frame_number, commit.object_id, draft.entries(), results
    )


def superseded_records(keys: DomainKeys, writer: WriterState, domain: DomainState) -> list[Key]:
    """Return the keys of a writer's last commit records that folding left only for their results."""
    return [keys.log(seq) for seq in writer.kept_seqs if seq < domain.folded_to]


def _result(part: Part, draft: CommitDraft) -> PartResult:
    try:
        return part.decide(draft)
    except Refused as refused:
        return PartResult(refused.status)
    except Corrupt:
        # A damaged head or producer stops its own stream, and says so; the others of the frame go on.
        return PartResult(PartStatus.DAMAGED)


def open_object(record: ObjectRecord | None, object_id: ObjectId) -> ObjectRecord:
    """Return the record of an object that still takes entries, or raise `ObjectClosed`."""
    if record is None:
        raise ObjectClosed(f"object {object_id} has no record: it was never staged, or has been collected")
    if record.state not in (ObjectState.STAGED, ObjectState.OPEN):
        raise ObjectClosed(f"object {object_id} is {record.state.name.lower()}: write the frame to another object")
    return record


def _grown(record: ObjectRecord, commit: FrameCommit, entry_count: int) -> ObjectRecord:
    """Return the object's record after the frame: a segment stays open, an object of one frame is complete."""
    state = ObjectState.OPEN if record.is_segment else ObjectState.SEALED
    since_ms = record.state_since_ms if state is record.state else commit.created_at_ms
    assert record.is_segment or record.size_bytes == 0, f"{commit.object_id} holds a frame already"
    return ObjectRecord(
        record.path,
        record.writer,
        record.is_segment,
        state,
        # Frames of a segment are written side by side: the one committed last need not lie last.
        max(record.size_bytes, commit.end_byte),
        record.entry_count + entry_count,
        since_ms,
    )


_TRANSACTIONAL = EntryFlags.TRANSACTIONAL.value
_CONTROL = EntryFlags.CONTROL.value


def _flags_of(batch: BatchSummary) -> int:
    return (_TRANSACTIONAL if batch.is_transactional else 0) | (_CONTROL if batch.is_control else 0)


def _joined(left: CommitEntry, right: CommitEntry) -> CommitEntry:
    """Return one entry for two runs that continue each other in offsets and in bytes."""
    assert left.end_offset == right.start_offset, f"{left} is not continued by {right}"
    newer = right.max_timestamp_ms > left.max_timestamp_ms
    return CommitEntry(
        left.stream,
        left.start_offset,
        left.record_count + right.record_count,
        right.cumulative_bytes,
        min(left.min_timestamp_ms, right.min_timestamp_ms),
        right.max_timestamp_ms if newer else left.max_timestamp_ms,
        right.max_timestamp_offset if newer else left.max_timestamp_offset,
        right.running_max_ms,
        left.flags,
        left.start_byte,
        left.size_bytes + right.size_bytes,
    )
