"""Unsigned varints, as lengths, counts and tags of flexible versions are written."""

from headrace.wire.errors import WireError

MAX_VALUE = 0xFFFF_FFFF
# Lengths and counts below this take one byte; compiled code handles these by itself.
ONE_BYTE_END = 128
_MAX_SHIFT = 28

ONE_BYTE = tuple(bytes([value]) for value in range(ONE_BYTE_END))


def read_rest(data: memoryview, first: int, position: int) -> tuple[int, int]:
    """Return the value that begins with the byte `first`, and where it ends; `position` is behind that byte."""
    value, shift = first & 0x7F, 7
    while shift <= _MAX_SHIFT:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < ONE_BYTE_END:
            if value > MAX_VALUE:
                break
            return value, position
        shift += 7
    raise WireError(f"a varint before byte {position} has more than 32 bits")


def varint(value: int) -> bytes:
    """Return the bytes of a value."""
    out = bytearray()
    while value >= ONE_BYTE_END:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
