"""What is stored, in proportion to what is kept: bytes, index entries, files, objects, snapshots and metadata keys.

All of it is measured in the stores themselves, past all faults, and compared with bounds that are made of what the
logs and `main` hold at that moment and of constants; the time that has passed is in none of them. So what grows with
time, however slowly, breaks one of them in a history that is long enough.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.index.repack import RepackLimits
from headrace.metadata import keys as all_keys
from headrace.metadata.keys import prefix_range
from headrace.model.extents import WalExtent
from headrace.model.ids import StreamId
from headrace.model.topics import Topic
from headrace.testing.inline import at_once
from headrace.testing.simulation.checkers import MAX_ROWS
from headrace.testing.simulation.compaction.checkers import StoredCompaction
from headrace.testing.simulation.compaction.clients import KEYS, key_and_value
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.tables.checkers import TABLES_PREFIX, table_rows
from headrace.testing.simulation.tables.pipeline import MAX_SNAPSHOTS
from headrace.topics.tables import table_rules_of

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

BATCH_FACTOR = 4
"""A record takes up to so many times the bytes of its imprint: a batch of one record, say, has a header of 61."""

COPIES = 2
"""A byte that is rewritten is there twice until the grace is over."""

FILE_BYTES = 9_000
"""What a Parquet file takes besides its rows: footer, page headers and statistics of all columns, per row group."""

FILES_PER_DAY = 2
"""Once a day is over its files become one; the second is for a merge that has to wait for its turn. In a `main` that
is the full history, what compaction has left of a day becomes one as well, while that doubles the larger file."""

OPEN_FILES = 10
"""What comes in before a merge is worth it: fewer than the least number of files to merge, and a run of six."""

TAIL_ENTRIES = 4
"""What a stream has in the log and in the WAL before the next run, fold or repack gets to it."""

PACKED_TIERS = 6
"""Packed objects on their way to full size: fewer than `factor` in each tier."""

LOOSE_OBJECTS = 30
"""Open and staged objects of two brokers, and those of the last hours: they wait for runs, repacks and a grace."""

GRACE_FILES = 90
"""Table files that the runs and rewrites of the last days have left behind: each waits for its snapshots to expire,
and then for the grace."""

KEYS_PER_STREAM = 16
"""Head, info, and the producers of the last day or two."""

BASE_KEYS = 48
"""Topics, names, sessions, leases, clocks, writers, states of tables, and commit records that are not folded."""

LATE_MS = 12 * HOUR_MS
"""For how long a job may be late, after troubles that last for longer than that."""

ROUND_MS = 3 * DAY_MS
"""What compaction leaves alone: a day for `max.compaction.lag.ms`, one more for tombstones, and one to be late."""


@dataclass(slots=True, kw_only=True)
class TopicUsage:
    """One topic: what its log and `main` hold, in records and in bytes of their imprints, and in what."""

    log_bytes: int = 0
    row_bytes: int = 0
    wal_bytes: int = 0
    """What entries name in WAL objects."""
    log_days: set[int] = field(default_factory=set)
    row_days: set[int] = field(default_factory=set)
    hours: int = 0
    """In how many hours records came in that the log still has, stream by stream."""
    entry_count: int = 0
    branch_files: int = 0
    main_files: int = 0
    snapshots: int = 0


@dataclass(slots=True, kw_only=True)
class Usage:
    """Everything that is stored."""

    topics: Mapping[str, TopicUsage]
    wal_bytes: int
    wal_objects: int
    table_bytes: int
    table_files: int
    key_count: int

    @property
    def kept_bytes(self) -> int:
        """What logs and tables hold; a record that both hold is counted twice."""
        return sum(topic.log_bytes + topic.row_bytes for topic in self.topics.values())


class StoredWeeks(StoredCompaction):
    """The stores, and how much there is in them."""

    async def usage(self, topics: Sequence[Topic]) -> Usage:
        """Measure everything."""
        wal = [info.size_bytes async for info in self._objects.list("wal/")]
        tables = [info.size_bytes async for info in self._objects.list(TABLES_PREFIX)]
        return Usage(
            topics={topic.name: self._topic_usage(topic) for topic in topics},
            wal_bytes=sum(wal),
            wal_objects=len(wal),
            table_bytes=sum(tables),
            table_files=len(tables),
            key_count=len(at_once(self._metadata.range(prefix_range(all_keys.ROOT, limit=MAX_ROWS)))),
        )

    def _topic_usage(self, topic: Topic) -> TopicUsage:
        usage = TopicUsage()
        for stream in topic.streams:
            _, values = self.log(stream)
            entries = self.entries(stream)
            usage.log_bytes += sum(map(len, values.values()))
            usage.hours += len(_times(values.values(), HOUR_MS))
            usage.log_days |= _times(values.values(), DAY_MS)
            usage.wal_bytes += sum(one.extent.size_bytes for one in entries if isinstance(one.extent, WalExtent))
            usage.entry_count += len(entries)
        table = self.table_of(topic)
        if table is not None:
            for rows in table_rows(self, topic, table.main).values():
                usage.row_bytes += sum(map(len, rows.values()))
                usage.row_days |= _times(rows.values(), DAY_MS)
            usage.branch_files, usage.main_files = len(table.files), len(table.main)
            usage.snapshots = len(table.snapshots)
        return usage


def _times(imprints: Iterable[bytes], unit_ms: int) -> set[int]:
    return {key_and_value(imprint)[0] // unit_ms for imprint in imprints}


def shares_of_bounds(
    usage: Usage, topics: Sequence[Topic], repack: RepackLimits, *, is_over: bool
) -> dict[str, float]:
    """Return how much of each bound is used; 1 is all of it. `is_over`: all graces are over, and nothing runs."""
    shares: dict[str, float] = {}
    allowed_files = allowed_entries = 0
    allowed_objects = LOOSE_OBJECTS
    for topic in topics:
        found = usage.topics[topic.name]
        if table_rules_of(topic.overrides).enable:
            branch_files, main_files = _allowed_files(found)
            # Branch and `main` have the same files, unless one of them is compacted.
            allowed_files += main_files if main_files <= branch_files else branch_files + main_files
            shares[f"branch files of {topic.name}"] = found.branch_files / branch_files
            shares[f"main files of {topic.name}"] = found.main_files / main_files
            shares[f"snapshots of {topic.name}"] = found.snapshots / MAX_SNAPSHOTS
            entries = len(topic.streams) * (branch_files + TAIL_ENTRIES)
        else:
            # An entry has append times of one hour; a full entry or object may be half of what it should be.
            entries = found.hours + 2 * found.wal_bytes // repack.entry_bytes
            entries += len(topic.streams) * (TAIL_ENTRIES + repack.loose_max_entries)
            allowed_objects += 2 * found.wal_bytes // repack.object_bytes + len(topic.streams) * PACKED_TIERS
        allowed_entries += entries
        shares[f"entries of {topic.name}"] = found.entry_count / entries
    waiting = 0 if is_over else GRACE_FILES
    shares["WAL objects"] = usage.wal_objects / allowed_objects
    shares["table files"] = usage.table_files / (allowed_files + waiting)
    allowed_bytes = COPIES * BATCH_FACTOR * usage.kept_bytes + FILE_BYTES * (allowed_files + waiting)
    shares["bytes"] = (usage.wal_bytes + usage.table_bytes) / allowed_bytes
    streams = sum(len(topic.streams) for topic in topics)
    allowed_keys = allowed_entries + allowed_objects + KEYS_PER_STREAM * streams + BASE_KEYS + waiting
    shares["keys"] = usage.key_count / allowed_keys
    return shares


def _allowed_files(found: TopicUsage) -> tuple[int, int]:
    """Return how many files a branch and its `main` may have."""
    return FILES_PER_DAY * len(found.log_days) + OPEN_FILES, FILES_PER_DAY * len(found.row_days) + OPEN_FILES


def check_bounds(shares: Mapping[str, float], usage: Usage) -> None:
    """Raise `Violation` where a bound is broken."""
    if beyond := {name: round(share, 2) for name, share in shares.items() if share > 1}:
        raise Violation(f"beyond their bounds, as shares of them: {beyond}; {usage}")


def check_kept(
    stored: StoredWeeks, topic: Topic, sent: Mapping[StreamId, Mapping[int, bytes]], *, now_ms: int
) -> None:
    """Check that a log holds no more than its topic asks for, and what may be late. `sent` is all that was sent."""
    for stream in topic.streams:
        _, values = stored.log(stream)
        times = [key_and_value(one)[0] for one in values.values()]
        max_age_ms, max_bytes = topic.retention.max_age_ms, topic.retention.max_bytes
        # An entry goes as a whole, and a day's file is one.
        if max_age_ms is not None and times and min(times) < now_ms - max_age_ms - DAY_MS - LATE_MS:
            raise Violation(f"{topic.name}: a record of {min(times)} is still there at {now_ms}")
        if max_bytes is not None and sum(map(len, values.values())) > max_bytes:
            raise Violation(f"{topic.name}: {sum(map(len, values.values()))} bytes are left of at most {max_bytes}")
        if topic.overrides.get("cleanup.policy") == "compact":
            young = sum(key_and_value(one)[0] > now_ms - ROUND_MS for one in sent[stream].values())
            if len(values) > KEYS + young:
                raise Violation(f"{topic.name}: {len(values)} records of {KEYS} keys are left, {young} are young")
