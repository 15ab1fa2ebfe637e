"""Where a group's offsets go: what is asked for, and the plan that follows from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.offset_reset import (
    Outcome,
    PartitionSurvey,
    Reset,
    Wish,
    WishKind,
    changes_of,
    choose_partitions,
    choose_wish,
    parse_moment,
    parse_topics,
    plan_reset,
)
from headrace.errors import Invalid, Missing, Retryable

ANY_OFFSET = st.integers(min_value=0, max_value=2**62)


def _survey(
    partition: int = 0, *, committed: int | None = 50, start: int = 10, end: int = 90, at: int | None = None
) -> PartitionSurvey:
    return PartitionSurvey(
        topic="t",
        partition=partition,
        committed_offset=committed,
        start_offset=start,
        end_offset=end,
        offset_at=at,
    )


@st.composite
def surveys(draw: st.DrawFn) -> PartitionSurvey:
    start = draw(ANY_OFFSET)
    end = start + draw(ANY_OFFSET)
    at = draw(st.none() | st.integers(start, end))
    return _survey(committed=draw(st.none() | ANY_OFFSET), start=start, end=end, at=at)


@pytest.mark.parametrize(
    ("wish", "survey", "expected"),
    [
        (Wish(kind=WishKind.EARLIEST), _survey(), 10),
        (Wish(kind=WishKind.LATEST), _survey(), 90),
        (Wish(kind=WishKind.OFFSET, number=33), _survey(), 33),
        (Wish(kind=WishKind.OFFSET, number=9), _survey(), 10),
        (Wish(kind=WishKind.OFFSET, number=91), _survey(), 90),
        (Wish(kind=WishKind.SHIFT, number=-5), _survey(), 45),
        (Wish(kind=WishKind.SHIFT, number=-500), _survey(), 10),
        (Wish(kind=WishKind.SHIFT, number=500), _survey(), 90),
        (Wish(kind=WishKind.SHIFT, number=0), _survey(committed=3), 10),
        (Wish(kind=WishKind.SHIFT, number=-5), _survey(committed=None), None),
        (Wish(kind=WishKind.DATETIME, number=1), _survey(at=60), 60),
        (Wish(kind=WishKind.DATETIME, number=1), _survey(at=None), 90),
        (Wish(kind=WishKind.DATETIME, number=1), _survey(at=4), 10),
        (Wish(kind=WishKind.EARLIEST), _survey(committed=None, start=7, end=7), 7),
    ],
)
def test_a_wish_becomes_an_offset_within_what_the_partition_holds(
    wish: Wish, survey: PartitionSurvey, expected: int | None
) -> None:
    [planned] = plan_reset(wish, [survey])
    assert planned.new_offset == expected


@given(st.sampled_from(WishKind), st.integers(-(2**62), 2**62), surveys())
def test_a_new_offset_is_always_within_bounds_and_a_second_time_changes_nothing(
    kind: WishKind, number: int, survey: PartitionSurvey
) -> None:
    wish = Wish(kind=kind, number=number)
    [planned] = plan_reset(wish, [survey])
    if planned.new_offset is None:
        assert kind is WishKind.SHIFT and survey.committed_offset is None and not planned.is_change
        return
    assert survey.start_offset <= planned.new_offset <= survey.end_offset
    if kind is not WishKind.SHIFT:
        again = _survey(
            committed=planned.new_offset, start=survey.start_offset, end=survey.end_offset, at=survey.offset_at
        )
        assert changes_of(plan_reset(wish, [again])) == {}


def test_only_what_changes_is_committed_and_each_partition_has_its_outcome() -> None:
    given_surveys = [_survey(0), _survey(1, committed=20), _survey(2, committed=None), _survey(3, committed=15)]
    plan = plan_reset(Wish(kind=WishKind.SHIFT, number=-10), given_surveys)
    assert [(step.new_offset, step.is_bounded) for step in plan] == [
        (40, False),
        (10, False),
        (None, False),
        (10, True),
    ]
    assert changes_of(plan) == {("t", 0): 40, ("t", 1): 10, ("t", 3): 10}
    same = plan_reset(Wish(kind=WishKind.OFFSET, number=50), given_surveys[:1])

    planned = Reset(group="g", exists=True, plan=plan, failures=None)
    assert [planned.outcome(step) for step in (*plan, *same)] == [
        "planned",
        "planned",
        "left",
        "planned",
        "unchanged",
    ]
    failures = {("t", 0): None, ("t", 1): Retryable("no answer"), ("t", 3): None}
    done = Reset(group="g", exists=True, plan=plan, failures=failures)
    assert [done.outcome(step) for step in plan] == [Outcome.RESET, Outcome.FAILED, Outcome.LEFT, Outcome.RESET]


def test_one_wish_is_wanted_and_no_more() -> None:
    nothing: dict[WishKind, int | None] = dict.fromkeys(WishKind)
    assert choose_wish({**nothing, WishKind.SHIFT: 0}) == Wish(kind=WishKind.SHIFT, number=0)
    with pytest.raises(Invalid, match=r"not said where to: give one of --to-earliest, .* or --shift-by"):
        choose_wish(nothing)
    with pytest.raises(Invalid, match="--to-earliest and --shift-by exclude each other"):
        choose_wish({**nothing, WishKind.EARLIEST: 0, WishKind.SHIFT: -5})


def test_topics_are_whole_or_some_of_their_partitions() -> None:
    assert parse_topics(["a", "b:2,0", "b:5", "c:1", "c", "d", "d:3"]) == {
        "a": None,
        "b": frozenset({0, 2, 5}),
        "c": None,
        "d": None,
    }


@pytest.mark.parametrize("text", ["", ":1", "t:", "t:1,", "t:x", "t:-1", "t:1:2", "t:²", "t:1234567890"])
def test_a_topic_that_cannot_be_read_says_what_is_taken(text: str) -> None:
    with pytest.raises(Invalid, match=r"it takes TOPIC for all partitions, or TOPIC:0,1,2"):
        parse_topics([text])


def test_partitions_that_are_not_there_are_told() -> None:
    assert choose_partitions("t", None, [2, 0, 1]) == [0, 1, 2]
    assert choose_partitions("t", {2, 1}, [0, 1, 2]) == [1, 2]
    with pytest.raises(Missing, match="topic t has no partition 3, 9: it has 3, counted from 0"):
        choose_partitions("t", {9, 0, 3}, [0, 1, 2])


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01.5", 1500),
        ("1970-01-01 01:00:00+01:00", 0),
        ("1969-12-31T23:00-01:00", 0),
        ("2026-03-01T12:30:00", 1_772_368_200_000),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01T00:00:00.001000Z", 1),
        ("9999-12-31T23:59:59-23:59", 253_402_387_139_000),
    ],
)
def test_a_moment_is_utc_unless_it_has_a_zone(text: str, expected_ms: int) -> None:
    assert parse_moment(text) == expected_ms


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("yesterday", "it takes ISO 8601"),
        ("", "it takes ISO 8601"),
        ("2026-13-01", "it takes ISO 8601"),
        ("1772368200000", "it takes ISO 8601"),
        ("1969-12-31T23:59:59Z", "before 1970: --to-earliest"),
        ("0001-01-01T00:00+14:00", "before 1970: --to-earliest"),
    ],
)
def test_a_moment_that_cannot_be_asked_about_says_what_is_taken(text: str, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        parse_moment(text)
