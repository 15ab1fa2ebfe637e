"""Compare compacted logs with all that was ever sent to them: what is gone had to go, and not before its time.

- of every key the latest record is there, or it is a tombstone that was kept for its time after it was first cleaned,
  and after the last of what it hides could be read
- what went had a later record of its key that was old enough (`min.compaction.lag.ms`)
- at any time, below the clean end of a stream there is one record per key, unless files could not be rewritten
- the branch shows what the log has; `main` shows every record once (history), or the branch's files (latest)
"""

from collections import Counter
from dataclasses import dataclass, field

from headrace.index.values import IndexEntry
from headrace.model.ids import StreamId
from headrace.model.topics import Topic
from headrace.pipeline.compaction_state import COMPACTION_STATE, CompactionState
from headrace.testing.inline import at_once
from headrace.testing.memory_catalog import MemoryTable
from headrace.testing.simulation.checkers import check_coverage
from headrace.testing.simulation.compaction.clients import key_and_value
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.tables.checkers import StoredTables, table_rows
from headrace.testing.simulation.tables.history import TableHistory
from headrace.topics.compaction import CompactionRules, compaction_rules_of

LAG_SKEW_MS = 3_000
"""By how much a pipeline's clock may be ahead, and how long after it happened a look may come."""

RETENTION_SKEW_MS = 6_000
"""The same where two pipelines' clocks are compared."""


class StoredCompaction(StoredTables):
    """Logs, tables and how far they are compacted, as they are in the stores right now."""

    def compaction(self, topic: Topic) -> CompactionState:
        raw = at_once(self._metadata.get(self._keys.compaction(topic.id)))
        return CompactionState(topic.name) if raw is None else COMPACTION_STATE.decode(raw.value, raw.key)

    def log(self, stream: StreamId) -> tuple[int, dict[int, bytes]]:
        """Return the log start of a stream and its records from there on."""
        head = self.head(stream)
        entries = [entry for entry in self.entries(stream) if entry.end_offset > head.log_start]
        check_coverage(stream, head, entries)
        values: dict[int, bytes] = {}
        for entry in entries:
            values.update(self._inside(entry, head.log_start))
        return head.log_start, values

    def _inside(self, entry: IndexEntry, log_start: int) -> dict[int, bytes]:
        return {offset: one for offset, one in self.values(entry).items() if offset >= log_start}


@dataclass(slots=True)
class Watch:
    """What was seen of one stream: its epoch and clean end, what went when, and since when which part is clean."""

    index_epoch: int = -1
    cleaned_to: int = 0
    left: frozenset[int] = frozenset()
    """What was there at the last look."""
    gone: set[int] = field(default_factory=set)
    gone_at_ms: dict[int, int] = field(default_factory=dict)
    """Until when what has gone could be read, by offset; only of what was seen before."""
    cleaned: list[tuple[int, int]] = field(default_factory=list)
    """`cleaned_to` and when it was first seen, both ascending."""


class Watcher:
    """Looks at compacted logs again and again, and judges what has gone since it last did, and what is left.

    Strict: no file was partly trimmed, so every one can be rewritten.
    """

    def __init__(self, stored: StoredCompaction, history: TableHistory, *, is_strict: bool, tempo: int = 1) -> None:
        self._stored = stored
        self._is_strict = is_strict
        self._tempo = tempo
        self._history = history
        self._watches: dict[StreamId, Watch] = {}
        self.gone_count = 0

    def look(self, now_ms: int) -> None:
        """Judge what has gone. `now_ms` is the true time."""
        for topic in self._history.living_topics:
            rules = compaction_rules_of(topic.overrides)
            state = self._stored.compaction(topic)
            for partition, stream in enumerate(topic.streams):
                watch = self._watches.setdefault(stream, Watch())
                known = state.streams.get(partition)
                if known is not None and (not watch.cleaned or watch.cleaned[-1][0] < known.cleaned_to):
                    watch.cleaned.append((known.cleaned_to, now_ms))
                cleaned_to = 0 if known is None else known.cleaned_to
                if self._stored.living_head(stream) is not None:
                    self._look_at(stream, watch, cleaned_to, rules, now_ms)

    def _look_at(self, stream: StreamId, watch: Watch, cleaned_to: int, rules: CompactionRules, now_ms: int) -> None:
        head = self._stored.head(stream)
        if (head.index_epoch, cleaned_to) == (watch.index_epoch, watch.cleaned_to):
            return
        watch.index_epoch, watch.cleaned_to = head.index_epoch, cleaned_to
        log_start, values = self._stored.log(stream)
        if self._is_strict:
            _check_clean(stream, values, cleaned_to)
        # What is in the log counts as well: its producer may not have heard of it yet.
        known = {**values, **self.known(stream)}
        for offset in sorted(known.keys() - values.keys() - watch.gone):
            if offset >= log_start:
                if offset in watch.left:
                    watch.gone_at_ms[offset] = now_ms
                self._judge(stream, offset, known, values, watch, rules, now_ms)
                self.gone_count += 1
                watch.gone.add(offset)
        watch.left = frozenset(values)

    def known(self, stream: StreamId) -> dict[int, bytes]:
        """Return all that anybody knows of a stream's records, from wherever."""
        claims = [(offset, value) for claimed, offset, value, _ in self._history.claims() if claimed == stream]
        return dict(claims)

    def _judge(
        self,
        stream: StreamId,
        offset: int,
        known: dict[int, bytes],
        values: dict[int, bytes],
        watch: Watch,
        rules: CompactionRules,
        now_ms: int,
    ) -> None:
        _, key, value = key_and_value(known[offset])
        later = [key_and_value(one)[0] for at, one in known.items() if at > offset and key_and_value(one)[1] == key]
        if any(time_ms <= now_ms - rules.min_lag_ms + LAG_SKEW_MS * self._tempo for time_ms in later):
            return
        if later:
            raise Violation(
                f"stream {stream}: offset {offset} of {key!r} went at {now_ms}, for one that is younger than the lag"
            )
        if value is not None:
            raise Violation(f"stream {stream}: offset {offset} was the latest of {key!r}, and is gone")
        earlier = [at for at, one in known.items() if at < offset and key_and_value(one)[1] == key]
        if hidden := sorted(values.keys() & set(earlier)):
            raise Violation(f"stream {stream}: the tombstone of {key!r} at {offset} went before {hidden}")
        since = next((at for cleaned_to, at in watch.cleaned if cleaned_to > offset), now_ms)
        if self._is_strict:
            # Where a file cannot be rewritten, what a tombstone hides may go long after the round that came past it.
            since = max([since, *(watch.gone_at_ms[at] for at in earlier if at in watch.gone_at_ms)])
        if now_ms - since < rules.delete_retention_ms - RETENTION_SKEW_MS * self._tempo:
            raise Violation(
                f"stream {stream}: the tombstone of {key!r} at {offset} went {now_ms - since} ms after it was cleaned"
            )


def check_compacted(stored: StoredCompaction, history: TableHistory, watcher: Watcher, *, is_strict: bool) -> int:
    """Check all logs and tables at the end; return how many records are left. Strict: no file was partly trimmed."""
    count = 0
    for topic in history.living_topics:
        table = stored.table_of(topic)
        branch = {} if table is None else table_rows(stored, topic, table.files)
        for partition, stream in enumerate(topic.streams):
            log_start, values = stored.log(stream)
            count += len(values)
            known = {offset: one for offset, one in watcher.known(stream).items() if offset >= log_start}
            _check_values(stream, values, known)
            if is_strict:
                state = stored.compaction(topic).streams.get(partition)
                _check_clean(stream, values, 0 if state is None else state.cleaned_to)
            rows = {offset: one for offset, one in branch.get(partition, {}).items() if offset >= log_start}
            end = stored.states()[topic.id].ends.get(partition, 0) if topic.id in stored.states() else 0
            if rows != {offset: one for offset, one in values.items() if offset < end}:
                raise Violation(f"stream {stream}: the branch of {topic.name} does not show what the log has")
        if table is not None:
            _check_main(stored, topic, table, watcher)
    return count


def _check_values(stream: StreamId, values: dict[int, bytes], known: dict[int, bytes]) -> None:
    for offset, one in values.items():
        if offset in known and known[offset] != one:
            raise Violation(f"stream {stream}: {one!r} lies at {offset}, clients know {known[offset]!r}")
    latest: dict[bytes, int] = {}
    for offset in sorted(known):
        latest[key_and_value(known[offset])[1]] = offset
    for key, offset in latest.items():
        if offset not in values and key_and_value(known[offset])[2] is not None:
            raise Violation(f"stream {stream}: the latest record of {key!r}, at {offset}, is gone")
    left: dict[bytes, int] = {}
    for offset in sorted(values):
        left[key_and_value(values[offset])[1]] = offset
    for key, offset in left.items():
        is_deleted = key_and_value(known[latest[key]])[2] is None if key in latest else False
        if is_deleted and key_and_value(values[offset])[2] is not None:
            raise Violation(f"stream {stream}: {key!r} was deleted at {latest[key]}, and is back with {offset}")


def _check_clean(stream: StreamId, values: dict[int, bytes], cleaned_to: int) -> None:
    keys = Counter(key_and_value(one)[1] for offset, one in values.items() if offset < cleaned_to)
    twice = sorted(key for key, times in keys.items() if times > 1)
    if twice:
        raise Violation(f"stream {stream}: {twice} are there twice below {cleaned_to}, which is clean")


def _check_main(stored: StoredCompaction, topic: Topic, table: MemoryTable, watcher: Watcher) -> None:
    if compaction_rules_of(topic.overrides).table_follows:
        branch = {file.path for file in table.files}
        if lacking := branch - {file.path for file in table.main}:
            raise Violation(f"main of {topic.name} does not follow its compacted log: it lacks {sorted(lacking)}")
        for file in table.main:
            # What the log has forgotten stays on main: the topics keep it.
            if file.path not in branch and any(
                part.end_offset > stored.head(topic.streams[part.partition]).log_start for part in file.slices
            ):
                raise Violation(f"main of {topic.name} does not follow its compacted log: it has {file.path}")
        return
    rows = table_rows(stored, topic, table.main)
    ends = stored.states()[topic.id].ends
    for partition, stream in enumerate(topic.streams):
        start, end = stored.head(stream).log_start, ends.get(partition, 0)
        known = {at: one for at, one in watcher.known(stream).items() if start <= at < end}
        shown = rows.get(partition, {})
        if lost := sorted(at for at in known if shown.get(at) != known[at]):
            raise Violation(f"main of {topic.name} is to be the full history, and lacks {partition}/{lost}")
