"""The configs of groups: what may be set for a single group, and what every broker remembers of it.

A group has configs before it has members, and keeps them when it is deleted, as in Kafka. All of them are held in
memory, because few groups have any; a change through one broker reaches the others by watch.

Must stay true: `of` answers for whatever is stored. A value that another release wrote and this one does not
understand counts as not set.
"""

import contextlib
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from headrace.errors import HeadraceError, Invalid
from headrace.groups.protocol import GroupConfig
from headrace.metadata import keys
from headrace.metadata.keys import REGISTRY, prefix_range
from headrace.metadata.port import Decision, MetadataStore, Reads, Seen
from headrace.metadata.refreshing import SharedRefresh, follow
from headrace.metadata.values import ValueCodec
from headrace.runtime.clock import Clock
from headrace.runtime.text import one_line
from headrace.topics.config_kinds import ConfigType, Whole
from headrace.topics.configs import ConfigSource, ConfigSynonym, ConfigValue

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"

MAX_GROUPS_WITH_CONFIGS = 5_000
"""A few more may come through several brokers at the same moment; twice as many are read."""

CHOSEN_BY_COORDINATOR = 0
"""How "no fixed interval" is written, in the broker's settings and here: the coordinator chooses it."""

MAX_SHOWN_CHARS = 80


class InvalidGroupConfig(Invalid):
    """A config that groups do not have, or a value that it cannot take."""


class GroupConfigRecord(msgspec.Struct, frozen=True, array_like=True):
    """What lies at `group-configs/<group>`: what was set for it, as it was typed."""

    group_id: str
    overrides: dict[str, str]


GROUP_CONFIG = ValueCodec(GroupConfigRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    """A config that groups have; the broker's setting that it takes the place of, and what that is by default."""

    kind: Whole
    default: str
    setting: str
    sentence: str


CONFIGS: Mapping[str, _Config] = {
    SESSION_TIMEOUT: _Config(
        kind=Whole(type=ConfigType.INT, minimum=1_000, maximum=3_600_000),
        default="45000",
        setting="group.consumer.session.timeout.ms",
        sentence="How long a member may be silent before its partitions go to others.",
    ),
    HEARTBEAT_INTERVAL: _Config(
        kind=Whole(type=ConfigType.INT, minimum=100, maximum=600_000, or_else=CHOSEN_BY_COORDINATOR),
        default=str(CHOSEN_BY_COORDINATOR),
        setting="group.consumer.heartbeat.interval.ms",
        sentence="How often members report; 0 lets the coordinator choose by what happens in the group.",
    ),
}


def check_configs(overrides: Mapping[str, str], defaults: GroupConfig) -> None:
    """Raise `InvalidGroupConfig` unless a group may have all of these together."""
    for name, value in overrides.items():
        _parsed(name, value)
    config = config_of(overrides, defaults)
    if config.heartbeat_interval_ms is not None and config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise InvalidGroupConfig(
            f"{HEARTBEAT_INTERVAL} would be {config.heartbeat_interval_ms}, not less than {SESSION_TIMEOUT}, "
            f"{config.session_timeout_ms}: members would be counted out between two heartbeats"
        )


def config_of(overrides: Mapping[str, str], defaults: GroupConfig) -> GroupConfig:
    """Return a group's configuration: what was set for it, else the broker's settings."""
    if not overrides:
        return defaults
    values = {name: int(text) for name, text in overrides.items() if _is_understood(name, text)}
    return GroupConfig(
        session_timeout_ms=values.get(SESSION_TIMEOUT, defaults.session_timeout_ms),
        heartbeat_interval_ms=values.get(HEARTBEAT_INTERVAL, defaults.heartbeat_interval_ms) or None,
    )


def effective(
    overrides: Mapping[str, str], defaults: GroupConfig, sources: Mapping[str, ConfigSource] | None = None
) -> list[ConfigValue]:
    """Return all configs of a group as Kafka's tools show them, by name, each with where its value comes from.

    `sources` names the broker's settings that were set while it runs, and for whom.
    """
    given = {
        SESSION_TIMEOUT: str(defaults.session_timeout_ms),
        HEARTBEAT_INTERVAL: str(defaults.heartbeat_interval_ms or CHOSEN_BY_COORDINATOR),
    }
    return [_effective(name, overrides, given[name], sources or {}) for name in sorted(CONFIGS)]


class GroupConfigs:
    """The configs of all groups that have any, in memory."""

    def __init__(self, store: MetadataStore, *, defaults: GroupConfig, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._overrides: dict[str, dict[str, str]] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._refresh = SharedRefresh(self._catch_up)
        self.defaults = defaults
        self.sources: Mapping[str, ConfigSource] = {}
        """Which of the defaults were set while the broker runs, by the broker's names, and for whom."""

    def of(self, group_id: str) -> GroupConfig:
        """Return a group's configuration as it is known here."""
        return config_of(self._overrides.get(group_id, {}), self.defaults)

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """Return what was set for a group, as it is known here."""
        return self._overrides.get(group_id, {})

    def known(self) -> list[str]:
        """Return the groups that have configs, by name."""
        return sorted(self._overrides)

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call a listener with every group whose configs are others from now on."""
        self._listeners.append(listener)

    async def refresh(self) -> None:
        """Catch up with everything that was set before this call; concurrent calls share one read."""
        await self._refresh.run()

    async def follow(self) -> None:
        """Stay fresh for ever; while the store cannot be reached, what was known last goes on counting."""
        await follow(self._store, keys.GROUP_CONFIGS, self.refresh, clock=self._clock)

    async def set(
        self, group_id: str, changes: Mapping[str, str | None], *, replace: bool = False, validate_only: bool = False
    ) -> None:
        """Set configs, or unset those that are `None`; with `replace`, all that are not named, in one transaction.

        Raises `InvalidGroupConfig`, or `Invalid` when too many groups have configs.
        """
        key = keys.group_config(group_id)
        if group_id not in self._overrides:
            await self.refresh()
        is_full = len(self._overrides) >= MAX_GROUPS_WITH_CONFIGS and group_id not in self._overrides

        def decide(seen: Seen) -> Decision[None]:
            record = GROUP_CONFIG.seen(seen, key)
            merged = {} if replace or record is None else dict(record.overrides)
            for name, value in changes.items():
                if value is None:
                    merged.pop(name, None)
                else:
                    merged[name] = value
            check_configs(merged, self.defaults)
            if is_full and merged:
                raise Invalid(f"{MAX_GROUPS_WITH_CONFIGS} groups have configs already: unset some first")
            if validate_only or merged == ({} if record is None else record.overrides):
                return Decision(result=None)
            if not merged:
                return Decision(result=None, deletes=[key])
            return Decision(result=None, puts={key: GROUP_CONFIG.encode(GroupConfigRecord(group_id, merged))})

        await self._store.transact([REGISTRY], Reads(keys=[key]), decide)
        # The next request on this broker should see it; that this can fail does not undo what was committed.
        with contextlib.suppress(HeadraceError):
            await self.refresh()

    async def _catch_up(self) -> None:
        rows = await self._store.range(prefix_range(keys.GROUP_CONFIGS, limit=2 * MAX_GROUPS_WITH_CONFIGS))
        records = [GROUP_CONFIG.decode(row.value, row.key) for row in rows]
        before, self._overrides = self._overrides, {record.group_id: record.overrides for record in records}
        # Sorted, because the order of a set is another one in every process: one seed, one history.
        for group_id in sorted({*before, *self._overrides}):
            if before.get(group_id) != self._overrides.get(group_id):
                for listener in self._listeners:
                    listener(group_id)


def _effective(
    name: str, overrides: Mapping[str, str], given: str, sources: Mapping[str, ConfigSource]
) -> ConfigValue:
    config = CONFIGS[name]
    synonyms = [ConfigSynonym(name=config.setting, value=config.default, source=ConfigSource.DEFAULT_CONFIG)]
    source = sources.get(config.setting, ConfigSource.STATIC_BROKER_CONFIG)
    if given != config.default or config.setting in sources:
        synonyms.insert(0, ConfigSynonym(name=config.setting, value=given, source=source))
    value = overrides.get(name)
    if value is not None and _is_understood(name, value):
        shown = config.kind.show(value)
        synonyms.insert(0, ConfigSynonym(name=name, value=shown, source=ConfigSource.DYNAMIC_GROUP_CONFIG))
    return ConfigValue(
        name=name,
        value=synonyms[0].value,
        source=synonyms[0].source,
        synonyms=tuple(synonyms),
        type=config.kind.type,
        documentation=config.sentence,
    )


def _known(name: str) -> _Config:
    found = CONFIGS.get(name)
    if found is None:
        shown = one_line(name, max_chars=MAX_SHOWN_CHARS)
        near = difflib.get_close_matches(name[:MAX_SHOWN_CHARS], CONFIGS, n=1)
        hint = f": did you mean {near[0]}?" if near else f": groups have {', '.join(sorted(CONFIGS))}"
        raise InvalidGroupConfig(f"groups have no config '{shown}'{hint}")
    return found


def _parsed(name: str, value: str) -> int:
    kind = _known(name).kind
    try:
        return kind.parse(value)
    except ValueError:
        shown = one_line(value, max_chars=MAX_SHOWN_CHARS)
        raise InvalidGroupConfig(f"{name} cannot be '{shown}': expected {kind.expected}") from None


def _is_understood(name: str, value: str) -> bool:
    try:
        _parsed(name, value)
    except InvalidGroupConfig:
        return False
    return True
