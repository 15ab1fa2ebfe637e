"""Crash points at which a process may also be stopped for a while: longer than its session lives.

A run takes a moment, so a pause at any time seldom meets one. At its own crash points it always does.
"""

from collections.abc import Callable, Mapping, Sequence

from headrace.runtime.crash_points import CrashPoint
from headrace.testing.simulation.process import CrashAt, SimCrashPoints, SimProcess


class StoppingPoints(SimCrashPoints):
    """Kills at some arrivals, and stops at others for so many seconds, as long as `may_stop` says so."""

    def __init__(
        self,
        process: SimProcess,
        crashes: Sequence[CrashAt],
        stops: Mapping[CrashAt, float],
        *,
        may_stop: Callable[[], bool],
    ) -> None:
        super().__init__(process, crashes)
        self._stops = stops
        self._may_stop = may_stop

    def reach(self, point: CrashPoint) -> None:
        super().reach(point)
        seconds = self._stops.get(CrashAt(point, self.arrivals[point]))
        if seconds is not None and self._may_stop():
            loop = self._process.loop
            loop.note(f"{self._process.name} stops at {point}")
            self._process.pause()
            loop.call_later(seconds, self._process.resume, context=loop.root_context)
