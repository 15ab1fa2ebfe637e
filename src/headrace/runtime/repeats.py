"""Log lines that would come by the thousand while something is away: one now and then says as much.

Must stay true: the first line about a thing is always written, and memory stays bounded.
"""

from collections.abc import Hashable

from headrace.runtime.clock import Clock

MAX_REMEMBERED = 1_000
"""Of how many things it is remembered that they were logged; beyond them all are forgotten, and logged once more."""


class Repeats:
    """Says whether a line about something is due, or was written a moment ago."""

    def __init__(self, clock: Clock, *, every_s: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._silent_until: dict[Hashable, float] = {}

    def is_due(self, about: Hashable) -> bool:
        """Return whether to write a line, and take it for written."""
        now = self._clock.monotonic()
        silent_until = self._silent_until.get(about)
        if silent_until is not None and now < silent_until:
            return False
        if len(self._silent_until) >= MAX_REMEMBERED:
            self._silent_until.clear()
        self._silent_until[about] = now + self._every_s
        return True
