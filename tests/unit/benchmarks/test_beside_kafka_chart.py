"""The chart of the ratios: well-formed SVG with every measure in its place."""

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.beside_kafka import figures
from benchmarks.beside_kafka.chart import BETTER, WORSE, draw, place
from benchmarks.beside_kafka.figures import Measure

SVG = "{http://www.w3.org/2000/svg}"


def _measure(what: str, ours: float, theirs: float) -> Measure:
    return Measure(group="cells & more", what=what, kind=figures.RATE, headrace=[ours, ours], kafka=[theirs, theirs])


def _drawn(measures: list[Measure]) -> ET.Element:
    return ET.fromstring(draw(measures, title="<title>", subtitle="subtitle"))


def test_every_measure_has_its_name_and_its_figures() -> None:
    chart = _drawn([_measure("produce <fast>", 300.0, 150.0), _measure("consume", 100.0, 400.0)])
    texts = [text.text for text in chart.iter(f"{SVG}text")]
    assert "<title>" in texts
    assert "cells & more" in texts
    assert texts.index("produce <fast>") < texts.index("consume")
    assert "2.00 x   300 against 150 MB/s" in texts
    assert "0.25 x   100 against 400 MB/s" in texts


def test_better_goes_right_in_green_and_worse_goes_left_in_red() -> None:
    chart = _drawn([_measure("better", 2.0, 1.0), _measure("worse", 1.0, 2.0)])
    better, worse = (bar for bar in chart.iter(f"{SVG}rect") if bar.get("fill") in (BETTER, WORSE))
    assert better.get("fill") == BETTER
    assert worse.get("fill") == WORSE
    middle = float(better.attrib["x"])
    assert float(worse.attrib["x"]) + float(worse.attrib["width"]) == middle
    assert float(worse.attrib["width"]) == float(better.attrib["width"])


def test_a_chart_of_nothing_is_still_a_chart() -> None:
    assert _drawn([]).tag == f"{SVG}svg"


@given(st.floats(allow_nan=False, min_value=0), st.floats(allow_nan=False, min_value=0), st.integers(1, 6))
def test_a_better_ratio_never_lies_further_left_and_none_leaves_the_axis(
    one: float, other: float, doublings: int
) -> None:
    low, high = sorted((one, other))
    assert place(0, doublings) <= place(low, doublings) <= place(high, doublings) <= place(float("inf"), doublings)
