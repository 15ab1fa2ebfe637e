"""Topic names: Kafka's rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.topics.names import MAX_NAME_CHARS, alike, check_name, is_legal
from headrace.topics.problems import InvalidTopicName


@pytest.mark.parametrize("name", ["a", "orders.eu", "_under-score", "...", "A" * MAX_NAME_CHARS, "0"])
def test_legal_names_pass(name: str) -> None:
    check_name(name)
    assert is_legal(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "cannot be named"),
        ("..", "cannot be named"),
        ("a" * (MAX_NAME_CHARS + 1), "250 characters"),
        ("a/b", "illegal"),
        ("a\0b", "illegal"),
        ("a\n", "illegal"),
        ("ü", "illegal"),
        ("٣", "illegal"),
        ("a b", "illegal"),
        ("a:b", "illegal"),
    ],
)
def test_illegal_names_are_refused_with_their_reason(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName, match=reason):
        check_name(name)
    assert not is_legal(name)


@given(st.text(max_size=400))
def test_a_refusal_is_one_short_printable_line(name: str) -> None:
    try:
        check_name(name)
    except InvalidTopicName as error:
        assert str(error).isprintable() and len(str(error)) < 400


def test_names_look_alike_when_they_differ_by_dots_and_underscores_only() -> None:
    assert alike("a.b_c") == alike("a_b.c") == "a_b_c"
    assert alike("a-b") != alike("a.b")
