"""The figures of the loop's lag come from two readings of `/metrics`."""

import pytest

from benchmarks.loop_lag import Readings, readings_of

TEXT = """\
# TYPE headrace_loop_lag_seconds histogram
headrace_loop_lag_seconds_bucket{le="0.001"} 90.0
headrace_loop_lag_seconds_bucket{le="0.025"} 99.0
headrace_loop_lag_seconds_bucket{le="0.5"} 100.0
headrace_loop_lag_seconds_bucket{le="+Inf"} 100.0
headrace_loop_lag_seconds_sum 0.4
headrace_loop_stalls_total 2.0
"""


@pytest.mark.parametrize(("share", "bound_ms"), [(0.5, 1), (0.9, 1), (0.91, 25), (0.99, 25), (1.0, 500)])
def test_a_share_of_the_heartbeats_kept_the_bound_of_their_bucket(share: float, bound_ms: float) -> None:
    assert readings_of(TEXT).within_ms(share) == pytest.approx(bound_ms)


def test_what_came_before_the_load_does_not_count() -> None:
    earlier = readings_of(TEXT)
    buckets = {**earlier.buckets, 0.5: 110.0, float("inf"): 110.0}
    later = Readings(buckets=buckets, stalls=3.0).since(earlier)
    assert later.stalls == 1
    assert later.within_ms(0.5) == 500, "all ten heartbeats since then came late"


def test_a_broker_that_has_measured_nothing_was_not_late() -> None:
    readings = readings_of("headrace_other 1.0\n")
    assert (readings.within_ms(1.0), readings.stalls) == (0.0, 0.0)
