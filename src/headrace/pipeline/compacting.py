"""Compact topics by key: look which are due, and run a round of those that are, under the topic's lease.

1. Look at the index: what is clean, what is dirty, is a round due? Every so often, because this reads all entries.
2. Ask the catalog which files the branch has, and find out which of them can be written anew.
3. Put the saga's record, scan the keys, plan the rewrite, and go on as every rewrite does (`compaction_run.py`).

Must stay true: a topic without a table, or whose table is not ours, is kept in full. A failure here holds up nothing
but this topic's compaction.
"""

from headrace.metadata.keys import DomainKeys
from headrace.metadata.leases import Lease
from headrace.metadata.port import MetadataStore
from headrace.model.topics import Topic, TopicId
from headrace.pipeline.compaction_look import look_at_streams
from headrace.pipeline.compaction_plan import CompactionLimits, is_any_due, plan_round
from headrace.pipeline.compaction_run import CompactionRun
from headrace.pipeline.compaction_state import CompactionState
from headrace.pipeline.records import TableState
from headrace.pipeline.topic_run import RunParts
from headrace.tables.port import MainPolicy, TopicTable
from headrace.topics.compaction import compaction_rules_of
from headrace.topics.tables import table_rules_of

IDLE_PAUSE_MS = 600_000
"""How long a topic is left alone after a round that changed nothing: its tombstones hide records of a file that
cannot be written anew, and will do so for a while."""


class Compactor:
    """Runs rounds of compaction in one process."""

    def __init__(self, *, store: MetadataStore, keys: DomainKeys, parts: RunParts, limits: CompactionLimits) -> None:
        self._store = store
        self._keys = keys
        self._parts = parts
        self._limits = limits
        self._look_at: dict[TopicId, float] = {}

    def is_wanted(self, topic: Topic, state: TableState | None, *, force: bool = False) -> bool:
        """Say whether a topic is to be looked at now: it is compacted, has a table, and was not looked at just now.

        `force` asks for a look, not for a round: what is due is for the topic's configuration to say.
        """
        if not compaction_rules_of(topic.configs).enable or not table_rules_of(topic.overrides).enable:
            self._look_at.pop(topic.id, None)
            return False
        if state is None or not state.ends:
            return False
        return force or self._look_at.get(topic.id, 0.0) <= self._parts.clock.monotonic()

    async def compact(self, lease: Lease, topic: Topic, state: TableState) -> bool:
        """Run a round of a topic if one is due, and say whether it was.

        There must be no saga under way. Raises `GivenUp` and what the stores raise.
        """
        clock, rules = self._parts.clock, compaction_rules_of(topic.configs)
        self._look_at[topic.id] = clock.monotonic() + self._limits.look_interval_ms / 1000
        known = await self._parts.sagas.compaction(topic.id) or CompactionState(topic.name)
        streams = await look_at_streams(self._store, self._keys, topic, state.ends, known)
        if not is_any_due(streams, rules, now_ms=clock.now_ms()):
            return False
        partitioning = table_rules_of(topic.overrides).partitioning
        table = TopicTable(topic_id=topic.id, topic_name=topic.name, partitioning=partitioning)
        listing = await self._parts.catalog.listing(table)
        if listing is None:
            return False
        round_ = plan_round(streams, listing, rules, now_ms=clock.now_ms(), limits=self._limits)
        if round_ is None:
            return False
        main = MainPolicy.ALONG if rules.table_follows else MainPolicy.NEVER
        run = CompactionRun(self._parts, lease, table, topic.streams)
        await run.compact(round_, listing.info, limits=self._limits, main=main)
        after = await self._parts.sagas.compaction(topic.id)
        if after is not None and (after.streams, after.dropped_rows) != (known.streams, known.dropped_rows):
            self._look_at.pop(topic.id, None)  # there may be more to do
        else:
            self._look_at[topic.id] = clock.monotonic() + IDLE_PAUSE_MS / 1000
        return True
