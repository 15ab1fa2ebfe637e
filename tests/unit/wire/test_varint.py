"""Unsigned varints at their limits."""

import pytest

from headrace.wire.errors import WireError
from headrace.wire.varint import read_rest, varint

KNOWN = {
    0: "00",
    1: "01",
    127: "7f",
    128: "8001",
    300: "ac02",
    16383: "ff7f",
    16384: "808001",
    2**32 - 1: "ffffffff0f",
}


@pytest.mark.parametrize(("value", "known"), KNOWN.items())
def test_known_values(value: int, known: str) -> None:
    data = bytes.fromhex(known)
    assert varint(value) == data
    if len(data) > 1:
        assert read_rest(memoryview(data + b"\xff"), data[0], 1) == (value, len(data))


@pytest.mark.parametrize("data", ["ffffffff1f", "808080808001", "ffffffffffffffff7f"])
def test_more_than_32_bits_are_refused(data: str) -> None:
    view = memoryview(bytes.fromhex(data))
    with pytest.raises(WireError, match="more than 32 bits"):
        read_rest(view, view[0], 1)
