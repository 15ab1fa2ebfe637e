"""The comparison's arithmetic: ratios that favour Headrace above 1, medians over rounds, promises."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.beside_kafka import figures
from benchmarks.beside_kafka.figures import Kind, Measure, Reading, closing_lines, gather, percentile
from benchmarks.beside_kafka.show import rows, spread


def _measure(kind: Kind, headrace: list[float], kafka: list[float]) -> Measure:
    return Measure(group="cell", what="figure", kind=kind, headrace=headrace, kafka=kafka)


def test_twice_the_rate_and_half_the_time_are_both_twice_as_good() -> None:
    assert _measure(figures.RATE, [200.0], [100.0]).ratio == 2.0
    assert _measure(figures.LATENCY, [5.0], [10.0]).ratio == 2.0


def test_the_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_the_medians() -> None:
    measure = _measure(figures.RATE, [10.0, 100.0, 50.0], [100.0, 100.0, 25.0])
    assert measure.ratios == [0.1, 1.0, 2.0]
    assert measure.ratio == 1.0
    assert statistics.median(measure.headrace) / statistics.median(measure.kafka) != measure.ratio


@pytest.mark.parametrize(("ours", "theirs", "ratio"), [(0.0, 0.0, 1.0), (0.0, 1.0, float("inf")), (1.0, 0.0, 0.0)])
def test_a_cost_too_small_to_see_is_no_division_by_zero(ours: float, theirs: float, ratio: float) -> None:
    assert _measure(figures.CPU, [ours], [theirs]).ratio == ratio


def test_what_was_not_promised_has_no_verdict() -> None:
    measure = _measure(figures.MEMORY, [1.0], [2.0])
    assert measure.matches_kafka is None
    assert measure.keeps_limit is None


def test_a_limit_is_kept_by_the_median_alone() -> None:
    assert _measure(figures.READY_AIM, [0.5, 0.9, 3.0], [4.0, 4.0, 4.0]).keeps_limit is True
    assert _measure(figures.READY_AIM, [0.5, 1.1, 3.0], [4.0, 4.0, 4.0]).keeps_limit is False


def test_the_closing_lines_count_the_cells_and_name_those_that_fall_short() -> None:
    good = _measure(figures.RATE, [2.0], [1.0])
    bad = Measure(group="100 B", what="produce", kind=figures.RATE, headrace=[1.0], kafka=[2.0])
    slow = Measure(group="latency", what="p99", kind=figures.P99_AIM, headrace=[12.0], kafka=[24.0])
    lines = closing_lines([good, bad, slow, _measure(figures.MEMORY, [1.0], [2.0])])
    assert lines[0] == "as good as Apache Kafka or better in 2 of 3 cells"
    assert lines[1].strip() == "short: 100 B: produce: 0.50 x"
    assert lines[2] == "latency: p99: 12 ms, aim at most 10 ms: NOT kept"
    assert len(lines) == 3


def test_the_rows_of_the_common_report_hold_every_promise() -> None:
    good = _measure(figures.RATE, [2.0], [1.0])
    bad = _measure(figures.RATE, [1.0], [2.0])
    rest = _measure(figures.REST_AIM, [300.0], [400.0])
    (share, room) = rows([good, bad, rest])
    assert share[1:] == (0.5, "", 1.0)
    assert room[1:] == (0.5, "x", 1.0)
    assert rows([]) == []


def _readings(*values: float) -> list[Reading]:
    return [Reading(what=f"figure {n}", value=value, kind=figures.RATE) for n, value in enumerate(values)]


def test_rounds_are_gathered_pair_by_pair() -> None:
    first, second = gather("cell", [(_readings(1, 2), _readings(3, 4)), (_readings(5, 6), _readings(7, 8))])
    assert (first.headrace, first.kafka) == ([1, 5], [3, 7])
    assert (second.headrace, second.kafka) == ([2, 6], [4, 8])


def test_sides_that_read_different_things_are_refused() -> None:
    with pytest.raises(ValueError, match="different things"):
        gather("cell", [(_readings(1, 2), _readings(3))])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0.001, 1))
def test_a_percentile_is_the_smallest_value_that_covers_its_share(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    covered = sum(value <= found for value in values)
    below = sum(value < found for value in values)
    assert covered >= share * len(values) - 1e-9
    assert below < share * len(values)


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 0.5)


def test_a_rate_of_bytes_tells_that_of_records_where_their_size_is_known() -> None:
    measure = Measure(
        group="cell",
        what="produce",
        kind=figures.RATE,
        headrace=[100.0, 300.0, 200.0],
        kafka=[1, 1, 1],
        record_bytes=100,
    )
    assert spread(measure.headrace, measure) == "200 (100–300) MB/s, 2,000 k rec/s"
    assert spread([0.5], _measure(figures.CPU, [0.5], [1.0])) == "0.5 (0.5–0.5) CPU-s/GB"
