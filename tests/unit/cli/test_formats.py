"""Delimiters, keys and format strings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.formats import compile_format, parse_line, plain_format, split, unescape
from headrace.cli.records import Incoming, Outgoing
from headrace.errors import Invalid

RECORD = Incoming(
    topic="orders",
    partition=3,
    offset=42,
    key=b"k\xff",
    value=b"v\x00w",
    headers=(("a", b"1"), ("a", None)),
    timestamp_ms=1234,
)
TOMBSTONE = Incoming(topic="orders", partition=0, offset=0, value=None)


@given(
    pieces=st.lists(st.binary(max_size=6), max_size=8),
    delimiter=st.sampled_from([b"\n", b"\r\n", b"aab"]),
    cut=st.integers(1, 5),
    ends_with_delimiter=st.booleans(),
)
def test_pieces_do_not_depend_on_how_the_input_arrives(
    pieces: list[bytes], delimiter: bytes, cut: int, ends_with_delimiter: bool
) -> None:
    stream = delimiter.join(pieces) + delimiter * ends_with_delimiter
    chunks = [stream[at : at + cut] for at in range(0, len(stream), cut)]
    assert list(split(chunks, delimiter)) == [piece for piece in stream.split(delimiter) if piece]


def test_a_piece_comes_as_soon_as_its_delimiter_has_been_seen() -> None:
    pieces = split(iter([b"one\nt", b"wo\n"]), b"\n")
    assert next(pieces) == b"one"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"k:v:w", Outgoing(key=b"k", value=b"v:w")),
        (b"no key", Outgoing(key=None, value=b"no key")),
        (b":v", Outgoing(key=b"", value=b"v")),
        (b"k:", Outgoing(key=b"k", value=b"")),
    ],
)
def test_the_first_separator_parts_key_and_value(line: bytes, expected: Outgoing) -> None:
    assert parse_line(line, key_separator=b":", empty_is_null=False) == expected


def test_empty_is_null_where_that_is_asked_for() -> None:
    assert parse_line(b"k:", key_separator=b":", empty_is_null=True) == Outgoing(key=b"k", value=None)
    assert parse_line(b":v", key_separator=b":", empty_is_null=True) == Outgoing(key=None, value=b"v")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"a\n\r\t\0\\", b"a\n\r\t\0\\"),
        (r"\x00\xfF", b"\x00\xff"),
        ("ä", "ä".encode()),
        (b"\xff".decode("utf-8", "surrogateescape"), b"\xff"),
    ],
)
def test_escapes_become_bytes(text: str, expected: bytes) -> None:
    assert unescape(text) == expected


@pytest.mark.parametrize("text", [r"\q", r"\x0", "\\"])
def test_an_unknown_escape_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is no escape"):
        unescape(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%t %p %o\n", b"orders 3 42\n"),
        ("%k=%s", b"k\xff=v\x00w"),
        ("%K,%S,%T", b"2,3,1234"),
        ("%R", b"\x00\x00\x00\x03"),
        ("%h", b"a=1,a=NULL"),
        ("100%%", b"100%"),
        ("", b""),
    ],
)
def test_format_strings_mean_what_they_mean_in_kcat(text: str, expected: bytes) -> None:
    assert compile_format(text, show_null=False)(RECORD) == expected


def test_null_has_length_minus_one_and_is_shown_where_that_is_asked_for() -> None:
    assert compile_format("%K %S %T [%k%s]", show_null=False)(TOMBSTONE) == b"-1 -1 -1 []"
    assert compile_format("%k%s", show_null=True)(TOMBSTONE) == b"NULLNULL"
    assert compile_format("%R", show_null=False)(TOMBSTONE) == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("text", ["%q", "50%"])
def test_an_unknown_token_is_refused_with_those_that_are_known(text: str) -> None:
    with pytest.raises(Invalid, match=r"known are %% and .*%s"):
        compile_format(text, show_null=False)


def test_plain_output_is_the_value_or_key_separator_value() -> None:
    assert plain_format(key_separator=None, delimiter=b"\n", show_null=False)(RECORD) == b"v\x00w\n"
    assert plain_format(key_separator=b"|", delimiter=b";", show_null=False)(RECORD) == b"k\xff|v\x00w;"
    assert plain_format(key_separator=b"|", delimiter=b";", show_null=True)(TOMBSTONE) == b"NULL|NULL;"
    assert plain_format(key_separator=b"|", delimiter=b";", show_null=False)(TOMBSTONE) == b"|;"
