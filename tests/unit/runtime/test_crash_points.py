"""Crash points: nothing in production, a kill where a test asks for one."""

import os
import signal
import subprocess
import sys

import pytest

from headrace.runtime.crash_points import CrashPoint, NoCrashes, crash_points_from

PROGRAM = """
import os
from headrace.runtime.crash_points import CrashPoint, crash_points_from
points = crash_points_from(os.environ)
points.reach(CrashPoint.WRITER_AFTER_WRITE)
print("once", flush=True)
points.reach(CrashPoint.WRITER_AFTER_STAGE)
points.reach(CrashPoint.WRITER_AFTER_WRITE)
print("twice", flush=True)
"""


def test_without_being_told_nothing_crashes() -> None:
    points = crash_points_from({})
    assert isinstance(points, NoCrashes)
    for point in CrashPoint:
        points.reach(point)


def test_the_process_dies_at_the_arrival_that_was_named() -> None:
    environment = {**os.environ, "HEADRACE_CRASH_AT": "writer.after-write:2"}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == "once\n"


def test_a_point_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError):
        crash_points_from({"HEADRACE_CRASH_AT": "writer.after-lunch"})
