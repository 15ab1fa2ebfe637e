"""Metrics: what is rendered, and that hostile label values stay bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headrace.runtime.metrics import MAX_LABEL_CHARS, OTHER, Label, Metrics, one_of


def _samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_names_carry_the_prefix_and_nothing_is_rendered_that_was_not_declared() -> None:
    metrics = Metrics()
    metrics.counters("flushes", "Flushes.").of().inc(3)
    gauge = metrics.gauges("buffer_bytes", "Bytes that wait.").of()
    gauge.set(5)
    gauge.inc(2)
    gauge.dec()
    assert _samples(metrics) == {("headrace_flushes_total", ()): 3, ("headrace_buffer_bytes", ()): 6}
    assert b"_created" not in metrics.render()


def test_a_histogram_counts_and_sums() -> None:
    metrics = Metrics()
    metrics.histograms("commit_seconds", "Commit time.", one_of("engine", ["sqlite"]), buckets=(0.1, 1)).of(
        "sqlite"
    ).observe(0.5)
    samples = _samples(metrics)
    assert samples["headrace_commit_seconds_count", ("sqlite",)] == 1
    assert samples["headrace_commit_seconds_sum", ("sqlite",)] == 0.5
    assert samples["headrace_commit_seconds_bucket", ("sqlite", "0.1")] == 0


def test_two_registries_share_nothing() -> None:
    one, other = Metrics(), Metrics()
    one.counters("flushes", "Flushes.").of().inc()
    assert other.render() == b""


def test_a_label_with_known_values_counts_the_rest_as_other() -> None:
    label = one_of("outcome", ["ok", "failed"])
    assert [label.bound(value) for value in ("ok", "failed", "exotic")] == ["ok", "failed", OTHER]


def test_a_label_with_a_limit_takes_the_first_values_and_remembers_no_more() -> None:
    label = Label("client", limit=2)
    assert [label.bound(value) for value in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


@given(st.lists(st.text(alphabet=st.characters(), max_size=100), min_size=1, max_size=30))
def test_hostile_values_make_few_short_series_that_parse(clients: list[str]) -> None:
    metrics = Metrics()
    requests = metrics.counters("requests", "Requests.", Label("client", limit=5))
    for client in clients:
        requests.of(client).inc()
    samples = _samples(metrics)
    assert len(samples) <= 6
    assert sum(samples.values()) == len(clients)
    assert all(len(value) <= MAX_LABEL_CHARS + 20 for _, (value,) in samples)


@pytest.mark.parametrize("name", ["", "Bad", "headrace_x", "x_total", "x-y", "x_created", "trailing_"])
def test_a_name_that_breaks_the_rules_is_our_mistake(name: str) -> None:
    with pytest.raises(AssertionError):
        Metrics().counters(name, "Bad.")


def test_too_few_label_values_are_our_mistake() -> None:
    with pytest.raises(ValueError):
        Metrics().counters("requests", "Requests.", Label("client")).of()
