"""What can be set for brokers while they run: names, values, what holds together, and how tools are shown it."""

import pytest

from headrace.broker.dynamic_configs import SETTINGS, BrokerConfigRules, is_dynamic, kept, layers_of
from headrace.cluster.broker_configs import InvalidBrokerConfig, NoList
from headrace.runtime.setting_kinds import Address
from headrace.settings import load_settings
from headrace.topics.config_kinds import ConfigType
from headrace.topics.configs import TOPIC_CONFIG_OF, ConfigSource, ConfigValue

ASKED_BY_TOOLS = (
    "advertised.listeners",
    "auto.create.topics.enable",
    "broker.id",
    "broker.rack",
    "compression.type",
    "connections.max.idle.ms",
    "default.replication.factor",
    "delete.topic.enable",
    "group.initial.rebalance.delay.ms",
    "group.max.size",
    "inter.broker.listener.name",
    "listeners",
    "log.cleaner.delete.retention.ms",
    "log.cleaner.enable",
    "log.cleaner.max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio",
    "log.cleaner.min.compaction.lag.ms",
    "log.cleanup.policy",
    "log.dir",
    "log.dirs",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
    "log.index.size.max.bytes",
    "log.message.timestamp.type",
    "log.retention.bytes",
    "log.retention.check.interval.ms",
    "log.retention.hours",
    "log.retention.minutes",
    "log.retention.ms",
    "log.roll.ms",
    "log.segment.bytes",
    "max.connections.per.ip",
    "message.max.bytes",
    "min.insync.replicas",
    "node.id",
    "num.partitions",
    "offsets.retention.minutes",
    "offsets.topic.replication.factor",
    "process.roles",
    "producer.id.expiration.ms",
    "socket.request.max.bytes",
    "unclean.leader.election.enable",
)


def rules(*pairs: str) -> BrokerConfigRules:
    return BrokerConfigRules(load_settings(pairs=pairs), told=lambda: Address(host="broker.example", port=9092))


def refusal(made: BrokerConfigRules, **own: str) -> str:
    """Return why something cannot be set for this broker; `num_partitions` is `num.partitions`."""
    values = {name.replace("_", "."): value for name, value in own.items()}
    with pytest.raises(InvalidBrokerConfig) as refused:
        made.check(values, for_all={}, own=values)
    return str(refused.value)


def shown(made: BrokerConfigRules, name: str, **layers: dict[str, str]) -> ConfigValue:
    (found,) = [
        one for one in made.describe(for_all=layers.get("for_all", {}), own=layers.get("own", {})) if one.name == name
    ]
    return found


def test_what_cannot_change_is_refused_by_name_all_at_once() -> None:
    said = refusal(rules(), node_id="7", log_dirs="x", num_partitions="3", broker_id="7")
    assert "[broker.id, log.dirs, node.id]" in said and "start it again" in said


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    assert "did you mean num.partitions?" in refusal(rules(), num_partitons="3")
    assert "'background.threads' that could be changed" in refusal(rules(), background_threads="3")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("num.partitions", "many", "a whole number from 1"),
        ("num.partitions", "0", "a whole number from 1"),
        ("message.max.bytes", "-1", "a whole number"),
        ("message.max.bytes", "10", "a whole number from 1024"),
        ("auto.create.topics.enable", "perhaps", "true or false"),
        ("compression.type", "rar", "one of uncompressed"),
        ("log.cleanup.policy", "burn", "a list of compact and delete"),
        ("log.retention.ms", "-2", "a whole number from -1"),
        ("log.retention.ms", "0", "every topic would lose its records"),
        ("leader.replication.throttled.rate", "-1", "a whole number from 0"),
        ("compression.type", "x" * 40_000, "40000 characters"),
    ],
)
def test_values_are_refused_with_what_is_expected(name: str, value: str, why: str) -> None:
    assert why in refusal(rules(), **{name: value})


def test_values_are_checked_together_with_the_settings_and_what_is_set_for_all() -> None:
    made = rules("socket.request.max.bytes=2000000")
    assert "socket.request.max.bytes, 2000000" in refusal(made, message_max_bytes="2000001")
    with pytest.raises(InvalidBrokerConfig, match="no member could join"):
        low = {"group.max.session.timeout.ms": "5000"}
        made.check(low, for_all=low, own={"group.min.session.timeout.ms": "6000"})
    both = {"group.min.session.timeout.ms": "2000000", "group.max.session.timeout.ms": "3000000"}
    made.check(both, for_all={}, own=both)


def test_what_another_release_stored_does_not_stand_in_the_way() -> None:
    stored = {"from.the.future": "1", "num.partitions": "a dozen"}
    rules().check({"group.max.size": "5"}, for_all=stored, own={"group.max.size": "5"})


def test_a_contradiction_costs_only_the_value_that_makes_it() -> None:
    settings = load_settings(pairs=["socket.request.max.bytes=2000000"]).tree
    stored = {"log.retention.ms": "-1", "message.max.bytes": "3000000", "num.partitions": "4", "what": "1"}
    after, counts = kept(settings, for_all=stored, own={})
    assert counts == {"log.retention.ms": "-1", "num.partitions": "4"}
    assert (after.retention.default_ms, after.topics.num_partitions) == (-1, 4)
    assert after.topics.message_max_bytes == settings.topics.message_max_bytes
    (layer,) = layers_of(settings, for_all=stored, own={})
    assert layer.values == counts


def test_what_is_set_for_a_broker_wins_where_it_is_understood() -> None:
    settings = load_settings().tree
    after, _ = kept(settings, for_all={"num.partitions": "4"}, own={"num.partitions": "5"})
    assert after.topics.num_partitions == 5
    after, _ = kept(settings, for_all={"num.partitions": "4"}, own={"num.partitions": "five"})
    assert after.topics.num_partitions == 4


def test_tools_find_the_configs_that_they_ask_for() -> None:
    found = {one.name: one for one in rules("node.id=4").describe(for_all={}, own={})}
    assert set(ASKED_BY_TOOLS) <= set(found)
    assert found["broker.id"].value == "4"
    assert found["listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert found["advertised.listeners"].value == "PLAINTEXT://broker.example:9092"
    assert (found["default.replication.factor"].value, found["delete.topic.enable"].value) == ("1", "true")
    assert (found["num.partitions"].type, found["log.retention.bytes"].type) == (ConfigType.INT, ConfigType.LONG)
    assert found["log.cleanup.policy"].type == ConfigType.LIST
    assert all(one.is_read_only is not is_dynamic(name) for name, one in found.items())
    assert all(one.documentation for one in found.values())


def test_retention_is_shown_as_kafka_shows_it() -> None:
    assert shown(rules(), "log.retention.minutes").value is None
    unset = shown(rules(), "log.retention.ms")
    assert [(one.name, one.value, one.source) for one in unset.synonyms] == [
        ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG)
    ]
    given = shown(rules("log.retention.minutes=5"), "log.retention.ms", own={"log.retention.ms": " 77 "})
    assert (given.value, given.source) == ("77", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert [(one.name, one.value) for one in given.synonyms] == [
        ("log.retention.ms", "77"),
        ("log.retention.minutes", "5"),
        ("log.retention.hours", "168"),
    ]


def test_limits_of_replicas_that_move_are_taken_and_shown_while_they_are_set() -> None:
    name = "leader.replication.throttled.rate"
    rules().check({name: "1000"}, for_all={}, own={name: "1000"})
    assert name not in {one.name for one in rules().describe(for_all={}, own={})}
    assert shown(rules(), name, own={name: "1000"}).value == "1000"


def test_what_is_set_for_all_is_shown_alone() -> None:
    found = rules().describe_for_all({"num.partitions": " 4 ", "what": "1", "compression.type": "lz4"})
    assert [(one.name, one.value, one.source, one.is_read_only) for one in found] == [
        ("compression.type", "lz4", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, False),
        ("num.partitions", "4", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, False),
    ]


def test_only_lists_are_added_to() -> None:
    made = rules()
    assert made.edited("log.cleanup.policy", None, "compact", is_append=True) == "delete,compact"
    assert made.edited("log.cleanup.policy", "compact", "compact", is_append=False) == ""
    for name in ("num.partitions", "log.dirs", "compression.type"):
        with pytest.raises(NoList, match="no list"):
            made.edited(name, None, "x", is_append=True)


def test_every_default_of_topics_can_change() -> None:
    assert all(is_dynamic(name) for name in TOPIC_CONFIG_OF)
    assert not is_dynamic("log.retention.hours") and not is_dynamic("queued.max.request.bytes")
    assert all(setting.key not in ("node.id", "listeners") for setting in SETTINGS.values() if setting.is_dynamic)
