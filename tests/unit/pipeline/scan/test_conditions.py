"""Conditions: comparisons become bounds, and bounds leave out what cannot fit, never what can."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Invalid
from headrace.pipeline.scan.conditions import Bound, Condition, microseconds_of, parse_condition

DAY_US = 86_400_000_000


def test_text_becomes_bounds() -> None:
    condition = parse_condition(
        "timestamp >= '1970-01-02' AND timestamp < '1970-01-03T00:00:00+00:00' and partition in (0, 2,0)"
        " and offset > 10 and topic = 'it''s'"
    )
    assert condition.timestamp_us == Bound(low=DAY_US, high=2 * DAY_US - 1)
    assert condition.partition == Bound(values=(0, 2))
    assert condition.offset == Bound(low=11)
    assert condition.topics == ("it's",)
    assert parse_condition("timestamp == 5").timestamp_us == Bound(values=(5000,))
    assert parse_condition("  ") == Condition()


def test_moments_are_utc_unless_they_say_otherwise() -> None:
    naive = datetime(1970, 1, 1, 1)
    assert microseconds_of(naive) == microseconds_of(naive.replace(tzinfo=UTC)) == DAY_US // 24
    assert microseconds_of(naive.replace(tzinfo=timezone(timedelta(hours=1)))) == 0


@pytest.mark.parametrize(
    "text",
    [
        "offset",
        "offset >",
        "offset > 'x'",
        "offset > 1 or offset < 3",
        "offset > 1 and",
        "offset in 1",
        "offset in (1",
        "offset in (1 2)",
        "offset ! 3",
        "value = 'x'",
        "topic = orders",
        "topic > 'orders'",
        "timestamp > 'yesterday'",
        "partition = 1; drop",
        "(offset > 1)",
    ],
)
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_condition(text)


def test_too_many_comparisons_are_refused() -> None:
    with pytest.raises(Invalid, match="at most"):
        parse_condition(" and ".join(["offset > 1"] * 101))


def test_conditions_leave_out_partitions_offsets_and_times() -> None:
    condition = parse_condition("topic in ('a') and partition < 2 and offset >= 5 and offset <= 7 and timestamp > 9")
    assert condition.allows_partition("a", 1)
    assert not condition.allows_partition("a", 2) and not condition.allows_partition("b", 1)
    assert condition.offsets(0, 100) == (5, 8)
    first, end = condition.offsets(50, 100)
    assert first >= end
    assert not condition.allows_times(0, 9_000) and condition.allows_times(0, 9_001)
    assert condition.allows_times(None, None)


def test_values_that_contradict_each_other_leave_nothing() -> None:
    condition = parse_condition("offset = 5 and offset = 6")
    first, end = condition.offsets(0, 100)
    assert first >= end
    assert not parse_condition("timestamp = 1 and timestamp = 2").allows_times(0, 10_000)


TERMS = st.lists(
    st.tuples(
        st.sampled_from(["=", "<", "<=", ">", ">=", "in"]), st.lists(st.integers(0, 9), min_size=1, max_size=3)
    ),
    max_size=4,
)


@given(TERMS)
def test_bounds_allow_what_every_comparison_allows(terms: list[tuple[str, list[int]]]) -> None:
    bound = Bound()
    for operator, values in terms:
        bound = bound.also(operator, tuple(values if operator == "in" else values[:1]))

    def fits(number: int) -> bool:
        return all(
            {
                "=": number == values[0],
                "<": number < values[0],
                "<=": number <= values[0],
                ">": number > values[0],
                ">=": number >= values[0],
                "in": number in values,
            }[operator]
            for operator, values in terms
        )

    assert [bound.allows(number) for number in range(-1, 11)] == [fits(number) for number in range(-1, 11)]
    low, high = bound.span
    for number in range(-1, 11):
        if fits(number):
            assert (low is None or low <= number) and (high is None or number <= high)
