"""Damaged messages are refused with one kind of error, cost next to nothing, or are messages again.

The fuzz targets say what must hold; here they get bytes that were good once, which reach deeper than random ones.
"""

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.testing.fuzz_wire import fuzz_message, fuzz_request, message_seeds, request_seeds
from headrace.wire.schema import apis

ROUNDS = 12
TELLING_BYTES = (0x00, 0x01, 0x02, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
# Two's complement and varints of counts and lengths that no frame can hold, and the negative ones that mean nothing.
LYING_LENGTHS = (
    b"\x7f\xff\xff\xff",
    b"\x00\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\xff\xff",
)
MAX_BYTES_AT_ONCE = 1 << 20


def damaged(rng: random.Random, message: bytes, keep: int) -> bytes:
    """Change, drop or insert a few bytes behind the first `keep`."""
    out = bytearray(message)
    for _ in range(rng.randrange(1, 4)):
        position = rng.randrange(keep, len(out) + 1)
        kind = rng.randrange(5)
        if kind == 0 and position < len(out):
            out[position] = rng.choice(TELLING_BYTES)
        elif kind == 1 and position < len(out):
            out[position] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del out[position : position + rng.randrange(1, 5)]
        elif kind == 3:
            out[position:position] = rng.randbytes(rng.randrange(1, 5))
        else:
            lie = rng.choice(LYING_LENGTHS)
            out[position : position + len(lie)] = lie
    return bytes(out)


def key_of(request: bytes) -> int:
    return int.from_bytes(request[:2])


def version_of(request: bytes) -> int:
    return int.from_bytes(request[2:4])


@pytest.mark.parametrize("seed", range(4))
def test_damaged_messages_of_every_version_are_refused_or_read(seed: int) -> None:
    rng = random.Random(seed)
    for message in message_seeds():
        for _ in range(ROUNDS):
            fuzz_message(damaged(rng, message, keep=2))


def test_damaged_requests_are_refused_or_read() -> None:
    rng = random.Random(11)
    for request in request_seeds():
        for _ in range(ROUNDS):
            fuzz_request(damaged(rng, request, keep=0))


def test_a_lying_length_anywhere_in_the_first_and_last_version_of_any_request_allocates_nothing_of_its_size() -> None:
    seeds = [request for request in request_seeds() if version_of(request) in apis()[key_of(request)].versions]
    for request in seeds:
        fuzz_request(request)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for request in seeds:
            for position in range(8, len(request), 5):
                for lie in (LYING_LENGTHS[1], LYING_LENGTHS[4]):
                    fuzz_request(request[:position] + lie + request[position + len(lie) :])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < MAX_BYTES_AT_ONCE


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_no_danger(data: bytes) -> None:
    fuzz_request(data)
    fuzz_message(data)
