"""Move a topic's saga from state to state, each time in one transaction that demands the lease.

    (none) → PLANNED → WRITTEN → IN_TABLE → SWAPPED → (none)
                 ↘ given up ↙

Must stay true:
- Who moves a saga holds the topic's lease in a living session; a process that was paused finds another epoch and is
  fenced, whatever it has done meanwhile.
- The files of a run stand in the record before the first of them can be in the table. So every process that
  resumes the saga offers the catalog the very same files.
- `TableState.ends` moves in the same transaction as the saga moves to `IN_TABLE`, never otherwise.
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
from headrace.pipeline.records import (
    CONDEMNED_FILES,
    SAGA_RECORD,
    TABLE_STATE,
    TIDY_RECORD,
    CondemnedFiles,
    SagaRecord,
    SagaState,
    TableState,
    TableStatus,
    TidyRecord,
)
from headrace.tables.port import TableInfo

RECORDS_PER_READ = 500


def lease_key(topic_id: TopicId) -> Key:
    """Return the lease that whoever moves a topic's saga must hold."""
    return all_keys.lease(f"table/{topic_id.hex()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a saga that is over leaves behind."""

    now_ms: int
    caught_up_to_ms: int


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

    async def move(self, lease: Lease, topic_id: TopicId, before: SagaRecord, after: SagaRecord) -> SagaRecord:
        """Move a saga on by one state, or to another epoch in the same state; return it as it then is."""
        assert after.state in (before.state, before.state + 1), (
            f"{before.state.name} is not followed by {after.state}"
        )
        after = msgspec.structs.replace(after, epoch=lease.epoch)
        key, table_key = self._keys.saga(topic_id), self._keys.table(topic_id)

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
            return Decision(result=None, puts=puts)

        await self._transact(lease, [key, table_key], decide)
        return after

    async def finish(self, lease: Lease, topic_id: TopicId, saga: SagaRecord, ended: Ended) -> None:
        """End a saga whose files the index names, and leave word of what is to be tidied away behind it."""
        assert saga.state is SagaState.SWAPPED, f"a saga ends swapped, not {saga.state.name}"

        def change(state: TableState) -> TableState:
            return msgspec.structs.replace(
                state,
                status=TableStatus.OK,
                problem="",
                committed_at_ms=ended.now_ms,
                caught_up_to_ms=max(state.caught_up_to_ms, ended.caught_up_to_ms),
                runs=state.runs + 1,
                last_run_ms=ended.now_ms - saga.planned_at_ms,
            )

        kept = tuple(file.path for file in saga.files if file.path)
        await self._end(lease, topic_id, saga, kept=kept, now_ms=ended.now_ms, change=change)

    async def give_up(self, lease: Lease, topic_id: TopicId, saga: SagaRecord, *, now_ms: int) -> None:
        """End a saga that is not in the table: all that its attempts have written is tidied away."""
        assert saga.state < SagaState.IN_TABLE, f"a saga that is {saga.state.name} only goes forward"
        await self._end(lease, topic_id, saga, kept=(), now_ms=now_ms, change=lambda state: state)

    async def _end(
        self,
        lease: Lease,
        topic_id: TopicId,
        saga: SagaRecord,
        *,
        kept: tuple[str, ...],
        now_ms: int,
        change: Callable[[TableState], TableState],
    ) -> None:
        """Delete the record; `kept` is what stays of its files, `change` what it means for the table's state."""
        key, table_key = self._keys.saga(topic_id), self._keys.table(topic_id)

        def decide(seen: Seen) -> Decision[None]:
            current = SAGA_RECORD.seen(seen, key)
            if current is None:
                return Decision(result=None)
            if current != saga:
                raise Fenced(f"saga {saga.saga_id} of {saga.topic_name} was moved on by somebody else")
            tidy = TidyRecord(topic_id, f"{saga.data_prefix}{saga.saga_id}/", kept, now_ms)
            state = TABLE_STATE.seen(seen, table_key) or TableState(saga.topic_name)
            puts = {self._keys.tidy(saga.saga_id): TIDY_RECORD.encode(tidy)}
            if change(state) != state:
                puts[table_key] = TABLE_STATE.encode(change(state))
            if saga.freed:
                condemned = CondemnedFiles(topic_id, saga.freed, now_ms)
                puts[self._keys.condemned(saga.saga_id)] = CONDEMNED_FILES.encode(condemned)
            return Decision(result=None, puts=puts, deletes=[key])

        await self._transact(lease, [key, table_key], decide)

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

    async def forget(self, lease: Lease, topic_id: TopicId, condemned: CondemnedFiles | None) -> None:
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
            return Decision(result=None, puts=puts, deletes=[key])

        await self._transact(lease, [key, saga_key], decide)

    async def _transact(self, lease: Lease, read_keys: list[Key], decide: Callable[[Seen], Decision[None]]) -> None:
        def decide_leased(seen: Seen) -> Decision[None]:
            require(seen, lease)
            return decide(seen)

        units = sorted({self._keys.unit, all_keys.unit_of(lease.key)})
        reads = Reads(keys=[*read_keys, lease.key])
        await self._store.transact(units, reads, decide_leased, session=lease.session)


def _in_table(state: TableState, saga: SagaRecord) -> TableState:
    """Return the state once a saga's files are in the table."""
    held_back = sum(len(part.held_back) for file in saga.files for part in file.slices)
    written = [file for file in saga.files if file.path]
    return msgspec.structs.replace(
        state,
        ends={**state.ends, **saga.ends},
        snapshot_id=saga.snapshot_id,
        rows=state.rows + sum(file.row_count for file in written),
        files=state.files + len(written),
        size_bytes=state.size_bytes + sum(file.size_bytes for file in written),
        held_back_batches=state.held_back_batches + held_back,
    )


def _topic_of(key: Key, prefix: str) -> TopicId:
    return TopicId(bytes.fromhex(key.removeprefix(prefix)))
