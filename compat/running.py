"""Run one driver as a process, read its lines, and end it if it takes too long.

Must stay true: nothing that a driver started outlives it. Each runs in a process group of its own, which is killed in
the end.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compat.results import Report, parse_report

ROOT = Path(__file__).parents[1]
STDERR_LINES = 60
_KILL_WAIT_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRun:
    """What a driver said. `ending` tells how it ended, `stderr` is the end of what it complained of."""

    reports: tuple[Report, ...]
    ending: str
    stderr: str


def run_driver(
    command: Sequence[str], environment: Mapping[str, str], *, name: str, limit_seconds: float
) -> DriverRun:
    """Run a driver to its end, or kill it after `limit_seconds`."""
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_seconds)
            ending = f"the driver of {name} ended with code {code} before it reported this case"
        except subprocess.TimeoutExpired:
            ending = f"the driver of {name} was killed after its limit of {limit_seconds:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(_KILL_WAIT_SECONDS)
        out.seek(0)
        err.seek(0)
        lines = out.read().splitlines()
        complaints = err.read().splitlines()
    parsed = [(line, parse_report(line)) for line in lines]
    stray = [line for line, report in parsed if report is None]
    return DriverRun(
        reports=tuple(report for _, report in parsed if report is not None),
        ending=ending,
        stderr="\n".join((stray + complaints)[-STDERR_LINES:]),
    )


def driver_environment(bootstrap: str, prefix: str, cases: Sequence[str]) -> dict[str, str]:
    """Say a driver's task as README.md has it."""
    an_hour_ago_ms = int(time.time() - 3600) * 1000
    return {
        "COMPAT_BOOTSTRAP": bootstrap,
        "COMPAT_PREFIX": prefix,
        "COMPAT_EPOCH_MS": str(an_hour_ago_ms),
        "COMPAT_CASES": ",".join(cases),
    }
