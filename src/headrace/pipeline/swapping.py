"""Swap the index entries of a written slice for table entries, in steps that a producer does not notice.

Each step takes what the index has now: the entry that earlier steps have made of this file, and the next WAL entries,
and makes one entry of them that names the file. So at the end the index has one entry per file and stream, and a run
of any length never holds the log's lock for more than a bounded number of entries. A batch that was held back keeps
its WAL bytes and becomes an entry of its own.

After a rewrite the same is done with entries that name its inputs: they, and entries without any rows between them,
become one entry that names the new file. WAL entries stay, and break the run.

Must stay true: a step depends on nothing but the index and the written file, so any process can go on after a crash;
what was trimmed away meanwhile stays away; offsets of another file or stream are never touched. Every step demands
the topic's lease: once the saga is over, others may move what was held back, or compact all rows of a file away, and
a process that was paused would take both for work that is left to do.
"""

import itertools
from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from headrace.errors import Fenced
from headrace.index.rule import StalePlan
from headrace.index.swap import Swap, replacement_for, swap_entries
from headrace.index.values import INDEX_ENTRY, STREAM_HEAD, IndexEntry
from headrace.metadata.keys import DomainKeys
from headrace.metadata.leases import Lease
from headrace.metadata.port import MetadataStore
from headrace.model.extents import TableExtent, TableFile, WalExtent
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints
from headrace.tables.files import HeldBack, WrittenFile, WrittenSlice

MAX_STALE_PLANS = 100
"""How often in a row a step may find that the index has changed under it: trimming goes on beside us."""


def next_step(
    entries: Sequence[IndexEntry], file: WrittenFile, part: WrittenSlice, *, max_entries: int
) -> Swap | None:
    """Return the next step over a slice, or `None` if nothing of it is left to swap.

    `entries` are the index's, in order, from the first one that is not known to be swapped on.
    """
    inside = [entry for entry in entries if part.start_offset <= entry.start_offset < part.end_offset]
    first = next((number for number, entry in enumerate(inside) if not _is_done(entry, part)), None)
    if first is None:
        return None
    if first and isinstance(inside[first - 1].extent, TableExtent):
        first -= 1  # what earlier steps made of this file grows
    planned = inside[first : first + max(max_entries, 2)]
    return Swap(stream=part.stream, planned=planned, replacements=_replacements(planned, file, part))


def next_rewrite_step(
    entries: Sequence[IndexEntry], file: WrittenFile, part: WrittenSlice, inputs: Collection[str], *, max_entries: int
) -> Swap | None:
    """Return the next step over a slice that was rewritten, or `None` if nothing of it is left to swap."""
    inside = [e for e in entries if part.start_offset <= e.start_offset and e.end_offset <= part.end_offset]
    own = {file.path, *inputs}
    for run in _runs(inside, own):
        planned = run[: max(max_entries, 2)]
        extent = extent_of(file, part, planned[0].start_offset, planned[-1].end_offset)
        if len(planned) > 1 or planned[0].extent != extent:
            return Swap(stream=part.stream, planned=planned, replacements=[replacement_for(planned, extent)])
    return None


def _runs(entries: Sequence[IndexEntry], own: Collection[str]) -> list[list[IndexEntry]]:
    """Return the entries that a rewrite makes its own, in runs that nothing interrupts."""
    runs: list[list[IndexEntry]] = []
    for entry in entries:
        if not _is_rewritten(entry, own):
            continue
        if runs and runs[-1][-1].end_offset == entry.start_offset:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs


def _is_rewritten(entry: IndexEntry, own: Collection[str]) -> bool:
    """Say whether an entry is one that a rewrite makes its own: of its inputs, of its file, or without any rows."""
    return isinstance(entry.extent, TableExtent) and all(file.path in own for file in entry.extent.files)


def extent_of(file: WrittenFile, part: WrittenSlice, start_offset: int, end_offset: int) -> TableExtent:
    """Return where the rows of an offset range lie: the row groups that reach into it."""
    groups = part.row_groups
    if not groups:
        return TableExtent(())  # markers only: nothing was written
    ends = [*(group.first_offset for group in groups[1:]), part.end_offset]
    chosen = tuple(
        group
        for group, group_end in zip(groups, ends, strict=True)
        if group.first_offset < end_offset and group_end > start_offset
    )
    if not chosen:
        return TableExtent(())
    return TableExtent((TableFile(file.path, file.size_bytes, file.footer_bytes, file.footer_crc, chosen),))


def _is_done(entry: IndexEntry, part: WrittenSlice) -> bool:
    """Say whether an entry is what the slice makes of it: rows of the file, or a batch that was held back."""
    if isinstance(entry.extent, TableExtent):
        return True
    return any(entry.extent == held.extent for held in part.held_back)


def _replacements(planned: Sequence[IndexEntry], file: WrittenFile, part: WrittenSlice) -> list[IndexEntry]:
    fragments = [fragment for entry in planned for fragment in _fragments(entry, part.held_back)]
    replacements: list[IndexEntry] = []
    for is_held, run in itertools.groupby(fragments, key=lambda fragment: fragment[1]):
        entries = [entry for entry, _ in run]
        if is_held:
            replacements += entries
        else:
            extent = extent_of(file, part, entries[0].start_offset, entries[-1].end_offset)
            replacements.append(replacement_for(entries, extent))
    return replacements


def _fragments(entry: IndexEntry, held_back: Sequence[HeldBack]) -> list[tuple[IndexEntry, bool]]:
    """Cut an entry where batches were held back; say of each piece whether it is such a batch.

    A piece that was cut off keeps the entry's timestamps: a look-up by time may then open it in vain, and goes on.
    Raises `Fenced` if the batches lie elsewhere by now.
    """
    held = [one for one in held_back if entry.start_offset <= one.start_offset < entry.end_offset]
    if not held or not isinstance(entry.extent, WalExtent):
        return [(entry, False)]
    whole = entry.extent
    if not all(whole.holds(one.extent) for one in held):
        # Whoever holds the lease never sees this: what was held back is moved only where there is no saga.
        raise Fenced(f"{entry} was moved since batches of it were held back: the saga was ended by somebody else")
    pieces: list[tuple[IndexEntry, bool]] = []
    offset, byte = entry.start_offset, whole.start_byte
    for one in held:
        if one.start_offset > offset:
            pieces.append((_piece(entry, whole, offset, one.start_offset, byte, one.extent.start_byte), False))
        offset, byte = one.end_offset, one.extent.start_byte + one.extent.size_bytes
        piece = _piece(entry, whole, one.start_offset, offset, one.extent.start_byte, byte)
        times = {"min_timestamp_ms": one.min_timestamp_ms, "max_timestamp_ms": one.max_timestamp_ms}
        if len(held) == 1 and offset - one.start_offset == entry.end_offset - entry.start_offset:
            times = {}  # the entry was this one batch: it stays as it is
        pieces.append((msgspec.structs.replace(piece, **times), True))
    if offset < entry.end_offset:
        end_byte = whole.start_byte + whole.size_bytes
        pieces.append((_piece(entry, whole, offset, entry.end_offset, byte, end_byte), False))
    return pieces


def _piece(
    entry: IndexEntry, whole: WalExtent, start_offset: int, end_offset: int, start_byte: int, end_byte: int
) -> IndexEntry:
    is_there = start_offset <= entry.max_timestamp_offset < end_offset
    return msgspec.structs.replace(
        entry,
        start_offset=start_offset,
        end_offset=end_offset,
        record_count=end_offset - start_offset,
        cumulative_bytes=entry.cumulative_bytes - (whole.start_byte + whole.size_bytes - end_byte),
        max_timestamp_offset=entry.max_timestamp_offset if is_there else start_offset,
        extent=WalExtent(whole.object_id, start_byte, end_byte - start_byte),
    )


class Swapper:
    """Makes the steps."""

    def __init__(
        self, *, store: MetadataStore, keys: DomainKeys, clock: Clock, crash_points: CrashPoints, max_entries: int
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._crash_points = crash_points
        self._max_entries = max_entries

    async def swap(self, lease: Lease, file: WrittenFile, part: WrittenSlice) -> int:
        """Swap all that the index still has of a slice; return how many steps it took. Raises `Fenced`."""
        next_ = partial(next_step, file=file, part=part, max_entries=self._max_entries)
        return await self._swap(lease, part, next_)

    async def swap_rewritten(
        self, lease: Lease, file: WrittenFile, part: WrittenSlice, inputs: Collection[str]
    ) -> int:
        """Let entries that name a rewrite's inputs name its file; return how many steps it took. Raises `Fenced`."""
        next_ = partial(next_rewrite_step, file=file, part=part, inputs=inputs, max_entries=self._max_entries)
        return await self._swap(lease, part, next_)

    async def _swap(
        self, lease: Lease, part: WrittenSlice, next_: Callable[[Sequence[IndexEntry]], Swap | None]
    ) -> int:
        steps = stale = 0
        offset = part.start_offset
        while True:
            entries = await self._entries(part, offset)
            step = next_(entries)
            if step is None:
                if len(entries) < 2 or entries[-1].end_offset >= part.end_offset:
                    return steps
                offset = entries[-1].start_offset  # all of this page is done: the last one may still grow
                continue
            try:
                await swap_entries(self._keys, step, now_ms=self._clock.now_ms()).apply_under(self._store, lease)
            except StalePlan:
                stale += 1
                if await self._is_gone(part):
                    return steps
                if stale > MAX_STALE_PLANS:
                    raise
                offset = part.start_offset
                continue
            self._crash_points.reach(CrashPoint.SWAP_AFTER_STEP)
            steps += 1
            stale = 0
            offset = step.replacements[-1].start_offset

    async def _entries(self, part: WrittenSlice, offset: int) -> list[IndexEntry]:
        """Return the next entries from an offset on; a page holds more than a step, so a step always fits in."""
        page = self._keys.entries(part.stream, after_offset=offset, limit=self._max_entries + 2)
        found = await self._store.range(page)
        return [INDEX_ENTRY.decode(item.value, item.key) for item in found]

    async def _is_gone(self, part: WrittenSlice) -> bool:
        """Say whether the slice has gone with its stream or below the log start."""
        raw = await self._store.get(self._keys.head(part.stream))
        if raw is None:
            return True
        head = STREAM_HEAD.decode(raw.value, raw.key)
        return head.is_deleted or head.log_start >= part.end_offset
