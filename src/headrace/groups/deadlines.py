"""Many deadlines, of which most are moved long before they come: a heartbeat moves its member's, and nothing else.

A heap holds an *alarm* per name, never later than the name's deadline. Moving a deadline further away leaves the
alarm where it is; when the alarm comes it is set anew. So a heartbeat costs two look-ups, however many members.

Must stay true: `next_ms` is never later than the earliest deadline; it may be earlier.
"""

from heapq import heappop, heappush


class Deadlines:
    """A deadline per name, in monotonic milliseconds."""

    __slots__ = ("_alarms", "_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self._alarms: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._at

    @property
    def next_ms(self) -> int | None:
        """The moment at which to call `pop_due`; `None` while there is no deadline."""
        return self._heap[0][0] if self._heap else None

    def set(self, name: str, at_ms: int) -> None:
        """Set a deadline, or move it."""
        self._at[name] = at_ms
        alarm_ms = self._alarms.get(name)
        if alarm_ms is None or at_ms < alarm_ms:
            self._alarms[name] = at_ms
            heappush(self._heap, (at_ms, name))

    def clear(self, name: str) -> None:
        """Wait for this one no more."""
        if self._at.pop(name, None) is not None and not self._at:
            self._alarms.clear()
            self._heap.clear()

    def pop_due(self, now_ms: int) -> str | None:
        """Return and forget a name whose deadline lies not after now, or return `None` if there is none."""
        while self._heap and self._heap[0][0] <= now_ms:
            alarm_ms, name = heappop(self._heap)
            if self._alarms.get(name) != alarm_ms:
                continue  # an earlier alarm was set after this one
            del self._alarms[name]
            at_ms = self._at.get(name)
            if at_ms is None:
                continue
            if at_ms <= now_ms:
                self.clear(name)
                return name
            self._alarms[name] = at_ms
            heappush(self._heap, (at_ms, name))
        return None
