"""Forget what nobody will ask for: offsets of groups long empty, offsets of deleted topics, groups with nothing left.

Every broker walks over all groups in rounds, and acts for those that are its business. A tick is one small step of a
round, bounded by the keys that it reads: of a group with very many offsets it sees a part, and the next tick goes on
there. What goes is decided inside a transaction that reads it again, so an offset that was committed meanwhile stays;
where nothing seems to have to go, there is no transaction.

Must stay true:
- An offset expires only when its group has no members, and both the last member and the last commit are older
  than the retention.
- A topic counts as deleted only if it is unknown to a directory that was read *after* the offset: topic ids never
  come back, and an offset is committed only for a topic that exists.
- A group's head goes only while we hold its lease, so no coordinator believes in a group that is gone.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.errors import Fenced, HeadraceError
from headrace.groups.records import GROUP_HEAD, OFFSET_RECORD, GroupHead, OffsetRecord
from headrace.groups.store import GroupFacts, delete_group, walk
from headrace.metadata.keys import DomainKeys, GroupKeys, prefix_range
from headrace.metadata.leases import LEASE_CODEC, LeaseHeld, release, take
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen, Unit, Versioned
from headrace.model.ids import SessionId
from headrace.model.topics import TopicId
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoints
from headrace.topics.directory import TopicDirectory

OFFSETS_PER_STEP = 500
"""How many offsets one transaction reads and may delete. Each has a few KiB of a client's metadata at most."""

KEYS_PER_TICK = 2_000
"""How many groups and offsets one tick reads, about: some ten milliseconds of the store's time."""

MAX_FAILURES_PER_TICK = 3
"""After so many groups that failed the tick ends: the store may be away."""

MAX_LONE_LEASES = 100_000
"""How many leases without a group are remembered until they are old enough to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLimits:
    """How long offsets are kept, how much one tick looks at, and how long a lease outlives its group."""

    retention_ms: int
    groups_per_tick: int
    lone_lease_ms: int
    keys_per_tick: int = KEYS_PER_TICK


@dataclass(slots=True)
class _Tidying:
    """A group that is being looked at: how far, and what went and stayed of its offsets so far."""

    head: GroupHead
    keys: GroupKeys
    after: Key | None = None
    removed: int = 0
    left: int = 0


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
        self._ahead: deque[GroupFacts] = deque()
        self._tidying: _Tidying | None = None
        self._lone_since: dict[str, float] = {}

    @property
    def is_round_over(self) -> bool:
        """Whether the next tick begins with the first group again."""
        return self._after is None and not self._ahead and self._tidying is None

    def use_limits(self, limits: KeepLimits) -> None:
        """Keep offsets by other limits from now on."""
        self._limits = limits

    async def tick(self) -> int:
        """Make the next step and return how many offsets went.

        A group that fails holds up no other; the first failure is raised in the end.
        """
        if not self._ahead and self._tidying is None:
            await self._read_page()
        removed, keys_left = 0, self._limits.keys_per_tick
        failures: list[HeadraceError] = []
        while keys_left > 0 and len(failures) < MAX_FAILURES_PER_TICK:
            try:
                if self._tidying is not None:
                    seen, went = await self._tidy_page(self._tidying)
                    keys_left, removed = keys_left - seen, removed + went
                elif self._ahead:
                    keys_left -= 1
                    await self._begin(self._ahead.popleft())
                else:
                    break
            except HeadraceError as error:
                failures.append(error)
                self._tidying = None  # its next turn is in the next round
        if failures:
            raise failures[0]
        return removed

    async def _read_page(self) -> None:
        limit = self._limits.groups_per_tick
        page = await walk(self._store, self._keys, after=self._after, limit=limit)
        self._after = page[-1].prefix if len(page) == limit else None
        self._ahead.extend(page)

    async def _begin(self, facts: GroupFacts) -> None:
        """Turn to a group, if it is our business; what has no head is a lease that may have to go."""
        if facts.head is None:
            await self._forget_lease(facts)
            return
        self._lone_since.pop(facts.prefix, None)
        if self._answers_for(facts):
            self._tidying = _Tidying(facts.head, self._keys.group(facts.head.group_id))

    async def _tidy_page(self, tidying: _Tidying) -> tuple[int, int]:
        """Remove what can go of some offsets, and with the last of them the group itself if that was all it had.

        Return how many offsets were there, and how many went.
        """
        page = prefix_range(tidying.keys.offsets_prefix, limit=OFFSETS_PER_STEP, after=tidying.after)
        rows = await self._store.range(page)
        went = await self._remove(tidying, rows)
        tidying.removed += went
        tidying.left += len(rows) - went
        if len(rows) == OFFSETS_PER_STEP:
            tidying.after = rows[-1].key
            return len(rows), went
        self._tidying = None
        empty_since_ms = tidying.head.empty_since_ms
        is_old = empty_since_ms is not None and (
            tidying.removed > 0 or self._clock.now_ms() - empty_since_ms >= self._limits.retention_ms
        )
        if tidying.left == 0 and is_old:
            await self._remove_group(tidying.keys)
        return len(rows), went

    async def _deleted_topics(self, topic_ids: set[TopicId]) -> set[TopicId]:
        if all(self._topics.get_by_id(topic_id) is not None for topic_id in topic_ids):
            return set()
        await self._topics.refresh()
        return {topic_id for topic_id in topic_ids if self._topics.get_by_id(topic_id) is None}

    async def _remove(self, tidying: _Tidying, rows: Sequence[Versioned]) -> int:
        """Delete the offsets among these that have expired or whose topic is gone, as they are by now."""
        keys = tidying.keys
        now_ms, retention_ms = self._clock.now_ms(), self._limits.retention_ms
        gone = await self._deleted_topics({keys.partition_of(row.key)[0] for row in rows})

        def is_doomed(row: Versioned, head: GroupHead | None) -> bool:
            return keys.partition_of(row.key)[0] in gone or _has_expired(
                head, OFFSET_RECORD.decode(row.value, row.key), now_ms, retention_ms
            )

        doomed = [row.key for row in rows if is_doomed(row, tidying.head)]
        if not doomed:
            return 0

        def decide(seen: Seen) -> Decision[int]:
            head = GROUP_HEAD.seen(seen, keys.head)
            found = [row for key in doomed if (row := seen.values.get(key)) is not None]
            deletes = [row.key for row in found if is_doomed(row, head)]
            return Decision(result=len(deletes), deletes=deletes)

        return (await self._store.transact([keys.unit], Reads(keys=[keys.head, *doomed]), decide)).result

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
