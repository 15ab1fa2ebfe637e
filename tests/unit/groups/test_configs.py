"""Group configs: checked when they are set, kept in the store, known to every broker."""

import asyncio

import pytest

from headrace.errors import Corrupt, Invalid, Retryable
from headrace.groups import configs as configs_module
from headrace.groups.configs import (
    GROUP_CONFIG,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    GroupConfigRecord,
    GroupConfigs,
    InvalidGroupConfig,
    check_configs,
    config_of,
    effective,
)
from headrace.groups.protocol import GroupConfig
from headrace.metadata import keys
from headrace.metadata.port import Decision, Reads
from headrace.topics.configs import ConfigSource
from tests.unit.topics.registry_kit import SwiftClock, UnsureStore

DEFAULTS = GroupConfig(session_timeout_ms=45_000, heartbeat_interval_ms=None)


class Kit:
    """A store, and brokers that remember what is in it."""

    def __init__(self) -> None:
        self.store = UnsureStore()
        self.clock = SwiftClock()
        self.here = self.another()

    def another(self) -> GroupConfigs:
        return GroupConfigs(self.store, defaults=DEFAULTS, clock=self.clock)

    async def stored(self) -> list[str]:
        found = await self.store.range(keys.prefix_range(keys.GROUP_CONFIGS, limit=100))
        return [item.key for item in found]

    async def put(self, group_id: str, value: bytes) -> None:
        decision = Decision(result=None, puts={keys.group_config(group_id): value})
        await self.store.transact([keys.REGISTRY], Reads(), lambda _: decision)


@pytest.mark.parametrize(
    ("overrides", "session_ms", "interval_ms"),
    [
        ({}, 45_000, None),
        ({SESSION_TIMEOUT: "1000"}, 1_000, None),
        ({HEARTBEAT_INTERVAL: " 250 "}, 45_000, 250),
        ({HEARTBEAT_INTERVAL: "0"}, 45_000, None),
        ({SESSION_TIMEOUT: "from another release", "new.config": "1"}, 45_000, None),
    ],
)
def test_what_was_set_counts_where_it_is_understood(
    overrides: dict[str, str], session_ms: int, interval_ms: int | None
) -> None:
    assert config_of(overrides, DEFAULTS) == GroupConfig(
        session_timeout_ms=session_ms, heartbeat_interval_ms=interval_ms
    )


def test_group_can_go_back_to_an_interval_that_the_coordinator_chooses() -> None:
    fixed = GroupConfig(session_timeout_ms=45_000, heartbeat_interval_ms=5_000)
    assert config_of({SESSION_TIMEOUT: "50000"}, fixed).heartbeat_interval_ms == 5_000
    assert config_of({HEARTBEAT_INTERVAL: "0"}, fixed).heartbeat_interval_ms is None


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({SESSION_TIMEOUT: "999"}, "1000 to 3600000"),
        ({SESSION_TIMEOUT: "3600001"}, "1000 to 3600000"),
        ({SESSION_TIMEOUT: "soon\n"}, "soon"),
        ({HEARTBEAT_INTERVAL: "99"}, "100 to 600000, or 0"),
        ({HEARTBEAT_INTERVAL: "45000"}, "not less than consumer.session.timeout.ms"),
        ({SESSION_TIMEOUT: "2000", HEARTBEAT_INTERVAL: "2000"}, "not less than consumer.session.timeout.ms"),
        ({"consumer.session.timeout": "2000"}, "did you mean consumer.session.timeout.ms"),
        ({"share.auto.offset.reset": "earliest"}, "groups have no config 'share.auto.offset.reset'"),
        ({"x" * 1000: "1"}, "groups have no config"),
    ],
)
def test_wrong_configs_are_refused_with_a_sentence(overrides: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidGroupConfig) as refusal:
        check_configs(overrides, DEFAULTS)
    assert said in str(refusal.value)
    assert len(str(refusal.value)) < 300 and "\n" not in str(refusal.value)


def test_limits_themselves_are_allowed() -> None:
    check_configs({SESSION_TIMEOUT: "1000", HEARTBEAT_INTERVAL: "999"}, DEFAULTS)
    check_configs({SESSION_TIMEOUT: "3600000", HEARTBEAT_INTERVAL: "600000"}, DEFAULTS)


def test_values_are_shown_with_where_they_come_from() -> None:
    tuned = GroupConfig(session_timeout_ms=30_000, heartbeat_interval_ms=None)
    interval, session = effective({HEARTBEAT_INTERVAL: " 700 "}, tuned)
    assert (interval.name, interval.value, interval.source) == (
        HEARTBEAT_INTERVAL,
        "700",
        ConfigSource.DYNAMIC_GROUP_CONFIG,
    )
    assert [(one.value, one.source) for one in interval.synonyms] == [
        ("700", ConfigSource.DYNAMIC_GROUP_CONFIG),
        ("0", ConfigSource.DEFAULT_CONFIG),
    ]
    assert [(one.name, one.value, one.source) for one in session.synonyms] == [
        ("group.consumer.session.timeout.ms", "30000", ConfigSource.STATIC_BROKER_CONFIG),
        ("group.consumer.session.timeout.ms", "45000", ConfigSource.DEFAULT_CONFIG),
    ]
    assert (session.value, session.source) == ("30000", ConfigSource.STATIC_BROKER_CONFIG)
    assert session.documentation


async def test_what_is_set_is_known_here_at_once_and_elsewhere_after_a_refresh() -> None:
    kit = Kit()
    other = kit.another()
    await kit.here.set("g", {SESSION_TIMEOUT: "50000"})
    assert kit.here.of("g").session_timeout_ms == 50_000
    assert other.of("g") == DEFAULTS
    await other.refresh()
    assert other.of("g").session_timeout_ms == 50_000
    assert (other.known(), other.overrides("g")) == (["g"], {SESSION_TIMEOUT: "50000"})


async def test_changes_are_merged_and_the_last_one_unset_deletes_the_key() -> None:
    kit = Kit()
    other = kit.another()
    await kit.here.set("g", {SESSION_TIMEOUT: "50000"})
    await other.set("g", {HEARTBEAT_INTERVAL: "700"})
    await kit.here.refresh()
    assert kit.here.overrides("g") == {SESSION_TIMEOUT: "50000", HEARTBEAT_INTERVAL: "700"}
    await kit.here.set("g", {SESSION_TIMEOUT: None, "never.heard.of": None})
    assert kit.here.overrides("g") == {HEARTBEAT_INTERVAL: "700"}
    await kit.here.set("g", {HEARTBEAT_INTERVAL: None})
    assert (kit.here.known(), await kit.stored()) == ([], [])


async def test_replacing_forgets_what_is_not_named() -> None:
    kit = Kit()
    await kit.here.set("g", {SESSION_TIMEOUT: "50000"})
    await kit.here.set("g", {HEARTBEAT_INTERVAL: "700"}, replace=True)
    assert kit.here.overrides("g") == {HEARTBEAT_INTERVAL: "700"}
    await kit.here.set("g", {}, replace=True)
    assert await kit.stored() == []


async def test_configs_are_judged_together_with_those_in_the_store() -> None:
    kit = Kit()
    await kit.here.set("g", {HEARTBEAT_INTERVAL: "20000"})
    with pytest.raises(InvalidGroupConfig):
        await kit.here.set("g", {SESSION_TIMEOUT: "20000"})
    assert kit.here.overrides("g") == {HEARTBEAT_INTERVAL: "20000"}


async def test_validation_changes_nothing_but_says_what_is_wrong() -> None:
    kit = Kit()
    await kit.here.set("g", {SESSION_TIMEOUT: "50000"}, validate_only=True)
    assert await kit.stored() == []
    with pytest.raises(InvalidGroupConfig):
        await kit.here.set("g", {SESSION_TIMEOUT: "1"}, validate_only=True)


async def test_setting_what_is_set_already_writes_nothing() -> None:
    kit = Kit()
    await kit.here.set("g", {SESSION_TIMEOUT: "50000"})
    before = await kit.store.get(keys.group_config("g"))
    await kit.here.set("g", {SESSION_TIMEOUT: "50000"})
    assert await kit.store.get(keys.group_config("g")) == before


async def test_too_many_groups_are_refused_until_one_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs_module, "MAX_GROUPS_WITH_CONFIGS", 2)
    kit = Kit()
    other = kit.another()
    await kit.here.set("a", {SESSION_TIMEOUT: "50000"})
    await kit.here.set("b", {SESSION_TIMEOUT: "50000"})
    with pytest.raises(Invalid, match="2 groups have configs already"):
        await other.set("c", {SESSION_TIMEOUT: "50000"})
    await other.set("a", {HEARTBEAT_INTERVAL: "700"})
    await other.set("c", {SESSION_TIMEOUT: None})
    await other.set("b", {}, replace=True)
    await kit.here.set("c", {SESSION_TIMEOUT: "50000"})
    assert kit.here.known() == ["a", "c"]


async def test_what_was_committed_counts_although_it_could_not_be_read_back() -> None:
    kit = Kit()
    await kit.here.set("g", {SESSION_TIMEOUT: "50000"})
    kit.store.reads_fail = True
    await kit.here.set("g", {SESSION_TIMEOUT: "60000"})
    assert kit.here.of("g").session_timeout_ms == 50_000
    with pytest.raises(Retryable):
        await kit.here.refresh()
    kit.store.reads_fail = False
    await kit.here.refresh()
    assert kit.here.of("g").session_timeout_ms == 60_000


async def test_listeners_hear_of_groups_whose_configs_changed_and_of_no_others() -> None:
    kit = Kit()
    heard: list[tuple[str, int]] = []
    kit.here.on_change(lambda group_id: heard.append((group_id, kit.here.of(group_id).session_timeout_ms)))
    other = kit.another()
    for group_id in ("b", "a", "c"):
        await other.set(group_id, {SESSION_TIMEOUT: "50000"})
    await kit.here.refresh()
    assert heard == [("a", 50_000), ("b", 50_000), ("c", 50_000)]
    heard.clear()
    await other.set("b", {SESSION_TIMEOUT: "60000"})
    await other.set("c", {}, replace=True)
    await kit.here.refresh()
    await kit.here.refresh()
    assert heard == [("b", 60_000), ("c", 45_000)]


async def test_following_learns_of_changes_and_outlives_an_outage() -> None:
    kit = Kit()
    other = kit.another()
    follower = asyncio.create_task(other.follow())
    await kit.here.set("g", {SESSION_TIMEOUT: "50000"})
    while other.of("g") == DEFAULTS:
        await asyncio.sleep(0)
    kit.store.reads_fail = True
    await kit.here.set("g", {SESSION_TIMEOUT: "60000"})
    while not kit.clock.slept:
        await asyncio.sleep(0)
    kit.store.reads_fail = False
    while other.of("g").session_timeout_ms != 60_000:
        await asyncio.sleep(0)
    follower.cancel()
    with pytest.raises(asyncio.CancelledError):
        await follower


async def test_any_name_of_a_group_can_have_configs() -> None:
    kit = Kit()
    names = ["/", "a/b", "\x00", "é" * 1000, "%2F"]
    for name in names:
        await kit.here.set(name, {SESSION_TIMEOUT: "50000"})
    assert sorted(kit.here.known()) == sorted(names)
    assert all(len(key) < 700 for key in await kit.stored())


async def test_value_of_another_release_counts_as_not_set() -> None:
    kit = Kit()
    overrides = {SESSION_TIMEOUT: "never", HEARTBEAT_INTERVAL: "700"}
    await kit.put("g", GROUP_CONFIG.encode(GroupConfigRecord("g", overrides)))
    await kit.here.refresh()
    assert kit.here.of("g") == GroupConfig(session_timeout_ms=45_000, heartbeat_interval_ms=700)
    assert effective(kit.here.overrides("g"), DEFAULTS)[1].value == "45000"


async def test_damaged_record_is_never_taken_for_none() -> None:
    kit = Kit()
    await kit.put("g", b"\x01spoilt")
    with pytest.raises(Corrupt, match="group-configs/=g"):
        await kit.here.refresh()


def test_defaults_that_were_set_while_the_broker_runs_are_shown_as_such() -> None:
    name = "group.consumer.session.timeout.ms"
    sources = {name: ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, "group.max.size": ConfigSource.DYNAMIC_BROKER_CONFIG}
    (shown,) = [one for one in effective({}, DEFAULTS, sources) if one.name == SESSION_TIMEOUT]
    assert (shown.value, shown.source) == ("45000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    assert [one.source for one in shown.synonyms] == [
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        ConfigSource.DEFAULT_CONFIG,
    ]
