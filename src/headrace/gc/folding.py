"""Fold commit records into the per-stream index while the log goes on. See `index/fold.py` for the rule."""

from dataclasses import dataclass

from headrace.index.fold import MAX_STEP_ENTRIES, FoldPlan, fold_records, plan_fold
from headrace.index.rule import StalePlan
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldLimits:
    """How much one transaction folds, how many transactions one tick makes, and what is left in the tail.

    Entries bound a transaction's keys and bytes: each is two keys at most, of some hundred bytes.
    """

    records_per_step: int
    steps_per_tick: int
    lag_records: int
    entries_per_step: int = MAX_STEP_ENTRIES


class Folder:
    """Folds in small steps. Any number of brokers may run one: who comes second finds its plan stale."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        clock: Clock,
        crash_points: CrashPoints,
        limits: FoldLimits,
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._clock = clock
        self._crash_points = crash_points
        self._limits = limits

    async def tick(self) -> int:
        """Fold what is due, within the limits, and return how many records are folded wholly."""
        folded = 0
        plan: FoldPlan | None = None
        for _ in range(self._limits.steps_per_tick):
            plan = await self._step(plan)
            if plan is None:
                break
            folded += len(plan.done)
            if not plan.is_full:
                break
        return folded

    async def _step(self, previous: FoldPlan | None) -> FoldPlan | None:
        """Make the next step and return what it did; `None` if there was nothing to do, or another process did it."""
        plan = await plan_fold(
            self._metadata,
            self._keys,
            max_records=self._limits.records_per_step,
            lag_records=self._limits.lag_records,
            max_entries=self._limits.entries_per_step,
            previous=previous,
        )
        self._crash_points.reach(CrashPoint.FOLD_AFTER_READ)
        if plan is None:
            return None
        try:
            await fold_records(self._keys, plan, now_ms=self._clock.now_ms()).apply(self._metadata)
        except StalePlan:
            return None
        self._crash_points.reach(CrashPoint.FOLD_AFTER_STEP)
        return plan
