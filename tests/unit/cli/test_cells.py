"""Values as people and programs read them."""

import datetime
import decimal

import pytest

from headrace.cli.cells import cell, plain


@pytest.mark.parametrize(
    ("value", "data", "shown"),
    [
        (None, None, ""),
        (7, 7, "7"),
        (True, True, "true"),
        (b"text", "text", "text"),
        ("grüße\n".encode(), "grüße\n", "grüße\n"),
        (bytearray(b"\xff\x00"), "0xff00", "0xff00"),
        (b"\x01\x02", "0x0102", "0x0102"),
        (b"", "", ""),
        (decimal.Decimal("1.50"), "1.50", "1.50"),
        (
            datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
            "2026-01-02T00:00:00+00:00",
            "2026-01-02T00:00:00+00:00",
        ),
        ([1, None], [1, None], "1, "),
        ([{"key": "h", "value": b"v"}], [{"key": "h", "value": "v"}], "h=v"),
        ({"a": b"\xfe"}, {"a": "0xfe"}, "{a: 0xfe}"),
    ],
)
def test_a_value_is_told_to_programs_and_shown_to_people(value: object, data: object, shown: str) -> None:
    assert plain(value) == data
    assert cell(value) == shown
