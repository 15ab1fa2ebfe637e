"""Checks retention at the very instant at which a log start moves, whoever moves it.

- a log start only grows, and never past the end
- by age, every record that goes was too old by the clock of every broker that has told its own all along: by the most
  that it told in the last seconds, because who decides has read them at some moment of these
- by size, what is left is at least as large as the topic asks for
- what a client has asked for is rightful, too
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.index.values import CLOCK_STAMP, STREAM_HEAD, StreamHead
from headrace.metadata import keys as all_keys
from headrace.metadata.keys import DomainKeys
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Decision, Key, Unit
from headrace.model.ids import SessionId, StreamId
from headrace.model.topics import Retention, Topic, TopicId, TopicRules
from headrace.runtime.clock import Clock
from headrace.runtime.rng import Rng
from headrace.testing.simulation.checkers import StoredLog
from headrace.testing.simulation.history import History, Violation

DECIDING_SECONDS = 12.0
"""How long a broker may take from reading the clocks to moving a log start: its session bounds it."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a clock said, and when that was written down, by the simulation's own time."""

    at: float
    wall_ms: int


class WatchedMetadata(MemoryMetadata):
    """A store that tells an observer of each write, once it is made."""

    def __init__(self, rng: Rng) -> None:
        super().__init__(rng)
        self.observe: Callable[[Decision[object]], None] = lambda decision: None

    def _write(self, decision: Decision[object], session: SessionId | None, changed: Sequence[Unit]) -> int:
        revision = super()._write(decision, session, changed)
        self.observe(decision)
        return revision


class RetentionChecker:
    """Follows clocks and log starts of one history."""

    def __init__(
        self,
        stored: StoredLog,
        history: History,
        *,
        keys: DomainKeys,
        clock: Clock,
        retention: Mapping[StreamId, Retention],
    ) -> None:
        self._stored = stored
        self._history = history
        self._clock = clock
        self._retention = retention
        self._heads = {keys.head(stream): stream for stream in retention}
        self._log_starts: dict[StreamId, int] = {}
        self._told: dict[Key, list[Told]] = {}

    def observe(self, decision: Decision[object]) -> None:
        """Take note of a write, and judge the log starts that it moved."""
        for key in decision.deletes:
            self._told.pop(key, None)
        for key, raw in decision.ephemerals.items():
            if key.startswith(all_keys.CLOCKS):
                told = Told(self._clock.monotonic(), CLOCK_STAMP.decode(raw, key).wall_ms)
                self._told.setdefault(key, []).append(told)
        for key, raw in decision.puts.items():
            stream = self._heads.get(key)
            if stream is not None:
                self._judge(stream, STREAM_HEAD.decode(raw, key))

    def _judge(self, stream: StreamId, head: StreamHead) -> None:
        before = self._log_starts.get(stream, 0)
        self._log_starts[stream] = head.log_start
        if head.log_start < before or head.log_start > head.high_watermark:
            raise Violation(f"stream {stream}: the log start moved from {before} to {head}")
        asked = max(before, self._history.log_starts.get(stream, 0))
        if head.log_start <= asked:
            return
        retention = self._retention[stream]
        if retention.max_age_ms is not None:
            self._check_age(stream, asked, head, retention.max_age_ms)
        elif retention.max_bytes is not None:
            self._check_size(stream, head, retention.max_bytes)
        else:
            raise Violation(f"stream {stream}: the log start moved to {head}, which nobody asked for")
        self._history.retained[stream] = head.log_start
        self._history.retained_count += head.log_start - asked

    def _check_age(self, stream: StreamId, start: int, head: StreamHead, max_age_ms: int) -> None:
        latest_ms = self._latest_clock()
        if latest_ms is None:
            return
        for entry in self._stored.entries(stream):
            if entry.end_offset <= start or entry.start_offset >= head.log_start:
                continue
            for offset, value in self._stored.values(entry).items():
                at_ms = self._history.timestamps[value]
                if start <= offset < head.log_start and at_ms >= latest_ms - max_age_ms:
                    raise Violation(
                        f"stream {stream}: offset {offset} of {at_ms} expired, and the slowest clock said {latest_ms}"
                    )

    def _latest_clock(self) -> int | None:
        """Return the latest time that a broker could go by, or `None` if nobody has told one for long enough."""
        since = self._clock.monotonic() - DECIDING_SECONDS
        bounds = []
        for told in self._told.values():
            if told[0].at > since:
                continue
            first = max(n for n, one in enumerate(told) if one.at <= since)
            del told[:first]
            bounds.append(max(one.wall_ms for one in told))
        return min(bounds, default=None)

    def _check_size(self, stream: StreamId, head: StreamHead, max_bytes: int) -> None:
        # A repack may have made one entry of those that went and some that stay: then there is no sum to compare.
        for entry in self._stored.entries(stream):
            if entry.end_offset == head.log_start and head.cumulative_bytes - entry.cumulative_bytes < max_bytes:
                left = head.cumulative_bytes - entry.cumulative_bytes
                raise Violation(f"stream {stream}: {left} bytes are left of at least {max_bytes}")


def topics_of(retention: Mapping[StreamId, Retention]) -> list[Topic]:
    """Return a topic of its own for each stream."""
    return [
        Topic(
            id=TopicId(stream.to_bytes(16, "big")),
            name=f"topic-{stream}",
            streams=(stream,),
            rules=TopicRules(max_message_bytes=1_000_000),
            retention=rules,
        )
        for stream, rules in retention.items()
    ]
