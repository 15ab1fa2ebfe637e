"""`.proto` files: what is read, which message is chosen, and what is refused with its place."""

import pytest

from headrace.tables.typed.model import InvalidSchema
from headrace.tables.typed.proto_files import message_descriptor, message_index

TWO = """
syntax = "proto3"; // a comment
/* another */
package shop;
option java_package = "x.y";
message First { reserved 2, 5 to 9; reserved "old"; int32 a = 1 [deprecated = true]; }
message Second { message In { bool x = 1; } map<string, In> ins = 1; message Other { int32 y = 1; } Other o = 2; }
service Shop { rpc Buy(First) returns (Second); }
"""


def test_a_message_is_found_by_its_name_with_and_without_the_package() -> None:
    for name in ("Second", "shop.Second"):
        assert message_descriptor(TWO, name).full_name == "shop.Second"
    assert message_descriptor(TWO, "Second.In").full_name == "shop.Second.In"


def test_the_only_message_needs_no_name() -> None:
    assert message_descriptor('syntax = "proto3"; message A { int32 a = 1; }', "").full_name == "A"


def test_the_place_of_a_message_counts_what_is_written() -> None:
    assert message_index(message_descriptor(TWO, "First")) == [0]
    assert message_index(message_descriptor(TWO, "Second")) == [1]
    assert message_index(message_descriptor(TWO, "Second.Other")) == [1, 1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no message"),
        ("garbage", "line 1, column 1"),
        ('syntax = "proto3";\nmessage A { int32 a = 1; what is this }', "line 2"),
        ('syntax = "proto3"; message A { int32 a = 1; int32 b = 1; }', "duplicate field number"),
        ('syntax = "proto3"; message A { Nothing a = 1; }', "Nothing"),
        ('syntax = "proto3"; import "other.proto"; message A { int32 a = 1; }', "imports other.proto"),
        ('syntax = "proto4"; message A { int32 a = 1; }', "proto4"),
        ('edition = "2023"; message A { int32 a = 1; }', "2023"),
        ("message A { optional group G = 1 { optional int32 x = 1; } }", "group"),
        (TWO, "say which one"),
        ("message A { " * 40 + "optional int32 a = 1;" + " }" * 40, "deeper than"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        message_descriptor(text, "")


def test_a_message_that_is_not_there_is_refused_and_the_others_are_named() -> None:
    with pytest.raises(InvalidSchema, match=r"no message Third; it has shop\.First, shop\.Second"):
        message_descriptor(TWO, "Third")
