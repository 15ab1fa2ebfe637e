"""Sinks: many tasks write frames, and one transaction makes a whole batch of them part of the log, once.

1. A *write* is announced before its first byte: `sink-writes/<write>`. While its record is there, objects that bear
   its name may lie in the store without records of their own.
2. Its tasks write one frame per object, every attempt under a name of its own.
3. One transaction takes the frames of the attempts that won: object records (sealed, with their entries counted), a
   commit record per frame, the streams' heads, the sink's last batch. It ends the write.
4. Whoever gives a write up ends it, and so does its age. What it left without a record is garbage from then on.

Must stay true: a batch of a sink is appended at most once, all of it or nothing, and is answered with its first
offsets whenever it is offered again (I4); an object that its write has not committed is never named, and after the
write's end it never will be (I3, I8); offsets are given by the same rules as to any frame (I1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.errors import Exists, Fenced, Invalid, Missing
from headrace.index.commit import AppendPart, CommitDraft, FrameCommit
from headrace.index.objects import wal_object_key
from headrace.index.producers import Refused
from headrace.index.rule import Rule
from headrace.index.trim import ExpiryStep
from headrace.index.values import (
    DOMAIN_STATE,
    LOG_RECORD,
    OBJECT_RECORD,
    SINK_STATE,
    SINK_WRITE,
    DomainState,
    LogRecord,
    ObjectRecord,
    ObjectState,
    SinkRange,
    SinkState,
    SinkWrite,
)
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.port import Decision, Key, Reads, Seen, Versioned
from headrace.model.ids import ObjectId, StreamId, WriterId

MAX_FRAMES = 2_000
MAX_PARTS = 20_000
"""What one transaction takes: frames, and runs of batches in them. The largest hold the domain's lock for 0.2 s on
SQLite, and up to a second where the host is busy."""

MAX_ENDED_WRITES = 1_000
"""Among how many writes those of one owner are looked for."""

_PARTITION_DIGITS = 8
_ATTEMPT_DIGITS = 15
_FRAME_DIGITS = 6
ATTEMPT_BITS = 48
"""How much chance keeps the attempts of one task apart; it fits into their digits."""


def sink_object_id(write: WriterId, *, task: int, attempt: int, frame: int) -> ObjectId:
    """Return the id of an attempt's n-th object: a WAL object like any other, but for the length of its number."""
    number = f"{task:0{_PARTITION_DIGITS}d}{attempt:0{_ATTEMPT_DIGITS}d}{frame:0{_FRAME_DIGITS}d}"
    return ObjectId(f"{write}-{number}")


def write_of(object_id: ObjectId) -> WriterId:
    """Return the writer, or the write, whose name an object bears."""
    return WriterId(object_id.partition("-")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFrame:
    """A frame that a task has made durable, alone in its object, and the runs of batches in it."""

    object_id: ObjectId
    size_bytes: int
    parts: Sequence[AppendPart]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCommit:
    """A batch whose bytes are durable, offered to the log; frames in the order in which they are to be appended."""

    sink_id: str
    batch_id: int
    query: str
    write: WriterId
    frames: Sequence[SinkFrame]


@dataclass(frozen=True, slots=True)
class SinkOutcome:
    """Where a batch lies. `is_repeated` says that it was there already and nothing was appended."""

    ranges: tuple[SinkRange, ...]
    is_repeated: bool


def begin_write(keys: DomainKeys, write: WriterId, *, now_ms: int, max_age_ms: int, owner: str = "") -> Rule[None]:
    """Return the rule that announces a write before the first byte of any of its tasks."""
    key = keys.sink_write(write)
    record = SinkWrite(now_ms, now_ms + max_age_ms, owner)

    def decide(seen: Seen) -> Decision[None]:
        known = SINK_WRITE.seen(seen, key)
        if known is not None and known != record:
            raise Exists(f"write {write} is under way since {known.started_at_ms}: name every write anew")
        return Decision(result=None, puts={key: SINK_WRITE.encode(record)})

    return Rule(keys.unit, Reads(keys=[key]), decide)


def commit_batch(keys: DomainKeys, commit: SinkCommit, *, now_ms: int) -> Rule[SinkOutcome]:
    """Return the rule that appends a batch, or finds that it was appended already.

    Raises `Fenced` if the write has ended, `Missing` if a topic was deleted meanwhile, and `Invalid` for a batch that
    is older than the sink's last one, of another query, or too large for one transaction. Nothing was appended then.
    """
    check_size(commit.frames)
    sink_key, write_key = keys.sink(commit.sink_id), keys.sink_write(commit.write)
    heads = {keys.head(part.stream): None for frame in commit.frames for part in frame.parts}

    def decide(seen: Seen) -> Decision[SinkOutcome]:
        state = SINK_STATE.seen(seen, sink_key)
        if state is not None:
            _check_successor(state, commit)
            if state.batch_id == commit.batch_id:
                return Decision(result=SinkOutcome(state.ranges, True), deletes=[write_key])
        if SINK_WRITE.seen(seen, write_key) is None:
            raise Fenced(
                f"write {commit.write} of sink {commit.sink_id!r} has ended: it was given up, or took longer than "
                "sink.write.max.age.ms; nothing of it was appended, run it again"
            )
        puts, ranges = _appended(keys, seen, commit, now_ms)
        done = SinkState(commit.sink_id, commit.batch_id, commit.query, now_ms, ranges)
        puts[sink_key] = SINK_STATE.encode(done)
        return Decision(result=SinkOutcome(ranges, False), puts=puts, deletes=[write_key])

    return Rule(keys.unit, Reads(keys=[keys.state, sink_key, write_key, *heads]), decide)


def check_size(frames: Sequence[SinkFrame]) -> None:
    """Raise `Invalid` for a batch that is too large for one transaction."""
    part_count = sum(len(frame.parts) for frame in frames)
    if len(frames) > MAX_FRAMES or part_count > MAX_PARTS:
        raise Invalid(
            f"the batch came in {len(frames)} objects with {part_count} runs of records, and one commit takes "
            f"{MAX_FRAMES} and {MAX_PARTS}: write fewer rows at once, or repartition by the topic's partitions first"
        )


def _check_successor(state: SinkState, commit: SinkCommit) -> None:
    if state.query != commit.query:
        raise Invalid(
            f"sink {commit.sink_id!r} belongs to query {state.query or 'none'}, and this is "
            f"{commit.query or 'none'}: a sink id belongs to one checkpoint, give this one a sinkId of its own"
        )
    if commit.batch_id < state.batch_id:
        raise Invalid(
            f"batch {commit.batch_id} of sink {commit.sink_id!r} comes after batch {state.batch_id}: batches are "
            "numbered upwards; after a checkpoint was reset, give the query another sinkId"
        )


def _appended(
    keys: DomainKeys, seen: Seen, commit: SinkCommit, now_ms: int
) -> tuple[dict[Key, bytes], tuple[SinkRange, ...]]:
    """Return the puts that append all frames, one commit record each, and the offsets that each stream gave."""
    domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
    current = dict(seen.values)  # each frame's draft sees the heads as the frames before it have left them
    puts: dict[Key, bytes] = {}
    ranges: dict[StreamId, SinkRange] = {}
    for number, frame in enumerate(commit.frames):
        seq = domain.next_seq + number
        draft = CommitDraft(keys, Seen(current, ()), _frame_commit(commit, number, now_ms), seq)
        for part in frame.parts:
            base_offset = _append(part, draft, commit)
            first = ranges.get(part.stream)
            start_offset = base_offset if first is None else first.start_offset
            ranges[part.stream] = SinkRange(part.stream, start_offset, draft.head(part.stream).high_watermark)
        entries = draft.entries()
        record = LogRecord(seq, now_ms, commit.write, number, frame.object_id, entries)
        changed = draft.puts()
        current.update((key, Versioned(key, value, 0)) for key, value in changed.items())
        puts |= changed
        puts[keys.log(seq)] = LOG_RECORD.encode(record)
        puts[keys.object(frame.object_id)] = OBJECT_RECORD.encode(
            ObjectRecord(
                wal_object_key(keys.domain, frame.object_id),
                commit.write,
                False,
                ObjectState.SEALED,
                frame.size_bytes,
                len(entries),
                now_ms,
            )
        )
    if commit.frames:
        after = msgspec.structs.replace(domain, next_seq=domain.next_seq + len(commit.frames))
        puts[keys.state] = DOMAIN_STATE.encode(after)
    return puts, tuple(ranges[stream] for stream in sorted(ranges))


def _frame_commit(commit: SinkCommit, number: int, now_ms: int) -> FrameCommit:
    frame = commit.frames[number]
    return FrameCommit(
        writer=commit.write,
        frame_number=number,
        object_id=frame.object_id,
        end_byte=frame.size_bytes,
        created_at_ms=now_ms,
        parts=frame.parts,
        producer_expiration_ms=0,  # no sink has a producer's sequences
    )


def _append(part: AppendPart, draft: CommitDraft, commit: SinkCommit) -> int:
    try:
        return part.decide(draft).base_offset
    except Refused:
        raise Missing(
            f"stream {part.stream} is gone: its topic was deleted since batch {commit.batch_id} of sink "
            f"{commit.sink_id!r} was planned; nothing of the batch was appended"
        ) from None


def end_write(keys: DomainKeys, write: WriterId) -> Rule[None]:
    """Return the rule that gives a write up: nothing of it commits any more, and what it wrote may be collected."""

    def decide(seen: Seen) -> Decision[None]:
        return Decision(result=None, deletes=[keys.sink_write(write)])

    return Rule(keys.unit, Reads(), decide)


def end_writes_of(keys: DomainKeys, owner: str) -> Rule[int]:
    """Return the rule that gives up what one stream has under way; its result says how many writes that were."""
    assert owner, "writes without an owner are ended by their names"
    step = prefix_range(keys.sink_writes_prefix, limit=MAX_ENDED_WRITES)

    def decide(seen: Seen) -> Decision[int]:
        (found,) = seen.ranges
        deletes = [item.key for item in found if SINK_WRITE.decode(item.value, item.key).owner == owner]
        return Decision(result=len(deletes), deletes=deletes)

    return Rule(keys.unit, Reads(ranges=[step]), decide)


def forget_sink(keys: DomainKeys, sink_id: str) -> Rule[None]:
    """Return the rule that forgets a sink whose id will not be used again: that of a single job that has ended."""

    def decide(seen: Seen) -> Decision[None]:
        return Decision(result=None, deletes=[keys.sink(sink_id)])

    return Rule(keys.unit, Reads(), decide)


def expire_writes(keys: DomainKeys, *, now_ms: int, max_keys: int, after: Key | None = None) -> Rule[ExpiryStep]:
    """Return the rule that ends writes which have passed their age: their drivers are gone, or far too slow."""
    step = prefix_range(keys.sink_writes_prefix, limit=max_keys, after=after)

    def decide(seen: Seen) -> Decision[ExpiryStep]:
        (found,) = seen.ranges
        deletes = [item.key for item in found if SINK_WRITE.decode(item.value, item.key).expires_at_ms <= now_ms]
        return _step(found, deletes, max_keys)

    return Rule(keys.unit, Reads(ranges=[step]), decide)


def expire_sinks(
    keys: DomainKeys, *, now_ms: int, expiration_ms: int, max_keys: int, after: Key | None = None
) -> Rule[ExpiryStep]:
    """Return the rule that forgets sinks which have not committed for too long."""
    step = prefix_range(keys.sinks_prefix, limit=max_keys, after=after)

    def decide(seen: Seen) -> Decision[ExpiryStep]:
        (found,) = seen.ranges
        deletes = [
            item.key
            for item in found
            if now_ms - SINK_STATE.decode(item.value, item.key).committed_at_ms >= expiration_ms
        ]
        return _step(found, deletes, max_keys)

    return Rule(keys.unit, Reads(ranges=[step]), decide)


def _step(found: Sequence[Versioned], deletes: Sequence[Key], max_keys: int) -> Decision[ExpiryStep]:
    next_after = found[-1].key if len(found) == max_keys else None
    return Decision(result=ExpiryStep(len(deletes), next_after), deletes=deletes)
