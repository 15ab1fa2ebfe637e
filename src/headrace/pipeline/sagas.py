"""Move a topic's saga from state to state, each time in one transaction that demands the lease.

    (none) → PLANNED → WRITTEN → IN_TABLE → SWAPPED → (none)
                 ↘ given up ↙

Must stay true:
- Who moves a saga holds the topic's lease in a living session; a process that was paused finds another epoch and is
  fenced, whatever it has done meanwhile.
- The files of a run stand in the record before the first of them can be in the table. So every process that
  resumes the saga offers the catalog the very same files.
- `TableState.ends` moves in the same transaction as the saga moves to `IN_TABLE`, never otherwise; a rewrite or a
  release leaves it as it is.
- How far a topic is compacted moves in the same transaction as its saga moves to `SWAPPED`: not before the index has
  all of it, and never without it.
- A move that was made already is made again without effect: the outcome of a transaction may be unknown.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headrace.errors import Fenced
from headrace.metadata import keys as all_keys
from headrace.metadata.keys import DomainKeys
from headrace.metadata.leases import Lease, require
from headrace.metadata.paging import read_prefix
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen
from headrace.model.topics import TopicId
from headrace.pipeline.compaction_state import COMPACTION_STATE, CompactionState, after_round
from headrace.pipeline.records import (
    CONDEMNED_FILES,
    SAGA_RECORD,
    TABLE_STATE,
    TIDY_RECORD,
    CondemnedFiles,
    SagaKind,
    SagaRecord,
    SagaState,
    TableState,
    TableStatus,
    TidyRecord,
)
from headrace.tables.files import WrittenFile
from headrace.tables.port import MainPolicy, TableInfo

RECORDS_PER_READ = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a saga that is over leaves behind. `freed` are objects that nothing names any more: they are condemned."""

    now_ms: int
    caught_up_to_ms: int
    freed: tuple[str, ...] = ()


class Sagas:
    """The sagas and table states of one domain."""

    def __init__(self, store: MetadataStore, keys: DomainKeys) -> None:
        self._store = store
        self._keys = keys

    async def load(self, topic_id: TopicId) -> SagaRecord | None:
        """Return the run of a topic that is under way."""
        raw = await self._store.get(self._keys.saga(topic_id))
        return None if raw is None else SAGA_RECORD.decode(raw.value, raw.key)

    async def state(self, topic_id: TopicId) -> TableState | None:
        """Return how it stands with a topic's table."""
        raw = await self._store.get(self._keys.table(topic_id))
        return None if raw is None else TABLE_STATE.decode(raw.value, raw.key)

    async def states(self) -> dict[TopicId, TableState]:
        """Return the states of all tables, those of deleted topics included."""
        prefix = self._keys.tables_prefix
        page = await read_prefix(self._store, prefix, keys_per_read=RECORDS_PER_READ)
        return {_topic_of(item.key, prefix): TABLE_STATE.decode(item.value, item.key) for item in page}

    async def compaction(self, topic_id: TopicId) -> CompactionState | None:
        """Return how far a topic is compacted."""
        raw = await self._store.get(self._keys.compaction(topic_id))
        return None if raw is None else COMPACTION_STATE.decode(raw.value, raw.key)

    async def under_way(self) -> set[TopicId]:
        """Return the topics that have a saga."""
        prefix = self._keys.sagas_prefix
        page = await read_prefix(self._store, prefix, keys_per_read=RECORDS_PER_READ)
        return {_topic_of(item.key, prefix) for item in page}

    async def begin(self, lease: Lease, topic_id: TopicId, planned: SagaRecord, table: TableInfo) -> None:
        """Put the record of a new run, before its first byte is written. There must be none."""
        assert planned.state is SagaState.PLANNED, f"a saga begins planned, not {planned.state.name}"
        key, table_key = self._keys.saga(topic_id), self._keys.table(topic_id)

        def decide(seen: Seen) -> Decision[None]:
            current = SAGA_RECORD.seen(seen, key)
            if current is not None and current != planned:
                raise Fenced(f"topic {planned.topic_name} has saga {current.saga_id} already: resume that one")
            state = TABLE_STATE.seen(seen, table_key) or TableState(planned.topic_name)
            named = msgspec.structs.replace(
                state,
                topic_name=planned.topic_name,
                identifier=table.identifier,
                uuid=table.uuid,
                location=table.location,
            )
            return Decision(
                result=None, puts={key: SAGA_RECORD.encode(planned), table_key: TABLE_STATE.encode(named)}
            )

        await self._transact(lease, [key, table_key], decide)

    async def move(
        self, lease: Lease, topic_id: TopicId, before: SagaRecord, after: SagaRecord, *, now_ms: int = 0
    ) -> SagaRecord:
        """Move a saga on by one state, or to another epoch in the same state; return it as it then is.

        `now_ms` is for compaction: since when its partitions are clean.
        """
        assert after.state in (before.state, before.state + 1), (
            f"{before.state.name} is not followed by {after.state}"
        )
        after = msgspec.structs.replace(after, epoch=lease.epoch)
        key, table_key = self._keys.saga(topic_id), self._keys.table(topic_id)
        compaction_key = self._keys.compaction(topic_id)

        def decide(seen: Seen) -> Decision[None]:
            current = SAGA_RECORD.seen(seen, key)
            if current == after:
                return Decision(result=None)
            if current != before:
                raise Fenced(f"saga {before.saga_id} of {before.topic_name} was moved on by somebody else")
            puts = {key: SAGA_RECORD.encode(after)}
            if after.state is SagaState.IN_TABLE and before.state is SagaState.WRITTEN:
                state = TABLE_STATE.seen(seen, table_key) or TableState(after.topic_name)
                puts[table_key] = TABLE_STATE.encode(_in_table(state, after))
            if after.state is SagaState.SWAPPED and before.state is SagaState.IN_TABLE:
                puts.update(_compacted(seen, compaction_key, after, now_ms))
            return Decision(result=None, puts=puts)

        await self._transact(lease, [key, table_key, compaction_key], decide)
        return after

    async def finish(self, lease: Lease, topic_id: TopicId, saga: SagaRecord, ended: Ended) -> None:
        """End a saga whose files the index names, and leave word of what is to be tidied away behind it.

        Whatever its kind, its commit has expired snapshots as well.
        """
        assert saga.state is SagaState.SWAPPED, f"a saga ends swapped, not {saga.state.name}"

        def change(state: TableState) -> TableState:
            well = msgspec.structs.replace(state, status=TableStatus.OK, problem="", expired_at_ms=ended.now_ms)
            return _ended(well, saga, ended)

        kept = tuple(file.path for file in saga.files if file.path)
        letters = tuple(file.path for file in dead_letter_files(saga))
        await self._end(
            lease,
            topic_id,
            saga,
            kept=kept,
            kept_letters=letters,
            freed=ended.freed,
            now_ms=ended.now_ms,
            change=change,
        )

    async def conclude(self, lease: Lease, topic_id: TopicId, saga: SagaRecord, *, now_ms: int) -> None:
        """End a compaction that found nothing to take away: how far it came is remembered all the same."""
        assert saga.kind is SagaKind.COMPACT and not saga.inputs, "nothing was rewritten"
        compaction_key = self._keys.compaction(topic_id)
        await self._end(
            lease,
            topic_id,
            saga,
            kept=(),
            freed=(),
            now_ms=now_ms,
            change=lambda state: state,
            more=lambda seen: _compacted(seen, compaction_key, saga, now_ms),
        )

    async def give_up(self, lease: Lease, topic_id: TopicId, saga: SagaRecord, *, now_ms: int) -> None:
        """End a saga that is not in the table: all that its attempts have written is tidied away."""
        assert saga.state < SagaState.IN_TABLE, f"a saga that is {saga.state.name} only goes forward"
        await self._end(lease, topic_id, saga, kept=(), freed=(), now_ms=now_ms, change=lambda state: state)

    async def _end(
        self,
        lease: Lease,
        topic_id: TopicId,
        saga: SagaRecord,
        *,
        kept: tuple[str, ...],
        freed: tuple[str, ...],
        now_ms: int,
        change: Callable[[TableState], TableState],
        kept_letters: tuple[str, ...] = (),
        more: Callable[[Seen], dict[Key, bytes]] = lambda _: {},
    ) -> None:
        """Delete the record; `kept` is what stays of its files, `kept_letters` of the files of its dead letters,
        `change` what it means for the table's state."""
        key, table_key = self._keys.saga(topic_id), self._keys.table(topic_id)
        compaction_key = self._keys.compaction(topic_id)

        def decide(seen: Seen) -> Decision[None]:
            current = SAGA_RECORD.seen(seen, key)
            if current is None:
                return Decision(result=None)
            if current != saga:
                raise Fenced(f"saga {saga.saga_id} of {saga.topic_name} was moved on by somebody else")
            tidy = TidyRecord(topic_id, f"{saga.data_prefix}{saga.saga_id}/", kept, now_ms)
            state = TABLE_STATE.seen(seen, table_key) or TableState(saga.topic_name)
            puts: dict[Key, bytes] = {}
            if saga.kind is not SagaKind.RELEASE:  # which writes no files
                puts[self._keys.tidy(saga.saga_id)] = TIDY_RECORD.encode(tidy)
            if saga.dead_letter_prefix:
                prefix = f"{saga.dead_letter_prefix}{saga.saga_id}/"
                tidy = TidyRecord(topic_id, prefix, kept_letters, now_ms)
                puts[self._keys.tidy_dead_letters(saga.saga_id)] = TIDY_RECORD.encode(tidy)
            if change(state) != state:
                puts[table_key] = TABLE_STATE.encode(change(state))
            if freed:
                condemned = CondemnedFiles(topic_id, freed, now_ms)
                puts[self._keys.condemned(saga.saga_id)] = CONDEMNED_FILES.encode(condemned)
            puts.update(more(seen))
            return Decision(result=None, puts=puts, deletes=[key])

        await self._transact(lease, [key, table_key, compaction_key], decide)

    async def condemn(self, lease: Lease, topic_id: TopicId, name: str, files: CondemnedFiles) -> None:
        """Leave files that nothing names to the collector; `name` is a saga's id, or one made like it."""
        key = self._keys.condemned(name)
        await self._transact(lease, [key], lambda _: Decision(result=None, puts={key: CONDEMNED_FILES.encode(files)}))

    async def note(
        self, lease: Lease, topic_id: TopicId, topic_name: str, change: Callable[[TableState], TableState]
    ) -> None:
        """Change what is said of a table: its status, a failure, what becomes of it with its topic."""
        key = self._keys.table(topic_id)

        def decide(seen: Seen) -> Decision[None]:
            state = TABLE_STATE.seen(seen, key) or TableState(topic_name)
            changed = change(state)
            if changed == state:
                return Decision(result=None)
            return Decision(result=None, puts={key: TABLE_STATE.encode(changed)})

        await self._transact(lease, [key], decide)

    async def forget(
        self,
        lease: Lease,
        topic_id: TopicId,
        condemned: CondemnedFiles | None,
        condemned_letters: CondemnedFiles | None = None,
    ) -> None:
        """Drop the state of a deleted topic's table; with `condemned`, leave its files to the collector."""
        key, saga_key = self._keys.table(topic_id), self._keys.saga(topic_id)

        def decide(seen: Seen) -> Decision[None]:
            if seen.get(saga_key) is not None:
                raise Fenced(f"the table of deleted topic {topic_id.hex()} has a saga: end that first")
            if seen.get(key) is None:
                return Decision(result=None)
            puts: dict[Key, bytes] = {}
            if condemned is not None:
                puts[self._keys.condemned(topic_id.hex())] = CONDEMNED_FILES.encode(condemned)
            if condemned_letters is not None:
                letters_key = self._keys.condemned_dead_letters(topic_id.hex())
                puts[letters_key] = CONDEMNED_FILES.encode(condemned_letters)
            return Decision(result=None, puts=puts, deletes=[key, self._keys.compaction(topic_id)])

        await self._transact(lease, [key, saga_key], decide)

    async def _transact(self, lease: Lease, read_keys: list[Key], decide: Callable[[Seen], Decision[None]]) -> None:
        def decide_leased(seen: Seen) -> Decision[None]:
            require(seen, lease)
            return decide(seen)

        units = sorted({self._keys.unit, all_keys.unit_of(lease.key)})
        reads = Reads(keys=[*read_keys, lease.key])
        await self._store.transact(units, reads, decide_leased, session=lease.session)


def dead_letter_files(saga: SagaRecord) -> list[WrittenFile]:
    """Return the files with a saga's dead letters."""
    return [file.dead_letters for file in saga.files if file.dead_letters is not None]


def _in_table(state: TableState, saga: SagaRecord) -> TableState:
    """Return the state once a saga's files are in the table, and its inputs are not any more; rows, files and bytes
    are the branch's."""
    if saga.main is MainPolicy.ALONE:
        return msgspec.structs.replace(state, snapshot_id=saga.snapshot_id)
    held_back = sum(len(part.held_back) for file in saga.files for part in file.slices)
    written = [file for file in saga.files if file.path]
    is_append = saga.kind is SagaKind.APPEND
    return msgspec.structs.replace(
        state,
        ends={**state.ends, **saga.ends} if is_append else state.ends,
        snapshot_id=saga.snapshot_id,
        rows=max(0, state.rows + sum(file.row_count for file in written) - saga.input_rows),
        files=max(0, state.files + len(written) - len(saga.inputs)),
        size_bytes=max(0, state.size_bytes + sum(file.size_bytes for file in written) - saga.input_bytes),
        held_back_batches=state.held_back_batches + held_back,
        new_files=state.new_files + (len(written) if is_append else 0),
        dead_letters=state.dead_letters + sum(file.row_count for file in dead_letter_files(saga)),
    )


def _ended(state: TableState, saga: SagaRecord, ended: Ended) -> TableState:
    """Return the state once a saga is over."""
    if saga.kind is SagaKind.RELEASE:
        return msgspec.structs.replace(state, released_files=state.released_files + len(saga.inputs))
    if saga.kind is SagaKind.COMPACT:
        return state
    if saga.kind is not SagaKind.APPEND:
        return msgspec.structs.replace(state, merges=state.merges + 1)
    return msgspec.structs.replace(
        state,
        committed_at_ms=ended.now_ms,
        caught_up_to_ms=max(state.caught_up_to_ms, ended.caught_up_to_ms),
        runs=state.runs + 1,
        last_run_ms=ended.now_ms - saga.planned_at_ms,
    )


def _compacted(seen: Seen, key: Key, saga: SagaRecord, now_ms: int) -> dict[Key, bytes]:
    """Return what to put when the index has a compaction."""
    if saga.kind is not SagaKind.COMPACT:
        return {}
    state = COMPACTION_STATE.seen(seen, key) or CompactionState(saga.topic_name)
    dropped_rows = saga.input_rows - sum(file.row_count for file in saga.files)
    moved = after_round(state, saga.rounds, at_ms=now_ms, dropped_rows=dropped_rows)
    return {key: COMPACTION_STATE.encode(moved)}


def _topic_of(key: Key, prefix: str) -> TopicId:
    return TopicId(bytes.fromhex(key.removeprefix(prefix)))
