"""The table and the stub are what the tool makes, and the tool keeps facts only."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools import extract_messages
from tools.extract_messages import STUB, TABLE, build_table, definitions, render_stub, render_table

DEFINITION = """// A licence.
{
  "apiKey": 7, "type": "request", "name": "PingRequest",
  // Version 1 adds a note.
  "validVersions": "1-2", "flexibleVersions": "2+",
  "fields": [
    { "name": "Note", "type": "string", "versions": "1+", "nullableVersions": "2+", "default": "null",
      "about": "Prose." },
    { "name": "Limit", "type": "int32", "versions": "2+", "taggedVersions": "2+", "tag": 0, "default": "0x7fffffff",
      "ignorable": true, "about": "Prose." }
  ]
}
"""


def message(name: str, versions: str, fields: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"apiKey": 7, "name": name, "validVersions": versions, "flexibleVersions": "2+", "fields": fields, **more}


def field(name: str, versions: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "int32", "versions": versions, "about": "Prose.", **more}


@pytest.fixture
def serve_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract_messages, "SERVED", {"Ping": (0, 2)})
    monkeypatch.setattr(extract_messages, "HEADERS", {})


def test_the_table_is_written_as_the_tool_writes_it() -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert render_table(json.loads(text)) == text
    assert "about" not in text


def test_the_stub_is_fresh() -> None:
    told = "stale: run `python tools/extract_messages.py --stub` and commit the result"
    assert STUB.read_text(encoding="utf-8") == render_stub(json.loads(TABLE.read_text(encoding="utf-8"))), told


def test_definitions_are_read_past_their_comments(tmp_path: Path) -> None:
    jar = tmp_path / "clients.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("common/message/PingRequest.json", DEFINITION)
        archive.writestr("common/message/README.md", "no definition")
    assert [field["name"] for field in definitions(jar)["PingRequest"]["fields"]] == ["Note", "Limit"]


@pytest.mark.usefixtures("serve_ping")
def test_only_facts_of_served_versions_are_kept_and_old_fields_stand_where_they_stood() -> None:
    new = {
        "PingRequest": message("PingRequest", "1-3", [field("A", "0+"), field("C", "1+"), field("Later", "3+")]),
        "PingResponse": message("PingResponse", "1-3", [field("Code", "0+", default="-1", ignorable=True)]),
    }
    old = {
        "PingRequest": message(
            "PingRequest", "0-2", [field("A", "0+"), field("B", "0", default="1"), field("C", "1+")]
        ),
        "PingResponse": message("PingResponse", "0-2", [field("Code", "0+")]),
    }
    [api] = build_table(new, old)["apis"]
    assert api["request"]["fields"] == [
        {"name": "A", "type": "int32"},
        {"name": "B", "type": "int32", "versions": [0, 0], "default": 1},
        {"name": "C", "type": "int32", "versions": [1, 2]},
    ]
    assert api["response"]["fields"] == [{"name": "Code", "type": "int32", "default": -1, "ignorable": True}]
    assert (api["key"], api["versions"], api["flexible"]) == (7, [0, 2], 2)


@pytest.mark.usefixtures("serve_ping")
def test_an_unstable_version_is_not_served() -> None:
    new = {
        "PingRequest": message("PingRequest", "0-2", [], latestVersionUnstable=True),
        "PingResponse": message("PingResponse", "0-2", []),
    }
    with pytest.raises(SystemExit, match=r"\(0, 2\) is served, \(0, 1\) is defined and stable"):
        build_table(new, {})
