"""Swap a run of index entries for one that names other bytes with the same records.

The table side swaps WAL extents for Parquet, a repack swaps many small WAL extents for one. A long run goes
in several steps; between any two of them readers find each offset exactly once (I5).

Must stay true: the new entry covers exactly the offsets of those it replaces, and keeps the cumulative bytes
and the running maximum of the last one, so that size retention and look-up by time never notice.
"""

import functools
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.index.commit import open_object
from headrace.index.objects import counted_down, wal_objects_of
from headrace.index.rule import Rule, StalePlan
from headrace.index.streams import changed_heads
from headrace.index.values import (
    DOMAIN_STATE,
    INDEX_ENTRY,
    OBJECT_RECORD,
    STREAM_HEAD,
    DomainState,
    IndexEntry,
    ObjectState,
)
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Decision, Key, Reads, Seen
from headrace.model.extents import Extent, WalExtent
from headrace.model.ids import StreamId


def replacement_for(entries: Sequence[IndexEntry], extent: Extent, *, record_count: int | None = None) -> IndexEntry:
    """Return the entry that takes the place of a contiguous run whose records now lie in `extent`."""
    first, last = entries[0], entries[-1]
    for left, right in itertools.pairwise(entries):
        assert left.end_offset == right.start_offset, f"{left} is not continued by {right}"
    newest = max(entries, key=lambda entry: entry.max_timestamp_ms)
    return IndexEntry(
        first.start_offset,
        last.end_offset,
        sum(entry.record_count for entry in entries) if record_count is None else record_count,
        last.cumulative_bytes,
        last.append_time_ms,
        min(entry.min_timestamp_ms for entry in entries),
        newest.max_timestamp_ms,
        newest.max_timestamp_offset,
        last.running_max_ms,
        functools.reduce(operator.or_, (entry.flags for entry in entries)),
        extent,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One step: `planned` go, `replacement` comes. All of them are folded."""

    stream: StreamId
    planned: Sequence[IndexEntry]
    replacement: IndexEntry


def swap_entries(keys: DomainKeys, swap: Swap, *, now_ms: int) -> Rule[None]:
    """Return the rule that makes one step. Repeating it after success is harmless.

    Raises `StalePlan` if the entries are not as planned any more, `ObjectClosed` if the packed WAL object
    that the replacement names no longer takes entries.
    """
    first, last = swap.planned[0], swap.planned[-1]
    run = keys.entries(
        swap.stream,
        after_offset=first.start_offset,
        until_offset=last.end_offset,
        limit=len(swap.planned) + 1,
    )
    removed = wal_objects_of([entry.extent for entry in swap.planned])
    added = wal_objects_of([swap.replacement.extent])
    head_key = keys.head(swap.stream)
    read_keys = [keys.state, head_key, *(keys.object(object_id) for object_id in {**removed, **added})]

    def decide(seen: Seen) -> Decision[None]:
        head = STREAM_HEAD.seen(seen, head_key)
        current = [INDEX_ENTRY.decode(item.value, item.key) for item in seen.ranges[0]]
        if current == [swap.replacement]:
            return Decision(result=None)
        if head is None or head.is_deleted or current != list(swap.planned):
            raise StalePlan(f"entries of stream {swap.stream} in {first.start_offset}–{last.end_offset} have changed")
        domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
        moved = msgspec.structs.replace(head, index_epoch=head.index_epoch + 1)
        puts = changed_heads(keys, domain, {swap.stream: moved}, now_ms=now_ms)
        puts.update(counted_down(keys, seen, removed, now_ms=now_ms))
        puts.update(_counted_up(keys, seen, swap.replacement.extent, now_ms=now_ms))
        kept = keys.entry(swap.stream, last.end_offset)
        puts[kept] = INDEX_ENTRY.encode(swap.replacement)
        deletes = [item.key for item in seen.ranges[0] if item.key != kept]
        return Decision(result=None, puts=puts, deletes=deletes)

    assert swap.replacement.start_offset == first.start_offset, f"{swap.replacement} begins elsewhere than {first}"
    assert swap.replacement.end_offset == last.end_offset, f"{swap.replacement} ends elsewhere than {last}"
    assert swap.replacement.cumulative_bytes == last.cumulative_bytes, f"{swap.replacement} forgets the log's bytes"
    return Rule(keys.unit, Reads(keys=read_keys, ranges=[run]), decide)


def _counted_up(keys: DomainKeys, seen: Seen, extent: Extent, *, now_ms: int) -> dict[Key, bytes]:
    """Return the put that adds the entry to its packed object; a packed object takes entries while it is open."""
    if not isinstance(extent, WalExtent):
        return {}
    key = keys.object(extent.object_id)
    record = open_object(OBJECT_RECORD.seen(seen, key), extent.object_id)
    grown = msgspec.structs.replace(
        record,
        state=ObjectState.OPEN,
        size_bytes=max(record.size_bytes, extent.start_byte + extent.size_bytes),
        entry_count=record.entry_count + 1,
        state_since_ms=now_ms if record.state is ObjectState.STAGED else record.state_since_ms,
    )
    return {key: OBJECT_RECORD.encode(grown)}
