"""The bounds of long histories are checked, too: plant a bug that only length shows, and see which of them breaks."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from headrace.gc.repacking import Repacker
from headrace.gc.trimming import Trimmer
from headrace.metadata.port import Versioned
from headrace.pipeline import compaction_plan
from headrace.pipeline.merging import MergePlan
from headrace.pipeline.rewrites import RewriteSlice
from headrace.pipeline.tidying import TableFileCollector
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.keeping.scenario import run_keeping_seed

SEED = 0
"""Its compacted table follows the log."""

HISTORY_SEED = 1
"""Its compacted table is the full history."""

Plant = Callable[[pytest.MonkeyPatch], None]


def never_merge(patch: pytest.MonkeyPatch) -> None:
    """Leave small files as they are."""
    patch.setattr("headrace.pipeline.keeping.plan_merge", lambda *_, **__: MergePlan(rewrite=None))


def never_merge_main(patch: pytest.MonkeyPatch) -> None:
    """Leave in `main` what compaction has left there."""
    patch.setattr("headrace.pipeline.keeping.plan_main_merge", lambda *_, **__: MergePlan(rewrite=None))


def forget_to_trim(patch: pytest.MonkeyPatch) -> None:
    """Leave the entries below log starts where they are."""

    async def plan(self: Trimmer, stream: Any, log_start: int, *, max_entries: int) -> list[Any]:
        return []

    patch.setattr(Trimmer, "plan", plan)


def never_repack(patch: pytest.MonkeyPatch) -> None:
    """Leave WAL entries where their commits have put them."""

    async def tick(self: Repacker) -> int:
        return 0

    patch.setattr(Repacker, "tick", tick)


def pass_over_condemned_files(patch: pytest.MonkeyPatch) -> None:
    """Collect what lost attempts have left, and nothing else."""
    real = TableFileCollector._next_page

    async def next_page(self: TableFileCollector) -> list[Versioned]:
        return [item for item in await real(self) if "/condemned/" not in item.key]

    patch.setattr(TableFileCollector, "_next_page", next_page)


def leave_entries_without_rows(patch: pytest.MonkeyPatch) -> None:
    """Rewrite what a file holds, and leave the entries before it that earlier rounds have emptied."""
    real = compaction_plan._slices

    def with_files(slice_: RewriteSlice) -> RewriteSlice:
        pieces = tuple(piece for piece in slice_.pieces if piece.file is not None)
        return RewriteSlice(slice_.partition, slice_.stream, pieces)

    def slices(streams: Any) -> dict[str, list[RewriteSlice]]:
        return {path: [with_files(one) for one in found] for path, found in real(streams).items()}

    patch.setattr(compaction_plan, "_slices", slices)


@pytest.mark.parametrize(
    ("plant", "seed", "broken"),
    [
        (never_merge, SEED, "branch files of kept"),
        (never_merge_main, HISTORY_SEED, "main files of compacted"),
        (forget_to_trim, SEED, "(entries|branch files) of (aged|sized)"),
        (never_repack, SEED, "WAL objects"),
        (pass_over_condemned_files, SEED, "table files"),
        (leave_entries_without_rows, SEED, "entries of compacted"),
    ],
)
def test_a_planted_bug_breaks_its_bound(
    plant: Plant, seed: int, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation, match="beyond their bounds") as caught:
        run_keeping_seed(seed)
    assert re.search(broken, str(caught.value).partition(";")[0])
