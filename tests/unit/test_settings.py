"""The settings tree: that every declaration is sound, and that the values come from where they should."""

import re
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest

from headrace.errors import Invalid
from headrace.runtime.configuration import Setting, groups_of
from headrace.runtime.setting_kinds import Address
from headrace.settings import VARIABLES_THAT_ARE_NOT_SETTINGS, Settings, all_settings, load_settings

UNITS_BY_ENDING = {"ms": "ms", "bytes": "bytes"}


def _sources(**layers: Any) -> dict[str, str]:
    return {origin.setting.key: origin.source for origin in load_settings(**layers).origins}


def test_defaults_serve_on_one_host_with_data_in_the_data_directory() -> None:
    settings = load_settings().tree
    assert settings.network.listeners == Address(host="127.0.0.1", port=9092)
    assert settings.network.http_listen == Address(host="127.0.0.1", port=8080)
    assert settings.broker.data_dir == Path("data")
    assert settings.metadata.url == "sqlite:data/meta.db"
    assert settings.objects.url == "file:data/objects"
    assert settings.broker.rack is None


def test_the_embedded_stores_follow_the_data_directory_unless_they_are_named() -> None:
    settings = load_settings(pairs=["data.dir=/srv/h", "objects.url=s3://bucket/{data.dir}"]).tree
    assert settings.metadata.url == "sqlite:/srv/h/meta.db"
    assert settings.objects.url == "s3://bucket/{data.dir}"


def test_a_tree_cannot_be_changed() -> None:
    settings = load_settings().tree
    with pytest.raises(AttributeError):
        settings.broker.node_id = 7  # type: ignore[misc]


def test_command_line_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text("num.partitions = 2\nnode.id = 2\nmessage.max.bytes = 2222\n")
    layers: dict[str, Any] = {
        "file": file,
        "environment": {"HEADRACE_NUM_PARTITIONS": "3", "HEADRACE_NODE_ID": "3", "HOME": "/"},
        "pairs": ["num.partitions=4"],
    }
    settings = load_settings(**layers).tree
    assert settings.topics.num_partitions == 4
    assert settings.broker.node_id == 3
    assert settings.topics.message_max_bytes == 2222
    assert settings.broker.session_timeout_ms == 5000
    sources = _sources(**layers)
    assert sources["num.partitions"] == "--set"
    assert sources["node.id"] == "variable HEADRACE_NODE_ID"
    assert sources["message.max.bytes"] == f"file {file}"
    assert sources["broker.session.timeout.ms"] == "default"


def test_an_option_of_its_own_is_named_as_the_source() -> None:
    assert _sources(options={"listeners": ("--kafka", "127.0.0.1:0")})["listeners"] == "--kafka"


def test_the_same_key_twice_on_the_command_line_is_refused() -> None:
    with pytest.raises(Invalid, match=r"node\.id is given twice: --node-id and --set"):
        load_settings(pairs=["node.id=1"], options={"node.id": ("--node-id", "2")})


@pytest.mark.parametrize("setting", all_settings(), ids=lambda setting: setting.key)
def test_a_misspelt_key_names_the_nearest_known_one(setting: Setting) -> None:
    misspelt = setting.key[:-1] if len(setting.key) > 8 else setting.key + "x"
    with pytest.raises(Invalid, match=re.escape(f"did you mean {setting.key}?")):
        load_settings(pairs=[f"{misspelt}=1"])


def test_a_misspelt_variable_names_the_nearest_known_one() -> None:
    with pytest.raises(Invalid, match=r"HEADRACE_NUM_PARTITON; did you mean HEADRACE_NUM_PARTITIONS\?"):
        load_settings(environment={"HEADRACE_NUM_PARTITON": "3"})


def test_variables_that_are_not_settings_are_left_alone() -> None:
    load_settings(environment=dict.fromkeys(VARIABLES_THAT_ARE_NOT_SETTINGS, "1"))
    assert not VARIABLES_THAT_ARE_NOT_SETTINGS & {setting.variable for setting in all_settings()}


def test_no_two_keys_share_a_variable_and_none_is_another_ones_table() -> None:
    keys = [setting.key for setting in all_settings()]
    assert len({setting.variable for setting in all_settings()}) == len(keys) == len(set(keys))
    assert not [(a, b) for a in keys for b in keys if b.startswith(a + ".")], "TOML could not nest both"


def test_a_wildcard_address_needs_one_that_clients_can_reach() -> None:
    with pytest.raises(Invalid, match=r"advertised\.listeners"):
        load_settings(pairs=["listeners=0.0.0.0:9092"])
    settings = load_settings(pairs=["listeners=[::]:9092", "advertised.listeners=broker.example:9092"]).tree
    assert str(settings.network.advertised_listeners) == "broker.example:9092"


@pytest.mark.parametrize("key", ["log.retention.ms", "log.retention.minutes", "log.retention.hours"])
def test_default_retention_that_would_delete_everything_at_once_is_refused(key: str) -> None:
    with pytest.raises(Invalid, match=f"{key} is 0, .* set -1"):
        load_settings(pairs=[f"{key}=0"])
    assert load_settings(pairs=[f"{key}=-1"]).tree.retention.default_ms == -1


def test_retention_in_ms_wins_over_minutes_and_those_over_hours() -> None:
    pairs = ["log.retention.hours=0", "log.retention.minutes=2"]
    assert load_settings(pairs=pairs).tree.retention.default_ms == 120_000, "what does not count is not looked at"
    assert load_settings(pairs=[*pairs, "log.retention.ms=1"]).tree.retention.default_ms == 1


@pytest.mark.parametrize(
    "pairs", [["wal.frame.max.bytes=2097152", "wal.segment.max.bytes=1048576"], ["socket.request.max.bytes=1024"]]
)
def test_limits_that_cannot_hold_together_are_refused(pairs: list[str]) -> None:
    with pytest.raises(Invalid, match="more than"):
        load_settings(pairs=pairs)


@pytest.mark.parametrize("setting", all_settings(), ids=lambda setting: setting.key)
def test_every_setting_is_declared_in_full(setting: Setting) -> None:
    assert re.fullmatch(r"[a-z]+(\.[a-z]+)*", setting.key)
    assert setting.sentence[0].isupper() and setting.sentence.endswith(".") and len(setting.sentence) > 20
    ending = setting.key.rsplit(".", 1)[-1]
    assert setting.unit == UNITS_BY_ENDING.get(ending, setting.unit)


def test_every_default_has_the_type_of_its_field() -> None:
    tree = load_settings().tree
    for group in groups_of(Settings):
        hints = get_type_hints(group.shape)
        for name in group.settings:
            expected = tuple if get_origin(hints[name]) is tuple else hints[name]
            assert isinstance(getattr(getattr(tree, group.name), name), expected), name
        assert group.sentence.endswith(".")
