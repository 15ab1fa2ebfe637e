"""Plan repacks: which WAL entries of a stream are copied into one packed object, and which entries they become there.

Pure: no clock, no store. `gc/repacking.py` reads what is planned from, and does it.

1. Take the stream's WAL entries that are old enough, in the order of their offsets. Entries of a table among them are
   passed over: an object may hold runs that do not touch each other.
2. Group neighbours by the packed object that they lie in; those in no packed object are *loose*.
3. Loose entries move when there are enough of them or when the first has waited long enough. Packed objects are
   merged in tiers: those at the end of a stream, once the oldest of them has become `factor` times as large with the
   others, and those before a full one in any case. A full one stays as it is.
4. Neighbours among what moves become one entry, up to a size that one fetch likes to read.

Must stay true: every planned entry is in exactly one new entry, in order. An entry below the table's vector is a
batch that was held back and stays an entry of its own; no entry has append times of two hours, because an hour is the
finest partition of a table; different flags stay apart, as commits keep them.
"""

import itertools
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from headrace.index.objects import is_packed
from headrace.index.rule import Rule
from headrace.index.swap import Swap, replacement_for, swap_entries
from headrace.index.values import OBJECT_RECORD, IndexEntry
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Decision, Seen
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectId, StreamId

HOUR_MS = 3_600_000

PATIENCE = 2
"""After how many times the least age loose entries move, however few they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackLimits:
    """When entries move, and how large entries and objects become."""

    min_age_ms: int
    entry_bytes: int
    """What entries are merged up to. A fetch reads whole entries, so this is what it reads at least."""
    object_bytes: int
    """What objects are merged up to. One of half the size counts as full: it is never copied again."""
    factor: int = 8
    """A copy makes its object about so many times larger, so a byte is copied as often as the logarithm says."""
    loose_max_entries: int = 1_000
    """So many old loose entries move without waiting for more: the index is to stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedEntry:
    """Neighbours that become one entry."""

    planned: tuple[IndexEntry, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackPlan:
    """One packed object: what lies in it, in order."""

    entries: tuple[PackedEntry, ...]

    @property
    def planned(self) -> list[IndexEntry]:
        """All entries that move."""
        return [entry for packed in self.entries for entry in packed.planned]

    @property
    def size_bytes(self) -> int:
        return sum(packed.size_bytes for packed in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackLook:
    """What a look at a stream has found.

    Nothing below `settled_offset` will ever move again. `due_at_ms` is when it is worth to look again although
    nothing is appended meanwhile; `None` is never.
    """

    plan: RepackPlan | None
    settled_offset: int
    due_at_ms: int | None


@dataclass(slots=True)
class _Group:
    """Neighbours in one packed object; or loose ones, then `object_id` is `None`."""

    object_id: ObjectId | None
    entries: list[IndexEntry] = field(default_factory=list)
    size_bytes: int = 0


def plan_repack(
    entries: Sequence[IndexEntry],
    *,
    held_below: int,
    now_ms: int,
    limits: RepackLimits,
    has_more: bool = False,
    damaged: AbstractSet[int] = frozenset(),
) -> RepackLook:
    """Say what is to be done next for a stream.

    `entries` are its folded ones from some settled offset on, in order; `has_more` says that reading stopped at a
    limit. `held_below` is the stream's end in its table, 0 without one. Entries that end at one of `damaged` stay.
    """
    found = [entry for entry in entries if isinstance(entry.extent, WalExtent) and entry.end_offset not in damaged]
    old = _old_ones(found, now_ms=now_ms, limits=limits)
    groups = _grouped(old)
    loose = [group for group in groups if group.object_id is None]
    chains = _chains(groups, limits)
    if has_more or _is_due(loose, now_ms=now_ms, limits=limits):
        for chain, _ in chains:
            if (chosen := _with_loose(chain, limits)) is not None:
                return _planned(chosen, entries, held_below, now_ms, limits)
    for chain, is_closed in chains:
        if (chosen := _merged(chain, limits, is_closed=is_closed)) is not None:
            return _planned(chosen, entries, held_below, now_ms, limits)
    last_chain = chains[-1][0]
    if has_more:
        # All that was read is as it should be, and there is more behind it than one look can hold. The next look
        # begins where something may still be added, unless this one did so, too.
        start_offset = last_chain[0].entries[0].start_offset if last_chain else 0
        is_progress = start_offset > entries[0].start_offset
        settled = start_offset if is_progress else entries[-1].end_offset
        return RepackLook(plan=None, settled_offset=settled, due_at_ms=now_ms)
    settled = last_chain[0].entries[0].start_offset if last_chain else _start_of_rest(entries, len(old), found)
    return RepackLook(plan=None, settled_offset=settled, due_at_ms=_due_at_ms(found, now_ms=now_ms, limits=limits))


def swap_steps(plan: RepackPlan, stream: StreamId, object_id: ObjectId, *, max_entries: int) -> Iterator[Swap]:
    """Return the steps that let the index name a packed object that was written, in order.

    A step exchanges neighbours, at most `max_entries` of them. An entry that is made of more grows from step to step.
    """
    most = max(max_entries, 2)
    planned: list[IndexEntry] = []
    replacements: list[IndexEntry] = []
    start_byte = 0
    for packed in plan.entries:
        first = packed.planned[0]
        is_next = not planned or planned[-1].end_offset == first.start_offset
        if planned and (not is_next or len(planned) + len(packed.planned) > most):
            yield Swap(stream=stream, planned=planned, replacements=replacements)
            planned, replacements = [], []
        if len(packed.planned) > most:
            yield from _growing(packed, stream, object_id, start_byte, most)
        else:
            planned = [*planned, *packed.planned]
            extent = WalExtent(object_id, start_byte, packed.size_bytes)
            replacements = [*replacements, replacement_for(packed.planned, extent)]
        start_byte += packed.size_bytes
    if planned:
        yield Swap(stream=stream, planned=planned, replacements=replacements)


def swap_packed(keys: DomainKeys, swap: Swap, *, now_ms: int) -> Rule[int]:
    """Return the rule of one step; its result is how many objects that were shared by streams nothing names any more.

    Raises what `swap_entries` raises.
    """
    rule = swap_entries(keys, swap, now_ms=now_ms)

    def decide(seen: Seen) -> Decision[int]:
        decision = rule.decide(seen)
        freed = [
            key
            for key, value in decision.puts.items()
            if key.startswith(keys.objects_prefix)
            and not is_packed(ObjectId(key))
            and OBJECT_RECORD.decode(value, key).entry_count == 0
        ]
        return Decision(result=len(freed), puts=decision.puts, deletes=decision.deletes)

    return Rule(rule.unit, rule.reads, decide)


def _growing(
    packed: PackedEntry, stream: StreamId, object_id: ObjectId, start_byte: int, most: int
) -> Iterator[Swap]:
    done: list[IndexEntry] = []
    left = packed.planned
    size_bytes = 0
    while left:
        taken, left = left[: most - len(done)], left[most - len(done) :]
        size_bytes += sum(_size_bytes(entry) for entry in taken)
        planned = [*done, *taken]
        done = [replacement_for(planned, WalExtent(object_id, start_byte, size_bytes))]
        yield Swap(stream=stream, planned=planned, replacements=done)


def _old_ones(found: Sequence[IndexEntry], *, now_ms: int, limits: RepackLimits) -> Sequence[IndexEntry]:
    """Return the entries before the first loose one that is too young."""
    for number, entry in enumerate(found):
        if _is_loose(entry) and _age_ms(entry, now_ms) < limits.min_age_ms:
            return found[:number]
    return found


def _age_ms(entry: IndexEntry, now_ms: int) -> int:
    """A time in the future counts as one as far back: a clock that was ahead must not keep entries loose."""
    return abs(now_ms - entry.append_time_ms)


def _grouped(old: Sequence[IndexEntry]) -> list[_Group]:
    groups: list[_Group] = []
    for entry in old:
        object_id = None if _is_loose(entry) else _extent_of(entry).object_id
        if not groups or groups[-1].object_id != object_id:
            groups.append(_Group(object_id))
        groups[-1].entries.append(entry)
        groups[-1].size_bytes += _size_bytes(entry)
    return groups


def _chains(groups: Sequence[_Group], limits: RepackLimits) -> list[tuple[list[_Group], bool]]:
    """Return the groups between full ones; and whether a full one follows, so that nothing is ever added there."""
    chains: list[tuple[list[_Group], bool]] = []
    chain: list[_Group] = []
    for group in groups:
        if group.object_id is not None and group.size_bytes * 2 >= limits.object_bytes:
            chains.append((chain, True))
            chain = []
        else:
            chain.append(group)
    return [*chains, (chain, False)]


def _is_due(loose: Sequence[_Group], *, now_ms: int, limits: RepackLimits) -> bool:
    if not loose:
        return False
    return (
        sum(group.size_bytes for group in loose) * limits.factor >= limits.object_bytes
        or sum(len(group.entries) for group in loose) >= limits.loose_max_entries
        or max(_age_ms(group.entries[0], now_ms) for group in loose) >= PATIENCE * limits.min_age_ms
    )


def _due_at_ms(found: Sequence[IndexEntry], *, now_ms: int, limits: RepackLimits) -> int | None:
    """Return when the loose entries will be due: when enough of them are old, or the first is very old.

    Clocks that were wrong say nothing of use; then it is worth to look again after the least age.
    """
    loose = [entry for entry in found if _is_loose(entry)]
    if not loose:
        return None
    due_at_ms = loose[0].append_time_ms + PATIENCE * limits.min_age_ms
    size_bytes = 0
    for count, entry in enumerate(loose, 1):
        size_bytes += _size_bytes(entry)
        if size_bytes * limits.factor >= limits.object_bytes or count >= limits.loose_max_entries:
            due_at_ms = min(due_at_ms, entry.append_time_ms + limits.min_age_ms)
            break
    is_likely = now_ms < due_at_ms <= now_ms + PATIENCE * limits.min_age_ms
    return due_at_ms if is_likely else now_ms + limits.min_age_ms


def _with_loose(chain: Sequence[_Group], limits: RepackLimits) -> list[_Group] | None:
    """Return what moves together with the loose entries of a chain: packed ones before them that are much smaller."""
    places = [number for number, group in enumerate(chain) if group.object_id is None]
    if not places:
        return None
    first, last = places[0], places[-1]
    size_bytes = sum(group.size_bytes for group in chain[first : last + 1])
    for number in range(first - 1, -1, -1):
        if chain[number].size_bytes * (limits.factor - 1) <= size_bytes:
            first = number
        size_bytes += chain[number].size_bytes
    return list(chain[first : last + 1])


def _merged(chain: Sequence[_Group], limits: RepackLimits, *, is_closed: bool) -> list[_Group] | None:
    """Return packed objects that are to become one. Loose entries behind them wait for their own turn."""
    packed = list(itertools.takewhile(lambda group: group.object_id is not None, chain))
    if is_closed and len(packed) == len(chain):
        return packed if len(packed) > 1 else None
    first: int | None = None
    younger_bytes = 0
    for number in range(len(packed) - 1, -1, -1):
        size_bytes = packed[number].size_bytes
        if len(packed) - number >= limits.factor and size_bytes * (limits.factor - 1) <= younger_bytes:
            first = number
        younger_bytes += size_bytes
    return None if first is None else packed[first:]


def _planned(
    chosen: Sequence[_Group], entries: Sequence[IndexEntry], held_below: int, now_ms: int, limits: RepackLimits
) -> RepackLook:
    """Return the plan of an object with these groups, or with as many of them as it may hold."""
    taken: list[IndexEntry] = []
    size_bytes = 0
    for group in chosen:
        if size_bytes >= limits.object_bytes:
            break
        for entry in group.entries:
            if group.object_id is None and size_bytes >= limits.object_bytes:
                break
            taken.append(entry)
            size_bytes += _size_bytes(entry)
    plan = RepackPlan(entries=tuple(_joined(taken, held_below, limits)))
    return RepackLook(plan=plan, settled_offset=entries[0].start_offset, due_at_ms=now_ms)


def _joined(taken: Sequence[IndexEntry], held_below: int, limits: RepackLimits) -> Iterator[PackedEntry]:
    run: list[IndexEntry] = []
    run_bytes = 0
    for entry in taken:
        size_bytes = _size_bytes(entry)
        if run and not (run_bytes + size_bytes <= limits.entry_bytes and _may_join(run[-1], entry, held_below)):
            yield PackedEntry(planned=tuple(run), size_bytes=run_bytes)
            run, run_bytes = [], 0
        run.append(entry)
        run_bytes += size_bytes
    yield PackedEntry(planned=tuple(run), size_bytes=run_bytes)


def _may_join(left: IndexEntry, right: IndexEntry, held_below: int) -> bool:
    return (
        left.end_offset == right.start_offset
        and left.start_offset >= held_below
        and left.flags == right.flags
        and left.append_time_ms // HOUR_MS == right.append_time_ms // HOUR_MS
    )


def _start_of_rest(entries: Sequence[IndexEntry], old_count: int, found: Sequence[IndexEntry]) -> int:
    """Return where the entries begin that are too young, or where all of them end."""
    if old_count < len(found):
        return found[old_count].start_offset
    return entries[-1].end_offset if entries else 0


def _is_loose(entry: IndexEntry) -> bool:
    return not is_packed(_extent_of(entry).object_id)


def _extent_of(entry: IndexEntry) -> WalExtent:
    assert isinstance(entry.extent, WalExtent), f"{entry} is none of the WAL"
    return entry.extent


def _size_bytes(entry: IndexEntry) -> int:
    return _extent_of(entry).size_bytes
