"""From what the load process saw to readings: which figure, in which unit, and what was promised about it."""

from collections.abc import Sequence

from benchmarks.beside_kafka.figures import Kind, Reading, percentile
from benchmarks.groups_beside_kafka.jobs import Done, Window

PERCENT = 100
US_PER_SECOND = 1e6
MS_PER_SECOND = 1e3
P50, P99 = 0.5, 0.99

SLACK_SECONDS = 0.05
"""Most times end with somebody's next heartbeat, so chance alone moves them by as much, whatever the broker does."""

CORE_SHARE = Kind(unit="% of a core", is_less_better=True)
CORE_SHARE_AIM = Kind(unit="% of a core", is_less_better=True, at_most=30.0)
PER_SECOND = Kind(unit="/s")
MICROSECONDS = Kind(unit="µs", is_less_better=True)
MILLISECONDS = Kind(unit="ms", is_less_better=True)
SECONDS = Kind(unit="s", is_less_better=True)
SECONDS_AS_KAFKA = Kind(unit="s", is_less_better=True, must_match_kafka=True, slack=SLACK_SECONDS)
SECONDS_AIM = Kind(unit="s", is_less_better=True, must_match_kafka=True, at_most=1.0, slack=SLACK_SECONDS)


class OwnedTwice(Exception):
    """Two members held one partition at one moment. A coordinator that allows it has no speed worth measuring."""


def check(done: Done, *, where: str) -> None:
    """Raise `OwnedTwice` if partitions were, unless a member was thrown out: it may not have heard of it in time."""
    if done.owned_twice and not done.fenced:
        raise OwnedTwice(f"{where}: {done.owned_twice} times a partition went to a member while another had it")


def window_readings(window: Window, *, has_aim: bool) -> list[Reading]:
    """Return what a stable fleet costs."""
    share = PERCENT * window.broker_cpu_seconds / window.seconds
    cost = US_PER_SECOND * window.broker_cpu_seconds / max(1, window.heartbeats)
    return [
        Reading(what="stable: broker CPU", value=share, kind=CORE_SHARE_AIM if has_aim else CORE_SHARE),
        Reading(what="stable: heartbeats served", value=window.heartbeats / window.seconds, kind=PER_SECOND),
        Reading(what="stable: broker CPU per heartbeat", value=cost, kind=MICROSECONDS),
    ]


def time_readings(what: str, seconds: Sequence[float], p99_kind: Kind) -> list[Reading]:
    """Return median and 99th percentile; nothing where nothing was measured."""
    if not seconds:
        return []
    return [
        Reading(what=f"{what}, p50", value=percentile(seconds, P50), kind=SECONDS),
        Reading(what=f"{what}, p99", value=percentile(seconds, P99), kind=p99_kind),
    ]


def commit_readings(done: Done) -> list[Reading]:
    """Return rate, times and cost of commits."""
    assert done.window is not None
    commits = len(done.commit_seconds)
    cost = US_PER_SECOND * done.window.broker_cpu_seconds / max(1, commits)
    return [
        Reading(what="commits", value=commits / done.window.seconds, kind=PER_SECOND),
        *(
            Reading(what=f"one commit, {name}", value=MS_PER_SECOND * value, kind=MILLISECONDS)
            for name, value in (
                ("p50", percentile(done.commit_seconds, P50)),
                ("p99", percentile(done.commit_seconds, P99)),
            )
        ),
        Reading(what="broker CPU per commit", value=cost, kind=MICROSECONDS),
    ]


def remark(done: Done) -> str:
    """Say how far the load process itself can be trusted, and whether something happened that should not."""
    parts = [f"the load was late by {MS_PER_SECOND * done.load_lag_seconds:.1f} ms at p99"]
    if done.window is not None:
        share = PERCENT * done.window.load_cpu_seconds / done.window.seconds
        parts.append(f"took {share:.0f} % of a core itself")
    if done.fenced:
        parts.append(f"{done.fenced} MEMBERS WERE THROWN OUT, {done.owned_twice} partitions had two owners then")
    return ", ".join(parts)
