"""Swap a run of index entries for others that name other bytes with the same records.

The table side swaps WAL extents for Parquet, a repack swaps many small WAL extents for one. A long run goes
in several steps; between any two of them readers find each offset exactly once (I5).

Must stay true: the new entries cover exactly the offsets of those they replace, and the last one keeps the cumulative
bytes and the running maximum of the last one replaced, so that size retention and look-up by time never notice.
"""

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
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
    ObjectRecord,
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
    """One step: `planned` go, `replacements` come. All of them are folded.

    A replacement may name bytes that a planned entry named: a batch that has to stay where it is.
    """

    stream: StreamId
    planned: Sequence[IndexEntry]
    replacements: Sequence[IndexEntry]

    def check(self) -> None:
        """Assert that the new entries take exactly the place of the old ones."""
        first, last = self.planned[0], self.planned[-1]
        new_first, new_last = self.replacements[0], self.replacements[-1]
        assert new_first.start_offset == first.start_offset, f"{new_first} begins elsewhere than {first}"
        assert new_last.end_offset == last.end_offset, f"{new_last} ends elsewhere than {last}"
        assert new_last.cumulative_bytes == last.cumulative_bytes, f"{new_last} forgets the log's bytes"
        for left, right in itertools.pairwise(self.replacements):
            assert left.end_offset == right.start_offset, f"{left} is not continued by {right}"


def swap_entries(keys: DomainKeys, swap: Swap, *, now_ms: int) -> Rule[None]:
    """Return the rule that makes one step. Repeating it after success is harmless.

    Raises `StalePlan` if the entries are not as planned any more, `ObjectClosed` if the packed WAL object
    that a replacement names no longer takes entries.
    """
    swap.check()
    first, last = swap.planned[0], swap.planned[-1]
    run = keys.entries(
        swap.stream,
        after_offset=first.start_offset,
        until_offset=last.end_offset,
        limit=len(swap.planned) + len(swap.replacements) + 1,
    )
    removed = wal_objects_of([entry.extent for entry in swap.planned])
    added: list[WalExtent] = []
    for extent in (entry.extent for entry in swap.replacements if isinstance(entry.extent, WalExtent)):
        if _lies_in(extent, swap.planned):
            removed[extent.object_id] -= 1  # it stays where it is
        else:
            added.append(extent)
    head_key = keys.head(swap.stream)
    objects = {*removed, *(extent.object_id for extent in added)}
    read_keys = [keys.state, head_key, *(keys.object(object_id) for object_id in sorted(objects))]

    def decide(seen: Seen) -> Decision[None]:
        head = STREAM_HEAD.seen(seen, head_key)
        current = [INDEX_ENTRY.decode(item.value, item.key) for item in seen.ranges[0]]
        if current == list(swap.replacements):
            return Decision(result=None)
        if head is None or head.is_deleted or current != list(swap.planned):
            raise StalePlan(f"entries of stream {swap.stream} in {first.start_offset}–{last.end_offset} have changed")
        domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
        moved = msgspec.structs.replace(head, index_epoch=head.index_epoch + 1)
        puts = changed_heads(keys, domain, {swap.stream: moved}, now_ms=now_ms, moves_starts=False)
        puts.update(counted_down(keys, seen, removed, now_ms=now_ms))
        puts.update(_counted_up(keys, seen, added, puts, now_ms=now_ms))
        puts.update(
            (keys.entry(swap.stream, entry.end_offset), INDEX_ENTRY.encode(entry)) for entry in swap.replacements
        )
        deletes = [item.key for item in seen.ranges[0] if item.key not in puts]
        return Decision(result=None, puts=puts, deletes=deletes)

    return Rule(keys.unit, Reads(keys=read_keys, ranges=[run]), decide)


def _lies_in(extent: WalExtent, planned: Sequence[IndexEntry]) -> bool:
    """Say whether bytes are part of what one of the entries names."""
    return any(isinstance(entry.extent, WalExtent) and entry.extent.holds(extent) for entry in planned)


def _counted_up(
    keys: DomainKeys, seen: Seen, added: Sequence[WalExtent], counted: Mapping[Key, bytes], *, now_ms: int
) -> dict[Key, bytes]:
    """Return the puts that add entries to their packed objects; a packed object takes entries while it is open.

    `counted` has the objects that lose entries in the same step: one that grows leaves its object and comes back.
    """
    records: dict[Key, ObjectRecord] = {}
    for extent in added:
        key = keys.object(extent.object_id)
        record = records.get(key) or open_object(OBJECT_RECORD.seen(seen, key), extent.object_id)
        if key not in records and key in counted:
            record = OBJECT_RECORD.decode(counted[key], key)
        records[key] = msgspec.structs.replace(
            record,
            state=ObjectState.OPEN,
            size_bytes=max(record.size_bytes, extent.start_byte + extent.size_bytes),
            entry_count=record.entry_count + 1,
            state_since_ms=now_ms if record.state is ObjectState.STAGED else record.state_since_ms,
        )
    return {key: OBJECT_RECORD.encode(record) for key, record in records.items()}
