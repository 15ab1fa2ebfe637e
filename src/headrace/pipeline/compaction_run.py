"""One round of compaction as a saga: planned, scanned, written, in the table, swapped.

It goes the way of every rewrite. What is rewritten is known after the scans, so the record gets its inputs on the
way: before any file is written, and long before the first of them can be in the table. With them stands what the
round will mean for each partition; it comes into effect as the saga moves to `SWAPPED` (`sagas.py`).

Must stay true: a round that was left before its files were written is given up and changes nothing.
"""

from collections.abc import Sequence

from headrace.errors import Missing
from headrace.pipeline.compaction_plan import CompactionLimits, Round, plan_rewrite
from headrace.pipeline.records import SagaKind, SagaRecord
from headrace.pipeline.scans import ScannedStream, ScanTask
from headrace.pipeline.topic_run import TopicRun
from headrace.runtime.crash_points import CrashPoint
from headrace.tables.port import MainPolicy, TableInfo


class CompactionRun(TopicRun):
    """Moves the compaction of one topic under one lease."""

    async def compact(
        self, round_: Round, info: TableInfo, *, limits: CompactionLimits, main: MainPolicy
    ) -> Sequence[ScannedStream]:
        """Run a round to its end and return what its scans have found. Raises `GivenUp`.

        It was planned under this very lease, while no saga was under way.
        """
        parts = self._parts
        saga = await self._begin(round_, info, main)
        try:
            scans = await parts.writer.scan(_scan_tasks(saga, round_, limits))
        except Missing as error:
            await self._give_up(saga, f"an object went while it was read: {error}")
        parts.crash_points.reach(CrashPoint.COMPACTION_AFTER_SCAN)
        rewrite, rounds = plan_rewrite(round_, scans, limits)
        if rewrite is None:
            saga = await self._move(saga, rounds=rounds)
            await parts.sagas.conclude(self._lease, self._topic_id, saga, now_ms=parts.clock.now_ms())
            parts.progress.ended(saga.topic_name, rows=0, problem=None)
            return scans
        saga = await self._move(
            saga,
            inputs=rewrite.inputs,
            input_rows=rewrite.input_rows,
            input_bytes=rewrite.input_bytes,
            rounds=rounds,
        )
        await self._write(saga, self._rewrite_tasks(saga, rewrite))
        return scans

    async def _begin(self, round_: Round, info: TableInfo, main: MainPolicy) -> SagaRecord:
        planned = self._planned_rewrite(info, kind=SagaKind.COMPACT, main=main, size_bytes=round_.size_bytes)
        await self._put(planned, info, files=len(round_.streams))
        return planned


def _scan_tasks(saga: SagaRecord, round_: Round, limits: CompactionLimits) -> list[ScanTask]:
    return [
        ScanTask(
            saga_id=saga.saga_id,
            epoch=saga.epoch,
            data_prefix=saga.data_prefix,
            partition=plan.partition,
            stream=plan.stream,
            dirty_from=plan.dirty_from,
            cleanable_end=plan.cleanable_end,
            expired_to=plan.expired_to,
            ranges=tuple(plan.ranges),
            limits=limits.scan,
        )
        for plan in round_.streams
    ]
