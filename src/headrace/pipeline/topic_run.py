"""One topic's run, from wherever its saga stands to its end.

1. Resume the saga that is there, whoever began it.
2. Else plan a run, make sure of the table, and put the saga's record: before the first byte is written.
3. Write the files, and put them into the record: before the first of them can be in the table.
4. Append them to the table. Conflict or unknown outcome: look again and decide again from the vector.
5. List what did not fit the topic's schema in its dead-letter table, once.
6. Swap the index in steps. From "in table" on a saga only goes forward.
7. End it, and leave word of what is to be tidied away.

What happens on the way:
- The log start moved: a planned run whose WAL objects are gone is given up and planned anew; a written one goes on
  (its rows were committed records), and the swap steps over what was trimmed.
- The topic was deleted: a planned run is given up. A written one goes on and finds nothing to swap: whoever began it
  may be about to commit it, and files that a table names must not be tidied away.
- A file of a written run is not there any more: given up if the table does not have it; damage if it has.

Rewrites and releases are sagas as well, and go the same way: `begin_rewrite` has the files written that are to come,
the commit takes the others out, and the swap lets entries that named them name the new ones. A release has nothing
to write and nothing to swap, a merge of what only `main` names nothing to swap.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

import msgspec

from headrace.errors import Corrupt, Missing, OutcomeUnknown, Retryable
from headrace.metadata.leases import Lease
from headrace.model.ids import ObjectKey, StreamId
from headrace.model.topics import TopicId
from headrace.objects.port import ObjectStore
from headrace.pipeline.named_files import IndexNames
from headrace.pipeline.plans import RunPlan, Typing, WriteTask
from headrace.pipeline.ports import Progress, TableWriter
from headrace.pipeline.records import SagaKind, SagaRecord, SagaState
from headrace.pipeline.rewrites import GatherTask, Rewrite, RewriteTask, TableTask
from headrace.pipeline.sagas import Ended, Sagas, dead_letter_files
from headrace.pipeline.swapping import Swapper
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints
from headrace.runtime.rng import Rng
from headrace.tables.files import WrittenFile
from headrace.tables.port import (
    Appended,
    DeadLetterAppend,
    ExpiryRule,
    ForeignTable,
    MainPolicy,
    RewriteOperation,
    Rewritten,
    TableAppend,
    TableCatalog,
    TableInfo,
    TableRewrite,
    TableStale,
    TopicTable,
)

T = TypeVar("T")

OPERATIONS: Final = {
    SagaKind.MERGE: RewriteOperation.REPLACE,
    SagaKind.COMPACT: RewriteOperation.OVERWRITE,
    SagaKind.RELEASE: RewriteOperation.DELETE,
    SagaKind.MERGE_MAIN: RewriteOperation.REPLACE,
}

APPEND_ATTEMPTS = 6
APPEND_BACKOFF_MS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLimits:
    """What tasks are told about the files they write."""

    row_group_bytes: int = 8 * 1024 * 1024
    max_open_bytes: int = 64 * 1024 * 1024
    compression_level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What every topic's run works with."""

    sagas: Sagas
    swapper: Swapper
    catalog: TableCatalog
    writer: TableWriter
    objects: ObjectStore
    clock: Clock
    rng: Rng
    crash_points: CrashPoints
    progress: Progress
    expiry: ExpiryRule
    write: WriteLimits
    names: IndexNames
    domain: int


class GivenUp(Retryable):
    """The run was given up before it reached the table: plan again."""


class TopicRun:
    """Moves the saga of one topic under one lease."""

    def __init__(self, parts: RunParts, lease: Lease, table: TopicTable, streams: Sequence[StreamId]) -> None:
        """`streams` are the topic's; a topic that was deleted has none that name anything."""
        self._parts = parts
        self._lease = lease
        self._table = table
        self._streams = streams
        self._topic_id: TopicId = table.topic_id

    async def begin(self, plan: RunPlan, *, known_uuid: str) -> int:
        """Run a plan to its end; return how many rows it brought into the table.

        `known_uuid` is that of the table which earlier runs have written, empty before the first one.
        """
        parts, now_ms = self._parts, self._parts.clock.now_ms()
        info = await self._own_table(plan, known_uuid)
        pieces = [piece for file in plan.files for part in file.slices for piece in part.pieces]
        planned = SagaRecord(
            saga_id=f"{parts.rng.getrandbits(128):032x}",
            epoch=self._lease.epoch,
            state=SagaState.PLANNED,
            topic_name=plan.topic_name,
            data_prefix=info.data_prefix,
            after=dict(plan.after),
            ends=dict(plan.ends),
            planned_at_ms=now_ms,
            planned_bytes=plan.size_bytes,
            oldest_append_ms=min(piece.append_time_ms for piece in pieces),
            newest_append_ms=max(piece.append_time_ms for piece in pieces),
            dead_letter_prefix="" if info.dead_letters is None else info.dead_letters.data_prefix,
        )
        await self._put(planned, info, files=len(plan.files))
        tasks: list[TableTask] = [
            WriteTask(
                saga_id=planned.saga_id,
                epoch=planned.epoch,
                data_prefix=info.data_prefix,
                format=info.format,
                file=file,
                domain=parts.domain,
                row_group_bytes=parts.write.row_group_bytes,
                max_open_bytes=parts.write.max_open_bytes,
                compression_level=parts.write.compression_level,
                typing=self._typing(info, now_ms),
            )
            for file in plan.files
        ]
        return await self._write(planned, tasks)

    async def begin_rewrite(
        self, rewrite: Rewrite, info: TableInfo, *, kind: SagaKind, main: MainPolicy
    ) -> SagaRecord:
        """Run a rewrite or a release to its end, and return its saga as it was then. Raises `GivenUp`.

        It was planned under this very lease, while no saga was under way.
        """
        assert kind is not SagaKind.APPEND, "a rewrite is no append"
        planned = msgspec.structs.replace(
            self._planned_rewrite(info, kind=kind, main=main, size_bytes=rewrite.size_bytes),
            inputs=rewrite.inputs,
            input_rows=rewrite.input_rows,
            input_bytes=rewrite.input_bytes,
        )
        await self._put(planned, info, files=len(rewrite.files) + len(rewrite.gathers))
        await self._write(planned, self._rewrite_tasks(planned, rewrite))
        return planned

    def _planned_rewrite(self, info: TableInfo, *, kind: SagaKind, main: MainPolicy, size_bytes: int) -> SagaRecord:
        """Return the record of a saga that brings nothing new into the table; its inputs may not be known yet."""
        parts = self._parts
        return SagaRecord(
            saga_id=f"{parts.rng.getrandbits(128):032x}",
            epoch=self._lease.epoch,
            state=SagaState.PLANNED,
            topic_name=self._table.topic_name,
            data_prefix=info.data_prefix,
            after={},
            ends={},
            planned_at_ms=parts.clock.now_ms(),
            planned_bytes=size_bytes,
            oldest_append_ms=0,
            newest_append_ms=0,
            kind=kind,
            main=main,
        )

    async def _put(self, planned: SagaRecord, info: TableInfo, *, files: int) -> None:
        """Put the record of a saga, before the first byte of its files is written."""
        await self._parts.sagas.begin(self._lease, self._topic_id, planned, info)
        self._parts.progress.planned(planned.topic_name, files=files, size_bytes=planned.planned_bytes)
        self._parts.crash_points.reach(CrashPoint.SAGA_AFTER_PLAN)

    def _rewrite_tasks(self, saga: SagaRecord, rewrite: Rewrite) -> list[TableTask]:
        write = self._parts.write
        copies = [
            RewriteTask(
                saga_id=saga.saga_id,
                epoch=saga.epoch,
                data_prefix=saga.data_prefix,
                format=file.format,
                file=file.plan,
                row_group_bytes=write.row_group_bytes,
                compression_level=write.compression_level,
                dropped=dict(file.dropped),
            )
            for file in rewrite.files
        ]
        gathers = [
            GatherTask(
                saga_id=saga.saga_id,
                epoch=saga.epoch,
                data_prefix=saga.data_prefix,
                format=file.format,
                file=file.plan,
                streams=tuple(self._streams),
                row_group_bytes=write.row_group_bytes,
                compression_level=write.compression_level,
            )
            for file in rewrite.gathers
        ]
        return [*copies, *gathers]

    async def _write(self, planned: SagaRecord, tasks: Sequence[TableTask]) -> int:
        """Have a planned saga's files written, and take it to its end."""
        parts = self._parts
        try:
            files = await parts.writer.write(tasks) if tasks else []
        except Missing as error:
            await self._give_up(planned, f"an object went while it was read: {error}")
        parts.crash_points.reach(CrashPoint.SAGA_AFTER_FILES)
        return await self._go_on(await self._written(planned, files))

    def _typing(self, info: TableInfo, now_ms: int) -> Typing | None:
        schema = self._table.schema
        if schema is None or info.dead_letters is None:
            return None
        return Typing(topic=self._table.topic_name, schema=schema, dead_letters=info.dead_letters, seen_at_ms=now_ms)

    async def _own_table(self, plan: RunPlan, known_uuid: str) -> TableInfo:
        """Return the table, which must be the one that the log's earlier records went to, and end where they end."""
        found = await self._parts.catalog.find(self._table) if known_uuid else None
        if known_uuid and (found is None or found.uuid != known_uuid):
            raise ForeignTable(
                f"the table of {plan.topic_name} that earlier records went to (uuid {known_uuid}) is not in the"
                " catalog any more, and a new one would lack them: register its newest metadata file again (its files"
                " are still there, the log reads them), or delete the topic and create it anew"
            )
        info = await self._parts.catalog.ensure(self._table)
        ends = {} if info.head is None else info.head.ends
        for partition in plan.ends:
            if ends.get(partition) != plan.after.get(partition):
                raise ForeignTable(
                    f"the table of {plan.topic_name} ends at {ends.get(partition)} in partition {partition}, but the"
                    f" log's records are in it up to {plan.after.get(partition)}: one of catalog and metadata store"
                    " was set back without the other; bring back the newer state of both"
                )
        return info

    async def resume(self, saga: SagaRecord) -> int:
        """Bring a saga that another process left to its end, also if its topic was deleted.

        Raises `GivenUp` for one that cannot reach the table any more, or never began to.
        """
        parts = self._parts
        if saga.epoch != self._lease.epoch:
            saga = await parts.sagas.move(self._lease, self._topic_id, saga, saga)
        if saga.state is SagaState.PLANNED:
            await self._give_up(saga, "whoever wrote its files is gone")
        if saga.state is SagaState.WRITTEN:
            found = await parts.catalog.find(self._table)
            is_there = found is not None and found.head is not None and found.head.saga_id == saga.saga_id
            if not is_there:
                if found is None:
                    await self._give_up(saga, "its table was dropped")
                await self._check_files(saga)
        return await self._go_on(saga)

    async def _go_on(self, saga: SagaRecord) -> int:
        """Take a saga from `WRITTEN`, or from any later state, to its end."""
        parts = self._parts
        if saga.state is SagaState.WRITTEN:
            committed = await self._commit(saga)
            parts.crash_points.reach(CrashPoint.SAGA_AFTER_APPEND)
            saga = await self._move(
                saga, state=SagaState.IN_TABLE, snapshot_id=committed.head.snapshot_id, freed=tuple(committed.freed)
            )
            parts.progress.moved(saga.topic_name, "in table")
            parts.crash_points.reach(CrashPoint.SAGA_AFTER_IN_TABLE)
        if saga.state is SagaState.IN_TABLE:
            letters_freed = await self._list_dead_letters(saga)
            parts.crash_points.reach(CrashPoint.SAGA_AFTER_DEAD_LETTERS)
            await self._swap(saga)
            saga = await self._move(saga, state=SagaState.SWAPPED, freed=(*saga.freed, *letters_freed))
            parts.progress.moved(saga.topic_name, "swapped")
            parts.crash_points.reach(CrashPoint.SAGA_AFTER_SWAPPED)
        rows = sum(file.row_count for file in saga.files) if saga.kind is SagaKind.APPEND else 0
        # Only now: what a rewrite has replaced may be free at once, and was named by the index until the swap.
        named = await self.still_named(saga.freed)
        freed = tuple(path for path in saga.freed if path not in named)
        ended = Ended(now_ms=parts.clock.now_ms(), caught_up_to_ms=saga.newest_append_ms, freed=freed)
        await parts.sagas.finish(self._lease, self._topic_id, saga, ended)
        parts.progress.ended(saga.topic_name, rows=rows, problem=None)
        parts.crash_points.reach(CrashPoint.SAGA_AFTER_DONE)
        self.refuse(named)
        return rows

    async def still_named(self, freed: Sequence[str]) -> set[str]:
        """Return those of the files that a catalog has set free which the index names: none, if all is well."""
        state = await self._parts.sagas.state(self._topic_id)
        data = frozenset(path for path in freed if path.endswith(".parquet"))
        if not data or state is None:
            return set()
        return await self._parts.names.among(data, self._streams, state.ends)

    def refuse(self, named: Collection[str]) -> None:
        """Raise `Corrupt` for files that the index names and the table does not: they are not condemned."""
        if named:
            raise Corrupt(
                f"no snapshot of the table of {self._table.topic_name} names {len(named)} files any more that the log"
                f" reads, {min(named)} first: somebody has changed the branch; none of them is deleted"
            )

    async def _written(self, saga: SagaRecord, files: list[WrittenFile]) -> SagaRecord:
        saga = await self._move(saga, state=SagaState.WRITTEN, files=tuple(files))
        self._parts.progress.moved(saga.topic_name, "written")
        self._parts.crash_points.reach(CrashPoint.SAGA_AFTER_WRITTEN)
        return saga

    async def _swap(self, saga: SagaRecord) -> None:
        """Let the index name the files of a saga."""
        if saga.kind is SagaKind.MERGE_MAIN:
            return  # of files that the index does not name
        inputs = frozenset(saga.inputs)
        for file in saga.files:
            for part in file.slices:
                if saga.kind is SagaKind.APPEND:
                    await self._parts.swapper.swap(self._lease, file, part)
                else:
                    await self._parts.swapper.swap_rewritten(self._lease, file, part, inputs)

    async def _commit(self, saga: SagaRecord) -> Appended | Rewritten:
        """Bring the files into the table, however often it takes: each try looks at the branch head first."""
        try:
            return await self._persist(lambda: self._commit_once(saga))
        except TableStale:
            await self._give_up(saga, "the table went on without it")

    async def _list_dead_letters(self, saga: SagaRecord) -> Sequence[str]:
        """Add a saga's dead letters to their table, unless they are there; return what expiry has set free."""
        parts, files = self._parts, dead_letter_files(saga)
        if not files:
            return ()
        append = DeadLetterAppend(table=self._table, saga_id=saga.saga_id, ends=saga.ends, files=files)
        return await self._persist(
            lambda: parts.catalog.append_dead_letters(append, now_ms=parts.clock.now_ms(), expiry=parts.expiry)
        )

    async def _persist(self, commit: Callable[[], Awaitable[T]]) -> T:
        """Commit to the catalog, and again while it is in conflict or away, or does not say what became of it."""
        parts = self._parts
        for attempt in range(APPEND_ATTEMPTS):
            try:
                return await commit()
            except TableStale:
                raise
            except (Retryable, OutcomeUnknown):
                if attempt == APPEND_ATTEMPTS - 1:
                    raise
                await parts.clock.sleep(APPEND_BACKOFF_MS / 1000 * 2**attempt * parts.rng.uniform(0.5, 1.5))
        raise AssertionError("the last attempt raises")

    async def _commit_once(self, saga: SagaRecord) -> Appended | Rewritten:
        parts, now_ms = self._parts, self._parts.clock.now_ms()
        files = [file for file in saga.files if file.path]
        if saga.kind is SagaKind.APPEND:
            append = TableAppend(
                table=self._table,
                saga_id=saga.saga_id,
                epoch=saga.epoch,
                after=saga.after,
                ends=saga.ends,
                files=files,
            )
            return await parts.catalog.append(append, now_ms=now_ms, expiry=parts.expiry)
        rewrite = TableRewrite(
            table=self._table,
            saga_id=saga.saga_id,
            epoch=saga.epoch,
            inputs=saga.inputs,
            files=files,
            operation=OPERATIONS[saga.kind],
            main=saga.main,
        )
        return await parts.catalog.rewrite(rewrite, now_ms=now_ms, expiry=parts.expiry)

    async def _check_files(self, saga: SagaRecord) -> None:
        """Give a written run up whose files are not all there; the table does not name them yet."""
        for file in (*saga.files, *dead_letter_files(saga)):
            if not file.path:
                continue
            try:
                info = await self._parts.objects.head(ObjectKey(file.path))
            except Missing:
                await self._give_up(saga, f"its file {file.path} is gone")
            if info.size_bytes != file.size_bytes:
                raise Corrupt(f"{file.path} has {info.size_bytes} bytes, {file.size_bytes} were written")

    async def _give_up(self, saga: SagaRecord, why: str) -> NoReturn:
        """End a saga that is not in the table, and raise `GivenUp`."""
        now_ms = self._parts.clock.now_ms()
        await self._parts.sagas.give_up(self._lease, self._topic_id, saga, now_ms=now_ms)
        raise GivenUp(f"the run of {saga.topic_name} was given up: {why}")

    async def _move(self, saga: SagaRecord, **changes: object) -> SagaRecord:
        after = msgspec.structs.replace(saga, **changes)
        now_ms = self._parts.clock.now_ms()
        return await self._parts.sagas.move(self._lease, self._topic_id, saga, after, now_ms=now_ms)
