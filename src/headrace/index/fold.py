"""Fold commit records into the per-stream index, a bounded number at a time.

1. Read the oldest records that are not folded yet. They never change, so this needs no lock.
2. In one transaction: write their entries as index keys, move `folded_to`, drop the records.

A record stays while it is its writer's last one, because it holds the results of a commit that may be asked
for again. Entries that retention or deletion has overtaken are not written; their objects are counted down.

Must stay true: every offset from log start to high watermark has one entry, in the index or in a record at or
above `folded_to`, before and after.
"""

from collections.abc import Sequence

import msgspec

from headrace.index.objects import counted_down
from headrace.index.rule import Rule, StalePlan
from headrace.index.values import (
    DOMAIN_STATE,
    INDEX_ENTRY,
    LOG_RECORD,
    STREAM_HEAD,
    WRITER_STATE,
    DomainState,
    LogRecord,
)
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen
from headrace.model.ids import ObjectId, StreamId


async def plan_fold(store: MetadataStore, keys: DomainKeys, *, max_records: int, lag_records: int) -> list[LogRecord]:
    """Return the next records to fold, leaving the newest `lag_records` alone: brokers hold those in memory."""
    raw = await store.get(keys.state)
    if raw is None:
        return []
    domain = DOMAIN_STATE.decode(raw.value, raw.key)
    limit = min(max_records, domain.next_seq - lag_records - domain.folded_to)
    if limit <= 0:
        return []
    found = await store.range(keys.log_range(domain.folded_to, limit=limit))
    records = [LOG_RECORD.decode(item.value, item.key) for item in found]
    # Another process may fold between the two reads and leave only the records that hold a writer's last results.
    return [record for seq, record in enumerate(records, domain.folded_to) if record.seq == seq]


def fold_records(keys: DomainKeys, records: Sequence[LogRecord], *, now_ms: int) -> Rule[int]:
    """Return the rule that folds these records; its result is the new `folded_to`.

    Raises `StalePlan` if another process has folded them.
    """
    first_seq, end_seq = records[0].seq, records[-1].seq + 1
    assert [record.seq for record in records] == list(range(first_seq, end_seq)), "records to fold have a gap"
    read_keys: dict[Key, None] = {keys.state: None}
    for record in records:
        if record.writer:
            read_keys[keys.writer(record.writer)] = None
            read_keys[keys.object(record.object_id)] = None
    streams = {entry.stream for record in records for entry in record.entries}
    read_keys.update(dict.fromkeys(map(keys.head, streams)))

    def decide(seen: Seen) -> Decision[int]:
        domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
        if domain.folded_to != first_seq:
            raise StalePlan(f"records from {first_seq} on are folded already, up to {domain.folded_to}")
        puts: dict[Key, bytes] = {}
        overtaken: dict[ObjectId, int] = {}
        log_starts = {stream: _log_start(keys, seen, stream) for stream in streams}
        for record in records:
            for entry in record.entries:
                if entry.end_offset <= log_starts[entry.stream]:
                    overtaken[record.object_id] = overtaken.get(record.object_id, 0) + 1
                else:
                    key = keys.entry(entry.stream, entry.end_offset)
                    puts[key] = INDEX_ENTRY.encode(record.index_entry(entry))
        puts.update(counted_down(keys, seen, overtaken, now_ms=now_ms))
        puts[keys.state] = DOMAIN_STATE.encode(msgspec.structs.replace(domain, folded_to=end_seq))
        deletes = [keys.log(record.seq) for record in records if not _is_last_of_writer(keys, seen, record)]
        return Decision(result=end_seq, puts=puts, deletes=deletes)

    return Rule(keys.unit, Reads(keys=list(read_keys)), decide)


def _log_start(keys: DomainKeys, seen: Seen, stream: StreamId) -> int:
    """Return below which offset entries are overtaken; a deleted stream's log start is its end."""
    head = STREAM_HEAD.seen(seen, keys.head(stream))
    assert head is not None, f"stream {stream} lost its head before its entries were folded"
    return head.log_start


def _is_last_of_writer(keys: DomainKeys, seen: Seen, record: LogRecord) -> bool:
    if not record.writer:
        return False
    writer = WRITER_STATE.seen(seen, keys.writer(record.writer))
    return writer is not None and writer.last_seq == record.seq
