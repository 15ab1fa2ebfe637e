"""Forget what nobody will ask for: offsets of groups long empty, offsets of deleted topics, groups with nothing left.

Every broker walks over all groups, a page per tick, and acts for those that are its business. What goes is decided
inside a transaction that reads it again, so an offset that was committed meanwhile stays.

Must stay true:
- An offset expires only when its group has no members, and both the last member and the last commit are older
  than the retention.
- A topic counts as deleted only if it is unknown to a directory that was read *after* the offset: topic ids never
  come back, and an offset is committed only for a topic that exists.
- A group's head goes only while we hold its lease, so no coordinator believes in a group that is gone.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import Fenced
from headrace.groups.records import GROUP_HEAD, OFFSET_RECORD, GroupHead, OffsetRecord
from headrace.groups.store import GroupFacts, delete_group, walk
from headrace.metadata.keys import DomainKeys, GroupKeys, prefix_range
from headrace.metadata.leases import LEASE_CODEC, LeaseHeld, release, take
from headrace.metadata.port import Decision, Key, MetadataStore, Range, Reads, Seen, Unit
from headrace.model.ids import SessionId
from headrace.model.topics import TopicId
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoints
from headrace.topics.directory import TopicDirectory

OFFSETS_PER_STEP = 500

MAX_LONE_LEASES = 100_000
"""How many leases without a group are remembered until they are old enough to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLimits:
    """How long offsets are kept, how many groups one tick looks at, and how long a lease outlives its group."""

    retention_ms: int
    groups_per_tick: int
    lone_lease_ms: int


class GroupKeeper:
    """Walks the groups, round and round."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        keys: DomainKeys,
        topics: TopicDirectory,
        answers_for: Callable[[GroupFacts], bool],
        session: Callable[[], SessionId | None],
        clock: Clock,
        crash_points: CrashPoints,
        limits: KeepLimits,
    ) -> None:
        self._store = store
        self._keys = keys
        self._topics = topics
        self._answers_for = answers_for
        self._session = session
        self._clock = clock
        self._crash_points = crash_points
        self._limits = limits
        self._after: str | None = None
        self._lone_since: dict[str, float] = {}

    async def tick(self) -> int:
        """Look at the next page of groups and return how many offsets went."""
        limit = self._limits.groups_per_tick
        page = await walk(self._store, self._keys, after=self._after, limit=limit)
        self._after = page[-1].prefix if len(page) == limit else None
        removed = 0
        for facts in page:
            if facts.head is None:
                await self._forget_lease(facts)
                continue
            self._lone_since.pop(facts.prefix, None)
            if self._answers_for(facts):
                removed += await self._tidy(facts.head)
        return removed

    async def _tidy(self, head: GroupHead) -> int:
        """Remove what can go of one group, and the group itself if that was all it had."""
        keys = self._keys.group(head.group_id)
        removed, left = 0, 0
        after: Key | None = None
        while True:
            page = prefix_range(keys.offsets_prefix, limit=OFFSETS_PER_STEP, after=after)
            rows = await self._store.range(page)
            if not rows:
                break
            gone = await self._deleted_topics({keys.partition_of(row.key)[0] for row in rows})
            went = await self._remove(keys, page, gone)
            removed, left = removed + went, left + len(rows) - went
            after = rows[-1].key
            if len(rows) < OFFSETS_PER_STEP:
                break
        is_old = head.empty_since_ms is not None and (
            removed > 0 or self._clock.now_ms() - head.empty_since_ms >= self._limits.retention_ms
        )
        if left == 0 and is_old:
            await self._remove_group(keys)
        return removed

    async def _deleted_topics(self, topic_ids: set[TopicId]) -> set[TopicId]:
        if all(self._topics.get_by_id(topic_id) is not None for topic_id in topic_ids):
            return set()
        await self._topics.refresh()
        return {topic_id for topic_id in topic_ids if self._topics.get_by_id(topic_id) is None}

    async def _remove(self, keys: GroupKeys, page: Range, gone: set[TopicId]) -> int:
        """Delete the offsets of one page that have expired or whose topic is gone, as they are by now."""
        now_ms, retention_ms = self._clock.now_ms(), self._limits.retention_ms

        def decide(seen: Seen) -> Decision[int]:
            head = GROUP_HEAD.seen(seen, keys.head)
            doomed = [
                row.key
                for row in seen.ranges[0]
                if keys.partition_of(row.key)[0] in gone
                or _has_expired(head, OFFSET_RECORD.decode(row.value, row.key), now_ms, retention_ms)
            ]
            return Decision(result=len(doomed), deletes=doomed)

        return (await self._store.transact([keys.unit], Reads(keys=[keys.head], ranges=[page]), decide)).result

    async def _remove_group(self, keys: GroupKeys) -> None:
        """Delete a group that has neither members nor offsets, unless somebody coordinates it."""
        session = self._session()
        if session is None:
            return
        found = await self._store.get(keys.lease)
        if found is not None and LEASE_CODEC.decode(found.value, found.key).session == session:
            return  # It is in use in this very process: it comes up again when it is idle.
        try:
            lease = await take(self._store, keys.lease, session, anew=True)
        except (LeaseHeld, Fenced):
            return
        offsets = await self._store.range(prefix_range(keys.offsets_prefix, limit=1))
        head = await self._store.get(keys.head)
        if not offsets and head is not None and GROUP_HEAD.decode(head.value, head.key).empty_since_ms is not None:
            try:
                await delete_group(self._store, keys, lease, crash_points=self._crash_points)
            except Fenced:
                # A member came meanwhile, and this or another broker took the group; or our session has ended.
                return
        await release(self._store, lease)

    async def _forget_lease(self, facts: GroupFacts) -> None:
        """Delete the lease that a deleted group has left, when nothing can be on its way under it any more."""
        now = self._clock.monotonic()
        if len(self._lone_since) >= MAX_LONE_LEASES:
            self._lone_since.clear()
        since = self._lone_since.setdefault(facts.prefix, now)
        if (now - since) * 1000 < self._limits.lone_lease_ms:
            return
        del self._lone_since[facts.prefix]
        head, lease = Key(facts.prefix + "head"), Key(facts.prefix + "lease")

        def decide(seen: Seen) -> Decision[None]:
            record = LEASE_CODEC.seen(seen, lease)
            is_lone = seen.get(head) is None and record is not None and record.session is None
            return Decision(result=None, deletes=[lease] if is_lone else ())

        await self._store.transact([Unit(facts.prefix)], Reads(keys=[head, lease]), decide)


def _has_expired(head: GroupHead | None, record: OffsetRecord, now_ms: int, retention_ms: int) -> bool:
    """Say whether an offset has outlived its retention; what lies without a head is left of a broken-off deletion."""
    if head is None:
        return True
    if head.empty_since_ms is None:
        return False
    if record.expires_at_ms is not None:
        return now_ms >= record.expires_at_ms
    return now_ms - max(head.empty_since_ms, record.committed_at_ms) >= retention_ms
