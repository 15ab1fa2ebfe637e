import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Invalid
from headrace.metadata import keys
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Key
from headrace.model.ids import DomainId, SessionId, StreamId


@given(st.integers(0, 10**20 - 1), st.integers(0, 10**20 - 1))
def test_numbers_sort_as_numbers(one: int, two: int) -> None:
    assert (one < two) == (keys.number(one) < keys.number(two))


@pytest.mark.parametrize("number", [-1, 10**20])
def test_numbers_that_would_not_sort_are_refused(number: int) -> None:
    with pytest.raises(Invalid):
        keys.number(number)


@given(st.text(max_size=700), st.text(max_size=700))
def test_every_string_becomes_one_segment_of_its_own(one: str, two: str) -> None:
    segment = keys.escaped(one)
    assert "/" not in segment
    assert len(segment) <= keys.MAX_ESCAPED_BYTES + 1
    keys.check(keys.lease(one))
    assert (segment == keys.escaped(two)) == (one == two)


@pytest.mark.parametrize(
    ("key", "unit"),
    [
        (keys.FORMAT, keys.REGISTRY),
        (keys.session(SessionId("s")), keys.SESSIONS + "s"),
        (keys.lease("a/b"), keys.LEASES + "=a%2Fb"),
        (DomainKeys(DomainId(3)).head(StreamId(7)), "/headrace/v1/d/0003/"),
        (Key("/headrace/v1/d/0003/groups/=g/members/=m"), "/headrace/v1/d/0003/groups/=g/"),
        (Key("/headrace/v1/topics/=t"), keys.REGISTRY),
    ],
)
def test_every_key_belongs_to_one_unit(key: Key, unit: str) -> None:
    assert keys.unit_of(key) == unit


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=6))
def test_a_prefix_range_holds_what_begins_with_the_prefix(rest: str) -> None:
    prefix = "/headrace/v1/d/0000/log/"
    range_ = keys.prefix_range(prefix, limit=1)
    assert range_.start <= prefix + rest < range_.end
    for other in ("/headrace/v1/d/0000/log", "/headrace/v1/d/0000/log0", "/headrace/v1/d/0000/log." + rest):
        assert not range_.start <= other < range_.end


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=6))
def test_the_next_page_begins_behind_the_last_key(rest: str) -> None:
    prefix = "/headrace/v1/d/0000/log/"
    range_ = keys.prefix_range(prefix, limit=1, after=Key(prefix + "5"))
    assert not range_.start <= prefix + "5" < range_.end
    if rest:
        assert range_.start <= prefix + "5" + rest < range_.end


@pytest.mark.parametrize("key", ["", "/other", "/headrace/v1/é", "/headrace/v1/\n", "/headrace/v1/" + "x" * 1024])
def test_what_no_engine_could_store_is_not_a_key(key: str) -> None:
    with pytest.raises(Invalid):
        keys.check(Key(key))
