"""The configs of topics: checked when they are set, shown with where each value comes from, and turned into rules.

What is stored of a topic are its *overrides*, as they were typed. Everything else comes from the broker
(`TopicDefaults`): from what was set for it while it ran, from its settings, and else from Kafka's defaults.

Must stay true: `rules_of` and `effective` answer for whatever is stored. Values were checked when they were set, but
perhaps by another release: one that is not understood counts as not set, because a topic that cannot be read at all
would be worse.
"""

import difflib
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.model.topics import Retention, TopicRules
from headrace.runtime.text import one_line
from headrace.topics.config_kinds import ConfigType, elements_of
from headrace.topics.config_table import (
    AS_PRODUCED,
    CHECK_FULL,
    COMPACT,
    COMPRESSED_CHECK,
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_RETENTION_MS,
    DELETE,
    LOG_APPEND_TIME,
    TOPIC_CONFIGS,
    TopicConfig,
)
from headrace.topics.problems import InvalidTopicConfig
from headrace.topics.table_schema import check_schema, check_schema_change

MAX_VALUE_CHARS = 32_767
"""The longest string that every version of Kafka's protocol can carry back."""

MAX_SHOWN_CHARS = 80

_LEVELS = {"gzip": "compression.gzip.level", "lz4": "compression.lz4.level", "zstd": "compression.zstd.level"}


class ConfigSource(enum.IntEnum):
    """Kafka's numbers for where a value comes from."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


TOPIC_CONFIG_OF: Mapping[str, TopicConfig] = {
    config.broker_name: config for config in TOPIC_CONFIGS.values() if config.broker_name is not None
}
"""The topic configs that a broker has a default for, by the name of the broker's config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultLayer:
    """What was set for brokers while they ran, and is a default of topics: by the broker's names, as typed."""

    source: ConfigSource
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """What the broker gives to topics that do not say otherwise: its settings, and over them layers, strongest first.

    A layer may hold configs of brokers that topics do not have, and values that this release does not understand:
    they do not count.
    """

    message_max_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    retention_ms: int = DEFAULT_RETENTION_MS
    retention_bytes: int = -1
    layers: Sequence[DefaultLayer] = ()
    given: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """The values that differ from Kafka's defaults, by the topic config that they stand for. All topics share it."""

    def __post_init__(self) -> None:
        values = self._static()
        for layer in reversed(self.layers):
            values.update(_understood_in(layer))
        object.__setattr__(self, "given", values)

    def _static(self) -> dict[str, str]:
        """Return those that come from the settings."""
        values = {
            "max.message.bytes": str(self.message_max_bytes),
            "retention.ms": str(self.retention_ms),
            "retention.bytes": str(self.retention_bytes),
        }
        return {name: value for name, value in values.items() if value != TOPIC_CONFIGS[name].default}

    def synonyms(self, config: TopicConfig) -> "list[ConfigSynonym]":
        """Return where the default of a config could come from, strongest first; none if no broker's config does."""
        if config.broker_name is None:
            return []
        found = [(layer.source, _understood_in(layer).get(config.name)) for layer in self.layers]
        found.append((ConfigSource.STATIC_BROKER_CONFIG, self._static().get(config.name)))
        found.append((ConfigSource.DEFAULT_CONFIG, config.default))
        return [
            ConfigSynonym(name=config.broker_name, value=value, source=source)
            for source, value in found
            if value is not None
        ]


def _understood_in(layer: DefaultLayer) -> dict[str, str]:
    """Return the defaults of topics that a layer gives, by the topic config, each in its one spelling."""
    found = {}
    for name, text in layer.values.items():
        config = TOPIC_CONFIG_OF.get(name)
        value = None if config is None else _understood(config, {config.name: text})
        if config is not None and value is not None:
            found[config.name] = value
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """One place where a value could come from; the first of a config's synonyms is where it does."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A config as clients see it, of a topic or of a broker. A sensitive one has no value that could be shown."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool = False
    is_sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    type: ConfigType = ConfigType.UNKNOWN
    documentation: str | None = None


def check_configs(overrides: Mapping[str, str]) -> None:
    """Raise `InvalidTopicConfig` unless a topic may have all of these together."""
    for name, value in overrides.items():
        _check_value(_known(name), value)
    least_ms, most_ms = (_number(overrides, f"{bound}.compaction.lag.ms") for bound in ("min", "max"))
    if least_ms > most_ms:
        raise InvalidTopicConfig(
            f"min.compaction.lag.ms is {least_ms}, more than max.compaction.lag.ms, {most_ms}: lower the one or "
            "raise the other"
        )
    check_schema(overrides)


def check_change(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise `InvalidTopicConfig` unless a topic that had the first configs may have the second ones from now on."""
    check_configs(after)
    check_schema_change(before, after)


def rules_of(overrides: Mapping[str, str], defaults: TopicDefaults) -> TopicRules:
    """Return what a topic's configuration demands of every batch."""
    values = dict(defaults.given)
    values.update((name, value) for name, value in overrides.items() if _is_understood(name, value))
    codec = _text(values, "compression.type")
    return TopicRules(
        max_message_bytes=_number(values, "max.message.bytes"),
        is_log_append_time=_text(values, "message.timestamp.type") == LOG_APPEND_TIME,
        timestamp_before_max_ms=_number(values, "message.timestamp.before.max.ms"),
        timestamp_after_max_ms=_number(values, "message.timestamp.after.max.ms"),
        compression=None if codec == AS_PRODUCED else codec,
        compression_level=_level(values, codec),
        is_compacted=COMPACT in _policy(values),
        opens_compressed=_text(values, COMPRESSED_CHECK) == CHECK_FULL,
    )


def retention_of(overrides: Mapping[str, str], defaults: TopicDefaults) -> Retention:
    """Return what a topic's configuration says of how long its records are kept."""
    values = dict(defaults.given)
    values.update((name, value) for name, value in overrides.items() if _is_understood(name, value))
    if DELETE not in _policy(values):
        return Retention()
    age_ms, size_bytes = (_number(values, f"retention.{limit}") for limit in ("ms", "bytes"))
    return Retention(max_age_ms=age_ms if age_ms >= 0 else None, max_bytes=size_bytes if size_bytes >= 0 else None)


def may_delete_records(configs: Mapping[str, str]) -> bool:
    """Say whether records may be deleted by offset: not where compaction alone decides what goes."""
    policy = _policy(configs)
    return DELETE in policy or COMPACT not in policy


def effective(overrides: Mapping[str, str], defaults: TopicDefaults) -> list[ConfigValue]:
    """Return all configs of a topic, by name, each with its value and where that comes from."""
    return [_effective(config, overrides, defaults) for _, config in sorted(TOPIC_CONFIGS.items())]


def edited_list(name: str, configs: Mapping[str, str], elements: str, *, is_append: bool) -> str:
    """Return a list config with elements added to it, or taken away; raise `InvalidTopicConfig` if it is no list.

    Elements that are there already, or not there at all, are no error.
    """
    config = _known(name)
    if config.kind.type is not ConfigType.LIST:
        verb = "added to" if is_append else "taken away from"
        raise InvalidTopicConfig(f"nothing can be {verb} {name}, it is no list: set it instead")
    return edited(configs.get(name, config.default), elements, is_append=is_append)


def edited(now: str, elements: str, *, is_append: bool) -> str:
    """Return a list with elements added to it, or taken away."""
    present, named = elements_of(now), elements_of(elements)
    return ",".join(dict.fromkeys((*present, *named)) if is_append else [one for one in present if one not in named])


def _known(name: str) -> TopicConfig:
    config = TOPIC_CONFIGS.get(name)
    if config is None:
        shown = one_line(name, max_chars=MAX_SHOWN_CHARS)
        nearest = difflib.get_close_matches(name[:MAX_SHOWN_CHARS], TOPIC_CONFIGS, n=1, cutoff=0.0)[0]
        raise InvalidTopicConfig(f"no topic config is called '{shown}'; did you mean {nearest}?")
    return config


def _check_value(config: TopicConfig, value: str) -> None:
    if len(value) > MAX_VALUE_CHARS:
        raise InvalidTopicConfig(
            f"the value of {config.name} has {len(value)} characters: {MAX_VALUE_CHARS} are allowed at most"
        )
    try:
        config.kind.parse(value)
    except ValueError:
        shown = one_line(value, max_chars=MAX_SHOWN_CHARS)
        raise InvalidTopicConfig(f"{config.name} is '{shown}'; expected {config.kind.expected}") from None


def _is_understood(name: str, value: str) -> bool:
    config = TOPIC_CONFIGS.get(name)
    return config is not None and _understood(config, {name: value}) is not None


def _understood(config: TopicConfig, values: Mapping[str, str]) -> str | None:
    """Return a value in its one spelling, or `None` if there is none that this release understands."""
    value = values.get(config.name)
    if value is None:
        return None
    try:
        return config.kind.show(value)
    except ValueError:
        return None


def _text(values: Mapping[str, str], name: str) -> str:
    config = TOPIC_CONFIGS[name]
    found = _understood(config, values)
    return config.default if found is None else found


def _number(values: Mapping[str, str], name: str) -> int:
    return int(_text(values, name))


def _policy(values: Mapping[str, str]) -> tuple[str, ...]:
    return elements_of(_text(values, "cleanup.policy"))


def _level(values: Mapping[str, str], codec: str) -> int | None:
    """Return the level to compress with, `None` for the codec's own default.

    Kafka, too, takes the defaults of gzip and LZ4, −1 and 9, as *do not choose one*.
    """
    name = _LEVELS.get(codec)
    if name is None or _text(values, name) == TOPIC_CONFIGS[name].default:
        return None
    return _number(values, name)


def _effective(config: TopicConfig, overrides: Mapping[str, str], defaults: TopicDefaults) -> ConfigValue:
    synonyms = defaults.synonyms(config)
    override = _understood(config, overrides)
    if override is not None:
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG
        synonyms.insert(0, ConfigSynonym(name=config.name, value=override, source=source))
    return ConfigValue(
        name=config.name,
        value=synonyms[0].value if synonyms else config.default,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        synonyms=tuple(synonyms),
        type=config.kind.type,
        documentation=config.sentence,
    )
