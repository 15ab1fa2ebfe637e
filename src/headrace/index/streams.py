"""Streams: created once, trimmed from the front, deleted in steps.

Everything but an append that changes a head writes a commit record too, so that a cache which follows the
records knows every head without asking.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.errors import Invalid, Missing
from headrace.index.rule import Rule
from headrace.index.values import (
    DOMAIN_STATE,
    LOG_RECORD,
    STREAM_HEAD,
    STREAM_INFO,
    DomainState,
    HeadChange,
    LogRecord,
    StreamHead,
    StreamInfo,
    StreamKind,
)
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Decision, Key, Reads, Seen
from headrace.model.batches import NO_TIMESTAMP_MS
from headrace.model.ids import StreamId


def changed_heads(
    keys: DomainKeys,
    domain: DomainState,
    heads: Mapping[StreamId, StreamHead],
    *,
    now_ms: int,
    moves_starts: bool = True,
) -> dict[Key, bytes]:
    """Return the puts that change heads by anything other than an append: heads, commit record, domain state.

    With `moves_starts` off, the log start of every stream stays where it is.
    """
    seq = domain.next_seq
    # Where nothing is known of earlier records, nothing but that they are earlier has to be known.
    starts_moved_at = seq if moves_starts or domain.starts_moved_at < 0 else domain.starts_moved_at
    after = msgspec.structs.replace(domain, next_seq=seq + 1, starts_moved_at=starts_moved_at)
    changes = tuple(HeadChange(stream, msgspec.structs.replace(head, seq=seq)) for stream, head in heads.items())
    puts = {keys.head(change.stream): STREAM_HEAD.encode(change.head) for change in changes}
    puts[keys.log(seq)] = LOG_RECORD.encode(LogRecord(seq, now_ms, changes=changes))
    puts[keys.state] = DOMAIN_STATE.encode(after)
    return puts


def create_streams(keys: DomainKeys, owners: Iterable[str], *, kind: StreamKind, now_ms: int) -> Rule[list[StreamId]]:
    """Return the rule that creates one stream per owner; ids are allocated once and never reused."""
    names = list(owners)

    def decide(seen: Seen) -> Decision[list[StreamId]]:
        domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
        puts = created_streams(keys, domain, names, kind=kind, now_ms=now_ms)
        return Decision(result=next_streams(domain, len(names)), puts=puts)

    return Rule(keys.unit, Reads(keys=[keys.state]), decide)


def next_streams(domain: DomainState, count: int) -> list[StreamId]:
    """Return the ids that the next new streams will have."""
    return [StreamId(domain.next_stream_id + n) for n in range(count)]


def created_streams(
    keys: DomainKeys, domain: DomainState, owners: Sequence[str], *, kind: StreamKind, now_ms: int
) -> dict[Key, bytes]:
    """Return the puts that create one stream per owner, with the ids of `next_streams`: for wider transactions."""
    streams = next_streams(domain, len(owners))
    after = msgspec.structs.replace(domain, next_stream_id=domain.next_stream_id + len(owners))
    empty = StreamHead(0, 0, 0, NO_TIMESTAMP_MS, NO_TIMESTAMP_MS, 0, 0)
    puts = changed_heads(keys, after, dict.fromkeys(streams, empty), now_ms=now_ms, moves_starts=False)
    for stream, owner in zip(streams, owners, strict=True):
        puts[keys.info(stream)] = STREAM_INFO.encode(StreamInfo(kind, owner, now_ms))
    return puts


def advance_log_start(keys: DomainKeys, stream: StreamId, offset: int, *, now_ms: int) -> Rule[StreamHead]:
    """Return the rule that moves a stream's log start forward; it never moves back, nor past the high watermark.

    Readers see it at once; entries below it are removed later, in steps (`trim.py`).
    """
    head_key = keys.head(stream)

    def decide(seen: Seen) -> Decision[StreamHead]:
        head = _living_head(seen, head_key, stream)
        if offset > head.high_watermark:
            raise Invalid(f"log start {offset} of stream {stream} lies beyond its end, {head.high_watermark}")
        if offset <= head.log_start:
            return Decision(result=head)
        domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
        moved = msgspec.structs.replace(head, log_start=offset, index_epoch=head.index_epoch + 1, seq=domain.next_seq)
        return Decision(result=moved, puts=changed_heads(keys, domain, {stream: moved}, now_ms=now_ms))

    return Rule(keys.unit, Reads(keys=[keys.state, head_key]), decide)


def advance_log_starts(
    keys: DomainKeys, offsets: Mapping[StreamId, int], *, now_ms: int
) -> Rule[dict[StreamId, StreamHead]]:
    """Return the rule that moves many log starts forward in one commit record; its result are the heads that moved.

    A stream that is gone meanwhile, or whose log start is there already, is passed over: others must not wait for it.
    """

    def decide(seen: Seen) -> Decision[dict[StreamId, StreamHead]]:
        domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
        moved: dict[StreamId, StreamHead] = {}
        for stream, offset in offsets.items():
            head = STREAM_HEAD.seen(seen, keys.head(stream))
            if head is None or head.is_deleted or offset <= head.log_start:
                continue
            assert offset <= head.high_watermark, f"log start {offset} of stream {stream} lies beyond {head}"
            moved[stream] = msgspec.structs.replace(
                head, log_start=offset, index_epoch=head.index_epoch + 1, seq=domain.next_seq
            )
        puts = changed_heads(keys, domain, moved, now_ms=now_ms) if moved else {}
        return Decision(result=moved, puts=puts)

    return Rule(keys.unit, Reads(keys=[keys.state, *map(keys.head, offsets)]), decide)


def delete_stream(keys: DomainKeys, stream: StreamId, *, now_ms: int) -> Rule[None]:
    """Return the rule that ends a stream: no append is accepted any more; what it held is removed in steps."""

    def decide(seen: Seen) -> Decision[None]:
        return Decision(result=None, puts=ended_streams(keys, seen, [stream], now_ms=now_ms))

    return Rule(keys.unit, Reads(keys=[keys.state, keys.head(stream)]), decide)


def ended_streams(keys: DomainKeys, seen: Seen, streams: Iterable[StreamId], *, now_ms: int) -> dict[Key, bytes]:
    """Return the puts that end those of the streams that live, in one commit record: for wider transactions.

    The transaction must have read the domain's state and the head of each stream.
    """
    ended: dict[StreamId, StreamHead] = {}
    for stream in streams:
        head = STREAM_HEAD.seen(seen, keys.head(stream))
        if head is not None and not head.is_deleted:
            ended[stream] = msgspec.structs.replace(
                head, log_start=head.high_watermark, index_epoch=head.index_epoch + 1, is_deleted=True
            )
    if not ended:
        return {}
    domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
    return changed_heads(keys, domain, ended, now_ms=now_ms)


def _living_head(seen: Seen, head_key: Key, stream: StreamId) -> StreamHead:
    head = STREAM_HEAD.seen(seen, head_key)
    if head is None or head.is_deleted:
        raise Missing(f"stream {stream} does not exist")
    return head
