"""Fold commit records into the per-stream index, a bounded number of entries at a time.

1. Read the oldest records that are not folded yet. They never change, so this needs no lock.
2. In one transaction: write their entries as index keys, move `folded_to`, drop the records.

Heads are read only where a log start may have moved since the records were committed: the domain's state says so.

Records with more entries than one transaction may write are folded as a *run*: stream by stream, in several steps.
Each step then writes many entries of few streams instead of few entries of many, and changes far fewer pages of the
store: 500 against 1,390 on SQLite, for 2,000 entries of 1,000 streams. `run_end` and `run_stream` say which records a
run has, and below which stream it is done. Only a record with too many entries of one stream is folded in its own
order: `folded_entries` says how many entries of record `folded_to` are in the index already.

A record stays while it is its writer's last one, or was committed together with that one: it holds results that may
be asked for again. Entries that retention or deletion has overtaken are not written; their objects are counted down.

Must stay true: every offset from log start to high watermark has one entry, in the index or in a record at or
above `folded_to` (behind the first `folded_entries` of that very record, and in a run not below `run_stream`), before
and after.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    FoldPlace,
    LogRecord,
)
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen
from headrace.model.ids import ObjectId, StreamId

MAX_STEP_ENTRIES = 2_000
"""How many index entries one step writes unless the caller says otherwise: about 30 ms under the domain's lock."""

MAX_RUN_STEPS = 4
"""How many steps a run of records takes, about. More spare more pages, and take more memory and longer to plan."""

MAX_READ_BYTES = 4 * 1024 * 1024
"""How many bytes of commit records a plan reads before it is content; the last read may exceed it."""

MAX_PAGE_BYTES = 256 * 1024
"""How many bytes of commit records one read brings, about: to decode them takes the event loop some milliseconds."""

Folded = tuple[LogRecord, CommitEntry]
"""An entry and the record that it comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """One step: which entries of which records, and how far folding has come before and after."""

    records: Sequence[LogRecord]
    start: FoldPlace
    end: FoldPlace
    entries: Sequence[Folded]
    left: Sequence[Folded] = ()
    """What is left of the run after this step, in order."""
    is_full: bool
    """Whether a limit ended the plan, so that more may be there to fold."""
    reads_heads: bool = True
    """Whether log starts may have moved past some of the entries."""

    @property
    def done(self) -> Sequence[LogRecord]:
        """Return the records of which nothing is left after this step."""
        return [record for record in self.records if record.seq < self.end.folded_to]


async def plan_fold(
    store: MetadataStore,
    keys: DomainKeys,
    *,
    max_records: int,
    lag_records: int,
    max_entries: int = MAX_STEP_ENTRIES,
    previous: FoldPlan | None = None,
) -> FoldPlan | None:
    """Return what to fold next, leaving the newest `lag_records` alone: brokers hold those in memory.

    A record or a run that was begun is finished, whatever the lag. `previous` may be the step before: records that it
    has read are not read again, because they may be large.
    """
    raw = await store.get(keys.state)
    if raw is None:
        return None
    domain = DOMAIN_STATE.decode(raw.value, raw.key)
    if domain.run_end:
        plan = await _go_on_with_run(store, keys, domain, max_entries=max_entries, previous=previous)
    else:
        limit = min(max_records, domain.next_seq - lag_records - domain.folded_to)
        plan = await _begin(store, keys, domain, limit=limit, max_entries=max_entries, previous=previous)
    return plan and replace(plan, reads_heads=domain.may_be_overtaken(domain.folded_to))


async def _go_on_with_run(
    store: MetadataStore, keys: DomainKeys, domain: DomainState, *, max_entries: int, previous: FoldPlan | None
) -> FoldPlan | None:
    if previous is not None and previous.end == domain.fold_place:
        return cut_run(previous.records, previous.left, domain.fold_place, max_entries=max_entries)
    count = domain.run_end - domain.folded_to
    records = await _read_records(store, keys, domain.folded_to, limit=count)
    if len(records) < count:
        return None  # Another process has finished the run meanwhile.
    left = [item for item in _in_stream_order(records) if item[1].stream >= domain.run_stream]
    return cut_run(records, left, domain.fold_place, max_entries=max_entries)


async def _begin(
    store: MetadataStore,
    keys: DomainKeys,
    domain: DomainState,
    *,
    limit: int,
    max_entries: int,
    previous: FoldPlan | None,
) -> FoldPlan | None:
    start_entry = domain.folded_entries
    if limit <= 0 and start_entry == 0:
        return None
    limit = max(limit, 1)
    if start_entry > 0 and previous is not None and previous.records[-1].seq == domain.folded_to:
        records = [previous.records[-1]]
    else:
        run_entries = MAX_RUN_STEPS * max_entries + start_entry
        records = await _read_records(store, keys, domain.folded_to, limit=limit, max_entries=run_entries)
    if not records:
        return None
    run = () if start_entry or _has_room(records, max_entries) else _run_of(records, max_entries=max_entries)
    if _has_room(run, max_entries):
        return cut_plan(records, start_entry=start_entry, limit=limit, max_entries=max_entries)
    place = FoldPlace(domain.folded_to, run_end=run[-1].seq + 1)
    plan = cut_run(run, _in_stream_order(run), place, max_entries=max_entries)
    return replace(plan, start=domain.fold_place)


def _has_room(records: Sequence[LogRecord], max_entries: int) -> bool:
    return sum(len(record.entries) for record in records) <= max_entries


def _run_of(records: Sequence[LogRecord], *, max_entries: int) -> Sequence[LogRecord]:
    """Return as many records as one run can have: a step takes all that it has of a stream."""
    counts: dict[StreamId, int] = {}
    for number, record in enumerate(records):
        for entry in record.entries:
            counts[entry.stream] = count = counts.get(entry.stream, 0) + 1
            if count > max_entries:
                return records[:number]
    return records


def _in_stream_order(records: Sequence[LogRecord]) -> list[Folded]:
    return sorted([(record, entry) for record in records for entry in record.entries], key=_stream_of)


def _stream_of(item: Folded) -> StreamId:
    return item[1].stream


def cut_run(records: Sequence[LogRecord], left: Sequence[Folded], start: FoldPlace, *, max_entries: int) -> FoldPlan:
    """Return the step that folds as many streams of a run as there is room for, one at least."""
    end = min(max_entries, len(left))
    if end < len(left):
        stream = _stream_of(left[end])
        end = bisect_left(left, stream, key=_stream_of) or bisect_right(left, stream, key=_stream_of)
    is_last = end == len(left)
    return FoldPlan(
        records=records,
        start=start,
        end=FoldPlace(start.run_end) if is_last else start._replace(run_stream=_stream_of(left[end])),
        entries=left[:end],
        left=left[end:],
        is_full=True,
    )


def cut_plan(records: Sequence[LogRecord], *, start_entry: int, limit: int, max_entries: int) -> FoldPlan:
    """Return the step that takes as many of the records as there is room for, the last one perhaps in part."""
    room = max_entries
    taken: list[LogRecord] = []
    entries: list[Folded] = []
    end_entry = 0
    for record in records:
        start = 0 if taken else start_entry
        assert start < len(record.entries) or start == 0, f"{start} entries of record {record.seq} are folded"
        if room == 0 and record.entries:
            break
        end_entry = min(len(record.entries), start + room)
        room -= end_entry - start
        taken.append(record)
        entries += [(record, entry) for entry in record.entries[start:end_entry]]
        if end_entry < len(record.entries):
            break
    last = taken[-1]
    is_cut = end_entry < len(last.entries)
    return FoldPlan(
        records=taken,
        start=FoldPlace(taken[0].seq, start_entry),
        end=FoldPlace(last.seq, end_entry) if is_cut else FoldPlace(last.seq + 1),
        entries=entries,
        is_full=len(taken) < len(records) or is_cut or room == 0 or len(taken) == limit,
    )


async def _read_records(
    store: MetadataStore, keys: DomainKeys, start_seq: int, *, limit: int, max_entries: int | None = None
) -> list[LogRecord]:
    """Read records until there are enough for a step or a run.

    Each read asks for as many records as there are already: many small ones take few reads, a huge one comes alone.
    """
    records: list[LogRecord] = []
    entry_count = size_bytes = 0
    while len(records) < limit and (
        max_entries is None or (entry_count < max_entries and size_bytes < MAX_READ_BYTES)
    ):
        page_limit = min(max(1, len(records)), limit - len(records))
        if size_bytes:
            page_limit = min(page_limit, max(1, MAX_PAGE_BYTES * len(records) // size_bytes))
        first_seq = start_seq + len(records)
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

    Raises `StalePlan` if another process has folded meanwhile, or moved a log start that the plan does not read.
    """
    first_seq = plan.records[0].seq
    seqs = [record.seq for record in plan.records]
    assert seqs == list(range(first_seq, first_seq + len(seqs))), "records to fold have a gap"
    read_keys: dict[Key, None] = {keys.state: None}
    for record in plan.records:
        if record.writer:
            read_keys[keys.writer(record.writer)] = None
            read_keys[keys.object(record.object_id)] = None
    streams = {entry.stream for _, entry in plan.entries} if plan.reads_heads else set()
    read_keys.update(dict.fromkeys(map(keys.head, streams)))

    def decide(seen: Seen) -> Decision[int]:
        domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
        if domain.fold_place != plan.start:
            raise StalePlan(f"the step from {plan.start} on is made already: folding has come to {domain.fold_place}")
        if not plan.reads_heads and domain.may_be_overtaken(first_seq):
            raise StalePlan(f"record {domain.starts_moved_at} may have moved a log start past record {first_seq}")
        puts: dict[Key, bytes] = {}
        overtaken: dict[ObjectId, int] = {}
        log_starts = {stream: _log_start(keys, seen, stream) for stream in streams}
        entry_key, encode = keys.entry, INDEX_ENTRY.encode
        for record, entry in plan.entries:
            end_offset = entry.start_offset + entry.record_count
            if log_starts and end_offset <= log_starts[entry.stream]:
                overtaken[record.object_id] = overtaken.get(record.object_id, 0) + 1
            else:
                puts[entry_key(entry.stream, end_offset)] = encode(record.index_entry(entry))
        puts.update(counted_down(keys, seen, overtaken, now_ms=now_ms))
        after = msgspec.structs.replace(domain, **plan.end._asdict())
        puts[keys.state] = DOMAIN_STATE.encode(after)
        deletes = [keys.log(record.seq) for record in plan.done if not _is_kept_for_writer(keys, seen, record)]
        return Decision(result=plan.end.folded_to, puts=puts, deletes=deletes)

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
