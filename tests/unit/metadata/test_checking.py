"""The quick checks agree with the plain ones, key by key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Invalid
from headrace.metadata import keys
from headrace.metadata.checking import changed_units, check_decision, check_range, check_reads
from headrace.metadata.port import MAX_KEY_BYTES, Decision, Key, Range, Reads, Unit

DOMAIN, OTHER = Unit(keys.ROOT + "d/0000/"), Unit(keys.ROOT + "d/0001/")
GROUP = Unit(DOMAIN + "groups/=g/")
LEASE, SESSION = Unit(keys.lease("a")), Unit(keys.SESSIONS + "s")
UNITS = [keys.REGISTRY, DOMAIN, OTHER, GROUP, LEASE, SESSION]

some_units = st.lists(st.sampled_from(UNITS), min_size=1, max_size=3, unique=True)
some_key = st.one_of(
    st.builds(
        lambda unit, rest: Key(unit + rest),
        st.sampled_from(UNITS),
        st.sampled_from(
            ["x", "log/1", "groups/", "groups/=g/m", "groups/=h/m", "/x", "a\n", "é", "", "k" * MAX_KEY_BYTES]
        ),
    ),
    st.sampled_from([Key("/elsewhere"), Key(""), Key(keys.ROOT + "d0"), Key(DOMAIN[:-1])]),
)


def is_allowed(units: list[Unit], key: Key) -> bool:
    try:
        return keys.unit_of(keys.check(key)) in units
    except Invalid:
        return False


@given(some_units, st.lists(some_key, min_size=1, max_size=6))
def test_reads_are_allowed_exactly_when_each_key_is(units: list[Unit], named: list[Key]) -> None:
    if all(is_allowed(units, key) for key in named):
        check_reads(units, Reads(keys=named))
    else:
        with pytest.raises(Invalid):
            check_reads(units, Reads(keys=named))


@given(some_units, st.sets(some_key, max_size=4), st.sets(some_key, max_size=4), st.sets(some_key, max_size=4))
def test_decisions_are_allowed_exactly_when_each_write_is_and_none_is_double(
    units: list[Unit], puts: set[Key], ephemerals: set[Key], deletes: set[Key]
) -> None:
    decision = Decision(
        result=None, puts=dict.fromkeys(puts, b""), ephemerals=dict.fromkeys(ephemerals, b""), deletes=list(deletes)
    )
    written = [*puts, *ephemerals, *deletes]
    may_write = all(is_allowed(units, key) and not key.startswith(keys.SESSIONS) for key in written)
    if may_write and len(written) == len(set(written)):
        check_decision(units, decision, has_session=True)
        assert changed_units(units, decision) == sorted({keys.unit_of(key) for key in written})
    else:
        with pytest.raises(Invalid):
            check_decision(units, decision, has_session=True)


@given(
    st.sampled_from(UNITS), st.sampled_from(["", "a", "g", "groups/", "groups/=g/", "groups/=g/m", "groups0", "z"]),
    st.sampled_from(["", "a", "g", "groups/", "groups/=g/", "groups/=g/m", "groups0", "z"]), some_key,
)  # fmt: skip
def test_an_allowed_range_holds_no_key_of_another_unit(unit: Unit, low: str, high: str, key: Key) -> None:
    range_ = Range(Key(unit + low), Key(unit + high))
    try:
        check_reads([unit], Reads(ranges=[range_]))
    except Invalid:
        return
    if range_.start <= key < range_.end:
        assert keys.unit_of(key) == unit


@pytest.mark.parametrize(
    ("unit", "prefix"),
    [
        (DOMAIN, DOMAIN + "log/"),
        (DOMAIN, DOMAIN + "streams/7/index/"),
        (GROUP, GROUP),
        (GROUP, GROUP + "members/"),
        (keys.REGISTRY, keys.ROOT + "topics/"),
        (LEASE, LEASE + "/"),
    ],
)
def test_prefixes_inside_a_unit_are_allowed(unit: Unit, prefix: str) -> None:
    check_reads([unit], Reads(ranges=[keys.prefix_range(prefix, limit=1)]))
    check_reads([unit], Reads(ranges=[keys.prefix_range(prefix, limit=1, after=Key(prefix + "k"))]))


@pytest.mark.parametrize(
    "prefix", [keys.ROOT, DOMAIN, DOMAIN + "groups/", keys.SESSIONS, keys.LEASES, keys.ROOT + "d/"]
)
def test_prefixes_that_hold_several_units_are_refused(prefix: str) -> None:
    with pytest.raises(Invalid, match="crosses"):
        check_reads(UNITS, Reads(ranges=[keys.prefix_range(prefix, limit=1)]))


def test_a_group_is_not_touched_through_its_domain() -> None:
    with pytest.raises(Invalid, match="=g"):
        check_reads([DOMAIN], Reads(keys=[Key(DOMAIN + "a"), Key(GROUP + "head"), Key(DOMAIN + "z")]))


def test_ephemeral_keys_need_a_session() -> None:
    decision = Decision(result=None, ephemerals={Key(DOMAIN + "a"): b""})
    check_decision([DOMAIN], decision, has_session=True)
    with pytest.raises(Invalid, match="session"):
        check_decision([DOMAIN], decision, has_session=False)


def test_a_decision_that_writes_nothing_changes_no_unit() -> None:
    assert changed_units([DOMAIN, OTHER], Decision(result=None)) == []


@pytest.mark.parametrize("end", ["\0", "a\0", "z\n", "é", "k" * MAX_KEY_BYTES])
def test_a_range_ends_at_something_that_every_engine_can_compare(end: str) -> None:
    with pytest.raises(Invalid, match="end of a range"):
        check_range(Range(Key(DOMAIN), Key(DOMAIN + end)))
