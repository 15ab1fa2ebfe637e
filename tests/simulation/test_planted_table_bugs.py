"""Each checker of tables is itself checked: plant a bug that a tired engineer might write, and see it caught."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headrace.errors import OutcomeUnknown, Retryable
from headrace.gc import repacking
from headrace.gc.copying import UnreadableEntry
from headrace.gc.repacking import Repacker
from headrace.index import objects
from headrace.index import repack as index_repack
from headrace.index import swap as index_swap
from headrace.index.commit import ObjectClosed
from headrace.index.rule import Rule, StalePlan
from headrace.index.swap import Swap
from headrace.metadata import keys as all_keys
from headrace.metadata.leases import Lease
from headrace.metadata.port import Decision, Key, Reads
from headrace.model.extents import TableExtent
from headrace.pipeline import keeping, merging, releasing, sagas, swapping, tidying, topic_run
from headrace.pipeline.named_files import NamedFiles
from headrace.pipeline.records import SAGA_RECORD, TABLE_STATE, TIDY_RECORD, SagaRecord, SagaState
from headrace.pipeline.sagas import Sagas
from headrace.pipeline.swapping import Swapper
from headrace.pipeline.topic_run import TopicRun
from headrace.tables.port import (
    Appended,
    BranchHead,
    ExpiryRule,
    MainPolicy,
    Rewritten,
    TableAppend,
    TableListing,
    TableRewrite,
    Verdict,
    decide_append,
)
from headrace.testing import memory_catalog
from headrace.testing.memory_catalog import MemoryCatalog, MemoryTable
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.loop import SimulationFailed
from headrace.testing.simulation.tables.scenario import run_table_seed
from headrace.topics.records import TOPIC_RECORD

MOST_SEEDS = 60

Plant = Callable[[pytest.MonkeyPatch], None]


def append_whatever_the_vector_says(patch: pytest.MonkeyPatch) -> None:
    """Commit a run's files although the branch has gone on since it was planned."""

    def decide(head: BranchHead | None, append: TableAppend) -> Verdict:
        verdict = decide_append(head, append)
        return Verdict.APPEND if verdict is Verdict.STALE else verdict

    patch.setattr(memory_catalog, "decide_append", decide)


def append_again_what_is_there(patch: pytest.MonkeyPatch) -> None:
    """Commit a run's files once more when the answer to the first commit was lost."""
    patch.setattr(memory_catalog, "decide_append", lambda head, append: Verdict.APPEND)


def note_the_files_after_the_append(patch: pytest.MonkeyPatch) -> None:
    """Put the files into the saga's record once they are in the table, and not before."""
    real_append = TopicRun._commit

    async def written(self: TopicRun, saga: SagaRecord, files: Any) -> SagaRecord:
        return msgspec.structs.replace(saga, state=SagaState.WRITTEN, files=tuple(files))

    async def append(self: TopicRun, saga: SagaRecord) -> Appended | Rewritten:
        appended = await real_append(self, saga)
        planned = await self._parts.sagas.load(self._topic_id)
        if planned is not None and planned.state is SagaState.PLANNED:
            await self._parts.sagas.move(self._lease, self._topic_id, planned, saga)
        return appended

    patch.setattr(TopicRun, "_written", written)
    patch.setattr(TopicRun, "_commit", append)


def drop_the_last_entry_of_a_step(patch: pytest.MonkeyPatch) -> None:
    """Leave the last entry of a step out of what takes its place."""
    real = swapping._replacements

    def replacements(planned: Any, file: Any, part: Any) -> Any:
        return real(planned[:-1] if len(planned) > 1 else planned, file, part)

    patch.setattr(swapping, "_replacements", replacements)
    patch.setattr(Swap, "check", lambda self: None)


def forget_to_count_down(patch: pytest.MonkeyPatch) -> None:
    """Leave WAL objects counted for entries that were swapped away."""
    patch.setattr(index_swap, "counted_down", lambda *arguments, **named: {})


def count_down_twice(patch: pytest.MonkeyPatch) -> None:
    """Count every swapped entry off twice."""
    real = objects.counted_down

    def counted_down(keys: Any, seen: Any, removed: Any, *, now_ms: int) -> Any:
        twice = {object_id: 2 * count for object_id, count in removed.items()}
        return real(keys, seen, twice, now_ms=now_ms)

    patch.setattr(index_swap, "counted_down", counted_down)


def count_held_back_batches_down(patch: pytest.MonkeyPatch) -> None:
    """Count a batch that was held back as gone from its WAL object."""
    patch.setattr(index_swap, "_lies_in", lambda extent, planned: False)
    patch.setattr(index_swap, "_counted_up", lambda *arguments, **named: {})


def tidy_what_was_kept(patch: pytest.MonkeyPatch) -> None:
    """Tidy the files away that are in the table, too."""

    class Forgetful:
        @staticmethod
        def decode(value: bytes, key: Key) -> Any:
            return msgspec.structs.replace(TIDY_RECORD.decode(value, key), kept=())

    patch.setattr(tidying, "TIDY_RECORD", Forgetful)


def give_up_without_tidying(patch: pytest.MonkeyPatch) -> None:
    """End a saga that wrote files and say nothing of them."""
    real = Sagas._transact

    async def transact(self: Sagas, lease: Any, read_keys: Any, decide: Any) -> None:
        def decide_untidily(seen: Any) -> Any:
            decision = decide(seen)
            tidy = [key for key in decision.puts if key.startswith(self._keys.tidy_prefix)]
            for key in tidy:
                if not TIDY_RECORD.decode(decision.puts[key], key).kept:
                    del decision.puts[key]
            return decision

        await real(self, lease, read_keys, decide_untidily)

    patch.setattr(Sagas, "_transact", transact)


def swap_what_was_held_back(patch: pytest.MonkeyPatch) -> None:
    """Take a batch that could not be opened for a part of the table."""
    patch.setattr(swapping, "_fragments", lambda entry, held_back: [(entry, False)])
    patch.setattr(swapping, "_is_done", lambda entry, part: isinstance(entry.extent, TableExtent))


def leave_the_ends_behind(patch: pytest.MonkeyPatch) -> None:
    """Move a saga into the table and leave the table's ends where they were."""
    patch.setattr(sagas, "_in_table", lambda state, saga: state)


def act_without_the_lease(patch: pytest.MonkeyPatch) -> None:
    """Move sagas in any session, whoever holds the lease by now and wherever the saga stands by now."""

    async def transact(self: Sagas, lease: Any, read_keys: Any, decide: Any) -> None:
        await self._store.transact([self._keys.unit], Reads(keys=read_keys), decide)

    async def move(self: Sagas, lease: Any, topic_id: Any, before: SagaRecord, after: SagaRecord) -> SagaRecord:
        after = msgspec.structs.replace(after, epoch=lease.epoch)
        key, table_key = self._keys.saga(topic_id), self._keys.table(topic_id)

        def decide(seen: Any) -> Any:
            puts = {key: SAGA_RECORD.encode(after)}
            if after.state is SagaState.IN_TABLE and before.state is SagaState.WRITTEN:
                state = TABLE_STATE.seen(seen, table_key)
                assert state is not None
                puts[table_key] = TABLE_STATE.encode(sagas._in_table(state, after))
            return Decision(result=None, puts=puts)

        await self._transact(lease, [key, table_key], decide)
        return after

    patch.setattr(Sagas, "_transact", transact)
    patch.setattr(Sagas, "move", move)


def give_up_what_may_be_in_the_table(patch: pytest.MonkeyPatch) -> None:
    """Take a commit whose outcome is unknown for one that failed."""
    real = TopicRun._commit

    async def append(self: TopicRun, saga: SagaRecord) -> Appended | Rewritten:
        try:
            return await real(self, saga)
        except (Retryable, OutcomeUnknown):
            await self._give_up(saga, "its commit failed")
            raise

    patch.setattr(topic_run, "APPEND_ATTEMPTS", 1)
    patch.setattr(TopicRun, "_commit", append)


def give_up_what_may_be_on_its_way(patch: pytest.MonkeyPatch) -> None:
    """Give up a written run whose topic is gone, although whoever began it may be about to commit it."""
    real = TopicRun.resume

    async def resume(self: TopicRun, saga: SagaRecord) -> int:
        raw = await self._parts.sagas._store.get(all_keys.topic(saga.topic_name))
        is_gone = raw is None or TOPIC_RECORD.decode(raw.value, raw.key).id != self._topic_id
        if saga.state is SagaState.WRITTEN and is_gone:
            await self._give_up(await self._move(saga), "its topic was deleted")
        return await real(self, saga)

    patch.setattr(TopicRun, "resume", resume)


def repack_without_the_lease(patch: pytest.MonkeyPatch) -> None:
    """Repack a topic whoever holds its lease, and whether a run is under way or not."""

    async def take(store: Any, key: Key, session: Any, *, anew: bool) -> Lease:
        return Lease(key=key, session=session, epoch=0)

    async def apply_under(self: Rule[Any], store: Any, lease: Lease) -> Any:
        return await self.apply(store)

    async def repack(self: Repacker, lease: Lease, target: Any) -> int:
        plan = (await self._look(target)).plan
        if plan is None:
            return 0
        try:
            return await self._packer.pack(lease, target.stream, plan)
        except (StalePlan, ObjectClosed, UnreadableEntry):
            return 0
        finally:
            await self._packer.seal()

    patch.setattr(repacking, "take", take)
    patch.setattr(Rule, "apply_under", apply_under)
    patch.setattr(Repacker, "_repack", repack)


def repack_under_a_run(patch: pytest.MonkeyPatch) -> None:
    """Repack a topic whose run nobody works on now, although somebody will resume it."""
    real = Repacker._repack

    async def repack(self: Repacker, lease: Lease, target: Any) -> int:
        class Blind:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def get(self, key: Key) -> Any:
                return None if key == saga_key else await store.get(key)

        saga_key, store = self._keys.saga(target.topic.id), self._metadata
        self._metadata = Blind()
        try:
            return await real(self, lease, target)
        finally:
            self._metadata = store

    patch.setattr(Repacker, "_repack", repack)


def join_across_the_vector(patch: pytest.MonkeyPatch) -> None:
    """Join batches that were held back with each other, and with what is still to come into the table."""
    patch.setattr(index_repack, "_may_join", lambda left, right, held_below: left.end_offset == right.start_offset)


def release_what_the_index_still_names(patch: pytest.MonkeyPatch) -> None:
    """Release files as soon as the log start has passed them, before what names them was trimmed."""

    def plan(named: NamedFiles, listing: TableListing) -> releasing.ReleasePlan:
        alive = [e for stream in named.streams for e in stream.entries if e.start_offset >= stream.log_start]
        paths = frozenset(path for entry in alive for path in entry.paths)
        return releasing.plan_release(replace(named, paths=paths), listing)

    patch.setattr(keeping, "plan_release", plan)


def free_what_the_branch_names(patch: pytest.MonkeyPatch) -> None:
    """Expire snapshots with an eye on `main` only, and condemn what comes free without another look."""

    def expire(self: MemoryTable, now_ms: int, rule: ExpiryRule) -> list[str]:
        gone = {path for one in self.snapshots[:-1] for path in one.paths}
        self.snapshots = self.snapshots[-1:]
        return sorted(gone - {file.path for file in self.main})

    async def still_named(self: TopicRun, freed: Any) -> set[str]:
        return set()

    patch.setattr(MemoryTable, "expire", expire)
    patch.setattr(TopicRun, "still_named", still_named)


def merge_without_the_last_stream(patch: pytest.MonkeyPatch) -> None:
    """Leave the last stream of a file out of what it is merged into."""
    real = merging._planned_files

    def planned_files(window: Any, streams: Any, listing: Any, **options: Any) -> Any:
        files = real(window, streams, listing, **options)
        last = files[-1].plan
        if len(last.slices) > 1:
            files[-1] = replace(files[-1], plan=msgspec.structs.replace(last, slices=last.slices[:-1]))
        return files

    patch.setattr(merging, "_planned_files", planned_files)


def bring_deleted_rows_back(patch: pytest.MonkeyPatch) -> None:
    """Merge on `main` whatever delete files apply there."""

    def main_part(self: MemoryCatalog, table: MemoryTable, rewrite: TableRewrite) -> frozenset[str]:
        there = frozenset(file.path for file in table.main) & frozenset(rewrite.inputs)
        return there if rewrite.main is not MainPolicy.NEVER else frozenset()

    patch.setattr(MemoryCatalog, "main_part", main_part)


def forget_to_swap_after_a_merge(patch: pytest.MonkeyPatch) -> None:
    """Let the index name the inputs of a merge although the branch has them no more."""

    async def swap_rewritten(self: Swapper, *_: object) -> int:
        return 0

    patch.setattr(Swapper, "swap_rewritten", swap_rewritten)


def list_dead_letters_again(patch: pytest.MonkeyPatch) -> None:
    """Add a run's dead letters whenever it is asked for, also if they are there."""
    patch.setattr(memory_catalog, "are_letters_there", lambda *_: False)


def tidy_away_dead_letters(patch: pytest.MonkeyPatch) -> None:
    """Forget that the files of dead letters are to be kept."""
    patch.setattr(sagas, "dead_letter_files", lambda _: [])


@pytest.mark.parametrize(
    "plant",
    [
        list_dead_letters_again,
        tidy_away_dead_letters,
        append_whatever_the_vector_says,
        append_again_what_is_there,
        note_the_files_after_the_append,
        drop_the_last_entry_of_a_step,
        forget_to_count_down,
        count_down_twice,
        count_held_back_batches_down,
        tidy_what_was_kept,
        give_up_without_tidying,
        swap_what_was_held_back,
        leave_the_ends_behind,
        act_without_the_lease,
        give_up_what_may_be_in_the_table,
        give_up_what_may_be_on_its_way,
        repack_without_the_lease,
        repack_under_a_run,
        join_across_the_vector,
        release_what_the_index_still_names,
        free_what_the_branch_names,
        merge_without_the_last_stream,
        bring_deleted_rows_back,
        forget_to_swap_after_a_merge,
    ],
)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            run_table_seed(seed)
        except (Violation, SimulationFailed):
            return
    pytest.fail(f"{plant.__doc__} Nothing noticed in {MOST_SEEDS} histories.")
