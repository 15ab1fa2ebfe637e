"""The way of records: topics, the write-ahead log, reading, the index."""

from dataclasses import dataclass
from typing import Annotated

from headrace.runtime.configuration import Setting
from headrace.runtime.setting_kinds import MAX_INT32, Switch, Whole
from headrace.settings.units import DAY_MS, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS

UNSET = -2
"""Kafka has no value for some settings until somebody gives one; here a number says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What a topic is unless its own configuration says otherwise, and what producers may send."""

    auto_create: Annotated[
        bool,
        Setting(
            "auto.create.topics.enable",
            True,
            Switch(),
            "Whether naming an unknown topic creates it; turn it off where a typo should fail instead.",
            is_dynamic=True,
        ),
    ]
    num_partitions: Annotated[
        int,
        Setting(
            "num.partitions",
            1,
            Whole(minimum=1, maximum=10_000),
            "Partitions of a topic that is created without a number; more let more consumers share the work.",
            unit="partitions",
            is_dynamic=True,
        ),
    ]
    message_max_bytes: Annotated[
        int,
        Setting(
            "message.max.bytes",
            MIB + 12,  # Kafka's default: one MiB of records and the head of the batch.
            Whole(minimum=KIB, maximum=MAX_INT32),
            "The largest record batch that is accepted, as it is sent; raise it for large messages.",
            unit="bytes",
            is_dynamic=True,
        ),
    ]
    decompression_max_bytes: Annotated[
        int,
        Setting(
            "decompression.max.bytes",
            64 * MIB,
            Whole(minimum=MIB, maximum=MAX_INT32),
            "The most that one compressed batch may unpack to; it bounds what a compression bomb costs.",
            unit="bytes",
        ),
    ]
    producer_id_expiration_ms: Annotated[
        int,
        Setting(
            "producer.id.expiration.ms",
            DAY_MS,
            Whole(minimum=1, maximum=MAX_INT32),
            "How long an idle producer's retries are recognised; lower it where very many producers come and go.",
            unit="ms",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSettings:
    """How records are gathered into frames, segments and objects."""

    linger_ms: Annotated[
        int,
        Setting(
            "wal.linger.ms",
            50,
            Whole(maximum=10 * SECOND_MS),
            "How long a flush to a remote store waits for more records: higher means fewer, larger uploads and later "
            "answers; local disk never waits.",
            unit="ms",
        ),
    ]
    frame_max_bytes: Annotated[
        int,
        Setting(
            "wal.frame.max.bytes",
            8 * MIB,
            Whole(minimum=64 * KIB, maximum=256 * MIB),
            "The most that one flush writes; more raises throughput, less bounds the wait behind it.",
            unit="bytes",
        ),
    ]
    frames_in_flight: Annotated[
        int,
        Setting(
            "wal.frames.in.flight",
            4,
            Whole(minimum=1, maximum=64),
            "How many frames are written at once; more hide the latency of a remote store and take more memory.",
            unit="frames",
        ),
    ]
    buffer_max_bytes: Annotated[
        int,
        Setting(
            "wal.buffer.max.bytes",
            64 * MIB,
            Whole(minimum=MIB, maximum=16 * KIB * MIB),
            "How many bytes may wait to be written before producers are held back; it bounds a busy broker's memory.",
            unit="bytes",
        ),
    ]
    segment_max_bytes: Annotated[
        int,
        Setting(
            "wal.segment.max.bytes",
            64 * MIB,
            Whole(minimum=MIB, maximum=MAX_INT32),
            "The size at which a local segment is sealed; less frees disk space sooner, more leaves fewer files.",
            unit="bytes",
        ),
    ]
    segment_max_age_ms: Annotated[
        int,
        Setting(
            "wal.segment.max.age.ms",
            10 * MINUTE_MS,
            Whole(minimum=SECOND_MS, maximum=DAY_MS),
            "The age at which a local segment is sealed; lower it to free a quiet broker's disk space sooner.",
            unit="ms",
        ),
    ]
    page_cache_drop: Annotated[
        bool,
        Setting(
            "wal.page.cache.drop",
            True,
            Switch(),
            "Whether the kernel lets go of what was just written to local disk: writing is cheaper then, and readers "
            "far behind read from the disk; turn it off where backlogs fit into memory and are read often.",
        ),
    ]
    staged_max_age_ms: Annotated[
        int,
        Setting(
            "wal.staged.max.age.ms",
            HOUR_MS,
            Whole(minimum=MINUTE_MS, maximum=DAY_MS),
            "The age at which an uncommitted object counts as left behind; keep it above the slowest upload.",
            unit="ms",
        ),
    ]
    sealed_grace_ms: Annotated[
        int,
        Setting(
            "wal.sealed.grace.ms",
            10 * MINUTE_MS,
            Whole(minimum=SECOND_MS, maximum=DAY_MS),
            "How long an object that nothing names is kept for readers under way; lower it to free space sooner.",
            unit="ms",
        ),
    ]
    repack_min_age_ms: Annotated[
        int,
        Setting(
            "wal.repack.min.age.ms",
            HOUR_MS,
            Whole(minimum=SECOND_MS, maximum=30 * DAY_MS),
            "The age from which records that no table has taken are repacked; after twice the age they all are. Keep "
            "it above the tables' target lag, or what a table is about to take is copied in vain.",
            unit="ms",
        ),
    ]
    repack_entry_bytes: Annotated[
        int,
        Setting(
            "wal.repack.entry.bytes",
            MIB,
            Whole(minimum=KIB, maximum=16 * MIB),
            "What repacked index entries grow to: a fetch reads whole entries, so more makes the index smaller, and "
            "single reads of old records larger.",
            unit="bytes",
        ),
    ]
    repack_object_bytes: Annotated[
        int,
        Setting(
            "wal.repack.object.bytes",
            64 * MIB,
            Whole(minimum=64 * KIB, maximum=KIB * MIB),
            "What repacked objects grow to; more leaves fewer files, less frees space sooner behind the log start.",
            unit="bytes",
        ),
    ]
    repack_max_bytes_per_second: Annotated[
        int,
        Setting(
            "wal.repack.max.bytes.per.second",
            32 * MIB,
            Whole(minimum=64 * KIB, maximum=16 * KIB * MIB),
            "How fast records are repacked at most, so that producers and consumers do not notice.",
            unit="bytes per second",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long records are kept where their topic does not say, and what keeps them beyond that."""

    hours: Annotated[
        int,
        Setting(
            "log.retention.hours",
            7 * 24,
            Whole(minimum=-1, maximum=MAX_INT32),
            "How old records may become before they are deleted; -1 means without end. Minutes and ms win over it.",
            unit="hours",
        ),
    ]
    minutes: Annotated[
        int,
        Setting(
            "log.retention.minutes",
            UNSET,
            Whole(minimum=UNSET, maximum=MAX_INT32),
            "The same in minutes; -2 leaves it to log.retention.hours.",
            unit="minutes",
        ),
    ]
    ms: Annotated[
        int,
        Setting(
            "log.retention.ms",
            UNSET,
            Whole(minimum=UNSET),
            "The same in milliseconds, and what topics show as their default; -2 leaves it to log.retention.minutes.",
            unit="ms",
            is_dynamic=True,
        ),
    ]
    bytes: Annotated[
        int,
        Setting(
            "log.retention.bytes",
            -1,
            Whole(minimum=-1),
            "How large a partition may grow before its oldest records are deleted; -1 means without end.",
            unit="bytes",
            is_dynamic=True,
        ),
    ]
    check_interval_ms: Annotated[
        int,
        Setting(
            "log.retention.check.interval.ms",
            5 * MINUTE_MS,
            Whole(minimum=10, maximum=DAY_MS),
            "How often records that are too old or too many are looked for; it bounds how late they go.",
            unit="ms",
        ),
    ]
    clock_jump_max_ms: Annotated[
        int,
        Setting(
            "retention.clock.jump.max.ms",
            MINUTE_MS,
            Whole(minimum=SECOND_MS, maximum=DAY_MS),
            "By how much this host's wall clock may be set between two looks before one of them is left out.",
            unit="ms",
        ),
    ]
    pins_max_age_ms: Annotated[
        int,
        Setting(
            "pins.max.age.ms",
            DAY_MS,
            Whole(minimum=MINUTE_MS, maximum=30 * DAY_MS),
            "How long one read may keep what it reads from being deleted; a read that was forgotten ends here.",
            unit="ms",
        ),
    ]
    pins_skew_ms: Annotated[
        int,
        Setting(
            "pins.skew.ms",
            MINUTE_MS,
            Whole(maximum=DAY_MS),
            "How far apart the clocks of readers, brokers and the object store may be; pins live that much longer.",
            unit="ms",
        ),
    ]
    orphan_age_floor_ms: Annotated[
        int,
        Setting(
            "wal.orphan.age.floor.ms",
            10 * MINUTE_MS,
            Whole(maximum=30 * DAY_MS),
            "How old an object of the log must be before it goes because no record names it.",
            unit="ms",
        ),
    ]

    @property
    def default_key(self) -> str:
        """Return which of the three settings counts."""
        if self.ms != UNSET:
            return "log.retention.ms"
        return "log.retention.hours" if self.minutes == UNSET else "log.retention.minutes"

    @property
    def default_ms(self) -> int:
        """Return how long records are kept, from whichever of the three settings counts; -1 is without end."""
        if self.ms != UNSET:
            return self.ms
        if self.minutes != UNSET:
            return self.minutes * MINUTE_MS if self.minutes >= 0 else -1
        return self.hours * HOUR_MS if self.hours >= 0 else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How records reach those who read them."""

    tail_cache_max_bytes: Annotated[
        int,
        Setting(
            "fetch.tail.cache.max.bytes",
            128 * MIB,
            Whole(minimum=MIB, maximum=64 * KIB * MIB),
            "How much of what this broker just wrote stays in memory for readers who are close behind.",
            unit="bytes",
        ),
    ]
    catch_up_max_bytes: Annotated[
        int,
        Setting(
            "fetch.catch.up.max.bytes",
            32 * MIB,
            Whole(minimum=MIB, maximum=16 * KIB * MIB),
            "How many bytes are read at once for readers who are far behind, so that they slow nobody down.",
            unit="bytes",
        ),
    ]
    table_cache_max_bytes: Annotated[
        int,
        Setting(
            "fetch.table.cache.max.bytes",
            64 * MIB,
            Whole(maximum=64 * KIB * MIB),
            "How much of what was read back from tables stays in memory, ready for the next reader.",
            unit="bytes",
        ),
    ]
    max_sessions: Annotated[
        int,
        Setting(
            "max.incremental.fetch.session.cache.slots",
            1000,
            Whole(maximum=1_000_000),
            "How many fetch sessions are kept; consumers without one say in every request what they read.",
            unit="sessions",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """How the offset index is kept small and quick."""

    fold_batch_records: Annotated[
        int,
        Setting(
            "index.fold.batch.records",
            32,
            Whole(minimum=1, maximum=1000),
            "How many commit records one step folds into the index; fewer let commits pass in between sooner.",
            unit="commit records",
        ),
    ]
    fold_batch_entries: Annotated[
        int,
        Setting(
            "index.fold.batch.entries",
            2_000,
            Whole(minimum=1, maximum=100_000),
            "How many index entries one step of folding writes; a commit record with more takes several steps.",
            unit="entries",
        ),
    ]
    fold_lag_records: Annotated[
        int,
        Setting(
            "index.fold.lag.records",
            64,
            Whole(maximum=10_000),
            "How many commit records may wait before folding begins; more save work, fewer save memory.",
            unit="commit records",
        ),
    ]
    swap_max_entries: Annotated[
        int,
        Setting(
            "swap.max.entries",
            300,
            Whole(minimum=1, maximum=10_000),
            "How many index entries one step exchanges for table entries; fewer keep the commits of producers quick.",
            unit="entries",
        ),
    ]
