"""The index in memory: follows the commit records, and may only say yes.

Two layers:
- `IndexView` is plain state. It applies commit records in order, holds the heads it has seen, the entries that
  are not folded yet (the *tail*, of every stream), and a bounded number of folded entries it was shown.
- `IndexCache` is the shell that reads the store. `refresh` validates: it reads the domain's state after it
  was called, and when it returns the view holds everything committed before that moment.

Must stay true:
- A positive answer may come from memory at once; before any negative one (out of range, unknown stream, nothing
  there) the caller refreshes. So a lost watch costs time, never truth.
- Commit records are a chain: with the next ones the last one that is known is read again. So a store that was taken
  back to an earlier state, and wrote other records under the same numbers, is noticed, and the view begins anew.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Protocol

import msgspec

from headrace.errors import Corrupt
from headrace.index.lookup import TimestampSearch
from headrace.index.values import (
    DOMAIN_STATE,
    INDEX_ENTRY,
    LOG_RECORD,
    STREAM_HEAD,
    DomainState,
    IndexEntry,
    LogRecord,
    StreamHead,
)
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore, Versioned
from headrace.metadata.refreshing import SharedRefresh
from headrace.metadata.watching import REWOUND
from headrace.model.ids import StreamId

_end_offset = attrgetter("end_offset")

RECORDS_PER_READ = 500
ENTRIES_PER_READ = 64

MAX_SKIPPED = 100
"""How many signals of our own commits are passed over before one is followed after all: what was folded meanwhile can
be let go of only then."""

PLACE_BITS = 32
"""An entry's place in the log is one number: its record's, and in these low bits its own within the record."""

TURNS_TO_TELL = 2
"""After how many turns of the loop the maker of a commit has passed it on: the store's future, then the writer."""


class StreamListener(Protocol):
    """Hears at once what the view learns of a stream. It only takes note: it neither waits nor changes the view."""

    def grown(self, size_bytes: int) -> None:
        """Take note that a commit has appended this many bytes."""
        ...

    def changed(self) -> None:
        """Take note that the head changed otherwise (trimmed, swapped, deleted), or is not known any more."""
        ...


class _Tail:
    """A stream's entries that are not known to be folded, and the place of each in the log, in order."""

    __slots__ = ("entries", "places")

    def __init__(self) -> None:
        self.places: list[int] = []
        self.entries: list[IndexEntry] = []

    def append(self, place: int, entry: IndexEntry) -> None:
        self.places.append(place)
        self.entries.append(entry)

    def drop_below(self, place: int) -> None:
        position = bisect_left(self.places, place)
        del self.places[:position]
        del self.entries[:position]


class IndexView:
    """What is known of the index, as of commit record `position`. No await, no clock, no I/O."""

    def __init__(self, *, max_folded_entries: int) -> None:
        self.position = 0
        self.generation = 0
        """Grows whenever something that was known may have been forgotten."""
        self._heads: dict[StreamId, StreamHead] = {}
        self._changed_at: dict[StreamId, int] = {}
        self._deleted: dict[StreamId, int] = {}
        """Deleted streams whose heads are known here, and the commit record of each deletion."""
        self._tails: defaultdict[StreamId, _Tail] = defaultdict(_Tail)
        self._folded: OrderedDict[StreamId, list[IndexEntry]] = OrderedDict()
        self._folded_count = 0
        self._max_folded_entries = max_folded_entries
        self._listeners: dict[StreamId, dict[StreamListener, None]] = {}

    def listen(self, stream: StreamId, listener: StreamListener) -> None:
        """Tell a listener of everything that happens to a stream from here on."""
        self._listeners.setdefault(stream, {})[listener] = None

    def unlisten(self, stream: StreamId, listener: StreamListener) -> None:
        """Tell it no more; one that does not listen is passed over."""
        listeners = self._listeners.get(stream, {})
        listeners.pop(listener, None)
        if not listeners:
            self._listeners.pop(stream, None)

    def reset(self, position: int) -> None:
        """Forget everything and begin at a commit record: what lies before it was folded without us."""
        self.position = position
        self.generation += 1
        self._heads.clear()
        self._changed_at.clear()
        self._deleted.clear()
        self._tails.clear()
        self._folded.clear()
        self._folded_count = 0
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.changed()

    def apply(self, record: LogRecord) -> None:
        """Take the next commit record; one that was applied already is passed over."""
        if record.seq < self.position:
            return
        assert record.seq == self.position, f"record {record.seq} applied at position {self.position}"
        self.position += 1
        grown: dict[StreamId, StreamHead] = {}
        for place, entry in enumerate(record.entries, record.seq << PLACE_BITS):
            indexed = record.index_entry(entry)
            self._tails[entry.stream].append(place, indexed)
            self._changed_at[entry.stream] = record.seq
            head = grown.get(entry.stream) or self._heads.get(entry.stream)
            if head is not None and (entry.stream in grown or head.seq < record.seq):
                grown[entry.stream] = _grown(head, indexed, record.seq)
        self._heads.update(grown)
        for change in record.changes:
            self._changed_at[change.stream] = record.seq
            self.note_head(change.stream, change.head)
        if self._listeners:
            for entry in record.entries:
                for listener in self._listeners.get(entry.stream, ()):
                    listener.grown(entry.size_bytes)

    def note_head(self, stream: StreamId, head: StreamHead) -> None:
        """Take a head from the store or from a record, unless a newer one is known, or records have overtaken it.

        A head that was read while a record that changes it was applied would miss that change for ever.
        """
        known = self._heads.get(stream)
        if head.seq < self._changed_at.get(stream, -1) or (known is not None and known.seq >= head.seq):
            return
        if known is None or known.index_epoch != head.index_epoch:
            self.forget_folded(stream)
        self._heads[stream] = head
        if head.is_deleted:
            self._deleted[stream] = head.seq
        for listener in self._listeners.get(stream, ()):
            listener.changed()

    def head(self, stream: StreamId) -> StreamHead | None:
        """Return the head as it is known here."""
        return self._heads.get(stream)

    def drop_folded_tail(self, domain: DomainState) -> None:
        """Let go of tail entries that are in the store's per-stream index by now.

        Of a record that is folded in part they must go, too: a swap or a trim may exchange or remove them there.
        """
        end_place = (domain.folded_to << PLACE_BITS) + domain.folded_entries
        run_place = domain.run_end << PLACE_BITS
        run_stream = domain.run_stream
        folded = [
            (stream, run_place if stream < run_stream else end_place)
            for stream, tail in self._tails.items()
            if tail.places[0] < (run_place if stream < run_stream else end_place)
        ]
        for stream, place in folded:
            tail = self._tails[stream]
            tail.drop_below(place)
            if not tail.entries:
                del self._tails[stream]
        self._forget_deleted(domain.folded_to)

    def _forget_deleted(self, folded_to: int) -> None:
        """Forget streams whose deletion is folded: topics come and go, and their streams never return.

        A head that was read before the deletion may be on its way here. Its reader sees that the generation is
        another one, and reads again.
        """
        gone = [stream for stream, seq in self._deleted.items() if seq < folded_to]
        for stream in gone:
            self.forget_folded(stream)
            del self._deleted[stream], self._heads[stream]
            self._changed_at.pop(stream, None)
        if gone:
            self.generation += 1

    def find(self, stream: StreamId, offset: int, *, limit: int) -> list[IndexEntry]:
        """Return consecutive entries from the one that covers `offset` on; none if that one is not in memory."""
        found: list[IndexEntry] = []
        folded = self._folded.get(stream)
        if folded is not None:
            self._folded.move_to_end(stream)
            found = _run_from(folded, offset, limit)
            offset = found[-1].end_offset if found else offset
        tail = self._tails.get(stream)
        if tail is not None and len(found) < limit:
            rest = _run_from(tail.entries, offset, limit - len(found))
            if not found or (rest and rest[0].start_offset == offset):
                found += rest
        return found

    def has_tail_below(self, stream: StreamId, offset: int) -> bool:
        """Say whether entries that end at or below an offset are not known to be folded."""
        tail = self._tails.get(stream)
        return tail is not None and tail.entries[0].end_offset <= offset

    def tail_from(self, stream: StreamId, offset: int) -> list[IndexEntry]:
        """Return the entries that are not known to be folded and end at an offset or behind it, gaps or not."""
        tail = self._tails.get(stream)
        return [] if tail is None else tail.entries[bisect_left(tail.entries, offset, key=_end_offset) :]

    def note_folded(self, stream: StreamId, entries: Sequence[IndexEntry]) -> None:
        """Keep folded entries that were read from the store; the streams used least recently make room."""
        kept = self._folded.pop(stream, [])
        self._folded_count -= len(kept)
        if kept and entries and kept[-1].end_offset <= entries[0].start_offset:
            kept.extend(entries)  # whoever reads from the start to the end adds page after page
        else:
            merged = {entry.end_offset: entry for entry in kept}
            merged.update((entry.end_offset, entry) for entry in entries)
            kept = sorted(merged.values(), key=_end_offset)
        del kept[: -self._max_folded_entries]
        self._folded[stream] = kept
        self._folded_count += len(kept)
        while self._folded_count > self._max_folded_entries:
            _, dropped = self._folded.popitem(last=False)
            self._folded_count -= len(dropped)

    def forget_folded(self, stream: StreamId) -> None:
        """Drop a stream's folded entries: they were replaced, or an object they name turned out to be gone."""
        self._folded_count -= len(self._folded.pop(stream, ()))


class IndexCache:
    """Answers from memory where it can, reads the store where it must."""

    def __init__(
        self,
        store: MetadataStore,
        keys: DomainKeys,
        *,
        max_folded_entries: int,
        on_rewind: Callable[[str], None] | None = None,
    ) -> None:
        """`on_rewind` hears how it shows that the store was taken back to an earlier state."""
        self._store = store
        self._keys = keys
        self.view = IndexView(max_folded_entries=max_folded_entries)
        self._on_rewind = on_rewind
        self._own_revision = 0
        """What this process committed up to this revision is in the view, and so is everything before it."""
        self._state_version = 0
        """The newest version of the domain's state that is known of: a read that begins later finds no older one."""
        self._revisions: dict[int, int] = {}
        """Which revision wrote each record of the view, in order, as long as the record may be in the store."""
        self._refresh = SharedRefresh(self._catch_up)

    async def refresh(self) -> None:
        """Catch up with everything that was committed before this call. Concurrent calls share one read."""
        await self._refresh.run()

    def forget(self) -> None:
        """Forget everything: the next refresh begins with what the store holds then."""
        self.view.reset(0)
        self._own_revision = self._state_version = 0
        self._revisions.clear()

    async def _catch_up(self) -> None:
        while True:
            position, version, generation = self.view.position, self._state_version, self.view.generation
            raw = await self._store.get(self._keys.state)
            if generation != self.view.generation:
                continue
            domain = DomainState() if raw is None else DOMAIN_STATE.decode(raw.value, raw.key)
            found_version = 0 if raw is None else raw.version
            if domain.next_seq < position or found_version < version:
                self._rewound(
                    f"the log ends at record {domain.next_seq}, revision {found_version};"
                    f" it was followed to record {position}, revision {version}"
                )
                continue
            start_seq = max(self.view.position, domain.folded_to)
            proof_seq = self._proof_before(start_seq, domain) if found_version != version else start_seq
            items = await self._read_records(proof_seq, domain.next_seq)
            if items is None or generation != self.view.generation:
                continue
            if proof_seq < start_seq and items[0].version != self._revisions.get(proof_seq, items[0].version):
                self._rewound(
                    f"commit record {proof_seq} has revision {items[0].version};"
                    f" it had revision {self._revisions[proof_seq]}"
                )
                continue
            self._state_version = max(self._state_version, found_version)
            self._apply(start_seq, items[start_seq - proof_seq :], domain)
            return

    def _proof_before(self, start_seq: int, domain: DomainState) -> int:
        """Return the record to read from: the last one that is known, if it is not folded away, is read again."""
        is_known = start_seq - 1 in self._revisions and domain.folded_to < start_seq <= domain.next_seq
        return start_seq - 1 if is_known else start_seq

    async def _read_records(self, start_seq: int, end_seq: int) -> list[Versioned] | None:
        """Return the commit records of a range, or `None` if some were folded away meanwhile."""
        items: list[Versioned] = []
        while (next_seq := start_seq + len(items)) < end_seq:
            page = await self._store.range(self._keys.log_range(next_seq, limit=RECORDS_PER_READ))
            if not page or [item.key for item in page] != [self._keys.log(next_seq + n) for n in range(len(page))]:
                return None
            items += page
        return items

    def _apply(self, start_seq: int, items: Sequence[Versioned], domain: DomainState) -> None:
        """Bring the view up to date, all at once: no look-up sees one that has begun anew and holds nothing yet."""
        if self.view.position < start_seq:
            self.view.reset(start_seq)
            self._revisions.clear()
        for item in items:
            record = LOG_RECORD.decode(item.value, item.key)
            if record.seq == self.view.position:
                self._revisions[record.seq] = item.version
            self.view.apply(record)
        self.view.drop_folded_tail(domain)
        while self._revisions and (oldest := next(iter(self._revisions))) < domain.folded_to:
            del self._revisions[oldest]

    def note_committed(self, record: LogRecord, revision: int) -> None:
        """Take a commit that this very process has just made, if everything before it is known."""
        if self.view.position == record.seq:
            self.view.apply(record)
            self._own_revision = max(self._own_revision, revision)
            self._state_version = max(self._state_version, revision)
            if revision:
                self._revisions[record.seq] = revision
        elif revision and revision != (known := self._revisions.get(record.seq, revision)):
            self._rewound(f"commit record {record.seq} was written at revision {revision}; it had revision {known}")

    def _rewound(self, what: str) -> None:
        """Forget what the store does not know any more, and tell others to do so, too."""
        self.forget()
        if self._on_rewind is not None:
            self._on_rewind(what)

    async def follow(self) -> None:
        """Stay fresh for ever: refresh whenever the watch says that something may have changed."""
        # Every commit changes the state, and it lies in the domain's unit. The groups lie in units below: were the
        # unit's whole prefix watched, each offset that is committed anywhere would cost a read here.
        watch = self._store.watch(self._keys.state)
        skipped = 0
        try:
            while True:
                signal = await watch.wait()
                if signal.revision == REWOUND:
                    self._rewound("revisions are given again, or another server answers")
                # The store tells of our own commits, too. Their maker needs a turn to tell us, and a read is saved.
                await _next_turn()
                skipped += 1
                if 0 < signal.revision <= self._own_revision and skipped < MAX_SKIPPED:
                    continue
                skipped = 0
                await self.refresh()
        finally:
            watch.close()

    async def fresh_head(self, stream: StreamId) -> StreamHead | None:
        """Return a stream's head as of now, validated against the store; `None` if there is no such stream."""
        await self.refresh()
        while (head := self.view.head(stream)) is None or head.seq >= self.view.position:
            if head is not None:
                # A head that was read from the store may be newer than the records applied so far. The entries that
                # it counts on must be known, too.
                await self.refresh()
                continue
            generation = self.view.generation
            raw = await self._store.get(self._keys.head(stream))
            if raw is None:
                return None
            # A view that has begun anew meanwhile, or has forgotten streams, may have passed over records that
            # changed this head: read it again.
            if generation == self.view.generation:
                self.view.note_head(stream, STREAM_HEAD.decode(raw.value, raw.key))
        return None if head.is_deleted else head

    async def locate(self, stream: StreamId, offset: int, *, limit: int = ENTRIES_PER_READ) -> list[IndexEntry]:
        """Return consecutive entries from the one that covers `offset` on; none if the stream does not hold it.

        Raises `Corrupt` if the offset lies between log start and high watermark and yet no entry covers it.
        """
        head = self.view.head(stream)
        if head is not None and (head.is_deleted or offset < head.log_start):
            return []  # a log start never moves back, and a deleted stream never returns
        found = self.view.find(stream, offset, limit=limit) or await self._read(stream, offset, limit)
        if found:
            return found
        head = await self.fresh_head(stream)
        if head is None or not head.log_start <= offset < head.high_watermark:
            return []
        found = self.view.find(stream, offset, limit=limit) or await self._read(stream, offset, limit)
        if found:
            return found
        # Trimming may have overtaken this look-up; only a head read after the entry was missed can tell.
        head = await self.fresh_head(stream)
        if head is None or not head.log_start <= offset < head.high_watermark:
            return []
        raise Corrupt(
            f"stream {stream} has no index entry for offset {offset}, "
            f"though it lies between {head.log_start} and {head.high_watermark}"
        )

    async def find_timestamp(self, stream: StreamId, target_ms: int, *, start_offset: int = 0) -> IndexEntry | None:
        """Return the first entry from `start_offset` on with a record at or after a time; `None` if there is none."""
        head = await self.fresh_head(stream)
        if head is None:
            return None
        search = TimestampSearch(
            log_start=max(head.log_start, start_offset), high_watermark=head.high_watermark, target_ms=target_ms
        )
        while search.probe is not None:
            found = await self.locate(stream, search.probe, limit=1)
            if not found:  # the log start has moved past the probe: begin again above it
                return await self.find_timestamp(stream, target_ms, start_offset=start_offset)
            search.feed(found[0])
        return search.found

    async def _read(self, stream: StreamId, offset: int, limit: int) -> list[IndexEntry]:
        """Read folded entries from the store, and remember them unless the index changed meanwhile."""
        before = self.view.head(stream)
        items = await self._store.range(self._keys.entries(stream, after_offset=offset, limit=limit))
        entries = _run_from([INDEX_ENTRY.decode(item.value, item.key) for item in items], offset, limit)
        after = self.view.head(stream)
        if entries and before is not None and after is not None and before.index_epoch == after.index_epoch:
            self.view.note_folded(stream, entries)
        return entries


async def _next_turn() -> None:
    """Let everything that is ready run first."""
    loop = asyncio.get_running_loop()
    for _ in range(TURNS_TO_TELL):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


def _run_from(entries: Sequence[IndexEntry], offset: int, limit: int) -> list[IndexEntry]:
    """Return the entry that covers `offset` and what follows without gap or overlap, at most `limit` of them.

    Memory may hold entries from before and after a swap side by side, until it hears of the swap.
    """
    run: list[IndexEntry] = []
    position = bisect_right(entries, offset, key=_end_offset)
    while position < len(entries) and len(run) < limit:
        start_offset = entries[position].start_offset
        if start_offset > offset or (run and start_offset < offset):
            break
        run.append(entries[position])
        offset = entries[position].end_offset
        position += 1
    return run


def _grown(head: StreamHead, entry: IndexEntry, seq: int) -> StreamHead:
    """Return the head after an append, as the commit itself computed it."""
    is_newer = entry.running_max_ms > head.max_timestamp_ms
    return msgspec.structs.replace(
        head,
        high_watermark=entry.end_offset,
        cumulative_bytes=entry.cumulative_bytes,
        max_timestamp_ms=entry.running_max_ms,
        max_timestamp_offset=entry.max_timestamp_offset if is_newer else head.max_timestamp_offset,
        seq=seq,
    )
