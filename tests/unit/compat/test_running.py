"""Drivers as processes: their lines, their end, and what happens to one that hangs."""

import sys
import time
from pathlib import Path

from compat.running import driver_environment, run_driver

LIMIT_SECONDS = 60.0
LINE = '{"case": "one", "passed": true, "seconds": 0.1, "note": ""}'


def test_driver_is_told_its_task_and_its_lines_are_read() -> None:
    task = driver_environment("host:1", "prefix", ["one", "two"])
    program = "import os; assert os.environ['COMPAT_CASES'] == 'one,two'; print('noise'); print(os.environ['LINE'])"
    run = run_driver([sys.executable, "-c", program], {**task, "LINE": LINE}, name="it", limit_seconds=LIMIT_SECONDS)
    assert [report.case for report in run.reports] == ["one"]
    assert run.stderr == "noise"


def test_driver_that_fails_says_so_with_its_code() -> None:
    run = run_driver(
        [sys.executable, "-c", "import sys; sys.exit('no broker')"], {}, name="it", limit_seconds=LIMIT_SECONDS
    )
    assert "ended with code 1" in run.ending
    assert run.stderr == "no broker"


def test_driver_that_hangs_is_killed_with_its_children_and_keeps_its_lines(tmp_path: Path) -> None:
    child = tmp_path / "child"
    program = (
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(child)!r}).write_text(str(child.pid))\n"
        f"print({LINE!r}, flush=True)\n"
        "time.sleep(600)\n"
    )
    run = run_driver([sys.executable, "-c", program], {}, name="sloth", limit_seconds=5.0)
    assert "sloth was killed after its limit of 5 s" in run.ending
    assert [report.case for report in run.reports] == ["one"]
    pid = int(child.read_text())
    for _ in range(600):  # it was killed; the kernel takes a moment to end it
        if not _runs(pid):
            break
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
