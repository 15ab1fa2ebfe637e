"""Regular expressions of consumers: what they match, what is refused, and that none is dear."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Invalid
from headrace.groups.regexes import (
    INTERNAL_TOPICS,
    MAX_COMPILED_PATTERNS,
    MAX_PATTERN_BYTES,
    InvalidPattern,
    compiled,
    matching,
)

NAMES = ("orders", "orders-2", "reorders", "Orders", "payments.eu")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders", {"orders"}),
        ("orders.*", {"orders", "orders-2"}),
        ("^orders$", {"orders"}),
        (".*orders.*", {"orders", "orders-2", "reorders"}),
        ("(?i)orders", {"orders", "Orders"}),
        ("orders|payments", {"orders"}),
        (r"[a-z]+\.eu", {"payments.eu"}),
        (r"\Qpayments.eu\E", {"payments.eu"}),
        (r"(?P<first>o)rders", {"orders"}),
        ("", set()),
        ("ä.*|日本", set()),
        ("[^ä]rders", {"orders", "Orders"}),
    ],
)
def test_a_name_matches_only_as_a_whole(pattern: str, found: set[str]) -> None:
    assert matching(pattern, NAMES) == found


def test_an_alternative_that_matches_a_part_does_not_hide_one_that_matches_the_whole() -> None:
    assert matching("a|ab", ["a", "ab", "abc"]) == {"a", "ab"}


def test_what_kafka_keeps_for_itself_is_never_matched_but_names_like_it_are() -> None:
    names = [*INTERNAL_TOPICS, "__debezium-heartbeat.db", "orders"]
    assert {"__consumer_offsets", "__transaction_state"} <= INTERNAL_TOPICS
    assert matching(".*", names) == {"__debezium-heartbeat.db", "orders"}
    assert matching("__consumer_offsets", names) == frozenset()


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", r"'\(' is invalid: missing \)"),
        ("[b-a]", "invalid character class range: b-a"),
        ("*", "no argument for repetition operator"),
        ("(?=x)", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("a{1001}", "invalid repetition size"),
        ("((a{30}){30}){30}", "invalid repetition size"),
        (r"(\pL?\pL?\pL?\pL?\pL?){50}", "pattern too large"),
        ("\ud800", r"'\\ud800' is not valid Unicode"),
    ],
)
def test_what_re2_does_not_take_is_refused_with_the_reason(pattern: str, said: str) -> None:
    with pytest.raises(InvalidPattern, match=said) as refused:
        compiled(pattern)
    assert isinstance(refused.value, Invalid)


def test_a_pattern_has_a_length_in_bytes() -> None:
    longest = "ä" * (MAX_PATTERN_BYTES // 2)
    assert matching(longest, [longest, "ä"]) == {longest}
    with pytest.raises(InvalidPattern, match=f"has {MAX_PATTERN_BYTES + 1} bytes: {MAX_PATTERN_BYTES} are allowed"):
        compiled(longest + "b")


def test_a_pattern_that_names_many_topics_is_not_too_large() -> None:
    names = [f"topic.{number * 7919 % 10_007:05}.of-a-long-name" for number in range(140)]
    pattern = "|".join(names)
    assert 0.9 * MAX_PATTERN_BYTES < len(pattern) <= MAX_PATTERN_BYTES
    assert matching(pattern, [*names, "topic"]) == set(names)


@given(st.text(max_size=300))
def test_any_text_is_a_pattern_or_is_refused_in_one_short_line(pattern: str) -> None:
    try:
        assert matching(pattern, NAMES) <= set(NAMES)
    except InvalidPattern as refused:
        assert str(refused).isprintable()
        assert len(str(refused)) < 300


def test_a_refusal_is_not_printed_by_the_library(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidPattern):
        compiled("(((")
    assert capfd.readouterr() == ("", "")


def test_compiled_patterns_are_found_again_and_few_are_kept() -> None:
    compiled.cache_clear()
    first = compiled("topic-0")
    assert compiled("topic-0") is first
    for number in range(2 * MAX_COMPILED_PATTERNS):
        compiled(f"topic-{number}")
    assert compiled.cache_info().currsize == compiled.cache_info().maxsize == MAX_COMPILED_PATTERNS


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a*)*b", "(a|aa)+$", "(a|a?)+$", "(.*a){100}", "(?:a?){500}a{500}"])
def test_a_pattern_that_would_explode_elsewhere_is_answered(pattern: str) -> None:
    # A backtracking matcher would need 2 to the power of the name's length steps; here the test would run for ever.
    huge = "a" * 1_000_000
    assert matching(pattern, [huge + "!"]) == frozenset()
    assert matching("(a+)+$", [huge]) == {huge}


def test_the_largest_pattern_that_passes_is_answered() -> None:
    pattern = "(" + ".?" * 10 + "){50}9"
    name = "ab" * 124
    assert matching(pattern, [name, name + "9"]) == {name + "9"}
