"""`headrace collect` from the outside: beside a broker, and without one."""

import json
from pathlib import Path

import pytest

from headrace.cli.main import run
from headrace.index.objects import wal_object_id, wal_object_key
from headrace.model.ids import DomainId, WriterId
from tests.servers.headrace import running_headrace

ORPHAN = wal_object_key(DomainId(0), wal_object_id(WriterId("0c" * 16), 0))


@pytest.fixture(autouse=True)
def quiet_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)


def leave_orphan(data_dir: Path) -> Path:
    path = data_dir / "objects" / ORPHAN
    path.parent.mkdir(parents=True)
    path.write_bytes(b"frame")
    return path


def test_what_nothing_names_is_shown_and_then_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["collect", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0 objects deleted, 0 bytes as far as their sizes are known\n"
    orphan = leave_orphan(tmp_path)
    assert (
        run(
            [
                "collect",
                "--data-dir",
                str(tmp_path),
                "--set",
                "wal.orphan.age.floor.ms=0",
                "--dry-run",
                "--output",
                "json",
            ]
        )
        == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert shown == [{"key": ORPHAN, "bytes": 5, "why": "orphan"}] and orphan.exists()
    assert run(["collect", "--data-dir", str(tmp_path), "--set", "wal.orphan.age.floor.ms=0"]) == 0
    assert f"{ORPHAN}" in capsys.readouterr().out and not orphan.exists()


def test_it_takes_its_turn_beside_a_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data_dir = tmp_path / "data"
    with running_headrace(data_dir):
        orphan = leave_orphan(data_dir)
        assert run(["collect", "--data-dir", str(data_dir), "--set", "wal.orphan.age.floor.ms=0"]) == 0
    assert "objects deleted" in capsys.readouterr().out
    assert not orphan.exists(), "the one or the other has deleted it"
