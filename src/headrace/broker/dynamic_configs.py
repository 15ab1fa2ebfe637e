"""The configs of a broker as Kafka's tools see them: which there are, which can change while it runs, what counts.

There are four kinds:
- settings of ours; those that are declared dynamic can change;
- defaults of topics that have no setting, by Kafka's names: all of them can change;
- limits that Kafka's tools set while replicas move: taken, without effect, because nothing moves;
- Kafka's names for what is fixed here, such as `default.replication.factor`: to be read only.

Must stay true: `kept` answers for whatever is stored. A value that is not understood does not count, nor does one
that contradicts the settings of this broker. All others do: one bad value must not undo the retention of all topics.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.cluster.broker_configs import MAX_VALUE_CHARS, InvalidBrokerConfig, NoList
from headrace.errors import Invalid
from headrace.handlers.describe_log_dirs import LOG_DIR
from headrace.runtime.configuration import Given, Origin, Setting
from headrace.runtime.setting_kinds import MAX_INT32, Address, Switch
from headrace.runtime.setting_kinds import Whole as WholeSetting
from headrace.runtime.text import one_line
from headrace.settings import HeadraceConfiguration, Settings, all_settings, with_dynamic
from headrace.settings.log import UNSET
from headrace.topics.config_kinds import ConfigKind, ConfigType, int64
from headrace.topics.configs import TOPIC_CONFIG_OF, ConfigSource, ConfigSynonym, ConfigValue, DefaultLayer, edited

MAX_SHOWN_CHARS = 80

NEAR = 0.8
"""How alike two names are before one is suggested for the other."""

SETTINGS: Mapping[str, Setting] = {setting.key: setting for setting in all_settings()}

LATER_RETENTION = ("log.retention.ms", "log.retention.minutes")
"""Kafka has no value for these until somebody gives one."""

_RATE = int64(0)
_WITHOUT_EFFECT = "Tools set it while replicas move. It has no effect here: there are no replicas."

THROTTLES: Mapping[str, ConfigKind] = {
    "leader.replication.throttled.rate": _RATE,
    "follower.replication.throttled.rate": _RATE,
    "replica.alter.log.dirs.io.max.bytes.per.second": _RATE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A config of Kafka's that is fixed here."""

    value: str
    type: ConfigType
    sentence: str


def fixed_facts(settings: Settings) -> dict[str, Fact]:
    """Return Kafka's names for what cannot be configured here, with what holds instead."""
    one, yes = ("1", ConfigType.INT), ("true", ConfigType.BOOLEAN)
    found = {
        "broker.id": (str(settings.broker.node_id), ConfigType.INT, "The same as node.id."),
        "controlled.shutdown.enable": (*yes, "A broker that is stopped sends its clients to others first."),
        "default.replication.factor": (*one, "There are no replicas: the object store keeps the bytes safe."),
        "delete.topic.enable": (*yes, "Topics can be deleted."),
        "inter.broker.listener.name": ("PLAINTEXT", ConfigType.STRING, "There is one listener."),
        "log.cleaner.enable": (*yes, "Topics are compacted by the pipeline."),
        "log.dir": (LOG_DIR, ConfigType.STRING, "A label: records lie where objects.url says."),
        "log.dirs": (LOG_DIR, ConfigType.LIST, "A label: records lie where objects.url says."),
        "offsets.topic.replication.factor": (*one, "Offsets lie in the metadata store: there is no topic of them."),
        "process.roles": ("broker", ConfigType.LIST, "There are no controllers: the metadata store decides."),
        "security.inter.broker.protocol": ("PLAINTEXT", ConfigType.STRING, "Brokers do not talk to each other."),
    }
    return {name: Fact(value=value, type=kind, sentence=why) for name, (value, kind, why) in found.items()}


def is_dynamic(name: str) -> bool:
    """Say whether a config can change while the broker runs."""
    setting = SETTINGS.get(name)
    return setting.is_dynamic if setting is not None else name in TOPIC_CONFIG_OF or name in THROTTLES


def kept(
    settings: Settings, *, for_all: Mapping[str, str], own: Mapping[str, str]
) -> tuple[Settings, dict[str, str]]:
    """Return the settings of a broker with what was set over them, and the values that count, by name."""
    found = {**_understood(for_all), **_understood(own)}
    try:
        return with_dynamic(settings, _given(found)), found
    except Invalid:
        return _kept_one_by_one(settings, found)


def _kept_one_by_one(settings: Settings, found: Mapping[str, str]) -> tuple[Settings, dict[str, str]]:
    after, counts = settings, dict[str, str]()
    for name, text in sorted(found.items()):
        try:
            after = with_dynamic(settings, _given({**counts, name: text}))
        except Invalid:
            continue
        counts[name] = text
    return after, counts


def layers_of(settings: Settings, *, for_all: Mapping[str, str], own: Mapping[str, str]) -> tuple[DefaultLayer, ...]:
    """Return what was set and counts, strongest first."""
    counts = kept(settings, for_all=for_all, own=own)[1]
    layers = (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, own),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, for_all),
    )
    return tuple(
        DefaultLayer(
            source=source, values={name: text for name, text in _understood(values).items() if name in counts}
        )
        for source, values in layers
        if values
    )


class BrokerConfigRules:
    """What can be set for one broker, and what it means together with its settings."""

    def __init__(self, configuration: HeadraceConfiguration, *, told: Callable[[], Address] | None = None) -> None:
        """Take the settings as they were at start, and what says where clients reach this broker."""
        self._static = configuration.tree
        self._origins = {origin.setting.key: origin for origin in configuration.origins}
        self._told = told
        self._facts = fixed_facts(self._static)

    def check(self, changed: Mapping[str, str], *, for_all: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Raise `InvalidBrokerConfig` unless the changed ones may be set, and all together hold after it."""
        for name in changed:
            self._check_known(name)
        fixed = sorted(name for name in changed if not is_dynamic(name))
        if fixed:
            raise InvalidBrokerConfig(
                f"these configs cannot be changed while a broker runs: [{', '.join(fixed)}]; change its settings "
                "file, its HEADRACE_* variables or its command line, and start it again"
            )
        for name, text in changed.items():
            _check_value(name, text)
        try:
            with_dynamic(self._static, _given({**_understood(for_all), **_understood(own)}))
        except Invalid as error:
            raise InvalidBrokerConfig(str(error)) from None

    def describe(self, *, for_all: Mapping[str, str], own: Mapping[str, str]) -> Sequence[ConfigValue]:
        """Return all configs of this broker, each with where its value comes from."""
        layers = layers_of(self._static, for_all=for_all, own=own)
        names = {*SETTINGS, *TOPIC_CONFIG_OF, *self._facts}
        names.update(name for layer in layers for name in layer.values)
        return [self._described(name, layers) for name in sorted(names)]

    def describe_for_all(self, for_all: Mapping[str, str]) -> Sequence[ConfigValue]:
        """Return the configs that were set for all brokers."""
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return [
            ConfigValue(
                name=name,
                value=_shown(name, text),
                source=source,
                synonyms=(ConfigSynonym(name=name, value=_shown(name, text), source=source),),
                type=_type_of(name),
                documentation=_sentence_of(name),
            )
            for name, text in sorted(_understood(for_all).items())
        ]

    def edited(self, name: str, now: str | None, elements: str, *, is_append: bool) -> str:
        """Return a list with elements added or taken away; raise `NoList` for a config that is none."""
        self._check_known(name)
        if _type_of(name) is not ConfigType.LIST or name not in TOPIC_CONFIG_OF:
            verb = "added to" if is_append else "taken away from"
            raise NoList(f"nothing can be {verb} {name}, it is no list: set it instead")
        return edited(TOPIC_CONFIG_OF[name].default if now is None else now, elements, is_append=is_append)

    def _check_known(self, name: str) -> None:
        if name in SETTINGS or name in TOPIC_CONFIG_OF or name in THROTTLES or name in self._facts:
            return
        shown = one_line(name, max_chars=MAX_SHOWN_CHARS)
        known = [one for one in (*SETTINGS, *TOPIC_CONFIG_OF) if is_dynamic(one)]
        near = difflib.get_close_matches(name[:MAX_SHOWN_CHARS], known, n=1, cutoff=NEAR)
        hint = f"; did you mean {near[0]}?" if near else " that could be changed"
        raise InvalidBrokerConfig(f"brokers have no config '{shown}'{hint}")

    def _described(self, name: str, layers: Sequence[DefaultLayer]) -> ConfigValue:
        synonyms = [
            ConfigSynonym(name=name, value=_shown(name, layer.values[name]), source=layer.source)
            for layer in layers
            if name in layer.values
        ]
        synonyms += self._static_synonyms(name)
        fact = self._facts.get(name)
        return ConfigValue(
            name=name,
            value=synonyms[0].value if synonyms else None,
            source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
            is_read_only=not is_dynamic(name),
            synonyms=tuple(synonyms),
            type=_type_of(name) if fact is None else fact.type,
            documentation=_sentence_of(name) if fact is None else fact.sentence,
        )

    def _static_synonyms(self, name: str) -> list[ConfigSynonym]:
        """Return where a value comes from that was not set while the broker ran; none where there is no value."""
        origin = self._origins.get(name)
        if origin is not None:
            found = self._origin_synonyms(origin)
            if name == LATER_RETENTION[0]:  # as Kafka does: what counts where it was not given
                found += [
                    one for other in ("minutes", "hours") for one in self._static_synonyms(f"log.retention.{other}")
                ]
            return found
        if name in self._facts:
            value, source = self._facts[name].value, ConfigSource.STATIC_BROKER_CONFIG
        elif name in TOPIC_CONFIG_OF:
            value, source = TOPIC_CONFIG_OF[name].default, ConfigSource.DEFAULT_CONFIG
        else:
            return []
        return [ConfigSynonym(name=name, value=value, source=source)]

    def _origin_synonyms(self, origin: Origin) -> list[ConfigSynonym]:
        setting, given = origin.setting, origin.source != "default"
        found = []
        if given:
            found.append((self._origin_shown(origin), ConfigSource.STATIC_BROKER_CONFIG))
        if not given or "{" not in setting.default_text:
            default = Origin(setting, setting.kind.parse(setting.default), "default") if given else origin
            found.append((self._origin_shown(default), ConfigSource.DEFAULT_CONFIG))
        return [
            ConfigSynonym(name=setting.key, value=value, source=source)
            for value, source in found
            if value is not None
        ]

    def _origin_shown(self, origin: Origin) -> str | None:
        key = origin.setting.key
        if key in LATER_RETENTION and origin.value == UNSET:
            return None
        if key == "advertised.listeners" and self._told is not None:
            return f"PLAINTEXT://{self._told()}"
        if isinstance(origin.value, Address) and key == "listeners":
            return f"PLAINTEXT://{origin.value}"
        return origin.shown


def _understood(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values that this release understands, by name."""
    found = {}
    for name, text in values.items():
        if is_dynamic(name):
            try:
                _check_value(name, text)
            except InvalidBrokerConfig:
                continue
            found[name] = text
    return found


def _given(values: Mapping[str, str]) -> dict[str, Given]:
    return {name: Given(text, "a dynamic config") for name, text in values.items() if name in SETTINGS}


def _check_value(name: str, text: str) -> None:
    """Raise `InvalidBrokerConfig` for a value that a dynamic config cannot take."""
    if len(text) > MAX_VALUE_CHARS:
        raise InvalidBrokerConfig(f"the value of {name} has {len(text)} characters: {MAX_VALUE_CHARS} are allowed")
    setting, kind = SETTINGS.get(name), _kind_of(name)
    expected = setting.kind.expected if kind is None and setting is not None else ""
    try:
        if kind is not None:
            expected = kind.expected
            kind.parse(text)
        if setting is not None:
            expected = setting.kind.expected
            setting.kind.parse(text)
    except ValueError:
        shown = one_line(text, max_chars=MAX_SHOWN_CHARS)
        raise InvalidBrokerConfig(f"{name} cannot be '{shown}': expected {expected}") from None


def _kind_of(name: str) -> ConfigKind | None:
    """Return what the value of a default of topics, or of a limit without effect, may be."""
    topic_config = TOPIC_CONFIG_OF.get(name)
    return THROTTLES.get(name) if topic_config is None else topic_config.kind


def _shown(name: str, text: str) -> str:
    kind = _kind_of(name)
    return kind.show(text) if kind is not None else SETTINGS[name].kind.show(SETTINGS[name].kind.parse(text))


def _type_of(name: str) -> ConfigType:
    kind = _kind_of(name)
    if kind is not None:
        return kind.type
    setting = SETTINGS.get(name)
    match setting.kind if setting is not None else None:
        case Switch():
            return ConfigType.BOOLEAN
        case WholeSetting(maximum=maximum):
            return ConfigType.INT if maximum <= MAX_INT32 else ConfigType.LONG
    return ConfigType.STRING


def _sentence_of(name: str) -> str:
    if name in SETTINGS:
        return SETTINGS[name].sentence
    return TOPIC_CONFIG_OF[name].sentence if name in TOPIC_CONFIG_OF else _WITHOUT_EFFECT
