"""Each checker is itself checked: plant a bug that a tired engineer might write, and see it caught."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from headrace.errors import HeadraceError
from headrace.fetch.runs import Run
from headrace.fetch.wal_reads import WalEntry, WalReader
from headrace.gc import collecting, retaining
from headrace.gc.clocks import ClockGuard
from headrace.gc.collecting import Collector
from headrace.gc.copying import Copier
from headrace.gc.expiring import SinkExpirer
from headrace.gc.packing import Packer
from headrace.gc.repacking import Repacker
from headrace.gc.sweeping import Sweeper
from headrace.index import commit, fold, objects, pins, producers, repack, retention, sinks, streams, swap, trim
from headrace.index.cache import IndexCache, IndexView
from headrace.index.pins import PinFloor
from headrace.index.rule import Rule
from headrace.index.values import (
    OBJECT_RECORD,
    SINK_STATE,
    SINK_WRITE,
    STREAM_HEAD,
    ObjectRecord,
    ObjectState,
    PartResult,
    PartStatus,
    SinkRange,
    SinkWrite,
)
from headrace.metadata.leases import Lease
from headrace.metadata.port import Decision, Reads, Seen
from headrace.model.ids import ObjectId, ObjectKey, SessionId, WriterId
from headrace.produce.offers import GivenUp
from headrace.produce.placement import Placed
from headrace.produce.writer import LogWriter
from headrace.testing.simulation import node
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.loop import SimulationFailed
from headrace.testing.simulation.scenario import run_seed

MOST_SEEDS = 80

Plant = Callable[[pytest.MonkeyPatch], None]


def forget_duplicates(patch: pytest.MonkeyPatch) -> None:
    """Accept every batch of an idempotent producer as new."""
    patch.setattr(producers, "find_duplicate", lambda state, batch, *, begins_by: None)


def fold_loses_entries(patch: pytest.MonkeyPatch) -> None:
    """Take entries for overtaken that are not."""
    real = fold._log_start
    patch.setattr(fold, "_log_start", lambda keys, seen, stream: real(keys, seen, stream) + 10)


def fold_run_drops_records_early(patch: pytest.MonkeyPatch) -> None:
    """Delete the records of a run with its first step, though entries of later streams are not in the index yet."""
    patch.setattr(fold.FoldPlan, "done", property(lambda plan: plan.records))


def readers_see_a_run_twice(patch: pytest.MonkeyPatch) -> None:
    """Take entries of a run for unfolded that are in the index already."""
    patch.setattr(IndexView, "drop_folded_tail", lambda self, domain: None)


def frames_of_a_group_share_a_record(patch: pytest.MonkeyPatch) -> None:
    """Give all frames of one transaction the number of the first one's commit record."""
    real = commit._record
    patch.setattr(commit, "_record", lambda frame, draft, seq: real(frame, draft, draft.seq))


def trim_one_too_many(patch: pytest.MonkeyPatch) -> None:
    """Move the log start further than asked."""
    real = streams.advance_log_start

    def advance(keys: Any, stream: Any, offset: int, *, now_ms: int) -> Rule[Any]:
        return real(keys, stream, offset + 1, now_ms=now_ms)

    patch.setattr(node, "advance_log_start", advance)


def count_down_twice(patch: pytest.MonkeyPatch) -> None:
    """Take an entry that was swapped away off its object's count twice."""
    real = objects.counted_down

    def counted_down(keys: Any, seen: Seen, removed: Any, *, now_ms: int) -> Any:
        puts = real(keys, seen, removed, now_ms=now_ms)
        for key, raw in puts.items():
            record = OBJECT_RECORD.decode(raw, key)
            fewer = msgspec.structs.replace(record, entry_count=max(0, record.entry_count - 1))
            puts[key] = OBJECT_RECORD.encode(fewer)
        return puts

    patch.setattr(swap, "counted_down", counted_down)


def swap_forgets_to_count(patch: pytest.MonkeyPatch) -> None:
    """Swap entries into a packed object without counting them there."""
    patch.setattr(swap, "_counted_up", lambda keys, seen, added, counted, *, now_ms: {})


def swap_leaves_a_gap(patch: pytest.MonkeyPatch) -> None:
    """Drop the last of the entries that are swapped, instead of replacing it."""
    real = swap.swap_entries

    def swap_entries(keys: Any, step: swap.Swap, *, now_ms: int) -> Rule[None]:
        rule = real(keys, step, now_ms=now_ms)

        def decide(seen: Seen) -> Decision[None]:
            decision = rule.decide(seen)
            kept = keys.entry(step.stream, step.replacements[-1].end_offset)
            puts = {key: value for key, value in decision.puts.items() if key != kept}
            return Decision(result=None, puts=puts, deletes=[*decision.deletes, kept] if puts else ())

        return Rule(rule.unit, rule.reads, decide)

    patch.setattr(repack, "swap_entries", swap_entries)


def commit_into_closed_objects(patch: pytest.MonkeyPatch) -> None:
    """Commit without asking whether the object has been condemned meanwhile."""

    def open_object(record: ObjectRecord | None, object_id: ObjectId) -> ObjectRecord:
        return record or ObjectRecord("?", object_id[:32], False, ObjectState.STAGED, 0, 0, 0)  # type: ignore[arg-type]

    patch.setattr(commit, "open_object", open_object)


def caches_say_no(patch: pytest.MonkeyPatch) -> None:
    """Answer from a cache that was validated once, instead of every time."""
    real = IndexCache.refresh

    async def refresh(self: IndexCache) -> None:
        if self.view.position == 0:
            await real(self)
        else:
            await asyncio.sleep(0.5)  # who asks again and again would get nowhere, and no time would pass

    patch.setattr(IndexCache, "refresh", refresh)


def reader_skips(patch: pytest.MonkeyPatch) -> None:
    """Leave out an entry in the middle of a fetch."""
    real = WalReader.read

    async def read(self: WalReader, entries: Sequence[WalEntry]) -> list[Run]:
        return await real(self, [*entries[:1], *entries[2:]])

    patch.setattr(WalReader, "read", read)


def collector_deletes_segments_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Delete what a dead writer left open, instead of sealing it."""

    async def delete(self: Collector, object_id: ObjectId, writer: WriterId) -> None:
        key = objects.wal_object_key(self._keys.domain, object_id)
        await self._objects.delete([key])

    patch.setattr(Collector, "_seal", delete)


def sweeper_deletes_everything(patch: pytest.MonkeyPatch) -> None:
    """Take every object for an orphan."""

    async def is_orphan(self: Sweeper, key: ObjectKey) -> bool:
        return True

    patch.setattr(Sweeper, "_is_orphan", is_orphan)


def forget_what_was_given_up(patch: pytest.MonkeyPatch) -> None:
    """Accept what a new producer sent behind a batch that was given up."""
    patch.setattr(GivenUp, "note", lambda self, offer: None)


def small_batches_pass_large_ones(patch: pytest.MonkeyPatch) -> None:
    """Let whoever fits go first when the buffer is full."""
    real = LogWriter.start

    async def start(self: LogWriter, session: SessionId) -> None:
        self._admission = contextlib.nullcontext()  # type: ignore[assignment]
        await real(self, session)

    patch.setattr(LogWriter, "start", start)


def acknowledge_what_is_only_written(patch: pytest.MonkeyPatch) -> None:
    """Answer as soon as the bytes are durable, with the offset that the commit will probably give."""
    real = LogWriter._place

    async def place(self: LogWriter, frame: Any) -> tuple[Placed | None, HeadraceError | None]:
        placed, failure = await real(self, frame)
        if placed is not None:
            for offer in frame.offers:
                raw = await self._metadata.get(self._keys.head(offer.stream))
                assert raw is not None
                end = STREAM_HEAD.decode(raw.value, raw.key).high_watermark
                if not offer.answer.done():
                    offer.answer.set_result(PartResult(PartStatus.ACCEPTED, end, 0, 0))
        return placed, failure

    patch.setattr(LogWriter, "_place", place)


def swap_before_the_bytes_are_there(patch: pytest.MonkeyPatch) -> None:
    """Let the index name a packed object that is still being written."""
    real = Packer._write
    writing: set[asyncio.Task[None]] = set()

    async def write(self: Packer, packed: ObjectId, plan: repack.RepackPlan) -> None:
        writing.add(asyncio.create_task(real(self, packed, plan)))

    patch.setattr(Packer, "_write", write)


def delete_what_was_copied(patch: pytest.MonkeyPatch) -> None:
    """Delete the objects that entries were copied from, without asking who else names them."""
    real = Packer.pack

    async def pack(self: Packer, lease: Lease, stream: Any, plan: repack.RepackPlan) -> int:
        freed = await real(self, lease, stream, plan)
        copied = objects.wal_objects_of([entry.extent for entry in plan.planned])
        await self._objects.delete([objects.wal_object_key(self._keys.domain, one) for one in copied])
        return freed

    patch.setattr(Packer, "pack", pack)


def copy_in_the_order_of_places(patch: pytest.MonkeyPatch) -> None:
    """Write entries in the order in which they lie in their objects, instead of that of their offsets."""
    real = Copier.copy

    async def copy(self: Copier, entries: Any, upload: Any) -> None:
        by_place = sorted(entries, key=lambda entry: (entry.extent.object_id, entry.extent.start_byte))
        await real(self, by_place, upload)

    patch.setattr(Copier, "copy", copy)


def forget_the_entry_that_grows(patch: pytest.MonkeyPatch) -> None:
    """Count an entry that grows as another one of its object."""
    real = swap._counted_up

    def counted_up(keys: Any, seen: Seen, added: Any, counted: Any, *, now_ms: int) -> Any:
        return real(keys, seen, added, {}, now_ms=now_ms)

    patch.setattr(swap, "_counted_up", counted_up)


def seal_before_the_swap(patch: pytest.MonkeyPatch) -> None:
    """Close a packed object as soon as it is written, so that it takes no entry, ever."""
    real = Packer._write

    async def write(self: Packer, packed: ObjectId, plan: repack.RepackPlan) -> None:
        await real(self, packed, plan)
        key = self._keys.object(packed)

        def decide(seen: Seen) -> Decision[None]:
            record = OBJECT_RECORD.seen(seen, key)
            assert record is not None
            sealed = msgspec.structs.replace(record, state=ObjectState.SEALED)
            return Decision(result=None, puts={key: OBJECT_RECORD.encode(sealed)})

        await Rule(self._keys.unit, Reads(keys=[key]), decide).apply(self._metadata)

    patch.setattr(Packer, "_write", write)


def forget_what_is_folded_later(patch: pytest.MonkeyPatch) -> None:
    """Take a stream for looked at up to its high watermark, although the index does not reach so far."""
    real = Repacker._look

    async def look(self: Repacker, target: Any) -> Any:
        found = await real(self, target)
        self._known[target.stream].seen_offset = self._high_watermark(target.stream) or 0
        return found

    patch.setattr(Repacker, "_look", look)


def copy_entries_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Leave neighbours in a packed object the entries that they were."""
    patch.setattr(repack, "_may_join", lambda *_: False)


def retention_takes_one_too_many(patch: pytest.MonkeyPatch) -> None:
    """Let the first entry that has to stay go, too."""
    real = retention.decide_retention

    def decide(head: Any, entries: Any, rules: Any, *, now_ms: int) -> Any:
        verdict = real(head, entries, rules, now_ms=now_ms)
        behind = [entry.end_offset for entry in entries if verdict.log_start < entry.end_offset]
        if verdict.moved_by is None or not behind:
            return verdict
        return dataclasses.replace(verdict, log_start=behind[0])

    patch.setattr(retaining, "decide_retention", decide)


def retention_trusts_its_own_clock(patch: pytest.MonkeyPatch) -> None:
    """Go by this host's clock alone."""

    async def told(self: ClockGuard) -> list[int]:
        return []

    patch.setattr(ClockGuard, "_told", told)


def collector_ignores_pins(patch: pytest.MonkeyPatch) -> None:
    """Condemn what a pinned read was planned from."""

    async def no_floor(store: Any, keys: Any) -> PinFloor:
        return PinFloor()

    patch.setattr(collecting, "read_pin_floor", no_floor)


def pins_move_on(patch: pytest.MonkeyPatch) -> None:
    """Hold what the youngest pin asks for, instead of the oldest: here, what is written after one second more."""
    real = pins.PinFloor.holds
    patch.setattr(pins.PinFloor, "holds", lambda self, version: real(self, version - 20))


def trimmer_goes_by_the_end(patch: pytest.MonkeyPatch) -> None:
    """Remove entries without counting their objects down."""
    patch.setattr(trim, "counted_down", lambda keys, seen, removed, *, now_ms: {})


class _Seen:
    """Stands for a codec and finds what it was told to find."""

    def __init__(self, real: Any, found: Any) -> None:
        self._real = real
        self._found = found

    def seen(self, seen: Seen, key: Any) -> Any:
        return self._found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def sink_forgets_its_batches(patch: pytest.MonkeyPatch) -> None:
    """Append every batch that a sink offers, also one that was appended before its driver died."""
    patch.setattr(sinks, "SINK_STATE", _Seen(SINK_STATE, None))


def sink_commits_ended_writes(patch: pytest.MonkeyPatch) -> None:
    """Commit without asking whether the write has ended meanwhile and its objects were collected."""
    patch.setattr(sinks, "SINK_WRITE", _Seen(SINK_WRITE, SinkWrite(0, 0)))


def sink_counts_no_entries(patch: pytest.MonkeyPatch) -> None:
    """Commit a sink's objects without counting the entries that name them."""

    def uncounted(*fields: Any) -> ObjectRecord:
        return msgspec.structs.replace(ObjectRecord(*fields), entry_count=0)

    patch.setattr(sinks, "ObjectRecord", uncounted)


def sink_answers_with_new_offsets(patch: pytest.MonkeyPatch) -> None:
    """Answer a repeated batch with where it would lie if it were appended again."""
    real = sinks.SinkOutcome

    def moved(ranges: Any, is_repeated: bool) -> sinks.SinkOutcome:
        if is_repeated:
            ranges = tuple(SinkRange(one.stream, one.end_offset, 2 * one.end_offset) for one in ranges)
        return real(ranges, is_repeated)

    patch.setattr(sinks, "SinkOutcome", moved)


def sweeper_passes_over_writes_under_way(patch: pytest.MonkeyPatch) -> None:
    """Take every object without a record for an orphan, also one that a sink's task has just written."""

    async def is_orphan(self: Sweeper, key: ObjectKey) -> bool:
        object_id = objects.wal_object_id_at(self._keys.domain, key)
        return object_id is not None and not await self._has_record(object_id)

    patch.setattr(Sweeper, "_is_orphan", is_orphan)


def writes_of_sinks_never_end(patch: pytest.MonkeyPatch) -> None:
    """Keep what dead drivers have announced for ever."""

    async def tick(self: Any) -> int:
        return 0

    patch.setattr(SinkExpirer, "tick", tick)


BUGS: list[Plant] = [
    retention_takes_one_too_many,
    retention_trusts_its_own_clock,
    collector_ignores_pins,
    pins_move_on,
    trimmer_goes_by_the_end,
    forget_duplicates,
    fold_loses_entries,
    fold_run_drops_records_early,
    readers_see_a_run_twice,
    frames_of_a_group_share_a_record,
    trim_one_too_many,
    count_down_twice,
    swap_forgets_to_count,
    swap_leaves_a_gap,
    commit_into_closed_objects,
    caches_say_no,
    reader_skips,
    collector_deletes_segments_of_the_dead,
    sweeper_deletes_everything,
    forget_what_was_given_up,
    small_batches_pass_large_ones,
    acknowledge_what_is_only_written,
    swap_before_the_bytes_are_there,
    delete_what_was_copied,
    copy_in_the_order_of_places,
    forget_the_entry_that_grows,
    seal_before_the_swap,
    forget_what_is_folded_later,
    copy_entries_one_by_one,
    sink_forgets_its_batches,
    sink_commits_ended_writes,
    sink_counts_no_entries,
    sink_answers_with_new_offsets,
    sweeper_passes_over_writes_under_way,
    writes_of_sinks_never_end,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            run_seed(seed)
        except (Violation, SimulationFailed, AssertionError):
            return
    pytest.fail(f"{plant.__name__} was not caught in {MOST_SEEDS} histories: {plant.__doc__}")
