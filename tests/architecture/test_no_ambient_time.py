"""STYLE 7: below the composition root nobody reads the clock, throws dice or makes ids by himself.

The rule is ruff's (`banned-api` in pyproject.toml). Here it is seen to bite, and to bite only where it should.
"""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

BANNED = [
    "import time\n\nNOW = time.time()\n",
    "import time\n\nNOW = time.time_ns()\n",
    "import time\n\nNOW = time.monotonic()\n",
    "import time\n\nNOW = time.perf_counter()\n",
    "from time import monotonic\n\nNOW = monotonic()\n",
    "import time\n\ntime.sleep(1)\n",
    "import datetime\n\nNOW = datetime.datetime.now(tz=datetime.UTC)\n",
    "import asyncio\n\n\nasync def pause() -> None:\n    await asyncio.sleep(1)\n",
    "import random\n\nDICE = random.random()\n",
    "from random import Random\n\nDICE = Random()\n",
    "import secrets\n\nTOKEN = secrets.token_hex()\n",
    "import uuid\n\nID = uuid.uuid4()\n",
    "import os\n\nNOISE = os.urandom(8)\n",
]
INNOCENT = "import datetime\nimport uuid\n\nID = uuid.UUID(int=0)\nDAY = datetime.date(2026, 1, 1)\n"


def _ruff(source: str, as_file: str) -> str:
    """Lint `source` under the project's configuration, as if it stood in `as_file`."""
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--select",
            "TID251",
            "--output-format",
            "concise",
            "--no-cache",
            "--stdin-filename",
            as_file,
            "-",
        ],
        input=source,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode in (0, 1), checked.stderr
    return checked.stdout


@pytest.mark.parametrize("source", BANNED, ids=lambda source: source.splitlines()[-1].strip())
def test_ambient_time_and_chance_are_refused(source: str) -> None:
    assert "TID251" in _ruff(source, "src/headrace/wal/planted.py")


def test_what_is_no_ambient_thing_is_left_alone() -> None:
    assert "TID251" not in _ruff(INNOCENT, "src/headrace/wal/planted.py")


@pytest.mark.parametrize("path", ["src/headrace/runtime/clock.py", "src/headrace/runtime/rng.py"])
def test_only_the_two_homes_may_touch_the_real_ones(path: str) -> None:
    assert "TID251" not in _ruff(BANNED[0], path)
    assert "TID251" not in _ruff(BANNED[8], path)


@pytest.mark.parametrize("path", ["broker.py", "cli/main.py", "testing/clock.py", "runtime/services.py"])
def test_nobody_else_is_excepted(path: str) -> None:
    assert "TID251" in _ruff(BANNED[0], f"src/headrace/{path}")


def test_no_file_excuses_itself() -> None:
    excused = [
        str(path.relative_to(PROJECT))
        for path in sorted((PROJECT / "src").rglob("*.py"))
        if any("noqa" in line and "TID251" in line for line in path.read_text(encoding="utf-8").splitlines())
    ]
    assert excused == []
