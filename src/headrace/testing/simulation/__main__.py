"""Run many histories: `python -m headrace.testing.simulation [--scenario SCENARIO] --seeds 2000 [--first 0]`.

A failing seed is printed with what it found, and replays alone: `--first SEED --seeds 1`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from os import cpu_count

from headrace.runtime.crash_points import CrashPoint
from headrace.testing.simulation.compaction.scenario import CRASH_POINTS as COMPACTION_CRASH_POINTS
from headrace.testing.simulation.compaction.scenario import run_compaction_seed
from headrace.testing.simulation.groups.scenario import CRASH_POINTS as GROUP_CRASH_POINTS
from headrace.testing.simulation.groups.scenario import run_group_seed
from headrace.testing.simulation.keeping.scenario import CRASH_POINTS as KEEPING_CRASH_POINTS
from headrace.testing.simulation.keeping.scenario import KeepingReport, run_keeping_seed
from headrace.testing.simulation.plan import FaultKind
from headrace.testing.simulation.report import Report
from headrace.testing.simulation.scenario import SIMULATED_CRASH_POINTS, run_seed
from headrace.testing.simulation.tables.scenario import CRASH_POINTS as TABLE_CRASH_POINTS
from headrace.testing.simulation.tables.scenario import run_table_seed

MAX_REPORTED = 10
SEEDS_PER_TASK = 10


SCENARIOS: dict[str, tuple[Callable[[int], Report], list[CrashPoint]]] = {
    "log": (run_seed, SIMULATED_CRASH_POINTS),
    "groups": (run_group_seed, GROUP_CRASH_POINTS),
    "tables": (run_table_seed, TABLE_CRASH_POINTS),
    "compaction": (run_compaction_seed, COMPACTION_CRASH_POINTS),
    "keeping": (run_keeping_seed, KEEPING_CRASH_POINTS),
}
"""What can be simulated, and which crash points lie in it."""


def attempt(scenario: str, seed: int) -> Report | str:
    """Run one seed in this process; return its report, or what went wrong as text."""
    run, _ = SCENARIOS[scenario]
    try:
        return run(seed)
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        return f"seed {seed}: {type(error).__name__}: {error}\n{notes}"


def main() -> int:
    """Run the seeds, print progress, failures and what was covered; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--scenario", choices=SCENARIOS, default="log", help="what is simulated")
    parser.add_argument("--workers", type=int, default=cpu_count() or 1, help="processes to use")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    failures: list[str] = []
    totals = Report(seed=-1)
    with ProcessPoolExecutor(options.workers) as pool:
        for done, outcome in enumerate(
            pool.map(partial(attempt, options.scenario), seeds, chunksize=SEEDS_PER_TASK), 1
        ):
            if isinstance(outcome, str):
                failures.append(outcome)
                say(outcome if len(failures) <= MAX_REPORTED else outcome.splitlines()[0])
            else:
                add(totals, outcome)
                if isinstance(outcome, KeepingReport):
                    say(outcome.bounds_line())
            if done % 100 == 0 or done == len(seeds):
                say(f"{done} of {len(seeds)} histories, {len(failures)} failed")
    summarise(totals, SCENARIOS[options.scenario][1])
    if failures:
        say(f"{len(failures)} of {len(seeds)} seeds failed; replay one with --seeds 1 --first SEED")
    return 1 if failures else 0


def add(totals: Report, report: Report) -> None:
    """Sum up what histories were like."""
    totals.record_count += report.record_count
    totals.read_count += report.read_count
    totals.crash_count += report.crash_count
    totals.retained_count += report.retained_count
    totals.pinned_count += report.pinned_count
    totals.virtual_seconds += report.virtual_seconds
    totals.faults.update(report.faults)
    totals.crash_points.update(report.crash_points)


def summarise(totals: Report, crash_points: list[CrashPoint]) -> None:
    """Print how much happened, and what never did: a fault that is never injected proves nothing."""
    say(
        f"{totals.record_count:,} records stored, {totals.read_count:,} read, {totals.crash_count:,} processes died, "
        f"{totals.retained_count:,} offsets expired, {totals.pinned_count:,} entries read under pins, "
        f"{totals.virtual_seconds / 3600:,.1f} virtual hours"
    )
    say("faults: " + counted(totals.faults, list(FaultKind)))
    say("crash points reached: " + counted(totals.crash_points, crash_points))


def counted(counts: "Counter[FaultKind] | Counter[CrashPoint]", names: "list[FaultKind] | list[CrashPoint]") -> str:
    return ", ".join(f"{name} {counts[name]:,}" for name in names)  # type: ignore[index]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
