"""A topic and its table's name belong to each other alone."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Invalid
from headrace.tables.names import MAX_ESCAPED_CHARS, NameStyle, retired_names, table_name, topic_name

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,80}", fullmatch=True)
NEAR_TOPICS = st.text("aAdhue_.-09", min_size=1, max_size=12)


@given(topic=TOPICS | NEAR_TOPICS)
def test_an_escaped_name_is_plain_and_leads_back_to_its_topic(topic: str) -> None:
    name = table_name(topic, NameStyle.ESCAPED)
    assert re.fullmatch(r"[a-z0-9][a-z0-9_]*", name)
    assert topic_name(name, NameStyle.ESCAPED) == topic


@given(one=NEAR_TOPICS, other=NEAR_TOPICS)
def test_two_topics_never_share_a_name(one: str, other: str) -> None:
    for style in NameStyle:
        assert (table_name(one, style) == table_name(other, style)) == (one == other)


@given(name=st.text("abdhue_topic019", max_size=14))
def test_a_name_that_leads_to_a_topic_is_that_topics_name(name: str) -> None:
    topic = topic_name(name, NameStyle.ESCAPED)
    assert topic is None or table_name(topic, NameStyle.ESCAPED) == name


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", "orders"),
        ("eu.orders-v2", "eu_dorders_hv2"),
        ("snake_case", "snake__case"),
        ("CamelCase", "topic_e_ucamel_ucase"),
        ("_internal", "topic_e__internal"),
        ("topic_e", "topic__e"),
    ],
)
def test_names_that_people_will_meet(topic: str, name: str) -> None:
    assert table_name(topic, NameStyle.ESCAPED) == name
    assert table_name(topic, NameStyle.EXACT) == topic
    assert topic_name(topic, NameStyle.EXACT) == topic


def test_a_name_that_would_be_too_long_is_refused_with_a_way_out() -> None:
    assert len(table_name("a" * MAX_ESCAPED_CHARS, NameStyle.ESCAPED)) == MAX_ESCAPED_CHARS
    with pytest.raises(Invalid, match=r"catalog\.table\.names=exact"):
        table_name("A" * 100, NameStyle.ESCAPED)


@pytest.mark.parametrize("topic", ["", "späße", "a b"])
def test_what_is_no_topics_name_has_no_escaped_one(topic: str) -> None:
    with pytest.raises(Invalid):
        table_name(topic, NameStyle.ESCAPED)


def test_a_retired_table_is_called_after_its_topics_id() -> None:
    uuid = "01234567-89ab-cdef-0123-456789abcdef"
    assert retired_names("orders", uuid) == ("orders__01234567", "orders__0123456789abcdef0123456789abcdef")
