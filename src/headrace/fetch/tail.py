"""The tail cache: what this broker has just committed, ready to be sent again.

It holds views of the very buffers that the batches arrived in; nothing is copied. A buffer goes back to its pool
when its last view has died, so letting go of a run here is all that eviction has to do, whatever answers still
hold the bytes.

Must stay true:
- A run is given here only after its commit, with its offsets stamped; nobody writes into its bytes afterwards.
- The budget holds across all streams, and the oldest run goes first: the streams of one flush share buffers, so these
  die together.
- Gaps are normal: other brokers append too. A run is followed by another only where the offsets touch.
- The cache knows nothing of trimming or deletion: whoever asks looks at the stream's head first. Of a compacted topic
  it also holds what compaction has taken away since, until whoever asks drops it.
"""

from bisect import bisect_right
from collections import deque

from headrace.fetch.runs import Run
from headrace.model.ids import StreamId

RUN_OVERHEAD_BYTES = 700
"""What a run costs beside its bytes, measured: views, lists, and the request that a small batch came in. It counts,
so that a flood of tiny batches is bounded, too."""

_COMPACT_FROM = 64


class _StreamRuns:
    """One stream's runs in order of offsets; those before `first` are evicted."""

    __slots__ = ("ends", "first", "runs")

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.runs: list[Run | None] = []
        self.first = 0

    def append(self, run: Run) -> None:
        self.ends.append(run.end_offset)
        self.runs.append(run)

    def pop_oldest(self) -> Run:
        run = self.runs[self.first]
        assert run is not None, "what lies before `first` was evicted, nothing behind it"
        self.runs[self.first] = None
        self.first += 1
        # Rarely, so that the cost of moving the rest is spread over as many evictions.
        if self.first >= _COMPACT_FROM and self.first * 2 >= len(self.runs):
            del self.runs[: self.first]
            del self.ends[: self.first]
            self.first = 0
        return run

    def position_of(self, offset: int) -> int | None:
        """Return where the run that covers an offset stands."""
        position = bisect_right(self.ends, offset, self.first)
        if position == len(self.ends):
            return None
        run = self.runs[position]
        return position if run is not None and run.start_offset <= offset else None


class TailCache:
    """The newest runs of all streams, up to a budget."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._streams: dict[StreamId, _StreamRuns] = {}
        self._oldest: deque[StreamId] = deque()
        self.held_bytes = 0
        """What is held now, overhead included."""
        self.hits = 0
        self.misses = 0
        self.hit_bytes = 0

    def committed(self, stream: StreamId, start_offset: int, end_offset: int, data: memoryview) -> None:
        """Take the accepted batches of one part of a commit, offsets stamped. Commits come in their order."""
        size_bytes = len(data) + RUN_OVERHEAD_BYTES
        if size_bytes > self._max_bytes:
            return
        known = self._streams.get(stream)
        if known is None:
            known = self._streams[stream] = _StreamRuns()
        elif known.ends and start_offset < known.ends[-1]:
            return  # told twice, or late: what is there is the same or newer
        known.append(Run(start_offset=start_offset, end_offset=end_offset, data=data.toreadonly()))
        self._oldest.append(stream)
        self.held_bytes += size_bytes
        if self.held_bytes > self._max_bytes:
            self.evict(self.held_bytes - self._max_bytes)

    def find(self, stream: StreamId, offset: int, max_bytes: int) -> list[Run]:
        """Return consecutive runs from the one that covers `offset` on, until `max_bytes` are reached."""
        known = self._streams.get(stream)
        position = None if known is None else known.position_of(offset)
        if known is None or position is None:
            self.misses += 1
            return []
        self.hits += 1
        runs = known.runs
        found: list[Run] = []
        size_bytes = 0
        next_offset = -1
        for index in range(position, len(runs)):
            run = runs[index]
            if run is None or (found and (run.start_offset != next_offset or size_bytes >= max_bytes)):
                break
            found.append(run)
            size_bytes += len(run.data)
            next_offset = run.end_offset
        self.hit_bytes += min(size_bytes, max_bytes)
        return found

    def covers(self, stream: StreamId, offset: int) -> bool:
        """Tell whether `find` would find something, without counting it as asked for."""
        known = self._streams.get(stream)
        return known is not None and known.position_of(offset) is not None

    def drop(self, stream: StreamId) -> None:
        """Let go of all that is held of a stream: its log has other bytes for these offsets now."""
        known = self._streams.pop(stream, None)
        if known is None:
            return
        self._oldest = deque(one for one in self._oldest if one != stream)
        self.held_bytes -= sum(len(run.data) + RUN_OVERHEAD_BYTES for run in known.runs if run is not None)

    def drop_all(self) -> None:
        """Let go of everything."""
        self._streams.clear()
        self._oldest.clear()
        self.held_bytes = 0

    def evict(self, size_bytes: int) -> int:
        """Let go of the oldest runs until that many bytes are freed, or nothing is left; return how many were."""
        freed_bytes = 0
        while self._oldest and freed_bytes < size_bytes:
            stream = self._oldest.popleft()
            known = self._streams[stream]
            freed_bytes += len(known.pop_oldest().data) + RUN_OVERHEAD_BYTES
            if known.first == len(known.runs):
                del self._streams[stream]
        self.held_bytes -= freed_bytes
        return freed_bytes
