"""Judge a hostile soak. Pure: everything has happened already.

Must stay true: memory is judged by medians, so that one large request that is under way at the moment of a look does
not decide; and without the caches, which have limits of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from benchmarks.hostile.plan import MIB, Bounds
from benchmarks.hostile.watching import BACK_TO_ZERO, Sample

BARS = "▁▂▃▄▅▆▇█"
LEAST_SAMPLES = 8
MAX_SHOWN = 10
HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a broker's working memory went: before the first event, after the warm-up, in the end."""

    first_bytes: float
    warm_bytes: float
    """The median of the first quarter after the warm-up."""
    late_bytes: float
    """The median of the last quarter."""
    peak_bytes: int
    slope_bytes_per_hour: float

    @property
    def growth_bytes(self) -> float:
        return self.late_bytes - self.warm_bytes


def course_of(samples: Sequence[Sample], *, warm_up_s: float) -> Course:
    """Return the course of a soak's memory. Raises `ValueError` where there are too few samples to judge."""
    warm = [one for one in samples if one.at_s >= warm_up_s]
    if len(warm) < LEAST_SAMPLES:
        raise ValueError(f"{len(warm)} samples after the warm-up are too few: {LEAST_SAMPLES} are needed")
    quarter = len(warm) // 4
    return Course(
        first_bytes=samples[0].working_bytes,
        warm_bytes=median(one.working_bytes for one in warm[:quarter]),
        late_bytes=median(one.working_bytes for one in warm[-quarter:]),
        peak_bytes=max(one.working_bytes for one in samples),
        slope_bytes_per_hour=_slope([(one.at_s, one.working_bytes) for one in warm]) * HOUR_SECONDS,
    )


def problems_of_memory(course: Course, bounds: Bounds) -> list[str]:
    """Say what is wrong with a course."""
    problems = []
    if course.growth_bytes > bounds.growth_bytes:
        problems.append(
            f"memory grows: {_mib(course.warm_bytes)} after the warm-up, {_mib(course.late_bytes)} in the last "
            f"quarter; {_mib(bounds.growth_bytes)} more are allowed"
        )
    if course.peak_bytes - course.first_bytes > bounds.peak_bytes:
        problems.append(
            f"memory peaks at {_mib(course.peak_bytes)}: {_mib(bounds.peak_bytes)} above the "
            f"{_mib(course.first_bytes)} of the beginning are allowed"
        )
    return problems


def problems_of_end(first: Sample, last: Sample, course: Course, bounds: Bounds) -> list[str]:
    """Say what is left when all clients have gone."""
    problems = [f"{name} reads {last.gauges[name]:g} in the end" for name in BACK_TO_ZERO if last.gauges[name]]
    if last.lent_bytes > bounds.lent_bytes:
        problems.append(f"buffers of {_mib(last.lent_bytes)} are still lent in the end")
    if last.working_bytes - course.warm_bytes > bounds.left_bytes:
        problems.append(
            f"{_mib(last.working_bytes)} are left in the end, {_mib(course.warm_bytes)} were the warm level; "
            f"{_mib(bounds.left_bytes)} more are allowed"
        )
    if last.open_files - first.open_files > bounds.open_files:
        problems.append(f"{last.open_files} files are open in the end, {first.open_files} were in the beginning")
    return problems


def is_settled(sample: Sample, bounds: Bounds) -> bool:
    """Say whether all that clients have left behind is gone."""
    return not any(sample.gauges[name] for name in BACK_TO_ZERO) and sample.lent_bytes <= bounds.lent_bytes


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of all lies; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def picture(values: Sequence[float], *, width: int = 72) -> str:
    """Return a line of bars, from nothing to the largest value."""
    if not values:
        return ""
    step = max(1.0, len(values) / width)
    starts = [int(number * step) for number in range(int(len(values) / step))]
    columns = [max(values[start:end]) for start, end in pairwise([*starts, len(values)])]
    top = max(*columns, 1.0)
    return "".join(BARS[min(len(BARS) - 1, int(value / top * (len(BARS) - 1) + 0.5))] for value in columns)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line that fits best."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / MIB:,.0f} MiB"
