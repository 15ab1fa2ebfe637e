"""Where bytes and facts lie, and how patient we are with their stores."""

from dataclasses import dataclass
from typing import Annotated

from headrace.runtime.configuration import Setting
from headrace.runtime.setting_kinds import Url, Whole
from headrace.settings.units import MINUTE_MS, SECOND_MS

METADATA_SCHEMES = ("sqlite", "postgresql", "postgres", "memory")
OBJECTS_SCHEMES = ("file", "s3", "gs", "az", "memory")


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
            10,
            Whole(minimum=2, maximum=1000),
            "Connections for transactions, two of them never for groups; each broker has three more for itself.",
            unit="connections",
        ),
    ]
    postgres_lock_timeout_ms: Annotated[
        int,
        Setting(
            "postgres.lock.timeout.ms",
            1_500,
            Whole(minimum=10, maximum=10 * MINUTE_MS),
            "How long a transaction waits for a lock, so that a paused process cannot hold up the others for ever.",
            unit="ms",
        ),
    ]
