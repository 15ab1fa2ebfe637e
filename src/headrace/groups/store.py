"""A group in the metadata store: taking it over, reading it, deleting it, walking over all of them.

Must stay true:
- A group is read after its lease was taken, so nobody writes to it any more but us.
- A group exists as long as its head does. Offsets go before the head, so that a group which is created again never
  finds the offsets of its predecessor.
- The lease outlives the group, because its epoch must not begin anew while something may still be on its way.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from headrace.groups.protocol import Save
from headrace.groups.records import GROUP_HEAD, OFFSET_RECORD, GroupHead, Loaded, OffsetRecord
from headrace.metadata.keys import DomainKeys, GroupKeys, prefix_range
from headrace.metadata.leases import LEASE_CODEC, Lease, LeaseRecord, require, take
from headrace.metadata.paging import read_prefix
from headrace.metadata.port import Decision, Key, MetadataStore, Range, Reads, Seen, Versioned
from headrace.model.ids import SessionId
from headrace.model.topics import TopicId
from headrace.runtime.crash_points import CrashPoint, CrashPoints

KEYS_PER_READ = 2_000
KEYS_PER_WALK = 1_000
KEYS_PER_DELETE = 500
"""How many offsets, members and assignments, of each kind, one transaction deletes with a group."""


Partition = tuple[TopicId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What a walk over all groups sees of one: `head` is `None` where only a lease is left of it."""

    prefix: str
    head: GroupHead | None
    lease: LeaseRecord | None


async def take_over(
    store: MetadataStore, keys: GroupKeys, group_id: str, session: SessionId, *, crash_points: CrashPoints
) -> tuple[Lease, Loaded]:
    """Take the group's lease, with a new epoch, and read what there is of the group. Raises `LeaseHeld`."""
    lease = await take(store, keys.lease, session, anew=True)
    crash_points.reach(CrashPoint.GROUP_AFTER_TAKE)
    head = await read_head(store, keys)
    if head is None:
        return lease, Loaded(group_id=group_id, head=None)
    loaded = Loaded(
        group_id=group_id,
        head=head,
        members=await _read_all(store, keys.members_prefix),
        assignments=await _read_all(store, keys.assignments_prefix),
    )
    return lease, loaded


async def read_head(store: MetadataStore, keys: GroupKeys) -> GroupHead | None:
    """Return the group's head, or `None` if there is no such group."""
    found = await store.get(keys.head)
    return None if found is None else GROUP_HEAD.decode(found.value, found.key)


async def read_holder(store: MetadataStore, keys: GroupKeys) -> SessionId | None:
    """Return the session that holds the group's lease; it may have ended."""
    found = await store.get(keys.lease)
    return None if found is None else LEASE_CODEC.decode(found.value, found.key).session


async def read_offsets(
    store: MetadataStore, keys: GroupKeys, wanted: Sequence[Partition] | None
) -> dict[Partition, OffsetRecord]:
    """Return the committed offsets of these partitions, or of all; what was never committed is absent."""
    if wanted is None:
        prefixes = [keys.offsets_prefix]
    else:
        prefixes = [f"{keys.offsets_prefix}{topic_id.hex()}/" for topic_id in dict.fromkeys(one for one, _ in wanted)]
    rows = [row for prefix in prefixes for row in await _read_all(store, prefix)]
    found = {keys.partition_of(key): OFFSET_RECORD.decode(raw, key) for key, raw in rows}
    if wanted is None:
        return found
    return {partition: found[partition] for partition in wanted if partition in found}


def changes_of(save: Save, keys: GroupKeys) -> dict[Key, bytes | None]:
    """Return what a machine wants saved, by key."""
    changes: dict[Key, bytes | None] = {keys.head: GROUP_HEAD.encode(save.head)}
    changes.update((keys.member(member_id), raw) for member_id, raw in save.members.items())
    changes.update((keys.assignment(member_id), raw) for member_id, raw in save.assignments.items())
    return changes


async def delete_group(store: MetadataStore, keys: GroupKeys, lease: Lease, *, crash_points: CrashPoints) -> None:
    """Delete a group that has no members, in steps, its head in the last one. Raises `Fenced`."""
    while not await _delete_step(store, keys, lease):
        crash_points.reach(CrashPoint.GROUP_AFTER_DELETE_STEP)


async def walk(store: MetadataStore, keys: DomainKeys, *, after: str | None, limit: int) -> list[GroupFacts]:
    """Return the next groups behind the one with the prefix `after`, in the order of their keys.

    Small groups are read many at a time; of a group that fills a page and more, the rest is jumped over.
    """
    found: list[GroupFacts] = []
    end = prefix_range(keys.groups_prefix, limit=1).end
    start = Key(keys.groups_prefix) if after is None else _behind(after)
    while len(found) < limit:
        rows = await store.range(Range(start, end, limit=KEYS_PER_WALK))
        pages = {prefix: list(group) for prefix, group in groupby(rows, lambda row: _prefix_of(keys, row.key))}
        if len(rows) == KEYS_PER_WALK:
            last, _ = pages.popitem()
        found += [_facts(prefix, group) for prefix, group in pages.items()]
        if len(rows) < KEYS_PER_WALK:
            break
        # The last group of a full page may go on behind it.
        found.append(await _read_facts(store, last))
        start = _behind(last)
    return found[:limit]


async def walk_all(store: MetadataStore, keys: DomainKeys, *, per_read: int) -> AsyncIterator[GroupFacts]:
    """Yield all groups, in the order of their keys."""
    after: str | None = None
    while page := await walk(store, keys, after=after, limit=per_read):
        for facts in page:
            yield facts
        after = page[-1].prefix


async def _read_facts(store: MetadataStore, prefix: str) -> GroupFacts:
    # `head` and `lease` are neighbours: nothing else of a group sorts between them.
    return _facts(prefix, await store.range(Range(Key(prefix + "head"), Key(prefix + "lease "), limit=2)))


def _facts(prefix: str, rows: Sequence[Versioned]) -> GroupFacts:
    by_key = {row.key: row.value for row in rows}
    head, lease = Key(prefix + "head"), Key(prefix + "lease")
    return GroupFacts(
        prefix=prefix,
        head=GROUP_HEAD.decode(by_key[head], head) if head in by_key else None,
        lease=LEASE_CODEC.decode(by_key[lease], lease) if lease in by_key else None,
    )


def _prefix_of(keys: DomainKeys, key: Key) -> str:
    return f"{keys.groups_prefix}{key.removeprefix(keys.groups_prefix).partition('/')[0]}/"


def _behind(prefix: str) -> Key:
    return Key(prefix[:-1] + "0")  # "0" follows "/"


async def _read_all(store: MetadataStore, prefix: str) -> list[tuple[Key, bytes]]:
    return [(row.key, row.value) for row in await read_prefix(store, prefix, keys_per_read=KEYS_PER_READ)]


async def _delete_step(store: MetadataStore, keys: GroupKeys, lease: Lease) -> bool:
    """Delete some keys of a group, and its head when nothing else is left; say whether that was all."""
    prefixes = (keys.offsets_prefix, keys.members_prefix, keys.assignments_prefix)
    reads = Reads(keys=[keys.lease], ranges=[prefix_range(prefix, limit=KEYS_PER_DELETE) for prefix in prefixes])

    def decide(seen: Seen) -> Decision[bool]:
        require(seen, lease)
        left = [row.key for rows in seen.ranges for row in rows]
        return Decision(result=not left, deletes=left or [keys.head])

    return (await store.transact([keys.unit], reads, decide, session=lease.session)).result
