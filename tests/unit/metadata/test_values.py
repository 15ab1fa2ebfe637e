import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Corrupt, Unsupported
from headrace.metadata.port import Key, Seen, Versioned
from headrace.metadata.values import ValueCodec

KEY = Key("/headrace/v1/x")


class Thing(msgspec.Struct, frozen=True, array_like=True):
    number: int
    name: str


CODEC = ValueCodec(Thing)


@given(st.integers(-(2**63), 2**63 - 1), st.text())
def test_values_come_back_as_they_were(number: int, name: str) -> None:
    assert CODEC.decode(CODEC.encode(Thing(number, name)), KEY) == Thing(number, name)


@given(st.data())
def test_a_damaged_value_never_decodes(data: st.DataObject) -> None:
    whole = CODEC.encode(Thing(7, "seven"))
    position = data.draw(st.integers(0, len(whole) - 1))
    bad = bytearray(whole)
    bad[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises((Corrupt, Unsupported), match=KEY):
        CODEC.decode(bytes(bad), KEY)


@given(st.integers(0, 12))
def test_a_value_cut_short_never_decodes(size: int) -> None:
    with pytest.raises(Corrupt, match=KEY):
        CODEC.decode(CODEC.encode(Thing(7, "seven"))[:size], KEY)


def test_a_newer_version_is_refused_and_told_apart_from_damage() -> None:
    with pytest.raises(Unsupported, match="version 2"):
        CODEC.decode(ValueCodec(Thing, version=2).encode(Thing(1, "")), KEY)


def test_a_value_of_another_kind_is_damage() -> None:
    with pytest.raises(Corrupt, match=KEY):
        CODEC.decode(ValueCodec(str).encode("not a thing"), KEY)


def test_what_was_not_there_is_none_and_what_is_damaged_is_not() -> None:
    assert CODEC.seen(Seen({}, []), KEY) is None
    with pytest.raises(Corrupt):
        CODEC.seen(Seen({KEY: Versioned(KEY, b"", 1)}, []), KEY)
