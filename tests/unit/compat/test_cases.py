"""Lists of cases: what is read from them, what is refused, and what a form asks for."""

from pathlib import Path

import pytest

from compat.cases import BadCases, chosen_cases, load_cases
from compat.clients import CLIENTS, Client

LIST = """
[passes]
first = "short"
second = "full"

[not-yet]
third = "groups are not served yet"
"""


def _write(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "cases.toml"
    path.write_text(content, encoding="utf-8")
    return path


def test_list_keeps_its_order_and_its_reasons(tmp_path: Path) -> None:
    cases = load_cases(_write(tmp_path, LIST))
    assert [(case.name, case.is_short, case.reason) for case in cases] == [
        ("first", True, None),
        ("second", False, None),
        ("third", False, "groups are not served yet"),
    ]


@pytest.mark.parametrize(
    ("short", "try_not_yet", "names"),
    [
        (True, False, ["first"]),
        (False, False, ["first", "second"]),
        (False, True, ["first", "second", "third"]),
        (True, True, ["first", "third"]),
    ],
)
def test_form_chooses_its_cases(tmp_path: Path, short: bool, try_not_yet: bool, names: list[str]) -> None:
    cases = load_cases(_write(tmp_path, LIST))
    assert [case.name for case in chosen_cases(cases, short=short, try_not_yet=try_not_yet)] == names


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[passes]\none = "often"\n', "short"),
        ('[not-yet]\none = ""\n', "reason"),
        ('[passes]\none = "full"\n[not-yet]\none = "later"\n', "both"),
        ("[fails]\n", "fails"),
    ],
)
def test_wrong_list_is_refused_with_its_place(tmp_path: Path, content: str, said: str) -> None:
    path = _write(tmp_path, content)
    with pytest.raises(BadCases, match=said) as raised:
        load_cases(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
def test_every_client_has_a_list_and_its_findings(client: Client) -> None:
    assert load_cases(client.cases_path)
    assert (client.path / "FINDINGS.md").read_text(encoding="utf-8").startswith("# ")
