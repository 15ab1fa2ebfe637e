"""Fold commit records into the per-stream index, a bounded number of entries at a time.

1. Read the oldest records that are not folded yet. They never change, so this needs no lock.
2. In one transaction: write their entries as index keys, move `folded_to`, drop the records.

A record with more entries than one transaction may write is folded in several: `folded_entries` says how many of the
entries of record `folded_to` are in the index already.

A record stays while it is its writer's last one, or was committed together with that one: it holds results that may
be asked for again. Entries that retention or deletion has overtaken are not written; their objects are counted down.

Must stay true: every offset from log start to high watermark has one entry, in the index or in a record at or
above `folded_to` (behind the first `folded_entries` of that very record), before and after.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from headrace.index.objects import counted_down
from headrace.index.rule import Rule, StalePlan
from headrace.index.values import (
    DOMAIN_STATE,
    INDEX_ENTRY,
    LOG_RECORD,
    STREAM_HEAD,
    WRITER_STATE,
    CommitEntry,
    DomainState,
    LogRecord,
)
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen
from headrace.model.ids import ObjectId, StreamId

MAX_STEP_ENTRIES = 2_000
"""How many index entries one step writes unless it is told otherwise: about 30 ms under the domain's lock."""

MAX_READ_BYTES = 4 * 1024 * 1024
"""How many bytes of commit records a plan reads before it is content; the last read may exceed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """One step: all entries of the records, but for those of the first that are folded, and the end of the last."""

    records: Sequence[LogRecord]
    start_entry: int
    """How many entries of the first record are folded already."""
    end_entry: int
    """How many entries of the last record are folded after this step."""
    is_full: bool
    """Whether a limit ended the plan, so that more may be there to fold."""

    @property
    def end(self) -> tuple[int, int]:
        """Return `folded_to` and `folded_entries` as they are after this step."""
        last = self.records[-1]
        return (last.seq + 1, 0) if self.end_entry == len(last.entries) else (last.seq, self.end_entry)

    @property
    def done(self) -> Sequence[LogRecord]:
        """Return the records of which nothing is left after this step."""
        return self.records if self.end[1] == 0 else self.records[:-1]

    def entries(self) -> Iterator[tuple[LogRecord, CommitEntry]]:
        """Return what this step folds, in order."""
        for record in self.records:
            start = self.start_entry if record is self.records[0] else 0
            end = self.end_entry if record is self.records[-1] else len(record.entries)
            for entry in record.entries[start:end]:
                yield record, entry


async def plan_fold(
    store: MetadataStore,
    keys: DomainKeys,
    *,
    max_records: int,
    lag_records: int,
    max_entries: int = MAX_STEP_ENTRIES,
    known: LogRecord | None = None,
) -> FoldPlan | None:
    """Return what to fold next, leaving the newest `lag_records` alone: brokers hold those in memory.

    A record with more entries than `max_entries` takes several steps. `known` may be the record that the last plan
    ended in: it is not read again, because it may be large.
    """
    raw = await store.get(keys.state)
    if raw is None:
        return None
    domain = DOMAIN_STATE.decode(raw.value, raw.key)
    limit = min(max_records, domain.next_seq - lag_records - domain.folded_to)
    start_entry = domain.folded_entries
    if limit <= 0 and start_entry == 0:
        return None
    limit = max(limit, 1)  # a record that is folded in part is finished, whatever the lag
    if known is not None and known.seq == domain.folded_to and start_entry > 0:
        records = [known]
    else:
        records = await _read_records(store, keys, domain, limit=limit, max_entries=max_entries)
    return cut_plan(records, start_entry=start_entry, limit=limit, max_entries=max_entries) if records else None


def cut_plan(records: Sequence[LogRecord], *, start_entry: int, limit: int, max_entries: int) -> FoldPlan:
    """Return the step that takes as many of the records as there is room for, the last one perhaps in part."""
    room = max_entries
    taken: list[LogRecord] = []
    end_entry = 0
    for record in records:
        start = 0 if taken else start_entry
        assert start < len(record.entries) or start == 0, f"{start} entries of record {record.seq} are folded"
        if room == 0 and record.entries:
            break
        end_entry = min(len(record.entries), start + room)
        room -= end_entry - start
        taken.append(record)
        if end_entry < len(record.entries):
            break
    is_full = len(taken) < len(records) or end_entry < len(taken[-1].entries) or room == 0 or len(taken) == limit
    return FoldPlan(records=taken, start_entry=start_entry, end_entry=end_entry, is_full=is_full)


async def _read_records(
    store: MetadataStore, keys: DomainKeys, domain: DomainState, *, limit: int, max_entries: int
) -> list[LogRecord]:
    """Read records from `folded_to` on until there are enough for a step.

    Each read asks for as many records as there are already: many small ones take few reads, a huge one comes alone.
    """
    records: list[LogRecord] = []
    entry_count = size_bytes = 0
    while len(records) < limit and entry_count - domain.folded_entries < max_entries and size_bytes < MAX_READ_BYTES:
        page_limit = min(max(1, len(records)), limit - len(records))
        first_seq = domain.folded_to + len(records)
        found = await store.range(keys.log_range(first_seq, limit=page_limit))
        page = [LOG_RECORD.decode(item.value, item.key) for item in found]
        # Another process may fold between two reads and leave only the records that hold a writer's last results.
        page = [record for seq, record in enumerate(page, first_seq) if record.seq == seq]
        records += page
        entry_count += sum(len(record.entries) for record in page)
        size_bytes += sum(len(item.value) for item in found)
        if len(page) < page_limit:
            break
    return records


def fold_records(keys: DomainKeys, plan: FoldPlan, *, now_ms: int) -> Rule[int]:
    """Return the rule that makes this step; its result is the new `folded_to`.

    Raises `StalePlan` if another process has folded meanwhile.
    """
    first_seq, (folded_to, folded_entries) = plan.records[0].seq, plan.end
    seqs = [record.seq for record in plan.records]
    assert seqs == list(range(first_seq, first_seq + len(seqs))), "records to fold have a gap"
    read_keys: dict[Key, None] = {keys.state: None}
    for record in plan.records:
        if record.writer:
            read_keys[keys.writer(record.writer)] = None
            read_keys[keys.object(record.object_id)] = None
    streams = {entry.stream for _, entry in plan.entries()}
    read_keys.update(dict.fromkeys(map(keys.head, streams)))

    def decide(seen: Seen) -> Decision[int]:
        domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
        if (domain.folded_to, domain.folded_entries) != (first_seq, plan.start_entry):
            raise StalePlan(
                f"entries from {plan.start_entry} of record {first_seq} on are folded already, "
                f"up to {domain.folded_entries} of {domain.folded_to}"
            )
        puts: dict[Key, bytes] = {}
        overtaken: dict[ObjectId, int] = {}
        log_starts = {stream: _log_start(keys, seen, stream) for stream in streams}
        for record, entry in plan.entries():
            if entry.end_offset <= log_starts[entry.stream]:
                overtaken[record.object_id] = overtaken.get(record.object_id, 0) + 1
            else:
                key = keys.entry(entry.stream, entry.end_offset)
                puts[key] = INDEX_ENTRY.encode(record.index_entry(entry))
        puts.update(counted_down(keys, seen, overtaken, now_ms=now_ms))
        after = msgspec.structs.replace(domain, folded_to=folded_to, folded_entries=folded_entries)
        puts[keys.state] = DOMAIN_STATE.encode(after)
        deletes = [keys.log(record.seq) for record in plan.done if not _is_kept_for_writer(keys, seen, record)]
        return Decision(result=folded_to, puts=puts, deletes=deletes)

    return Rule(keys.unit, Reads(keys=list(read_keys)), decide)


def _log_start(keys: DomainKeys, seen: Seen, stream: StreamId) -> int:
    """Return below which offset entries are overtaken; a deleted stream's log start is its end."""
    head = STREAM_HEAD.seen(seen, keys.head(stream))
    assert head is not None, f"stream {stream} lost its head before its entries were folded"
    return head.log_start


def _is_kept_for_writer(keys: DomainKeys, seen: Seen, record: LogRecord) -> bool:
    if not record.writer:
        return False
    writer = WRITER_STATE.seen(seen, keys.writer(record.writer))
    return writer is not None and record.seq in writer.kept_seqs
