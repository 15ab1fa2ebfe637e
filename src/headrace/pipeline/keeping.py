"""Keep tables in proportion, topic by topic: release what the log has forgotten, merge small files, expire snapshots.

Small files are merged on the branch, and on `main` with it; then those that only `main` has kept.

A round of the pipeline asks `is_due` of every topic, from what was read anyway, and looks at a few of those that are
(`keep`), each under its lease, after all runs of the round.

Must stay true:
- A look begins only where no saga is under way, and plans from the index and the branch as they are then.
- A release comes before a merge: what the log has forgotten is not written again.
- A data file is condemned only if no entry of the topic's index names it. Expiry says which files no snapshot names;
  that the index does not either is looked up once more, although it cannot be: the branch holds all that it names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from headrace.metadata.keys import DomainKeys
from headrace.metadata.leases import Lease
from headrace.metadata.port import MetadataStore
from headrace.model.topics import Topic
from headrace.pipeline.main_merging import plan_main_merge
from headrace.pipeline.merging import MergeLimits, plan_merge
from headrace.pipeline.named_files import read_named
from headrace.pipeline.records import CondemnedFiles, SagaKind, TableState, TableStatus
from headrace.pipeline.releasing import ReleasePlan, plan_left_release, plan_release
from headrace.pipeline.rewrites import Rewrite
from headrace.pipeline.topic_run import RunParts, TopicRun
from headrace.runtime.crash_points import CrashPoint
from headrace.tables.port import MainPolicy, TableListing, TopicTable
from headrace.topics.tables import TableRules, table_rules_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLimits:
    """When tables are looked at, and how much one look does."""

    merge: MergeLimits = field(default_factory=MergeLimits)
    merge_enable: bool = True
    max_topics: int = 16
    release_interval_ms: int = 60_000
    quiet_expiry_ms: int = 21_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What is to be looked at. `since_ms` is when it last was: who waits longest comes first."""

    release: bool
    merge: bool
    expiry: bool
    since_ms: int


@dataclass(slots=True, kw_only=True)
class Kept:
    """What a look did."""

    merges: int = 0
    merged_bytes: int = 0
    released_files: int = 0

    def count_merge(self, rewrite: Rewrite) -> None:
        """Count a merge that was done."""
        self.merges += 1
        self.merged_bytes += rewrite.input_bytes


def due_for(
    state: TableState | None,
    rules: TableRules,
    log_starts: Mapping[int, int],
    *,
    now_ms: int,
    limits: KeepLimits,
    force: bool = False,
) -> Due | None:
    """Say what a topic's table is due for, from what is known without asking the catalog; `None` for nothing."""
    if state is None or not state.ends or state.status is TableStatus.FOREIGN:
        return None
    has_forgotten = any(log_starts.get(p, 0) > state.released_to.get(p, 0) for p in state.ends)
    waited_ms = now_ms - state.release_looked_at_ms
    release = has_forgotten and (force or waited_ms >= limits.release_interval_ms)
    bucket = rules.partitioning.bucket
    is_over = bucket.of(state.merge_looked_at_ms) != bucket.of(now_ms)
    merge = limits.merge_enable and (
        state.new_files >= limits.merge.min_files
        or (state.new_files > 0 and is_over and state.merge_looked_at_ms > 0)
    )
    expiry = now_ms - max(state.expired_at_ms, state.committed_at_ms) >= limits.quiet_expiry_ms
    if not (release or merge or expiry):
        return None
    since_ms = min(
        state.release_looked_at_ms if release else now_ms,
        state.merge_looked_at_ms if merge else now_ms,
        state.expired_at_ms if expiry else now_ms,
    )
    return Due(release=release, merge=merge, expiry=expiry, since_ms=since_ms)


class TableKeeper:
    """Looks at tables and does what is due."""

    def __init__(self, *, store: MetadataStore, keys: DomainKeys, parts: RunParts, limits: KeepLimits) -> None:
        self._store = store
        self._keys = keys
        self._parts = parts
        self._limits = limits

    async def keep(self, lease: Lease, topic: Topic, due: Due) -> Kept:
        """Do what is due of one topic, under its lease."""
        kept = Kept()
        state = await self._parts.sagas.state(topic.id)
        if state is None or await self._parts.sagas.load(topic.id) is not None:
            return kept  # a saga that is under way is resumed first
        rules = table_rules_of(topic.overrides)
        table = TopicTable(topic_id=topic.id, topic_name=topic.name, partitioning=rules.partitioning)
        if due.release or due.merge:
            await self._rewrite(lease, topic, table, state, due, rules, kept)
        if due.expiry and not kept.merges and not kept.released_files:
            await self._expire(lease, topic, table)
        return kept

    async def _rewrite(
        self,
        lease: Lease,
        topic: Topic,
        table: TopicTable,
        state: TableState,
        due: Due,
        rules: TableRules,
        kept: Kept,
    ) -> None:
        """Release, then merge. Log starts are read before the index, and the index before the branch."""
        parts, limits = self._parts, self._limits
        now_ms = parts.clock.now_ms()
        named = await read_named(
            self._store, self._keys, topic.streams, state.ends, small_bytes=limits.merge.small_bytes
        )
        listing = await parts.catalog.listing(table, with_spans=due.release and rules.follows_log)
        if listing is None:
            return
        release = plan_release(named, listing)
        run = TopicRun(parts, lease, table, topic.streams)
        if release.rewrite is not None:
            main = MainPolicy.ALONG if rules.follows_log else MainPolicy.NEVER
            await run.begin_rewrite(release.rewrite, listing.info, kind=SagaKind.RELEASE, main=main)
            kept.released_files = len(release.rewrite.inputs)
            listing = _without(listing, release.rewrite)
        left = plan_left_release(named, listing) if rules.follows_log else None
        if left is not None:
            await run.begin_rewrite(left, listing.info, kind=SagaKind.RELEASE, main=MainPolicy.ALONE)
            kept.released_files += len(left.inputs)
            listing = _without(listing, left)
        has_more = False
        if due.merge:
            merge = plan_merge(named, listing, now_ms=now_ms, limits=limits.merge)
            main_merge = plan_main_merge(listing, now_ms=now_ms, limits=limits.merge)
            has_more = merge.has_more or main_merge.has_more
            if merge.rewrite is not None:
                await run.begin_rewrite(
                    merge.rewrite, listing.info, kind=SagaKind.MERGE, main=MainPolicy.WHERE_UNTOUCHED
                )
                kept.count_merge(merge.rewrite)
            if main_merge.rewrite is not None:
                await run.begin_rewrite(
                    main_merge.rewrite, listing.info, kind=SagaKind.MERGE_MAIN, main=MainPolicy.ALONE
                )
                kept.count_merge(main_merge.rewrite)
        await self._note_look(lease, topic, listing, release, due, has_more=has_more, now_ms=now_ms)

    async def _note_look(
        self,
        lease: Lease,
        topic: Topic,
        listing: TableListing,
        release: ReleasePlan,
        due: Due,
        *,
        has_more: bool,
        now_ms: int,
    ) -> None:
        def change(state: TableState) -> TableState:
            state = msgspec.structs.replace(
                state,
                held_twice_bytes=listing.held_twice_bytes,
                released_to={**state.released_to, **release.released_to},
                release_looked_at_ms=now_ms,
            )
            if not due.merge:
                return state
            new_files = self._limits.merge.min_files if has_more else 0
            return msgspec.structs.replace(state, new_files=new_files, merge_looked_at_ms=now_ms)

        await self._parts.sagas.note(lease, topic.id, topic.name, change)

    async def _expire(self, lease: Lease, topic: Topic, table: TopicTable) -> None:
        """Expire snapshots of a table that gets nothing new, and condemn what they leave behind."""
        parts, now_ms = self._parts, self._parts.clock.now_ms()
        run = TopicRun(parts, lease, table, topic.streams)
        found = await parts.catalog.expire(table, now_ms=now_ms, expiry=parts.expiry)
        parts.crash_points.reach(CrashPoint.KEEP_AFTER_EXPIRY)
        named = await run.still_named(found)
        freed = [path for path in found if path not in named]
        if freed:
            name = f"{parts.rng.getrandbits(128):032x}"
            await parts.sagas.condemn(lease, topic.id, name, CondemnedFiles(topic.id, tuple(freed), now_ms))

        def change(state: TableState) -> TableState:
            return msgspec.structs.replace(state, expired_at_ms=now_ms)

        await parts.sagas.note(lease, topic.id, topic.name, change)
        run.refuse(named)


def _without(listing: TableListing, release: Rewrite) -> TableListing:
    """Return a listing without what was just released. What of it stays in `main` is seen by the next look."""
    gone = frozenset(release.inputs)
    return replace(
        listing,
        files=[file for file in listing.files if file.path not in gone],
        left=[file for file in listing.left if file.path not in gone],
    )
