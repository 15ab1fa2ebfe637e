"""Layers and their errors, on a small tree of the test's own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Invalid
from headrace.runtime.configuration import (
    MAX_SHOWN_CHARS,
    Given,
    Setting,
    read_arguments,
    read_environment,
    read_file,
    resolve,
)
from headrace.runtime.setting_kinds import Url, Whole

TIMEOUT = Setting("timeout.ms", 5, Whole(maximum=100), "How long to wait.", unit="ms")
STORE = Setting("store.url", "file:{timeout.ms}", Url(("file", "pg")), "Where it lies.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A group."""

    timeout_ms: Annotated[int, TIMEOUT]
    store: Annotated[str, STORE]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    group: _Group


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", ["timeout.ms = 7", "[timeout]\nms = 7", '"timeout.ms" = 7', "timeout = {ms = 7}"])
def test_toml_may_nest_or_quote_a_key(tmp_path: Path, text: str) -> None:
    assert resolve(_Tree, [read_file(_write(tmp_path, text))]).tree.group.timeout_ms == 7


def test_a_key_that_is_nested_and_quoted_in_one_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"timeout\.ms is given twice"):
        read_file(_write(tmp_path, 'timeout.ms = 7\n"timeout.ms" = 8'))


@pytest.mark.parametrize("content", [b"timeout.ms = ", b"\xff\xfe", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(content)
    with pytest.raises(Invalid, match=r"settings\.toml is not TOML"):
        read_file(path)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"cannot read the settings file .*nowhere\.toml"):
        read_file(tmp_path / "nowhere.toml")


def test_an_unknown_key_in_a_file_names_file_and_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        Invalid, match=r"no setting is called timeot\.ms \(file .*settings\.toml\); did you mean timeout\.ms\?"
    ):
        resolve(_Tree, [read_file(_write(tmp_path, "timeot.ms = 3"))])


@pytest.mark.parametrize("misspelt", ["Timeout.Ms", "timeout_ms", "TIMEOUT-MS"])
def test_nearness_ignores_case_and_punctuation(misspelt: str) -> None:
    with pytest.raises(Invalid, match=r"did you mean timeout\.ms\?"):
        resolve(_Tree, [read_arguments([f"{misspelt}=1"], {})])


def test_a_default_follows_an_earlier_setting_and_a_given_value_does_not() -> None:
    assert resolve(_Tree, [{"timeout.ms": Given(9, "test")}]).tree.group.store == "file:9"
    assert resolve(_Tree, [{"store.url": Given("file:{timeout.ms}", "test")}]).tree.group.store == "file:{timeout.ms}"


@pytest.mark.parametrize("raw", ["", "x", "101", "-1", "1.0", 1.0, True, [], "9" * 5000, "٣"])
def test_a_bad_value_names_key_value_source_and_what_is_expected(raw: object) -> None:
    with pytest.raises(
        Invalid, match=r"timeout\.ms is .* \(variable HEADRACE_X\); expected a whole number from 0 to 100"
    ):
        resolve(_Tree, [{"timeout.ms": Given(raw, "variable HEADRACE_X")}])


def test_no_error_and_no_listing_shows_a_password() -> None:
    good = "pg://user:hunter2@host/db?password=hunter2&application_name=x"
    [origin] = [o for o in resolve(_Tree, [{"store.url": Given(good, "test")}]).origins if o.setting is STORE]
    assert origin.value == good
    assert origin.shown == "pg://***@host/db?password=***&application_name=x"
    with pytest.raises(Invalid) as caught:
        resolve(_Tree, [{"store.url": Given("xpg://user:hunter2@host", "test")}])
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


@pytest.mark.parametrize("pair", ["", "=1", "timeout.ms", "  =2"])
def test_a_pair_without_a_key_or_value_is_refused(pair: str) -> None:
    with pytest.raises(Invalid, match="--set takes key=value"):
        read_arguments([pair], {})


def test_a_value_may_hold_equal_signs() -> None:
    assert read_arguments(["store.url=file:a=b"], {})["store.url"].raw == "file:a=b"


def test_only_our_variables_are_read() -> None:
    found = read_environment(
        {"HEADRACE_TIMEOUT_MS": "3", "TIMEOUT_MS": "4", "HEADRACE_OWN": "5"}, [TIMEOUT], not_settings={"HEADRACE_OWN"}
    )
    assert found == {"timeout.ms": Given("3", "variable HEADRACE_TIMEOUT_MS")}


@given(st.text(max_size=400))
def test_any_unknown_key_gives_one_bounded_line(key: str) -> None:
    with pytest.raises(Invalid) as caught:
        resolve(_Tree, [{key + "?": Given(1, "test")}])
    assert str(caught.value).isprintable() and len(str(caught.value)) < 2 * MAX_SHOWN_CHARS
