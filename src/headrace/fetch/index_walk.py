"""Walk a stream's index page by page, while brokers append, fold, trim and swap underneath.

1. Read the head, then the commit records that are not folded, then a page of folded entries: in this order nothing
   below the head's high watermark is missed, and what was folded in between is seen twice and counted once.
2. Check that the page continues where the walk has come to: no gap, no overlap (I1).
3. A page that does not fit is read again. It is damage if the index stood still and says the same once more.

Must stay true: it only reads, and a swap, a trim or a fold beside it is never taken for damage. Memory goes with one
page and with what is not folded, which every broker holds in memory, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.errors import Corrupt, Retryable
from headrace.fetch.damage import Damage
from headrace.index.cache import IndexView
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
from headrace.model.ids import StreamId
from headrace.runtime.clock import Clock

ENTRIES_PER_PAGE = 500
"""How many index entries of a stream are walked at once."""

RECORDS_PER_READ = 500
"""How many commit records are read at once."""

MAX_LOOKS = 20
"""How often a page that does not fit is read again because the index changed meanwhile."""

LOOK_AGAIN_S = 0.1
"""How long to wait before a page that does not fit is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Entries of a stream that follow what was walked before, by end offset, and what is wrong with their offsets.

    The walk goes on at `next_offset`; it is over at the high watermark of `head`.
    """

    head: StreamHead
    entries: Sequence[IndexEntry]
    damages: Sequence[Damage]
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What the store said: the entries that end at `offset` or behind it, and values that could not be read."""

    head: StreamHead
    offset: int
    entries: Sequence[IndexEntry]
    unreadable: Sequence[Damage]
    is_last: bool


class IndexWalk:
    """Reads the index of all streams of one domain straight from the store."""

    def __init__(
        self, store: MetadataStore, keys: DomainKeys, *, clock: Clock, entries_per_page: int = ENTRIES_PER_PAGE
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._entries_per_page = entries_per_page
        self._tail = IndexView(max_folded_entries=0)
        self._refresh = SharedRefresh(self._catch_up)
        self.lost_records: list[Damage] = []
        """Commit records that are gone or cannot be read. What they held is missing in streams, and found there."""

    async def page(self, stream: StreamId, offset: int) -> Page | None:
        """Return the entries from `offset` on, or from the log start if that lies behind it; `None` if it is deleted.

        Raises `Retryable` if the index never stands still, and `Corrupt` if the stream's head cannot be read.
        """
        before: list[Damage] = []
        for number in range(MAX_LOOKS):
            if number:
                await self._clock.sleep(LOOK_AGAIN_S)
            look = await self._look(stream, offset)
            if look is None:
                return None
            damages = [*look.unreadable, *_misfits(look)]
            head = await self._head(stream) if damages else look.head
            if not damages or (damages == before and head is not None and _stamp(head) == _stamp(look.head)):
                return _page(look, damages)
            before = damages
        raise Retryable(f"the index of stream {stream} changed during each of {MAX_LOOKS} looks at it: try again")

    async def head_if_named(self, stream: StreamId, entry: IndexEntry) -> StreamHead | None:
        """Return the stream's head, if the index still has an entry that a page held and readers can reach it."""
        head = await self._head(stream)
        if head is None or entry.end_offset <= head.log_start:
            return None
        await self._refresh.run()
        raw = await self._store.get(self._keys.entry(stream, entry.end_offset))
        if raw is not None:
            return head if INDEX_ENTRY.decode(raw.value, raw.key) == entry else None
        return head if entry in self._tail.tail_from(stream, entry.end_offset) else None

    async def _look(self, stream: StreamId, offset: int) -> _Look | None:
        head = await self._head(stream)
        if head is None:
            return None
        offset = max(offset, head.log_start)
        await self._refresh.run()
        # The entry that ends at the offset comes along: what follows must begin where that one ends.
        wanted = self._keys.entries(stream, after_offset=offset - 1, limit=self._entries_per_page)
        items = await self._store.range(wanted)
        unreadable: list[Damage] = []
        found: dict[int, IndexEntry] = {}
        for item in items:
            entry = _opened(item, unreadable)
            if entry is not None:
                found[entry.end_offset] = entry
        # What ends at the offset itself was told with the page before.
        unreadable = [damage for damage in unreadable if damage.end_offset > offset]
        is_last = len(items) < self._entries_per_page
        if is_last:
            for entry in self._tail.tail_from(stream, offset):
                found.setdefault(entry.end_offset, entry)
        entries = [found[end_offset] for end_offset in sorted(found)]
        return _Look(head=head, offset=offset, entries=entries, unreadable=unreadable, is_last=is_last)

    async def _head(self, stream: StreamId) -> StreamHead | None:
        raw = await self._store.get(self._keys.head(stream))
        head = None if raw is None else STREAM_HEAD.decode(raw.value, raw.key)
        return None if head is None or head.is_deleted else head

    async def _catch_up(self) -> None:
        """Follow the commit records, as `IndexCache` does, but pass over those that are lost instead of waiting."""
        domain = await self._domain()
        while max(self._tail.position, domain.folded_to) < domain.next_seq:
            start_seq = max(self._tail.position, domain.folded_to)
            found = await self._store.range(self._keys.log_range(start_seq, limit=RECORDS_PER_READ))
            seqs = [int(item.key.removeprefix(self._keys.log_prefix)) for item in found]
            if not seqs or seqs != list(range(start_seq, start_seq + len(seqs))):
                fresh = await self._domain()
                if fresh.folded_to > start_seq:
                    domain = fresh  # they were folded meanwhile
                    continue
            if self._tail.position < start_seq:
                self._tail.reset(start_seq)
            self._apply(seqs, found, end_seq=domain.next_seq)
        self._tail.drop_folded_tail(domain)

    def _apply(self, seqs: Sequence[int], found: Sequence[Versioned], *, end_seq: int) -> None:
        for seq, item in zip(seqs, found, strict=True):
            self._pass_over(seq)
            try:
                self._tail.apply(LOG_RECORD.decode(item.value, item.key))
            except Corrupt as error:
                self._pass_over(seq + 1, str(error))
        if not found:
            self._pass_over(end_seq)

    def _pass_over(self, end_seq: int, why: str = "") -> None:
        """Take note that commit records up to `end_seq` are lost."""
        start_seq = self._tail.position
        if start_seq >= end_seq:
            return
        missing = (
            f"commit records {start_seq} to {end_seq - 1} are not in the metadata store: restore it from a backup"
        )
        self.lost_records.append(_damage(0, 0, why or missing))
        for seq in range(start_seq, end_seq):
            self._tail.apply(LogRecord(seq, 0))

    async def _domain(self) -> DomainState:
        raw = await self._store.get(self._keys.state)
        return DomainState() if raw is None else DOMAIN_STATE.decode(raw.value, raw.key)


def _stamp(head: StreamHead) -> tuple[int, int]:
    """Return what changes with every swap and every move of the log start."""
    return head.index_epoch, head.log_start


def _opened(item: Versioned, unreadable: list[Damage]) -> IndexEntry | None:
    end_offset = int(item.key.rpartition("/")[2])
    try:
        entry = INDEX_ENTRY.decode(item.value, item.key)
    except Corrupt as error:
        unreadable.append(_damage(max(end_offset - 1, 0), end_offset, str(error)))
        return None
    if entry.end_offset != end_offset or entry.start_offset >= end_offset:
        why = f"its index entry says {entry.start_offset} to {entry.end_offset}, and its key {end_offset}"
        unreadable.append(_damage(max(end_offset - 1, 0), end_offset, why))
        return None
    return entry


def _misfits(look: _Look) -> list[Damage]:
    """Return the offsets that no entry of a look covers, and those that two of them cover."""
    damages: list[Damage] = []
    last = look.entries[-1].end_offset if look.entries else look.offset
    if look.entries and look.entries[0].start_offset > look.offset:
        damages.append(_gap(look.offset, look.entries[0].start_offset))
    for left, right in pairwise(look.entries):
        if right.start_offset > left.end_offset:
            damages.append(_gap(left.end_offset, right.start_offset))
        elif right.start_offset < left.end_offset:
            damages.append(_damage(right.start_offset, left.end_offset, "two index entries cover these offsets"))
    if look.is_last and last < look.head.high_watermark:
        damages.append(_gap(last, look.head.high_watermark))
    return damages


def _page(look: _Look, damages: Sequence[Damage]) -> Page:
    entries = [entry for entry in look.entries if entry.end_offset > look.offset]
    # A page of nothing but values that cannot be read must not end the walk.
    ends = [*(entry.end_offset for entry in entries), *(damage.end_offset for damage in look.unreadable)]
    next_offset = look.head.high_watermark if look.is_last else max(ends)
    return Page(head=look.head, entries=entries, damages=damages, next_offset=max(next_offset, *ends, look.offset))


def _gap(start_offset: int, end_offset: int) -> Damage:
    return _damage(start_offset, end_offset, "no index entry covers these offsets")


def _damage(start_offset: int, end_offset: int, why: str) -> Damage:
    return Damage(
        object_key="", start_byte=0, size_bytes=0, start_offset=start_offset, end_offset=end_offset, why=why
    )
