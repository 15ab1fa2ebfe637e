"""Which scenarios are played: the full form holds the size that was promised, the quick one a tenth of it.

The quick form is to end in about a minute on two cores and the full one in six, both brokers' start included.
Apache Kafka's KIP-848 groups take most of that: their members hear of anything new every five seconds. Members of a
group that formed at once heartbeat in step, so a window is a multiple of their interval.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.groups_beside_kafka.brokers import WITH_DEFAULTS, WITHOUT_DELAY
from benchmarks.groups_beside_kafka.scenarios import (
    CLASSIC,
    CLASSIC_EAGER_TO_HEAR,
    KIP_848,
    Commits,
    Fleet,
    Scenario,
    Speech,
)

PARTITIONS = 100
PARTITIONS_PER_COMMIT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run does. The warm-up's readings are thrown away; scenarios with the same settings stand together."""

    warm_up: Sequence[Scenario]
    scenarios: Sequence[Scenario]

    def only(self, part: str) -> "Plan":
        """Return the plan with those scenarios alone whose title holds `part`."""
        return dataclasses.replace(self, scenarios=[one for one in self.scenarios if part in one.title])


def quick_plan() -> Plan:
    """Return the few cells of the short form."""
    return Plan(
        warm_up=[_commits(groups=1, members=20, seconds=1)],
        scenarios=[
            _commits(groups=1, members=20, seconds=2),
            _quick_fleet(KIP_848, window_seconds=5),
            _quick_fleet(CLASSIC_EAGER_TO_HEAR, window_seconds=2),
        ],
    )


def full_plan() -> Plan:
    """Return every cell."""
    return Plan(
        warm_up=_warm_up(),
        scenarios=[
            _commits(groups=1, members=20, seconds=5),
            _commits(groups=50, members=1, seconds=5),
            _full_fleet(KIP_848, spread_seconds=5, window_seconds=10),
            _full_fleet(CLASSIC, spread_seconds=3, window_seconds=9),
            _full_fleet(CLASSIC_EAGER_TO_HEAR, spread_seconds=2, window_seconds=5),
            _full_fleet(CLASSIC, spread_seconds=3, window_seconds=0, hand_overs=0, settings=WITH_DEFAULTS),
        ],
    )


def _full_fleet(
    speech: Speech,
    *,
    spread_seconds: float,
    window_seconds: float,
    hand_overs: int = 2,
    settings: Mapping[str, str] = WITHOUT_DELAY,
) -> Fleet:
    return Fleet(
        speech=speech,
        groups=50,
        members=20,
        partitions=PARTITIONS,
        spread_seconds=spread_seconds,
        rest_seconds=5,
        window_seconds=window_seconds,
        hand_overs=hand_overs,
        has_aims=speech != CLASSIC_EAGER_TO_HEAR,
        settings=settings,
    )


def _quick_fleet(speech: Speech, *, window_seconds: float) -> Fleet:
    return Fleet(
        speech=speech,
        groups=10,
        members=10,
        partitions=PARTITIONS,
        spread_seconds=0.5,
        rest_seconds=1,
        window_seconds=window_seconds,
        hand_overs=1,
        has_aims=False,
        settings=WITHOUT_DELAY,
    )


def _commits(*, groups: int, members: int, seconds: float) -> Commits:
    return Commits(
        speech=CLASSIC,
        groups=groups,
        members=members,
        partitions_each=PARTITIONS_PER_COMMIT,
        seconds=seconds,
        settings=WITHOUT_DELAY,
    )


def _warm_up() -> list[Scenario]:
    """A JVM needs it: commits, and members of either protocol that join and leave. Groups of one settle at once."""
    short = Fleet(
        speech=KIP_848,
        groups=20,
        members=1,
        partitions=PARTITIONS,
        spread_seconds=2,
        rest_seconds=0,
        window_seconds=0,
        hand_overs=0,
        has_aims=False,
        settings=WITHOUT_DELAY,
    )
    classic = dataclasses.replace(short, speech=CLASSIC_EAGER_TO_HEAR, groups=10, members=5, hand_overs=1)
    return [_commits(groups=1, members=20, seconds=3), short, classic]
