"""Fold commit records into the per-stream index while the log goes on. See `index/fold.py` for the rule."""

from dataclasses import dataclass

from headrace.index.fold import fold_records, plan_fold
from headrace.index.rule import StalePlan
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldLimits:
    """How many records one transaction folds, how many transactions one tick makes, and what is left in the tail."""

    records_per_step: int
    steps_per_tick: int
    lag_records: int


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
        """Fold what is due, within the limits, and return how many records were folded."""
        folded = 0
        for _ in range(self._limits.steps_per_tick):
            step = await self._step()
            folded += step
            if step < self._limits.records_per_step:
                break
        return folded

    async def _step(self) -> int:
        records = await plan_fold(
            self._metadata,
            self._keys,
            max_records=self._limits.records_per_step,
            lag_records=self._limits.lag_records,
        )
        self._crash_points.reach(CrashPoint.FOLD_AFTER_READ)
        if not records:
            return 0
        try:
            await fold_records(self._keys, records, now_ms=self._clock.now_ms()).apply(self._metadata)
        except StalePlan:
            return 0
        self._crash_points.reach(CrashPoint.FOLD_AFTER_STEP)
        return len(records)
