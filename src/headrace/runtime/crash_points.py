"""Named places where the power may go out.

Code calls `reach` between two durable steps. In production that does nothing; a test process can be
told to kill itself at one of them (`HEADRACE_CRASH_AT`); the simulation ends the simulated process there.
A name that is not in `CrashPoint` does not exist, so a typo cannot make a test that never crashes.
"""

import enum
import os
import signal
from collections.abc import Mapping
from typing import Protocol


class CrashPoint(enum.StrEnum):
    """Every place, named `flow.after-step`."""

    WRITER_AFTER_STAGE = "writer.after-stage"
    WRITER_AFTER_WRITE = "writer.after-write"
    WRITER_AFTER_COMMIT = "writer.after-commit"
    WRITER_AFTER_ABANDON = "writer.after-abandon"
    WRITER_AFTER_SEAL = "writer.after-seal"
    FOLD_AFTER_READ = "fold.after-read"
    FOLD_AFTER_STEP = "fold.after-step"
    SWAP_AFTER_STEP = "swap.after-step"
    RETAIN_AFTER_STEP = "retain.after-step"
    TRIM_AFTER_STEP = "trim.after-step"
    SAGA_AFTER_PLAN = "saga.after-plan"
    SAGA_AFTER_FILES = "saga.after-files"
    SAGA_AFTER_WRITTEN = "saga.after-written"
    SAGA_AFTER_APPEND = "saga.after-append"
    SAGA_AFTER_IN_TABLE = "saga.after-in-table"
    SAGA_AFTER_DEAD_LETTERS = "saga.after-dead-letters"
    SAGA_AFTER_SWAPPED = "saga.after-swapped"
    SAGA_AFTER_DONE = "saga.after-done"
    REPACK_AFTER_STAGE = "repack.after-stage"
    REPACK_AFTER_WRITE = "repack.after-write"
    REPACK_AFTER_SWAPS = "repack.after-swaps"
    KEEP_AFTER_EXPIRY = "keep.after-expiry"
    COMPACTION_AFTER_SCAN = "compaction.after-scan"
    COLLECT_AFTER_CONDEMN = "collect.after-condemn"
    COLLECT_AFTER_DELETE = "collect.after-delete"
    TIDY_AFTER_DELETE = "tidy.after-delete"
    GROUP_AFTER_TAKE = "group.after-take"
    GROUP_AFTER_SAVE = "group.after-save"
    GROUP_AFTER_DELETE_STEP = "group.after-delete-step"
    SINK_AFTER_BEGIN = "sink.after-begin"
    SINK_AFTER_WRITE = "sink.after-write"
    SINK_AFTER_COMMIT = "sink.after-commit"
    OBJECT_AFTER_TEMPORARY = "object.after-temporary"
    OBJECT_AFTER_RENAME = "object.after-rename"
    METADATA_BEFORE_COMMIT = "metadata.before-commit"
    METADATA_AFTER_COMMIT = "metadata.after-commit"


class CrashPoints(Protocol):
    """Decides what happens at a crash point."""

    def reach(self, point: CrashPoint) -> None:
        """Return to go on; do not return to crash."""
        ...


class NoCrashes:
    """Production: goes on."""

    def reach(self, point: CrashPoint) -> None:
        return None


class KillAt:
    """Sends SIGKILL to this very process at the n-th arrival at one point: for tests with real processes."""

    def __init__(self, point: CrashPoint, *, arrival: int = 1) -> None:
        self._point = point
        self._left = arrival

    def reach(self, point: CrashPoint) -> None:
        if point is not self._point:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def crash_points_from(environment: Mapping[str, str]) -> CrashPoints:
    """Read `HEADRACE_CRASH_AT=point[:arrival]`; without it nothing ever crashes on purpose."""
    told = environment.get("HEADRACE_CRASH_AT")
    if not told:
        return NoCrashes()
    name, _, arrival = told.partition(":")
    return KillAt(CrashPoint(name), arrival=int(arrival or "1"))
