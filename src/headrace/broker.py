"""The composition root: the one place where settings become components.

Only here are the real clock and the real rng made, and only here are settings read: everything below receives plain
values and ports through its constructor. The brokers of a simulation are put together elsewhere, from other parts.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from headrace.errors import Invalid
from headrace.runtime.clock import Clock, SystemClock
from headrace.runtime.crash_points import CrashPoints, crash_points_from
from headrace.runtime.logs import Log, LogHandler, open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import Rng, system_rng
from headrace.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What every component of a process runs on."""

    clock: Clock
    rng: Rng
    crash_points: CrashPoints
    metrics: Metrics
    log: Log


def assemble_runtime(settings: Settings, *, environment: Mapping[str, str], log_to: TextIO) -> Runtime:
    """Make the real clock, rng, metrics and log of this process, and bring what libraries log onto the same lines."""
    clock = SystemClock()
    log = open_log(log_to, clock=clock, level=settings.logging.level, format=settings.logging.format)
    try:
        crash_points = crash_points_from(environment)
    except ValueError as error:
        raise Invalid(f"HEADRACE_CRASH_AT: {error}; it takes point[:arrival]") from error
    # `force` replaces what an earlier call in this process installed, so that no line is written twice.
    logging.basicConfig(handlers=[LogHandler(log)], level=logging.WARNING, force=True)
    return Runtime(clock=clock, rng=system_rng(), crash_points=crash_points, metrics=Metrics(), log=log)
