"""A chart of the ratios as SVG: one line per measure, Apache Kafka as the upright line in the middle.

The axis is logarithmic, so twice as good and half as good lie equally far from the middle. A bar goes to the median
of the rounds' ratios, green where Headrace does better and red where it does worse; the thin line spans all rounds.
"""

import math
import statistics
from collections.abc import Sequence
from html import escape

from benchmarks.beside_kafka.figures import AS_GOOD, Measure

LABEL_WIDTH = 350
PLOT_WIDTH = 400
TEXT_WIDTH = 330
ROW_HEIGHT = 18
GROUP_HEIGHT = 26
TOP = 64
BOTTOM = 16
MARGIN = 12
LEAST_DOUBLINGS = 2
MOST_DOUBLINGS = 6

BETTER, WORSE, WHISKER, GRID, INK, FAINT = "#2e8b57", "#c0392b", "#333333", "#d8d8d8", "#1c1c1c", "#666666"


def draw(measures: Sequence[Measure], *, title: str, subtitle: str) -> str:
    """Return the chart as the text of an SVG file."""
    doublings = _doublings(measures)
    groups = _grouped(measures)
    height = TOP + sum(GROUP_HEIGHT + ROW_HEIGHT * len(members) for _, members in groups) + BOTTOM
    width = LABEL_WIDTH + PLOT_WIDTH + TEXT_WIDTH + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(MARGIN, 22, title, size=16, weight="bold"),
        _text(MARGIN, 40, subtitle, color=FAINT),
        *_axis(doublings, height),
    ]
    y = TOP
    for group, members in groups:
        parts.append(_text(MARGIN, y + GROUP_HEIGHT - 8, group, weight="bold"))
        y += GROUP_HEIGHT
        for measure in members:
            parts += _row(measure, y, doublings)
            y += ROW_HEIGHT
    return "\n".join([*parts, "</svg>", ""])


def place(ratio: float, doublings: int) -> float:
    """Return where a ratio lies on the axis; what is beyond it lies at its end."""
    if ratio <= 0:
        power = -float(doublings)
    else:
        power = max(-doublings, min(doublings, math.log2(ratio))) if math.isfinite(ratio) else float(doublings)
    return MARGIN + LABEL_WIDTH + PLOT_WIDTH * (power + doublings) / (2 * doublings)


def _doublings(measures: Sequence[Measure]) -> int:
    ratios = [measure.ratio for measure in measures if measure.ratio > 0 and math.isfinite(measure.ratio)]
    needed = max((abs(math.log2(ratio)) for ratio in ratios), default=0)
    return max(LEAST_DOUBLINGS, min(MOST_DOUBLINGS, math.ceil(needed)))


def _grouped(measures: Sequence[Measure]) -> list[tuple[str, list[Measure]]]:
    groups: dict[str, list[Measure]] = {}
    for measure in measures:
        groups.setdefault(measure.group, []).append(measure)
    return list(groups.items())


def _axis(doublings: int, height: int) -> list[str]:
    parts = []
    for power in range(-doublings, doublings + 1):
        x = place(2.0**power, doublings)
        name = "as Kafka" if power == 0 else f"{2**power} x" if power > 0 else f"1/{2**-power}"
        color, thickness = (INK, 1.5) if power == 0 else (GRID, 1)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{height - BOTTOM}" '
            f'stroke="{color}" stroke-width="{thickness}"/>'
        )
        parts.append(_text(x, TOP - 6, name, color=FAINT, size=10, anchor="middle"))
    return parts


def _row(measure: Measure, y: float, doublings: int) -> list[str]:
    middle, end = place(AS_GOOD, doublings), place(measure.ratio, doublings)
    low, high = place(min(measure.ratios), doublings), place(max(measure.ratios), doublings)
    color = BETTER if measure.ratio >= AS_GOOD else WORSE
    centre, baseline = y + ROW_HEIGHT / 2, y + ROW_HEIGHT - 5
    ours, theirs = statistics.median(measure.headrace), statistics.median(measure.kafka)
    figures = f"{measure.ratio:.2f} x   {ours:.4g} against {theirs:.4g} {measure.kind.unit}"
    return [
        _text(MARGIN + 14, baseline, measure.what),
        f'<rect x="{min(middle, end):.1f}" y="{y + 3}" width="{abs(end - middle):.1f}" height="{ROW_HEIGHT - 6}" '
        f'fill="{color}" fill-opacity="0.75"/>',
        f'<line x1="{low:.1f}" y1="{centre}" x2="{high:.1f}" y2="{centre}" stroke="{WHISKER}"/>',
        _text(MARGIN + LABEL_WIDTH + PLOT_WIDTH + 14, baseline, figures),
    ]


def _text(
    x: float,
    y: float,
    content: str,
    *,
    size: int = 12,
    weight: str = "normal",
    color: str = INK,
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{color}" '
        f'text-anchor="{anchor}" xml:space="preserve">{escape(content)}</text>'
    )
