"""Topic configs: Kafka's names, Kafka's limits, and where each value comes from."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Invalid
from headrace.model.topics import NO_LIMIT_MS, TopicRules
from headrace.topics.config_kinds import ConfigType
from headrace.topics.config_table import TOPIC_CONFIGS, TopicConfig
from headrace.topics.configs import (
    MAX_VALUE_CHARS,
    ConfigSource,
    ConfigValue,
    TopicDefaults,
    check_configs,
    edited_list,
    effective,
    may_delete_records,
    rules_of,
)
from headrace.topics.problems import InvalidTopicConfig

DEFAULTS = TopicDefaults()
HOUR_MS = 3_600_000

ACCEPTED = [
    ("cleanup.policy", ["", "delete", "compact", " compact , delete ", "delete,delete"]),
    ("preallocate", ["true", "FALSE", " true "]),
    ("max.message.bytes", ["0", " 5 ", "+5", "-0", "2147483647"]),
    ("retention.ms", ["-1", "0", "9223372036854775807"]),
    ("retention.bytes", ["-5", "-9223372036854775808"]),
    ("min.cleanable.dirty.ratio", ["0", "1", "0.5", " .5 ", "1e-1", "-0.0"]),
    ("compression.type", ["gzip", " zstd ", "uncompressed", "producer"]),
    ("compression.gzip.level", ["-1", "1", "9"]),
    ("compression.lz4.level", ["1", "17"]),
    ("compression.zstd.level", ["-131072", "0", "22"]),
    ("message.timestamp.type", ["CreateTime", "LogAppendTime"]),
    ("leader.replication.throttled.replicas", ["", "*", "0:1", "0:1, 1:2", "00:01"]),
    ("local.retention.ms", ["-2", "-1"]),
    ("segment.bytes", ["1048576"]),
    ("headrace.table.enable", ["true", "False"]),
    ("headrace.table.target.lag.ms", ["5000", "9223372036854775807"]),
    (
        "headrace.table.partition.by",
        ["day(append_time)", " hour(append_time) ", "partition", "partition, day(append_time)"],
    ),
    ("headrace.table.delete.with.topic", ["true"]),
]

REFUSED = [
    ("cleanup.policy", ["Delete", "none", "delete,", ",", "delete,,compact", "[delete]"]),
    ("preallocate", ["", "yes", "1"]),
    ("max.message.bytes", ["", "-1", "5.0", "0x5", "1_000", "2147483648", "9" * 5000, "\u0661"]),
    ("retention.ms", ["", "-2", "9223372036854775808"]),
    ("retention.bytes", ["-9223372036854775809"]),
    ("min.cleanable.dirty.ratio", ["", "1.5", "-0.1", "NaN", "Infinity", "."]),
    ("compression.type", ["GZIP", "none", ""]),
    ("compression.gzip.level", ["0", "10", "-2"]),
    ("compression.lz4.level", ["0", "18"]),
    ("compression.zstd.level", ["-131073", "23"]),
    ("message.timestamp.type", ["createtime"]),
    ("follower.replication.throttled.replicas", ["none", "0", "a:b", "*,0:1", "0:", "-1:1"]),
    ("local.retention.bytes", ["-3"]),
    ("segment.bytes", ["1048575"]),
    ("segment.ms", ["0"]),
    ("flush.messages", ["0"]),
    ("min.insync.replicas", ["0"]),
    ("headrace.table.enable", ["", "on"]),
    ("headrace.table.target.lag.ms", ["4999", "-1", "1m"]),
    (
        "headrace.table.partition.by",
        [
            "",
            "day(timestamp)",
            "day",
            "month(append_time)",
            "day(append_time),hour(append_time)",
            "partition,",
            "key",
        ],
    ),
]


def pairs(table: list[tuple[str, list[str]]]) -> list[tuple[str, str]]:
    return [(name, value) for name, values in table for value in values]


def shown(overrides: Mapping[str, str], name: str, defaults: TopicDefaults = DEFAULTS) -> ConfigValue:
    (found,) = [value for value in effective(overrides, defaults) if value.name == name]
    return found


@pytest.mark.parametrize(("name", "value"), pairs(ACCEPTED))
def test_values_that_kafka_accepts_are_accepted(name: str, value: str) -> None:
    check_configs({name: value})


@pytest.mark.parametrize(("name", "value"), pairs(REFUSED), ids=lambda text: text[:40])
def test_other_values_are_refused_with_what_is_allowed(name: str, value: str) -> None:
    with pytest.raises(InvalidTopicConfig) as refusal:
        check_configs({name: value})
    message = str(refusal.value)
    assert name in message and TOPIC_CONFIGS[name].kind.expected in message
    assert len(message) < 300 and message.isprintable()


@pytest.mark.parametrize("config", TOPIC_CONFIGS.values(), ids=lambda config: config.name)
def test_every_default_is_legal_in_its_one_spelling_and_has_a_sentence(config: TopicConfig) -> None:
    found = shown({}, config.name)
    assert found.value is not None
    check_configs({found.name: found.value})
    assert TOPIC_CONFIGS[found.name].kind.show(found.value) == found.value
    assert found.documentation is not None and found.documentation.endswith(".")
    assert found.type is not ConfigType.UNKNOWN and not found.is_read_only and not found.is_sensitive


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("retention.m", "retention.ms"),
        ("retention_ms", "retention.ms"),
        ("max.message.byte", "max.message.bytes"),
        ("message.timestamp.typo", "message.timestamp.type"),
    ],
)
def test_unknown_name_is_refused_naming_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(InvalidTopicConfig, match=f"did you mean {nearest}"):
        check_configs({name: "1"})


@pytest.mark.parametrize(
    "name",
    [
        "message.format.version",
        "message.downconversion.enable",
        "message.timestamp.difference.max.ms",
        "",
        "\n" * 9999,
    ],
    ids=lambda name: name[:40] or "empty",
)
def test_what_kafka_4_has_dropped_and_nonsense_are_unknown(name: str) -> None:
    with pytest.raises(InvalidTopicConfig, match="no topic config is called") as refusal:
        check_configs({name: "1"})
    assert "\n" not in str(refusal.value)


def test_value_may_be_as_long_as_every_version_can_carry() -> None:
    name = "leader.replication.throttled.replicas"
    fits = ",".join(f"{n}:1" for n in range(4500))
    assert len(fits) <= MAX_VALUE_CHARS
    check_configs({name: fits})
    with pytest.raises(InvalidTopicConfig, match=str(MAX_VALUE_CHARS)):
        check_configs({name: fits + "," + fits})


def test_compaction_lags_must_not_contradict_each_other() -> None:
    check_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"})
    with pytest.raises(Invalid, match="10"):
        check_configs({"min.compaction.lag.ms": "11", "max.compaction.lag.ms": "10"})


def test_rules_of_a_topic_without_overrides_are_kafkas_defaults() -> None:
    assert rules_of({}, DEFAULTS) == TopicRules(
        max_message_bytes=1_048_588,
        is_log_append_time=False,
        timestamp_before_max_ms=NO_LIMIT_MS,
        timestamp_after_max_ms=HOUR_MS,
        compression=None,
        compression_level=None,
        is_compacted=False,
    )


def test_rules_follow_the_overrides() -> None:
    overrides = {
        "max.message.bytes": " 77 ",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "5",
        "message.timestamp.after.max.ms": "6",
        "compression.type": "zstd",
        "compression.zstd.level": "19",
        "compression.gzip.level": "1",
        "cleanup.policy": "delete,compact",
    }
    assert rules_of(overrides, DEFAULTS) == TopicRules(
        max_message_bytes=77,
        is_log_append_time=True,
        timestamp_before_max_ms=5,
        timestamp_after_max_ms=6,
        compression="zstd",
        compression_level=19,
        is_compacted=True,
    )


@pytest.mark.parametrize(
    ("overrides", "codec", "level"),
    [
        ({"compression.type": "uncompressed"}, "uncompressed", None),
        ({"compression.type": "snappy"}, "snappy", None),
        ({"compression.type": "gzip"}, "gzip", None),
        ({"compression.type": "gzip", "compression.gzip.level": "9"}, "gzip", 9),
        ({"compression.type": "lz4", "compression.lz4.level": "9"}, "lz4", None),
        ({"compression.type": "lz4", "compression.lz4.level": "12"}, "lz4", 12),
        ({"compression.type": "zstd", "compression.zstd.level": "-7"}, "zstd", -7),
        ({"compression.type": "producer", "compression.gzip.level": "9"}, None, None),
    ],
)
def test_level_belongs_to_the_codec(overrides: dict[str, str], codec: str | None, level: int | None) -> None:
    rules = rules_of(overrides, DEFAULTS)
    assert (rules.compression, rules.compression_level) == (codec, level)


def test_brokers_setting_counts_unless_the_topic_says_otherwise() -> None:
    defaults = TopicDefaults(message_max_bytes=2000)
    assert rules_of({}, defaults).max_message_bytes == 2000
    assert rules_of({"max.message.bytes": "3000"}, defaults).max_message_bytes == 3000


def test_stored_value_that_is_not_understood_counts_as_not_set() -> None:
    stored = {"max.message.bytes": "a lot", "cleanup.policy": "burn", "headrace.of.tomorrow": "1"}
    assert rules_of(stored, TopicDefaults(message_max_bytes=2000)) == rules_of(
        {}, TopicDefaults(message_max_bytes=2000)
    )
    assert effective(stored, DEFAULTS) == effective({}, DEFAULTS)


def test_value_names_its_source_and_everything_it_stands_in_front_of() -> None:
    defaults = TopicDefaults(message_max_bytes=2000)
    plain, given_, overridden = (
        shown({}, "max.message.bytes"),
        shown({}, "max.message.bytes", defaults),
        shown({"max.message.bytes": " 0077 "}, "max.message.bytes", defaults),
    )
    assert (plain.value, plain.source) == ("1048588", ConfigSource.DEFAULT_CONFIG)
    assert (given_.value, given_.source) == ("2000", ConfigSource.STATIC_BROKER_CONFIG)
    assert (overridden.value, overridden.source) == ("77", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert [(one.name, one.value, one.source) for one in overridden.synonyms] == [
        ("max.message.bytes", "77", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("message.max.bytes", "2000", ConfigSource.STATIC_BROKER_CONFIG),
        ("message.max.bytes", "1048588", ConfigSource.DEFAULT_CONFIG),
    ]
    assert overridden.synonyms[1:] == given_.synonyms and given_.synonyms[1:] == plain.synonyms


def test_config_without_a_brokers_name_has_no_synonym_until_it_is_set() -> None:
    name = "remote.storage.enable"
    assert (shown({}, name).value, shown({}, name).synonyms) == ("false", ())
    assert [one.name for one in shown({name: "TRUE"}, name).synonyms] == [name]
    assert shown({name: "TRUE"}, name).value == "true"


def test_effective_lists_every_config_once_by_name() -> None:
    names = [value.name for value in effective({"retention.ms": "1"}, DEFAULTS)]
    assert names == sorted(TOPIC_CONFIGS)


@pytest.mark.parametrize(
    ("policy", "may"), [("delete", True), ("compact", False), ("compact,delete", True), ("", True), (None, True)]
)
def test_records_go_by_offset_unless_compaction_alone_rules(policy: str | None, may: bool) -> None:
    assert may_delete_records({} if policy is None else {"cleanup.policy": policy}) is may


@pytest.mark.parametrize(
    ("now", "elements", "is_append", "after"),
    [
        (None, "compact", True, "delete,compact"),
        ("compact", "compact", True, "compact"),
        ("compact,delete", "delete", False, "compact"),
        ("compact", "compact", False, ""),
        ("compact", "burn", False, "compact"),
        ("compact", "", True, "compact"),
        ("", " delete , compact ", True, "delete,compact"),
    ],
)
def test_list_grows_and_shrinks_from_what_holds_now(
    now: str | None, elements: str, is_append: bool, after: str
) -> None:
    overrides = {} if now is None else {"cleanup.policy": now}
    assert edited_list("cleanup.policy", overrides, elements, is_append=is_append) == after


@pytest.mark.parametrize("name", ["retention.ms", "nothing.like.it"])
def test_only_lists_can_be_edited(name: str) -> None:
    with pytest.raises(InvalidTopicConfig):
        edited_list(name, {}, "1", is_append=True)


@given(st.sampled_from(sorted(TOPIC_CONFIGS)), st.text(max_size=30) | st.integers().map(str) | st.floats().map(str))
def test_whatever_is_accepted_has_one_spelling_and_gives_rules(name: str, value: str) -> None:
    try:
        check_configs({name: value})
    except InvalidTopicConfig:
        return
    spelled = shown({name: value}, name)
    assert spelled.source is ConfigSource.DYNAMIC_TOPIC_CONFIG and spelled.value is not None
    assert shown({name: spelled.value}, name) == spelled
    assert rules_of({name: value}, DEFAULTS) == rules_of({name: spelled.value}, DEFAULTS)
