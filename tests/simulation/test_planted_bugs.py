"""Each checker is itself checked: plant a bug that a tired engineer might write, and see it caught."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from headrace.errors import HeadraceError
from headrace.fetch.runs import Run
from headrace.fetch.wal_reads import WalEntry, WalReader
from headrace.gc.collecting import Collector
from headrace.gc.sweeping import Sweeper
from headrace.index import commit, fold, objects, producers, streams, swap
from headrace.index.cache import IndexCache
from headrace.index.rule import Rule
from headrace.index.values import (
    OBJECT_RECORD,
    STREAM_HEAD,
    ObjectRecord,
    ObjectState,
    PartResult,
    PartStatus,
)
from headrace.metadata.port import Decision, Seen
from headrace.model.ids import ObjectId, ObjectKey, SessionId, WriterId
from headrace.produce.offers import GivenUp
from headrace.produce.placement import Placed
from headrace.produce.writer import LogWriter
from headrace.testing.simulation import node, repacker
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
    patch.setattr(swap, "_counted_up", lambda keys, seen, extent, *, now_ms: {})


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

    patch.setattr(repacker, "swap_entries", swap_entries)


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


BUGS: list[Plant] = [
    forget_duplicates,
    fold_loses_entries,
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
