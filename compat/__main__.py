"""Drive a broker with the clients that people use, and compare what works with what is listed.

    python -m compat [--short] [--only NAME,NAME] [--bootstrap HOST:PORT] [--try-not-yet]

Exit code 0: every case that is listed as passing passed. 1: one did not. 2: the command line is wrong.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from compat.builds import BuildFailed
from compat.cases import Case, chosen_cases, load_cases
from compat.clients import CLIENTS, OWN_BROKERS, Client
from compat.results import Outcome, Verdict, closing_line, failed, judge, not_tried, table
from compat.running import driver_environment, run_driver
from tests.servers.headrace import running_headrace

DRIVERS_AT_ONCE = 2
BROKER_LOG_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What this run is asked to do."""

    short: bool
    try_not_yet: bool
    bootstrap: str
    own_brokers: bool
    run_id: str


RETENTION = {"log.retention.ms": "-2", "log.retention.check.interval.ms": "86400000"}
"""Clients look at the default, and write records of long ago: so it is the default, and nobody acts on it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the clients and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m compat", description="Drive a broker with foreign clients.")
    parser.add_argument("--short", action="store_true", help="fewer clients and cases: under five minutes")
    parser.add_argument("--only", metavar="NAME,NAME", help=f"of {', '.join(c.name for c in CLIENTS)}")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker that runs already (default: start one)")
    parser.add_argument("--try-not-yet", action="store_true", help="also run what is listed as not served yet")
    options = parser.parse_args(arguments)
    clients = _chosen_clients(parser, options.only, short=options.short)
    started = time.monotonic()
    with _broker(options.bootstrap) as (bootstrap, log):
        form = Form(
            short=options.short,
            try_not_yet=options.try_not_yet,
            bootstrap=bootstrap,
            own_brokers=options.bootstrap is None,
            run_id=format(int(time.time()), "x"),
        )
        with ThreadPoolExecutor(DRIVERS_AT_ONCE) as pool:
            outcomes = [one for found in pool.map(lambda client: drive(client, form), clients) for one in found]
    print(table(outcomes))
    if failed(outcomes) and log:
        print("The broker's last lines:", *log[-BROKER_LOG_LINES:], sep="\n  ", file=sys.stderr)
    print(closing_line(outcomes, time.monotonic() - started))
    return 1 if failed(outcomes) else 0


def drive(client: Client, form: Form) -> list[Outcome]:
    """Build and run one driver, and judge what it reports."""
    cases = load_cases(client.cases_path)
    asked = chosen_cases(cases, short=form.short, try_not_yet=form.try_not_yet)
    if not form.own_brokers:
        asked = tuple(case for case in asked if case.name not in OWN_BROKERS)
    waiting = [case for case in cases if case.reason is not None and case not in asked]
    outcomes = _attempt(client, asked, form) if asked else []
    return outcomes + not_tried(client.name, waiting)


def _attempt(client: Client, asked: Sequence[Case], form: Form) -> list[Outcome]:
    started = time.monotonic()
    try:
        driver = client.prepare(client.path)
    except BuildFailed as error:
        _say(f"{client.name}: its driver cannot be built: {error}")
        return judge(client.name, asked, (), f"not built: {error}")
    built = time.monotonic()
    prefix = f"{client.name.replace('_', '-')}-{form.run_id}"
    environment = driver_environment(form.bootstrap, prefix, [case.name for case in asked])
    run = run_driver(
        driver.command, {**driver.environment, **environment}, name=client.name, limit_seconds=client.limit_seconds
    )
    outcomes = judge(client.name, asked, run.reports, run.ending)
    bad = [one.case.name for one in outcomes if one.verdict is Verdict.FAILED]
    ended = time.monotonic()
    _say(
        f"{client.name}: {len(asked) - len(bad)} of {len(asked)} cases as listed "
        f"(built in {built - started:.0f} s, ran for {ended - built:.0f} s)"
    )
    if bad:
        _say(f"{client.name} failed {', '.join(bad)}; it said:\n{run.stderr}")
    return outcomes


def _chosen_clients(parser: argparse.ArgumentParser, only: str | None, *, short: bool) -> list[Client]:
    if only is None:
        return [client for client in CLIENTS if client.is_short or not short]
    by_name = {client.name: client for client in CLIENTS}
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in by_name]
    if unknown or not names:
        parser.error(f"--only: no client {', '.join(unknown) or 'named'}: there are {', '.join(by_name)}")
    return [by_name[name] for name in names]


@contextlib.contextmanager
def _broker(bootstrap: str | None) -> Iterator[tuple[str, list[str]]]:
    if bootstrap is not None:
        yield bootstrap, []
        return
    with (
        tempfile.TemporaryDirectory(prefix="headrace-compat-") as made,
        running_headrace(Path(made), settings=RETENTION) as broker,
    ):
        yield broker.bootstrap, broker.log


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
