"""The way of records: topics, the write-ahead log, reading, the index."""

from dataclasses import dataclass
from typing import Annotated

from headrace.runtime.configuration import Setting
from headrace.runtime.setting_kinds import MAX_INT32, Switch, Whole
from headrace.settings.units import DAY_MS, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS


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
