"""Damaged bytes find no way through: both kernels see the same, nothing breaks, nothing is made up.

The fuzz targets say what must hold; here they get bytes that were good once, which reach deeper than random ones.
"""

import random
from struct import pack

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.records.batch import HEADER_BYTES, Codec
from headrace.records.encoder import BatchEncoder
from headrace.records.kernel import compiled_kernel, python_kernel
from headrace.records.record import Record, columns_of
from headrace.testing.fuzz_records import batch_seeds, codec_seeds, fuzz_batch, fuzz_codecs, fuzz_columns

SEEDS = 60
MUTATIONS = 8
TELLING_BYTES = (0x00, 0x01, 0x02, 0x03, 0x0F, 0x10, 0x7F, 0x80, 0xFE, 0xFF)


def good_batch(rng: random.Random) -> bytes:
    """Make a batch with a bit of everything."""
    records = []
    offset = rng.choice([0, 5, 2**62])
    for _ in range(rng.randrange(10)):
        headers = tuple(
            (rng.choice([b"", b"\xff\xfe"]), rng.choice([None, b"", b"xyz"])) for _ in range(rng.randrange(3))
        )
        records.append(
            Record(
                offset=offset,
                timestamp_ms=rng.choice([-1, 0, 2**63 - 1, -(2**63), 1_700_000_000_000]),
                key=rng.choice([None, b"", b"key"]),
                value=rng.choice([None, b"v" * rng.randrange(150)]),
                headers=headers,
            )
        )
        offset += rng.choice([1, 1, 1, 3, 1000])
    columns = columns_of(
        records,
        attributes=rng.choice([0, 0, 0x10, 0x30]),
        producer_id=rng.choice([-1, 5]),
        producer_epoch=rng.choice([-1, 3]),
        base_sequence=rng.choice([-1, 0, 2**31 - 2]),
    )
    return bytes(BatchEncoder(codec=rng.choice(list(Codec))).encode(columns, end_offset=offset + 5))


def damaged(rng: random.Random, batch: bytes) -> bytes:
    """Change, drop or insert a few bytes, mostly behind the header."""
    out = bytearray(batch)
    for _ in range(rng.randrange(1, 4)):
        low = HEADER_BYTES if len(out) > HEADER_BYTES and rng.random() < 0.6 else 0
        position = rng.randrange(low, len(out)) if len(out) > low else 0
        kind = rng.randrange(4)
        if kind == 0 and out:
            out[position] = rng.choice(TELLING_BYTES)
        elif kind == 1 and out:
            out[position] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del out[position : position + rng.randrange(1, 4)]
        else:
            out[position:position] = bytes([rng.choice(TELLING_BYTES)]) * rng.randrange(1, 6)
    return bytes(out)


@settings(max_examples=SEEDS, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_batches_find_no_bug(seed: int) -> None:
    rng = random.Random(seed)
    batch = good_batch(rng)
    for data in [batch, *(damaged(rng, batch) for _ in range(MUTATIONS))]:
        fuzz_batch(data)
        fuzz_columns(data)
        fuzz_codecs(bytes([rng.randrange(5)]) + data[HEADER_BYTES:])
        fuzz_codecs(batch[22:23] + data[HEADER_BYTES:])


def test_seeds_of_the_fuzzer_find_no_bug() -> None:
    for data in batch_seeds():
        fuzz_batch(data)
        fuzz_columns(data)
    for data in codec_seeds():
        fuzz_codecs(data)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=200))
@example(data=b"")
@example(data=b"\x04")
def test_random_bytes_find_no_bug(data: bytes) -> None:
    fuzz_batch(data)
    fuzz_columns(data)
    fuzz_codecs(data)


@settings(max_examples=200, deadline=None)
@given(
    body=st.lists(st.sampled_from([*TELLING_BYTES, 0x04, 0x06, 0x0C, 0x0E, 0x12]), max_size=60).map(bytes),
    count=st.integers(-1, 12),
    last_offset_delta=st.integers(0, 20),
    dense=st.booleans(),
)
def test_kernels_walk_alike(body: bytes, count: int, last_offset_delta: int, dense: bool) -> None:
    compiled = compiled_kernel()
    answer = python_kernel().walk_records(body, count, last_offset_delta, -1, dense)
    assert compiled is None or compiled.walk_records(body, count, last_offset_delta, -1, dense) == answer


numbers = st.lists(st.integers(-2, 6), min_size=4, max_size=4)


@settings(max_examples=200, deadline=None)
@given(
    offsets=st.lists(st.sampled_from([0, 1, 2, 3, 4, 2**31, 2**63 - 1, -(2**63)]), min_size=3, max_size=3),
    ends=st.lists(numbers, min_size=5, max_size=5),
    sizes=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    validity=st.binary(max_size=2),
    room=st.integers(0, 80),
    max_bytes=st.integers(0, 80),
)
def test_kernels_write_alike_whatever_the_columns_say(
    offsets: list[int], ends: list[list[int]], sizes: list[int], validity: bytes, room: int, max_bytes: int
) -> None:
    packed = [pack("=4i", *numbers) for numbers in ends]
    data = [bytes(size) for size in (*sizes, 3)]
    fixed = [pack("=3q", *offsets), pack("=3q", 5, 6, 7), bytes(6), bytes(24), bytes(6), pack("=3i", -1, -1, -1)]
    keys, values = [packed[0], data[0], validity], [packed[1], data[1], b""]
    buffers = [*fixed, *keys, *values, packed[2], packed[3], data[2], packed[4], data[3], validity]
    answers = []
    for kernel in (python_kernel(), compiled_kernel()):
        if kernel is not None:
            out = bytearray(room)
            answer = kernel.encode_records(buffers, 0, 3, 0, out, 0, max_bytes)
            answers.append((answer, bytes(out[: answer[2]])))
    assert all(answer == answers[0] for answer in answers)
