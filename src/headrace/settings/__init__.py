"""What a person may tune: every setting with its default, its unit and one sentence.

Kafka's names are used where Kafka has one. Defaults are overridden by a TOML file, that by `HEADRACE_*` variables,
those by the command line. Components never see this tree: the composition root hands them plain values.
`docs/reference/settings.md` is generated from this package (`make docs`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from headrace.errors import Invalid
from headrace.runtime.configuration import (
    Configuration,
    Given,
    Setting,
    groups_of,
    overlaid,
    read_arguments,
    read_environment,
    read_file,
    resolve,
)
from headrace.settings.broker import BrokerSettings, LoggingSettings
from headrace.settings.groups import GroupSettings
from headrace.settings.log import FetchSettings, IndexSettings, RetentionSettings, TopicSettings, WalSettings
from headrace.settings.network import NetworkSettings
from headrace.settings.sinks import SinkSettings
from headrace.settings.stores import MetadataSettings, ObjectSettings
from headrace.settings.tables import CatalogSettings, PipelineSettings

VARIABLES_THAT_ARE_NOT_SETTINGS = frozenset({"HEADRACE_CRASH_AT", "HEADRACE_PURE_PYTHON", "HEADRACE_BOOTSTRAP"})
"""Read where they act: switches for tests, which must work before any setting is known, and where clients connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one process."""

    broker: BrokerSettings
    network: NetworkSettings
    topics: TopicSettings
    wal: WalSettings
    retention: RetentionSettings
    fetch: FetchSettings
    index: IndexSettings
    groups: GroupSettings
    objects: ObjectSettings
    metadata: MetadataSettings
    catalog: CatalogSettings
    pipeline: PipelineSettings
    sinks: SinkSettings
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


def with_dynamic(settings: Settings, given: Mapping[str, Given]) -> Settings:
    """Return settings some of which were changed while the process runs. Raises `Invalid`."""
    changed = overlaid(settings, given)
    _check_together(changed)
    return changed


def _check_together(settings: Settings) -> None:
    network, wal = settings.network, settings.wal
    told = network.advertised_listeners or network.listeners
    if told.is_wildcard:
        raise Invalid(
            f"clients cannot connect to {told}: set advertised.listeners to the address where they reach this broker"
        )
    message_max_bytes = settings.topics.message_max_bytes
    groups = settings.groups
    if groups.min_session_timeout_ms > groups.max_session_timeout_ms:
        raise Invalid(
            f"group.min.session.timeout.ms is {groups.min_session_timeout_ms}, more than"
            f" group.max.session.timeout.ms, {groups.max_session_timeout_ms}: no member could join"
        )
    if groups.consumer_heartbeat_interval_ms >= groups.consumer_session_timeout_ms:
        raise Invalid(
            f"group.consumer.heartbeat.interval.ms is {groups.consumer_heartbeat_interval_ms}, not less than"
            f" group.consumer.session.timeout.ms, {groups.consumer_session_timeout_ms}: members would be counted out"
        )
    if settings.retention.default_ms == 0:
        # As in Kafka, a topic may have this of its own; as the default it is mostly a slip that costs every record.
        raise Invalid(
            f"{settings.retention.default_key} is 0, so every topic would lose its records at once: set -1 to keep"
            " them without end, or retention.ms=0 for the topics that are meant"
        )
    for small, small_bytes, large, large_bytes in (
        ("wal.frame.max.bytes", wal.frame_max_bytes, "wal.segment.max.bytes", wal.segment_max_bytes),
        ("wal.frame.max.bytes", wal.frame_max_bytes, "wal.buffer.max.bytes", wal.buffer_max_bytes),
        ("message.max.bytes", message_max_bytes, "socket.request.max.bytes", network.socket_request_max_bytes),
    ):
        if small_bytes > large_bytes:
            raise Invalid(f"{small} is {small_bytes}, more than {large}, {large_bytes}: it must fit into it")
