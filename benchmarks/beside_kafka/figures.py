"""What was read off both brokers, round by round, and what follows from it: medians, spread, ratios, aims.

A reading is one number of one turn of one broker. A measure gathers the readings of all rounds: the n-th of Headrace
and the n-th of Apache Kafka were taken one right after the other, so their ratio is fairer than that of two medians,
and the measure's ratio is the median of these. A ratio above 1 always says that Headrace does better.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

AS_GOOD = 1.0
"""The ratio at which Headrace does as well as Apache Kafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a number means: its unit, which direction is good, and what was promised.

    `at_most` is an absolute promise for Headrace and `None` where there is none. `slack`, in the unit, is how far two
    numbers can lie apart and still say the same.
    """

    unit: str
    is_less_better: bool = False
    must_match_kafka: bool = False
    at_most: float | None = None
    slack: float = 0.0


RATE = Kind(unit="MB/s", must_match_kafka=True)
PLAIN_RATE = Kind(unit="MB/s")
CPU = Kind(unit="CPU-s/GB", is_less_better=True)
LATENCY = Kind(unit="ms", is_less_better=True)
MEMORY = Kind(unit="MB", is_less_better=True)
SHARE = Kind(unit="share")

CPU_IN_AIM = Kind(unit="CPU-s/GB", is_less_better=True, at_most=1.5)
P99_AIM = Kind(unit="ms", is_less_better=True, must_match_kafka=True, at_most=10.0)
P99_BESIDE_AIM = Kind(unit="ms", is_less_better=True, must_match_kafka=True)
READY_AIM = Kind(unit="s", is_less_better=True, at_most=1.0)
REST_AIM = Kind(unit="MB", is_less_better=True, at_most=150.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One number of one turn. `record_bytes` is known where a rate of records follows from one of bytes."""

    what: str
    value: float
    kind: Kind
    record_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """The readings of one thing over all rounds, both brokers side by side."""

    group: str
    what: str
    kind: Kind
    headrace: Sequence[float]
    kafka: Sequence[float]
    record_bytes: int | None = None

    @property
    def ratios(self) -> list[float]:
        """How many times better Headrace did, round by round."""
        pairs = zip(self.headrace, self.kafka, strict=True)
        return [_times_better(ours, theirs, self.kind) for ours, theirs in pairs]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def matches_kafka(self) -> bool | None:
        """Tell whether Headrace does as well; `None` where that was not promised."""
        if not self.kind.must_match_kafka:
            return None
        apart = abs(statistics.median(self.headrace) - statistics.median(self.kafka))
        return self.ratio >= AS_GOOD or apart <= self.kind.slack

    @property
    def keeps_limit(self) -> bool | None:
        """Tell whether Headrace's median keeps the absolute promise; `None` where there is none."""
        limit = self.kind.at_most
        return None if limit is None else statistics.median(self.headrace) <= limit


def _times_better(ours: float, theirs: float, kind: Kind) -> float:
    good, bad = (theirs, ours) if kind.is_less_better else (ours, theirs)
    if bad == 0:
        return AS_GOOD if good == 0 else float("inf")
    return good / bad


def gather(group: str, rounds: Iterable[tuple[Sequence[Reading], Sequence[Reading]]]) -> list[Measure]:
    """Return the measures of rounds of (Headrace's readings, Kafka's readings), in the order of the first round.

    Raises `ValueError` if the two sides of a round did not read the same things.
    """
    first: dict[str, Reading] = {}
    headrace: dict[str, list[float]] = {}
    kafka: dict[str, list[float]] = {}
    for ours, theirs in rounds:
        if [reading.what for reading in ours] != [reading.what for reading in theirs]:
            raise ValueError(f"the two sides of a round of {group} read different things")
        for one, other in zip(ours, theirs, strict=True):
            first.setdefault(one.what, one)
            headrace.setdefault(one.what, []).append(one.value)
            kafka.setdefault(one.what, []).append(other.value)
    return [
        Measure(
            group=group,
            what=what,
            kind=reading.kind,
            headrace=headrace[what],
            kafka=kafka[what],
            record_bytes=reading.record_bytes,
        )
        for what, reading in first.items()
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least that share of all values does not exceed."""
    if not values:
        raise ValueError("no values: nothing was measured")
    ordered = sorted(values)
    rank = max(1, -int(-share * len(ordered) // 1))
    return ordered[min(rank, len(ordered)) - 1]


def closing_lines(measures: Sequence[Measure]) -> list[str]:
    """Say in how many cells each promise is kept, and name the ones where it is not."""
    promised = [measure for measure in measures if measure.matches_kafka is not None]
    short = [measure for measure in promised if not measure.matches_kafka]
    lines = [f"as good as Apache Kafka or better in {len(promised) - len(short)} of {len(promised)} cells"]
    lines += [f"  short: {measure.group}: {measure.what}: {measure.ratio:.2f} x" for measure in short]
    for measure in measures:
        if measure.keeps_limit is not None:
            verdict = "kept" if measure.keeps_limit else "NOT kept"
            median = statistics.median(measure.headrace)
            limit = f"at most {measure.kind.at_most:g} {measure.kind.unit}"
            lines.append(f"{measure.group}: {measure.what}: {median:.3g} {measure.kind.unit}, aim {limit}: {verdict}")
    return lines
