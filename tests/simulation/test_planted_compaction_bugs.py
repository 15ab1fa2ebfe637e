"""Each checker of compaction is itself checked: plant a bug that a tired engineer might write, and see it caught."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow.compute as pc
import pytest

from headrace.metadata.port import Decision, Seen
from headrace.pipeline import compaction, compaction_plan, compaction_state
from headrace.pipeline.compaction_run import CompactionRun
from headrace.pipeline.key_scanning import _Scan
from headrace.pipeline.latest_offsets import LatestOffsets
from headrace.pipeline.records import SagaKind, SagaRecord
from headrace.pipeline.sagas import _compacted
from headrace.pipeline.topic_run import TopicRun
from headrace.testing.simulation.compaction.scenario import run_compaction_seed
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.loop import SimulationFailed
from headrace.topics.compaction import compaction_rules_of

MOST_SEEDS = 12

Plant = Callable[[pytest.MonkeyPatch], None]


def drop_the_latest_as_well(patch: pytest.MonkeyPatch) -> None:
    """Take the latest record of a key for obsolete, too."""
    real = LatestOffsets.latest
    patch.setattr(LatestOffsets, "latest", lambda self, keys: pc.add(real(self, keys), 1))


def drop_tombstones_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let a tombstone go with the first round after the one that came past it."""
    real = compaction_state.expired_to

    def expired_to(stream: Any, *, now_ms: int, delete_retention_ms: int) -> int:
        return real(stream, now_ms=now_ms, delete_retention_ms=0)

    patch.setattr(compaction, "expired_to", expired_to)


def drop_tombstones_by_their_own_time(patch: pytest.MonkeyPatch) -> None:
    """Let every tombstone go with the round that finds it, even if it hides what a limit has left."""
    real = _Scan.__init__

    def scan(self: _Scan, task: Any) -> None:
        real(self, msgspec.structs.replace(task, expired_to=task.cleanable_end))

    patch.setattr(_Scan, "__init__", scan)


def forget_the_least_lag(patch: pytest.MonkeyPatch) -> None:
    """Compact records however young they are."""
    real = compaction.cleanable_end

    def cleanable_end(stream: Any, rules: Any, *, now_ms: int) -> int:
        return real(stream, replace(rules, min_lag_ms=0), now_ms=now_ms)

    patch.setattr(compaction, "cleanable_end", cleanable_end)


def call_a_partial_round_whole(patch: pytest.MonkeyPatch) -> None:
    """Call a stream clean although a limit has left some of what is obsolete."""
    real = compaction_plan.plan_rewrite

    def plan_rewrite(round_: Any, scans: Any, limits: Any) -> Any:
        rewrite, _ = real(round_, scans, limits)
        rounds = {
            plan.partition: compaction_state.StreamRound(scan.cleaned_to, scan.tombstones, plan.expired_to, 0)
            for plan, scan in zip(round_.streams, scans, strict=True)
        }
        return rewrite, rounds

    patch.setattr("headrace.pipeline.compaction_run.plan_rewrite", plan_rewrite)


async def remember(run: TopicRun, saga: SagaRecord) -> None:
    """Move on how far a topic is compacted, in a transaction of its own."""
    sagas, now_ms = run._parts.sagas, run._parts.clock.now_ms()
    key = sagas._keys.compaction(run._topic_id)

    def decide(seen: Seen) -> Decision[None]:
        return Decision(result=None, puts=_compacted(seen, key, saga, now_ms))

    await sagas._transact(run._lease, [key], decide)


def remember_a_round_before_its_files_are_written(patch: pytest.MonkeyPatch) -> None:
    """Move on how far a topic is compacted when a round is planned; it may be given up after that."""
    real = CompactionRun._write

    async def write(self: CompactionRun, planned: SagaRecord, tasks: Any) -> int:
        if planned.kind is SagaKind.COMPACT:
            await remember(self, planned)
        return await real(self, planned, tasks)

    patch.setattr(CompactionRun, "_write", write)


def remember_a_round_before_the_swap(patch: pytest.MonkeyPatch) -> None:
    """Move on how far a topic is compacted in a transaction of its own, before the index has any of it."""
    real = TopicRun._swap

    async def swap(self: TopicRun, saga: SagaRecord) -> None:
        if saga.kind is SagaKind.COMPACT:
            await remember(self, saga)
        await real(self, saga)

    patch.setattr(TopicRun, "_swap", swap)


def let_main_follow_always(patch: pytest.MonkeyPatch) -> None:
    """Compact `main`, too, although it is to be the full history."""
    patch.setattr(
        "headrace.pipeline.compacting.compaction_rules_of",
        lambda overrides: replace(compaction_rules_of(overrides), table_follows=True),
    )


@pytest.mark.parametrize(
    "plant",
    [
        drop_the_latest_as_well,
        drop_tombstones_at_once,
        drop_tombstones_by_their_own_time,
        forget_the_least_lag,
        call_a_partial_round_whole,
        remember_a_round_before_its_files_are_written,
        remember_a_round_before_the_swap,
        let_main_follow_always,
    ],
)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            run_compaction_seed(seed)
        except (Violation, SimulationFailed):
            return
    pytest.fail(f"{plant.__doc__} Nothing noticed in {MOST_SEEDS} histories.")
