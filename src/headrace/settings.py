"""What a person may tune: every setting with its default, its unit and one sentence.

Kafka's names are used where Kafka has one. Defaults are overridden by a TOML file, that by `HEADRACE_*` variables,
those by the command line. Components never see this tree: the composition root hands them plain values.
`docs/reference/settings.md` is generated from this file (`make docs`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from headrace.errors import Invalid
from headrace.runtime.configuration import (
    Configuration,
    Setting,
    groups_of,
    read_arguments,
    read_environment,
    read_file,
    resolve,
)
from headrace.runtime.setting_kinds import (
    MAX_INT32,
    Address,
    Directory,
    HostPort,
    OneOf,
    OptionalText,
    Switch,
    Url,
    Whole,
)

KIB = 1024
MIB = 1024 * KIB
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

METADATA_SCHEMES = ("sqlite", "postgresql", "postgres", "memory")
OBJECTS_SCHEMES = ("file", "s3", "gs", "az", "memory")

VARIABLES_THAT_ARE_NOT_SETTINGS = frozenset({"HEADRACE_CRASH_AT", "HEADRACE_PURE_PYTHON"})
"""Switches for tests; they are read where they act, because they must work before any setting is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Who this broker is and where its data lies."""

    data_dir: Annotated[
        Path,
        Setting(
            "data.dir",
            "data",
            Directory(),
            "Where the embedded stores keep everything; put it on a disk that you trust.",
        ),
    ]
    node_id: Annotated[
        int,
        Setting("node.id", 1, Whole(maximum=MAX_INT32), "Give each broker of a cluster its own number."),
    ]
    rack: Annotated[
        str | None,
        Setting(
            "broker.rack",
            "",
            OptionalText(),
            "The zone this broker stands in: clients that name the same one are sent here and cross no zone border.",
        ),
    ]
    session_timeout_ms: Annotated[
        int,
        Setting(
            "broker.session.timeout.ms",
            5 * SECOND_MS,
            Whole(minimum=500, maximum=10 * MINUTE_MS),
            "How long a silent broker counts as alive: lower for a faster take-over, higher where pauses are common.",
            unit="ms",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Where clients connect, and how much one request may ask for."""

    listeners: Annotated[
        Address,
        Setting(
            "listeners", "127.0.0.1:9092", HostPort(), "The address for Kafka clients; open it to other hosts here."
        ),
    ]
    advertised_listeners: Annotated[
        Address | None,
        Setting(
            "advertised.listeners",
            "",
            HostPort(optional=True),
            "The address that clients are told, where it differs from the one above: behind a proxy, in a container.",
        ),
    ]
    http_listen: Annotated[
        Address,
        Setting("http.listen", "127.0.0.1:8080", HostPort(), "The address for HTTP: the API, health and metrics."),
    ]
    socket_request_max_bytes: Annotated[
        int,
        Setting(
            "socket.request.max.bytes",
            100 * MIB,
            Whole(minimum=KIB, maximum=MAX_INT32),
            "The largest request that is read; lower it to bound the memory that one client can take.",
            unit="bytes",
        ),
    ]


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
            Whole(minimum=1, maximum=100_000),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """Where the bytes lie, and how patient we are with that store."""

    url: Annotated[
        str,
        Setting(
            "objects.url",
            "file:{data.dir}/objects",
            Url(OBJECTS_SCHEMES),
            "The object store for records; name a bucket to let brokers on many hosts share it.",
        ),
    ]
    retry_max_attempts: Annotated[
        int,
        Setting(
            "objects.retry.max.attempts",
            6,
            Whole(minimum=1, maximum=100),
            "How often a request to a remote store is tried before its caller hears of the failure.",
            unit="attempts",
        ),
    ]
    retry_max_delay_ms: Annotated[
        int,
        Setting(
            "objects.retry.max.delay.ms",
            5 * SECOND_MS,
            Whole(minimum=1, maximum=10 * MINUTE_MS),
            "The longest pause between two tries; raise it if the store keeps asking for fewer requests.",
            unit="ms",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    """Where the facts lie, and how patient we are with that store."""

    url: Annotated[
        str,
        Setting(
            "metadata.url",
            "sqlite:{data.dir}/meta.db",
            Url(METADATA_SCHEMES),
            "The metadata store: SQLite for brokers on one host, PostgreSQL for many.",
        ),
    ]
    sqlite_busy_timeout_ms: Annotated[
        int,
        Setting(
            "sqlite.busy.timeout.ms",
            5 * SECOND_MS,
            Whole(minimum=1, maximum=10 * MINUTE_MS),
            "How long a transaction waits for another process's; raise it if many brokers share one slow disk.",
            unit="ms",
        ),
    ]
    postgres_pool_size: Annotated[
        int,
        Setting(
            "postgres.pool.size",
            8,
            Whole(minimum=2, maximum=1000),
            "Connections that one broker holds; raise it if transactions wait while the server is idle.",
            unit="connections",
        ),
    ]
    postgres_lock_timeout_ms: Annotated[
        int,
        Setting(
            "postgres.lock.timeout.ms",
            5 * SECOND_MS,
            Whole(minimum=10, maximum=10 * MINUTE_MS),
            "How long a transaction waits for a lock, so that a paused process cannot hold up the others for ever.",
            unit="ms",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """What the process says about itself."""

    level: Annotated[
        str,
        Setting(
            "logging.level",
            "info",
            OneOf(("debug", "info", "warning", "error")),
            "The least important lines that are written; `debug` to look for a cause.",
        ),
    ]
    format: Annotated[
        str,
        Setting(
            "logging.format",
            "auto",
            OneOf(("auto", "console", "json")),
            "How lines look: `console` for people, `json` for machines, `auto` chooses by whether it is a terminal.",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one process."""

    broker: BrokerSettings
    network: NetworkSettings
    topics: TopicSettings
    wal: WalSettings
    index: IndexSettings
    objects: ObjectSettings
    metadata: MetadataSettings
    logging: LoggingSettings


HeadraceConfiguration: TypeAlias = Configuration[Settings]


def all_settings() -> list[Setting]:
    """Return every setting, in the order of declaration."""
    return [setting for group in groups_of(Settings) for setting in group.settings.values()]


def load_settings(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    pairs: Iterable[str] = (),
    options: Mapping[str, tuple[str, str]] | None = None,
) -> HeadraceConfiguration:
    """Read all layers and return the settings with their sources. Raises `Invalid`.

    `pairs` are the `key=value` of `--set`; `options` are command line options of their own: key → (option, value).
    """
    configuration = resolve(
        Settings,
        [
            {} if file is None else read_file(file),
            read_environment(environment or {}, all_settings(), not_settings=VARIABLES_THAT_ARE_NOT_SETTINGS),
            read_arguments(pairs, options or {}),
        ],
    )
    _check_together(configuration.tree)
    return configuration


def _check_together(settings: Settings) -> None:
    network, wal = settings.network, settings.wal
    told = network.advertised_listeners or network.listeners
    if told.is_wildcard:
        raise Invalid(
            f"clients cannot connect to {told}: set advertised.listeners to the address where they reach this broker"
        )
    message_max_bytes = settings.topics.message_max_bytes
    for small, small_bytes, large, large_bytes in (
        ("wal.frame.max.bytes", wal.frame_max_bytes, "wal.segment.max.bytes", wal.segment_max_bytes),
        ("wal.frame.max.bytes", wal.frame_max_bytes, "wal.buffer.max.bytes", wal.buffer_max_bytes),
        ("message.max.bytes", message_max_bytes, "socket.request.max.bytes", network.socket_request_max_bytes),
    ):
        if small_bytes > large_bytes:
            raise Invalid(f"{small} is {small_bytes}, more than {large}, {large_bytes}: it must fit into it")
