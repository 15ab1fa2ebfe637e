"""Find the entry that holds an offset or the first one at or after a timestamp: both are binary searches.

By offset the store does it: keys end in the end offset, so the answer is the smallest key above x.
By timestamp we bisect over offsets with the running maximum, which never falls along the log although
timestamps may go backwards: the first entry whose running maximum reaches t is the first that holds a record
of time t or later. There is one exception: records below the log start also count in the running maximum. When the
maximum was set by one of those, the search goes on entry by entry from there.
"""

from headrace.index.values import IndexEntry


class TimestampSearch:
    """The search as a state machine: ask for `probe`, feed the entry that covers it, until `probe` is `None`."""

    __slots__ = ("_candidate", "_end_offset", "_high", "_low", "_target_ms", "probe")

    def __init__(self, *, log_start: int, high_watermark: int, target_ms: int) -> None:
        self._target_ms = target_ms
        self._low = log_start
        self._high = high_watermark
        self._end_offset = high_watermark
        self._candidate: IndexEntry | None = None
        self.probe: int | None = self._middle()

    @property
    def found(self) -> IndexEntry | None:
        """The first entry with a record at or after the target, or `None`; valid once `probe` is `None`."""
        return self._candidate

    def feed(self, entry: IndexEntry) -> None:
        """Take the entry that covers `probe` and choose the next one."""
        assert self.probe is not None
        assert entry.start_offset <= self.probe < entry.end_offset, f"{entry} does not cover {self.probe}"
        if self._low >= self._high:
            self._scan(entry)
            return
        if entry.running_max_ms >= self._target_ms:
            self._candidate = entry
            self._high = entry.start_offset
        else:
            self._low = entry.end_offset
        self.probe = self._middle()
        if self.probe is None and self._candidate is not None:
            self._scan(self._candidate)

    def _middle(self) -> int | None:
        return (self._low + self._high) // 2 if self._low < self._high else None

    def _scan(self, entry: IndexEntry) -> None:
        """Accept the entry if the maximum is its own; else the maximum came from below the log start: go on."""
        if entry.max_timestamp_ms >= self._target_ms:
            self._candidate, self.probe = entry, None
        elif entry.end_offset < self._end_offset:
            self.probe = entry.end_offset
        else:
            self._candidate, self.probe = None, None
