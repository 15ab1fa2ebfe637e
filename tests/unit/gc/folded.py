"""Fold everything, for tests that need entries in the index."""

from headrace.index.fold import fold_records, plan_fold
from tests.unit.produce.scripted import WriterKit


async def fold_all(kit: WriterKit) -> None:
    """Fold all commit records."""
    while planned := await plan_fold(kit.metadata, kit.keys, max_records=1000, lag_records=0):
        await fold_records(kit.keys, planned, now_ms=kit.clock.now_ms()).apply(kit.metadata)
