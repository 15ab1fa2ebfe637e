"""What classic consumers tell each other inside JoinGroup and SyncGroup, and the range assignor that the leader runs.

Written by hand from the protocol, not through the broker's own code: the load that measures a broker should not share
its mistakes. Subscriptions are version 3, as the Java client sends them, assignments version 1, which says no less.
"""

import struct
from collections.abc import Iterable, Sequence

SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 1
NO_GENERATION = -1

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_NULL_BYTES = _INT.pack(-1)
_NULL_STRING = _SHORT.pack(-1)


def encode_subscription(topics: Sequence[str]) -> bytes:
    """Return an eager member's subscription: no user data, nothing owned, no rack."""
    names = b"".join(_string(topic) for topic in topics)
    return b"".join(
        (
            _SHORT.pack(SUBSCRIPTION_VERSION),
            _INT.pack(len(topics)),
            names,
            _NULL_BYTES,
            _INT.pack(0),
            _INT.pack(NO_GENERATION),
            _NULL_STRING,
        )
    )


def encode_assignment(topic: str, partitions: Sequence[int]) -> bytes:
    """Return the assignment of partitions of one topic."""
    return b"".join(
        (
            _SHORT.pack(ASSIGNMENT_VERSION),
            _INT.pack(1),
            _string(topic),
            _INT.pack(len(partitions)),
            struct.pack(f">{len(partitions)}i", *partitions),
            _NULL_BYTES,
        )
    )


def decode_assignment(data: bytes) -> dict[str, list[int]]:
    """Return partitions by topic; no bytes are no partitions. Raises `ValueError` for bytes that are cut short."""
    if not data:
        return {}
    try:
        (topics,) = _INT.unpack_from(data, _SHORT.size)
        position = _SHORT.size + _INT.size
        found: dict[str, list[int]] = {}
        for _ in range(topics):
            (length,) = _SHORT.unpack_from(data, position)
            position += _SHORT.size
            name = data[position : position + length].decode()
            position += length
            (count,) = _INT.unpack_from(data, position)
            position += _INT.size
            found[name] = list(struct.unpack_from(f">{count}i", data, position))
            position += count * _INT.size
    except struct.error as error:
        raise ValueError(f"an assignment of {len(data)} bytes ends too early") from error
    return found


def assign_range(member_ids: Iterable[str], partitions: int) -> dict[str, range]:
    """Return runs of partitions for the members in order of their ids; the first ones get one more if need be."""
    ordered = sorted(member_ids)
    least, over = divmod(partitions, len(ordered))
    shares: dict[str, range] = {}
    start = 0
    for place, member_id in enumerate(ordered):
        end = start + least + (place < over)
        shares[member_id] = range(start, end)
        start = end
    return shares


def _string(text: str) -> bytes:
    data = text.encode()
    return _SHORT.pack(len(data)) + data
