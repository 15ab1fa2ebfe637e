"""The fuzz tool says by its exit code whether a target held."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.fuzz_wal import frame_seeds

ROOT = Path(__file__).parents[3]


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "fuzz.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_input_can_be_replayed(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(frame_seeds()[0])
    done = run_tool("--replay", str(tmp_path / "input"), "frame", "chunk")
    assert done.returncode == 0, done.stderr


def test_an_unknown_target_is_named_with_those_there_are() -> None:
    done = run_tool("nonsense")
    assert done.returncode == 2
    assert "no such target: nonsense; there are frame, chunk" in done.stderr


def test_a_short_run_ends_well(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    command = [sys.executable, str(ROOT / "tools" / "fuzz.py"), "--seconds", "1", "frame"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "all held: frame" in done.stdout
    assert list((tmp_path / "build" / "fuzz" / "frame" / "corpus").iterdir())


def test_a_target_that_breaks_is_told_by_the_exit_code(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    tool = (ROOT / "tools" / "fuzz.py").read_text()
    planted = tool.replace("headrace.testing.fuzz_wal:fuzz_frame", "planted:break_on_magic")
    assert planted != tool
    (tmp_path / "fuzz.py").write_text(planted)
    (tmp_path / "planted.py").write_text("def break_on_magic(data):\n    assert data[:4] != b'HRWF'\n")
    command = [sys.executable, str(tmp_path / "fuzz.py"), "--seconds", "20", "frame"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "broken: frame" in done.stdout
    assert list((tmp_path / "build" / "fuzz" / "frame").glob("crash-*"))
