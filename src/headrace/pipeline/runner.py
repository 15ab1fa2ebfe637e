"""Keep all tables: find out which topics are due, run them side by side, end what others left, drop what is to go.

One round:
1. Fold the log to its end, so that all that is committed can be swapped.
2. Resume every saga whose holder is gone.
3. Let go of the tables of deleted topics, before a new topic of that name gets one.
4. Plan all topics, and run those that are due, who waits longest first, a few at once. Each commits when its own
   files are written, so that one backlog does not delay the others.
5. Compact the topics that are compacted by key and due (`compacting.py`).
6. Look at a few tables whose turn it is: release files that the log has forgotten, merge small ones (`keeping.py`).

Must stay true: a topic that fails holds up no other, and is tried again later, less and less often. Produce and fetch
never wait for any of this: the only thing shared with them is the metadata store, in bounded transactions.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from headrace.errors import Fenced, HeadraceError, Unusable
from headrace.index.rule import StalePlan
from headrace.metadata.keys import DomainKeys, table_lease
from headrace.metadata.leases import Lease, LeaseHeld, release, take
from headrace.metadata.port import MetadataStore
from headrace.model.ids import SessionId
from headrace.model.topics import Topic, TopicId
from headrace.pipeline.backlog import peek_backlog, read_backlog
from headrace.pipeline.compacting import Compactor
from headrace.pipeline.compaction_plan import CompactionLimits
from headrace.pipeline.keeping import Due, KeepLimits, TableKeeper, due_for
from headrace.pipeline.planner import PlanLimits, PlannedTopic, choose_topics, plan_run
from headrace.pipeline.records import CondemnedFiles, TableState, TableStatus
from headrace.pipeline.topic_run import GivenUp, RunParts, TopicRun
from headrace.runtime.logs import Log
from headrace.tables.format import Partitioning
from headrace.tables.iceberg.locations import TABLES_PREFIX, dead_letter_prefix, topic_uuid
from headrace.tables.port import ForeignTable, TopicTable
from headrace.topics.directory import TopicDirectory
from headrace.topics.tables import TableRules, table_rules_of

PLANS_AT_ONCE = 16
"""How many topics' backlogs are read at the same time."""

FIRST_BACKOFF_MS = 1_000
MAX_PROBLEM_CHARS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLimits:
    """How much is done at once, and how patient we are with what fails."""

    plan: PlanLimits
    keep: KeepLimits = field(default_factory=KeepLimits)
    topics_at_once: int = 4
    failure_backoff_max_ms: int = 300_000
    compaction: CompactionLimits = field(default_factory=CompactionLimits)


@dataclass(slots=True, kw_only=True)
class RunReport:
    """What one round did. `busy` are topics that another pipeline works on."""

    runs: int = 0
    merges: int = 0
    released_files: int = 0
    rows: int = 0
    resumed: int = 0
    compactions: int = 0
    busy: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    """Why topics failed, by their names."""


class Folding(Protocol):
    """Folds commit records into the index (`gc/folding.py`)."""

    async def tick(self) -> int:
        """Fold what is due and return how many records were folded."""
        ...


@dataclass(slots=True)
class _Failure:
    count: int
    not_before: float


class Pipeline:
    """One process's part in keeping the tables; any number of them may run, on any number of hosts."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        keys: DomainKeys,
        topics: TopicDirectory,
        folder: Folding,
        parts: RunParts,
        session: Callable[[], SessionId],
        limits: PipelineLimits,
        log: Log,
    ) -> None:
        """`folder` folds with no lag; `session` is this process's living session."""
        self._store = store
        self._keys = keys
        self._topics = topics
        self._folder = folder
        self._parts = parts
        self._session = session
        self._limits = limits
        self._log = log
        self._failures: dict[TopicId, _Failure] = {}
        self._compactor = Compactor(store=store, keys=keys, parts=parts, limits=limits.compaction)
        self._keeper = TableKeeper(store=store, keys=keys, parts=parts, limits=limits.keep)
        self._log_starts: dict[TopicId, dict[int, int]] = {}

    async def run_once(self, *, force: bool = False) -> RunReport:
        """Make one round; with `force`, all topics that have anything waiting are due, however young, and no earlier
        failure makes them wait."""
        report = RunReport()
        await self._topics.refresh()
        while await self._folder.tick():
            pass
        known = {topic.id: topic for topic in self._topics.known()}
        states = await self._parts.sagas.states()
        await self._resume_all(known, states, report, force=force)
        await self._let_go(known, states, report)
        due = await self._due(known, await self._parts.sagas.states(), force=force)
        await self._in_turn([partial(self._run, known[one], report, force=force) for one in due])
        await self._compact_all(known, report, force=force)
        await self._keep(known, await self._parts.sagas.states(), report, force=force)
        return report

    async def _due(
        self, known: Mapping[TopicId, Topic], states: Mapping[TopicId, TableState], *, force: bool
    ) -> list[TopicId]:
        """Return the topics to run now, in the order in which they should."""
        wanted = [
            topic
            for topic in known.values()
            if table_rules_of(topic.overrides).enable and self._may_try(topic.id, force=force)
        ]
        slots = asyncio.Semaphore(PLANS_AT_ONCE)

        async def read(topic: Topic) -> PlannedTopic:
            async with slots:
                return await peek_backlog(self._store, self._keys, topic, states.get(topic.id))

        found = await asyncio.gather(*(read(topic) for topic in wanted))
        self._log_starts = {
            one.topic_id: {stream.partition: stream.log_start for stream in one.streams} for one in found
        }
        if force:
            waiting = [one for one in found if one.oldest_append_ms is not None]
            return [one.topic_id for one in sorted(waiting, key=lambda one: (one.oldest_append_ms, one.topic_name))]
        now_ms = self._parts.clock.now_ms()
        return [one.topic_id for one in choose_topics(found, now_ms=now_ms, limits=self._limits.plan)]

    async def _read(self, topic: Topic, state: TableState | None) -> PlannedTopic:
        return await read_backlog(self._store, self._keys, topic, state, self._limits.plan)

    def _may_try(self, topic_id: TopicId, *, force: bool) -> bool:
        """Say whether a topic that has failed has waited long enough."""
        failure = self._failures.get(topic_id)
        return force or failure is None or failure.not_before <= self._parts.clock.monotonic()

    async def _resume_all(
        self,
        known: Mapping[TopicId, Topic],
        states: Mapping[TopicId, TableState],
        report: RunReport,
        *,
        force: bool,
    ) -> None:
        under_way = await self._parts.sagas.under_way()
        left = [topic_id for topic_id in sorted(under_way) if self._may_try(topic_id, force=force)]
        await self._in_turn([partial(self._resume, one, known, states, report) for one in left])

    async def _resume(
        self,
        topic_id: TopicId,
        known: Mapping[TopicId, Topic],
        states: Mapping[TopicId, TableState],
        report: RunReport,
    ) -> None:
        topic = known.get(topic_id)
        state = states.get(topic_id)
        name = topic.name if topic is not None else state.topic_name if state is not None else topic_id.hex()

        async def work(lease: Lease) -> None:
            saga = await self._parts.sagas.load(topic_id)
            if saga is None:
                return  # its holder has just ended it
            partitioning = Partitioning() if topic is None else table_rules_of(topic.overrides).partitioning
            table = TopicTable(topic_id=topic_id, topic_name=saga.topic_name, partitioning=partitioning)
            streams = () if topic is None else topic.streams
            self._log.info("resuming a run", topic=saga.topic_name, saga=saga.saga_id, state=saga.state.name)
            try:
                report.rows += await TopicRun(self._parts, lease, table, streams).resume(saga)
                report.resumed += 1
            except GivenUp as error:
                self._log.info("a run was given up", topic=saga.topic_name, reason=str(error))

        await self._leased(topic_id, name, report, work)

    async def _run(self, topic: Topic, report: RunReport, *, force: bool) -> None:
        rules = table_rules_of(topic.overrides)

        async def work(lease: Lease) -> None:
            # Read anew under the lease: another pipeline may have run the topic since.
            if await self._parts.sagas.load(topic.id) is not None:
                return
            await self._note_rules(lease, topic, rules)
            state = await self._parts.sagas.state(topic.id)
            planned = await self._read(topic, state)
            now_ms = self._parts.clock.now_ms()
            plan = plan_run(planned, now_ms=now_ms, limits=self._limits.plan, force=force)
            if plan is None:
                return
            table = TopicTable(
                topic_id=topic.id, topic_name=topic.name, partitioning=rules.partitioning, schema=rules.schema
            )
            known_uuid = state.uuid if state is not None and state.ends else ""
            report.rows += await TopicRun(self._parts, lease, table, topic.streams).begin(plan, known_uuid=known_uuid)
            report.runs += 1

        await self._leased(topic.id, topic.name, report, work)

    async def _compact_all(self, known: Mapping[TopicId, Topic], report: RunReport, *, force: bool) -> None:
        """Run a round of compaction of every topic that asks for it and is due."""
        states = await self._parts.sagas.states()
        wanted = [
            topic
            for topic in known.values()
            if self._may_try(topic.id, force=force)
            and self._compactor.is_wanted(topic, states.get(topic.id), force=force)
        ]
        await self._in_turn([partial(self._compact, topic, report) for topic in wanted])

    async def _compact(self, topic: Topic, report: RunReport) -> None:
        async def work(lease: Lease) -> None:
            state = await self._parts.sagas.state(topic.id)
            if state is None or await self._parts.sagas.load(topic.id) is not None:
                return
            report.compactions += await self._compactor.compact(lease, topic, state)

        await self._leased(topic.id, topic.name, report, work)

    async def _keep(
        self,
        known: Mapping[TopicId, Topic],
        states: Mapping[TopicId, TableState],
        report: RunReport,
        *,
        force: bool,
    ) -> None:
        """Look at the tables whose turn it is, those that wait longest first, until a round's worth is merged."""
        limits, now_ms = self._limits.keep, self._parts.clock.now_ms()
        dues: list[tuple[Due, Topic]] = []
        for topic_id, log_starts in self._log_starts.items():
            if (topic := known.get(topic_id)) is not None and self._may_try(topic_id, force=force):
                rules = table_rules_of(topic.overrides)
                due = due_for(states.get(topic_id), rules, log_starts, now_ms=now_ms, limits=limits, force=force)
                if due is not None:
                    dues.append((due, topic))
        dues.sort(key=lambda one: (one[0].since_ms, one[1].name))
        merged_bytes = 0

        async def look(due: Due, topic: Topic) -> None:
            nonlocal merged_bytes
            if merged_bytes >= limits.merge.max_bytes:
                return  # its turn comes in the next round

            async def work(lease: Lease) -> None:
                nonlocal merged_bytes
                kept = await self._keeper.keep(lease, topic, due)
                merged_bytes += kept.merged_bytes
                report.merges += kept.merges
                report.released_files += kept.released_files

            await self._leased(topic.id, topic.name, report, work)

        await self._in_turn([partial(look, due, topic) for due, topic in dues[: limits.max_topics]])

    async def _note_rules(self, lease: Lease, topic: Topic, rules: TableRules) -> None:
        """Remember what becomes of the table when the topic is deleted: its configuration goes with it."""

        def change(state: TableState) -> TableState:
            return msgspec.structs.replace(state, topic_name=topic.name, deletes_with_topic=rules.delete_with_topic)

        await self._parts.sagas.note(lease, topic.id, topic.name, change)

    async def _leased(
        self, topic_id: TopicId, name: str, report: RunReport, work: Callable[[Lease], Awaitable[None]]
    ) -> None:
        """Do one topic's work under its lease; a failure is noted and ends nothing else."""
        try:
            lease = await take(self._store, table_lease(topic_id), self._session())
        except LeaseHeld:
            report.busy += 1
            return
        try:
            await work(lease)
        except (GivenUp, StalePlan) as error:
            # The log moved on under the plan: the next round plans again.
            self._log.info("a run is planned anew", topic=name, reason=str(error))
        except Unusable:
            raise
        except HeadraceError as error:
            await self._failed(lease, topic_id, name, error, report)
        else:
            self._failures.pop(topic_id, None)
        finally:
            await self._release(lease)

    async def _failed(
        self, lease: Lease, topic_id: TopicId, name: str, error: HeadraceError, report: RunReport
    ) -> None:
        problem = f"{type(error).__name__}: {error}"
        failure = self._failures.setdefault(topic_id, _Failure(0, 0.0))
        backoff_ms = min(FIRST_BACKOFF_MS * 2**failure.count, self._limits.failure_backoff_max_ms)
        failure.count = min(failure.count + 1, 30)
        failure.not_before = self._parts.clock.monotonic() + backoff_ms / 1000
        report.problems[name] = problem
        self._parts.progress.ended(name, rows=0, problem=problem)
        self._log.warning("a run failed and will be tried again", topic=name, error=error, in_ms=backoff_ms)
        if isinstance(error, Fenced):
            return  # somebody else acts for this topic now, and says how it stands
        status = TableStatus.FOREIGN if isinstance(error, ForeignTable) else TableStatus.FAILING

        def change(state: TableState) -> TableState:
            return msgspec.structs.replace(
                state, status=status, problem=problem[:MAX_PROBLEM_CHARS], failures=state.failures + 1
            )

        try:
            await self._parts.sagas.note(lease, topic_id, name, change)
        except HeadraceError as second:
            self._log.warning("a failure could not be noted", topic=name, error=second)

    async def _release(self, lease: Lease) -> None:
        try:
            await release(self._store, lease)
        except HeadraceError as error:
            # It goes with our session at the latest.
            self._log.warning("a lease could not be given back", lease=lease.key, error=error)

    async def _let_go(
        self, known: Mapping[TopicId, Topic], states: Mapping[TopicId, TableState], report: RunReport
    ) -> None:
        """Let go of the tables of deleted topics: drop those that were to go with them, leave the others alone."""
        gone = [(topic_id, state) for topic_id, state in states.items() if topic_id not in known]
        if not gone:
            return
        await self._topics.refresh()
        for topic_id, state in gone:
            if self._topics.get_by_id(topic_id) is None:
                work = partial(self._drop, topic_id, state)
                await self._leased(topic_id, state.topic_name, report, work)

    async def _drop(self, topic_id: TopicId, state: TableState, lease: Lease) -> None:
        if await self._parts.sagas.load(topic_id) is not None:
            return  # resumed, or given up, in the next round
        condemned: CondemnedFiles | None = None
        letters: CondemnedFiles | None = None
        if state.deletes_with_topic and state.uuid:
            table = TopicTable(topic_id=topic_id, topic_name=state.topic_name, partitioning=Partitioning())
            if await self._parts.catalog.drop(table):
                self._log.info("a table was dropped with its topic", topic=state.topic_name)
            condemned = CondemnedFiles(
                topic_id, (), self._parts.clock.now_ms(), prefix=f"{TABLES_PREFIX}{topic_uuid(topic_id)}/"
            )
            letters = msgspec.structs.replace(condemned, prefix=dead_letter_prefix(topic_id))
        await self._parts.sagas.forget(lease, topic_id, condemned, letters)

    async def _in_turn(self, works: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Do all of it, a few at once; what one of them raises ends the round after the others are done."""
        slots = asyncio.Semaphore(self._limits.topics_at_once)

        async def one(work: Callable[[], Awaitable[None]]) -> None:
            async with slots:
                await work()

        results = await asyncio.gather(*(one(work) for work in works), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
