"""What each kind of setting takes and refuses."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.setting_kinds import (
    Address,
    Directory,
    HostPort,
    Kind,
    OneOf,
    OptionalText,
    Pairs,
    Switch,
    Url,
    Whole,
)

KINDS: list[Kind] = [
    Whole(),
    Switch(),
    OneOf(("a", "b")),
    OptionalText(),
    Directory(),
    HostPort(),
    HostPort(optional=True),
    Url(("file", "s3")),
    Pairs(),
]


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (Whole(), "1_000", 1000),
        (Whole(), 0, 0),
        (Whole(minimum=-5), " -5 ", -5),
        (Switch(), "TRUE", True),
        (Switch(), False, False),
        (OneOf(("json", "auto")), "JSON", "json"),
        (OptionalText(), "", None),
        (OptionalText(), "zone a", "zone a"),
        (Directory(), "data", Path("data")),
        (HostPort(), "localhost:9092", Address(host="localhost", port=9092)),
        (HostPort(), ":0", Address(host="", port=0)),
        (HostPort(), "[::1]:65535", Address(host="::1", port=65535)),
        (HostPort(), "PLAINTEXT://a.b:1", Address(host="a.b", port=1)),
        (HostPort(optional=True), "", None),
        (Url(("file",)), "file:data/x", "file:data/x"),
        (Pairs(), "", ()),
        (Pairs(), " a = 1; b=x=y ;", (("a", "1"), ("b", "x=y"))),
        (Pairs(), ["a=1;2", "b="], (("a", "1;2"), ("b", ""))),
    ],
)
def test_takes(kind: Kind, raw: object, value: object) -> None:
    assert kind.parse(raw) == value


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (Whole(), True),
        (Whole(), "0x10"),
        (Whole(maximum=5), 6),
        (Switch(), "yes"),
        (Switch(), 1),
        (OneOf(("a",)), "b"),
        (OptionalText(), "two\nlines"),
        (OptionalText(), "x" * 256),
        (Directory(), ""),
        (Directory(), "a\0b"),
        (Directory(), "~no-such-user-here/data"),
        (HostPort(), ""),
        (HostPort(), "host"),
        (HostPort(), "host:65536"),
        (HostPort(), "::1:9092"),
        (HostPort(), "host:9092,other:9093"),
        (HostPort(), "SSL://host:9093"),
        (Url(("file",)), "s3://bucket"),
        (Url(("file",)), "file"),
        (Url(("file",)), "file:a\nb"),
        (Pairs(), "a"),
        (Pairs(), "=1"),
        (Pairs(), "a=1;a=2"),
        (Pairs(), "a=1\n2"),
        (Pairs(), ["a=1", 2]),
        (Pairs(), ";".join(f"n{i}=1" for i in range(201))),
    ],
)
def test_refuses(kind: Kind, raw: object) -> None:
    with pytest.raises(ValueError):
        kind.parse(raw)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@given(raw=st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.lists(st.integers()), st.dates()))
def test_any_raw_value_parses_or_raises_value_error_and_what_is_shown_parses_again(kind: Kind, raw: object) -> None:
    try:
        value = kind.parse(raw)
    except ValueError:
        assert kind.expected
        return
    assert isinstance(kind, Url | Pairs) or kind.parse(kind.show(value)) == value


@given(host=st.from_regex(r"[a-z0-9.-]{0,20}", fullmatch=True), port=st.integers(0, 65535))
def test_an_address_survives_being_shown(host: str, port: int) -> None:
    assert HostPort().parse(str(Address(host=host, port=port))) == Address(host=host, port=port)


def test_pairs_are_shown_without_what_sounds_like_a_secret() -> None:
    pairs = Pairs().parse("rest.signing-name=s3tables; token=abc; s3.secret-access-key=abc; credential=abc")
    shown = Pairs().show(pairs)
    assert "abc" not in shown
    assert "rest.signing-name=s3tables" in shown
    assert "abc" not in Pairs().show("token:abc")
