"""Remove what lies below a stream's log start, and in the end a deleted stream itself, in bounded steps.

Moving the log start (`streams.py`) is what readers see; this is the tidying behind it.

Must stay true: entries go and their objects are counted down in one transaction; nothing at or above the log
start is touched; a stream's head goes last, after every commit record that speaks of it was folded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.index.objects import counted_down, wal_objects_of
from headrace.index.rule import Rule, StalePlan
from headrace.index.values import (
    DOMAIN_STATE,
    INDEX_ENTRY,
    PRODUCER_STATE,
    STREAM_HEAD,
    DomainState,
    IndexEntry,
    ProducerState,
)
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen
from headrace.model.ids import StreamId

MAX_TRIM_BYTES = 1 << 20
"""How many bytes of index entries one step removes at most, but for a single entry that is larger. An entry of the
WAL has some hundred bytes; one of a table names row groups, and has up to some ten thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimPage:
    """The oldest entries below a log start: all there are, or as many as one step takes."""

    entries: list[IndexEntry]
    size_bytes: int
    is_all: bool


async def plan_trim(
    store: MetadataStore, keys: DomainKeys, stream: StreamId, *, max_entries: int
) -> list[IndexEntry]:
    """Return the oldest entries that lie wholly below the log start, as many as one step takes."""
    raw = await store.get(keys.head(stream))
    if raw is None:
        return []
    head = STREAM_HEAD.decode(raw.value, raw.key)
    return (await entries_below(store, keys, stream, head.log_start, max_entries=max_entries)).entries


async def entries_below(
    store: MetadataStore,
    keys: DomainKeys,
    stream: StreamId,
    log_start: int,
    *,
    max_entries: int,
    max_bytes: int = MAX_TRIM_BYTES,
) -> TrimPage:
    """Return the oldest entries that lie wholly below a log start. It may be an earlier one: it never moves back."""
    found = await store.range(keys.entries(stream, after_offset=0, until_offset=log_start, limit=max_entries))
    entries: list[IndexEntry] = []
    size_bytes = 0
    for item in found:
        if entries and size_bytes + len(item.value) > max_bytes:
            break
        entries.append(INDEX_ENTRY.decode(item.value, item.key))
        size_bytes += len(item.value)
    is_all = len(entries) == len(found) < max_entries
    return TrimPage(entries=entries, size_bytes=size_bytes, is_all=is_all)


def trim_entries(keys: DomainKeys, stream: StreamId, entries: Sequence[IndexEntry], *, now_ms: int) -> Rule[None]:
    """Return the rule that removes entries found by `plan_trim`. Raises `StalePlan` if they have changed."""
    rule = trim_streams(keys, {stream: entries}, now_ms=now_ms)

    def decide(seen: Seen) -> Decision[None]:
        decision = rule.decide(seen)
        if stream not in decision.result:
            raise StalePlan(f"entries of stream {stream} below its log start have changed")
        return Decision(result=None, puts=decision.puts, deletes=decision.deletes)

    return Rule(rule.unit, rule.reads, decide)


def trim_streams(
    keys: DomainKeys, planned: Mapping[StreamId, Sequence[IndexEntry]], *, now_ms: int
) -> Rule[frozenset[StreamId]]:
    """Return the rule that removes entries of many streams; its result are the streams of which they went.

    A stream whose entries have changed is passed over: others must not wait for it. How many entries there are in
    all, and their bytes, bound the transaction, so that is for the caller to limit.
    """
    entry_keys = {
        stream: [keys.entry(stream, entry.end_offset) for entry in entries] for stream, entries in planned.items()
    }
    touched = wal_objects_of([entry.extent for entries in planned.values() for entry in entries])
    read_keys = [
        *map(keys.head, planned),
        *(key for of_stream in entry_keys.values() for key in of_stream),
        *map(keys.object, touched),
    ]

    def decide(seen: Seen) -> Decision[frozenset[StreamId]]:
        trimmed = [stream for stream in planned if _is_as_planned(seen, stream)]
        removed = wal_objects_of([entry.extent for stream in trimmed for entry in planned[stream]])
        puts = counted_down(keys, seen, removed, now_ms=now_ms)
        deletes = [key for stream in trimmed for key in entry_keys[stream]]
        return Decision(result=frozenset(trimmed), puts=puts, deletes=deletes)

    def _is_as_planned(seen: Seen, stream: StreamId) -> bool:
        head = STREAM_HEAD.seen(seen, keys.head(stream))
        current = [INDEX_ENTRY.seen(seen, key) for key in entry_keys[stream]]
        if head is None or current != list(planned[stream]):
            return False
        last = planned[stream][-1]
        assert last.end_offset <= head.log_start, f"{last} is not below {head.log_start}"
        return True

    return Rule(keys.unit, Reads(keys=read_keys), decide)


def finish_deletion(keys: DomainKeys, stream: StreamId, *, max_keys: int) -> Rule[bool]:
    """Return the rule that removes a deleted stream's producers and, in the last step, its head.

    Its result says whether the stream is gone. It waits while entries are left or records are not folded.
    """
    head_key = keys.head(stream)
    index = keys.entries(stream, after_offset=0, limit=1)
    known_producers = prefix_range(keys.producers_prefix(stream), limit=max_keys)

    def decide(seen: Seen) -> Decision[bool]:
        head = STREAM_HEAD.seen(seen, head_key)
        if head is None:
            return Decision(result=True)
        domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
        left, producers = seen.ranges
        if not head.is_deleted or left or head.seq >= domain.folded_to:
            return Decision(result=False)
        deletes: list[Key] = [item.key for item in producers]
        is_last_step = len(producers) < max_keys
        if is_last_step:
            deletes += [head_key, keys.info(stream)]
        return Decision(result=is_last_step, deletes=deletes)

    return Rule(keys.unit, Reads(keys=[keys.state, head_key], ranges=[index, known_producers]), decide)


@dataclass(frozen=True, slots=True)
class ExpiryStep:
    """How far one step over a page of keys came; `next_after` is `None` at the end of them."""

    expired_count: int
    next_after: Key | None


def is_silent(state: ProducerState, *, now_ms: int, expiration_ms: int) -> bool:
    """Say whether a producer may be forgotten. One inside a transaction never is."""
    return state.transaction_start_offset is None and now_ms - state.last_append_ms >= expiration_ms


def forget_producers(keys: DomainKeys, silent: Sequence[Key], *, now_ms: int, expiration_ms: int) -> Rule[int]:
    """Return the rule that forgets producers, of any streams, unless they have sent something meanwhile.

    Its result says how many went. How many there are bounds the transaction, so that is for the caller to limit.
    """

    def decide(seen: Seen) -> Decision[int]:
        found = {key: PRODUCER_STATE.seen(seen, key) for key in silent}
        deletes = [
            key
            for key, state in found.items()
            if state is not None and is_silent(state, now_ms=now_ms, expiration_ms=expiration_ms)
        ]
        return Decision(result=len(deletes), deletes=deletes)

    return Rule(keys.unit, Reads(keys=silent), decide)
