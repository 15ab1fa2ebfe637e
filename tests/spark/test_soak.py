"""A soak in its short form: everything on, processes killed, and every record and every byte judged in the end.

`python -m benchmarks soak` makes ten minutes of it.
"""

from pathlib import Path

import pytest

from benchmarks.soak import soak
from benchmarks.soak.plan import quick_plan

pytestmark = [pytest.mark.timeout(900)]


def test_nothing_is_lost_and_nothing_piles_up_while_processes_are_killed(tmp_path: Path) -> None:
    soaked = soak(quick_plan(), tmp_path)
    assert soaked.written > 0 and soaked.kept_records > 0
    assert all(count > 0 for count in soaked.kills.values()), soaked.kills
