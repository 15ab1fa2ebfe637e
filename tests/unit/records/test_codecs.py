"""Every codec gives back what went in, reads what others write, and refuses what is damaged."""

import gzip
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard

from headrace.records import codecs
from headrace.records.batch import Codec
from headrace.records.codecs import XERIAL_HEADER, compress, decompress
from headrace.records.problems import InvalidBatch, Problem
from headrace.records.zstd_frames import MAX_BLOCKS

from .bombs import lz4_claim, zstd_claim

PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
BODIES = [b"", b"a", b"abc" * 50_000, bytes(range(256)) * 700]
REAL_STREAM = zlib.decompressobj


def opened(codec: Codec, data: bytes, limit: int = 1 << 20) -> bytes:
    return bytes(decompress(codec, memoryview(data), max_output_bytes=limit))


def refusal(codec: Codec, data: bytes, limit: int = 1 << 20) -> Problem:
    with pytest.raises(InvalidBatch) as caught:
        opened(codec, data, limit)
    return caught.value.problem


def framed_snappy(*blocks: bytes) -> bytes:
    packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    return XERIAL_HEADER + b"".join(len(block).to_bytes(4, "big") + block for block in packed)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("body", BODIES, ids=len)
def test_round_trip_fits_a_limit_of_exactly_its_size(codec: Codec, body: bytes) -> None:
    packed = bytes(compress(codec, body))
    assert opened(codec, packed, len(body)) == body
    if body:
        assert refusal(codec, packed, len(body) - 1) is Problem.TOO_LARGE


@pytest.mark.parametrize("codec", PACKED)
def test_body_that_is_cut_off_is_refused(codec: Codec) -> None:
    packed = bytes(compress(codec, b"abc" * 1000))
    for size in (0, 1, 5, len(packed) // 2, len(packed) - 1):
        assert refusal(codec, packed[:size]) is Problem.COMPRESSION, size


@pytest.mark.parametrize("codec", PACKED)
def test_bytes_behind_the_last_frame_are_refused(codec: Codec) -> None:
    packed = bytes(compress(codec, b"abc" * 1000))
    assert refusal(codec, packed + b"rubbish") is Problem.COMPRESSION


@pytest.mark.parametrize("codec", PACKED)
def test_rubbish_is_refused(codec: Codec) -> None:
    assert refusal(codec, b"\xff" * 100) is Problem.COMPRESSION


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_joined_frames_are_read_to_the_end(codec: Codec) -> None:
    joined = bytes(compress(codec, b"first")) + bytes(compress(codec, b"second"))
    assert opened(codec, joined) == b"firstsecond"
    assert opened(codec, joined, 11) == b"firstsecond"
    assert refusal(codec, joined, 10) is Problem.TOO_LARGE


def test_lz4_is_one_frame() -> None:
    frame = bytes(compress(Codec.LZ4, b"first"))
    assert refusal(Codec.LZ4, frame + frame) is Problem.COMPRESSION


def test_gzip_of_other_makers_is_read() -> None:
    assert opened(Codec.GZIP, gzip.compress(b"abc" * 1000)) == b"abc" * 1000


def test_gzip_with_a_wrong_checksum_is_refused() -> None:
    packed = bytearray(gzip.compress(b"abc"))
    packed[-5] ^= 1
    assert refusal(Codec.GZIP, bytes(packed)) is Problem.COMPRESSION


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_thousands_of_empty_frames_are_refused(codec: Codec) -> None:
    empty = bytes(compress(codec, b""))
    assert opened(codec, empty * 10) == b""
    assert refusal(codec, empty * (codecs.MAX_FRAMES + 1)) is Problem.COMPRESSION


def test_raw_snappy_is_read() -> None:
    assert opened(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"abc" * 1000))) == b"abc" * 1000


def test_snappy_of_several_blocks_is_read() -> None:
    assert opened(Codec.SNAPPY, framed_snappy(b"one", b"", b"two")) == b"onetwo"


@pytest.mark.parametrize(
    "data",
    [
        XERIAL_HEADER[:12],
        XERIAL_HEADER + b"\x00\x00",
        XERIAL_HEADER + b"\xff\xff\xff\xff",
        XERIAL_HEADER + b"\x7f\xff\xff\xff" + b"\x00",
        XERIAL_HEADER + bytes(4),
        b"\xff\xff\xff\xff\x7f",
        b"\x05\x00a",
    ],
)
def test_damaged_snappy_is_refused(data: bytes) -> None:
    assert refusal(Codec.SNAPPY, data) is Problem.COMPRESSION


def test_our_lz4_is_what_kafka_reads() -> None:
    frame = lz4.frame.get_frame_info(bytes(compress(Codec.LZ4, b"abc" * 100_000)))
    assert not frame["block_linked"]
    assert frame["block_size"] == 64 * 1024


@pytest.mark.parametrize("linked", [True, False])
def test_lz4_frames_of_other_makers_are_read(linked: bool) -> None:
    body = b"abcdef" * 50_000
    frame = lz4.frame.compress(body, block_linked=linked, content_checksum=True, block_checksum=True, store_size=True)
    assert opened(Codec.LZ4, frame) == body


@pytest.mark.parametrize("position", [-1, 6, 20])
def test_lz4_with_a_bad_checksum_is_refused(position: int) -> None:
    frame = bytearray(
        lz4.frame.compress(b"abcdef" * 100, content_checksum=True, block_checksum=True, store_size=False)
    )
    frame[position] ^= 0x55
    assert refusal(Codec.LZ4, bytes(frame)) is Problem.COMPRESSION


def test_lz4_that_claims_a_tebibyte_is_refused_for_what_it_holds() -> None:
    assert refusal(Codec.LZ4, lz4_claim()) is Problem.COMPRESSION


def test_zstd_stream_without_a_stated_size_is_read() -> None:
    stream = zstandard.ZstdCompressor(level=19).compressobj()
    packed = stream.compress(b"abc" * 100_000) + stream.flush()
    assert opened(Codec.ZSTD, packed, 300_000) == b"abc" * 100_000
    assert refusal(Codec.ZSTD, packed, 299_999) is Problem.TOO_LARGE
    assert refusal(Codec.ZSTD, packed, 0) is Problem.TOO_LARGE


def test_zstd_window_of_the_highest_level_is_taken() -> None:
    # What the Java client writes at level 22: no size, a window of 128 MiB, and as little content as it likes.
    packed = b"\x28\xb5\x2f\xfd\x00\x88" + (3 << 3 | 1).to_bytes(3, "little") + b"abc"
    assert zstandard.get_frame_parameters(packed).window_size == 128 * 1024 * 1024
    assert opened(Codec.ZSTD, packed) == b"abc"


def test_zstd_with_a_wrong_checksum_is_refused() -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(b"abc" * 100))
    assert opened(Codec.ZSTD, bytes(packed)) == b"abc" * 100
    packed[-1] ^= 1
    assert refusal(Codec.ZSTD, bytes(packed)) is Problem.COMPRESSION


@pytest.mark.parametrize("claim", [0, 1, 128 * 1024 - 1, 128 * 1024 + 1, 2**18, 1 << 20])
def test_zstd_that_states_a_wrong_size_is_refused(claim: int) -> None:
    assert refusal(Codec.ZSTD, zstd_claim(claim)) is Problem.COMPRESSION


@pytest.mark.parametrize("claim", [2**63, 2**64 - 3, 2**64 - 2])
def test_zstd_that_states_an_impossible_size_is_refused(claim: int) -> None:
    assert refusal(Codec.ZSTD, zstd_claim(claim)) in (Problem.COMPRESSION, Problem.TOO_LARGE)


@pytest.mark.parametrize(
    "data",
    [
        # Found by fuzzing: a frame header whose size the library refuses to tell.
        bytes.fromhex("28b52ffdc6fabdbdbd42002000773d082d0000000000000023fd4242"),
        b"\x28\xb5\x2f\xfd\x08\x38" + (3 << 3 | 1).to_bytes(3, "little") + b"abc",
        b"\x28\xb5\x2f\xfd\x01\x38\x07" + (3 << 3 | 1).to_bytes(3, "little") + b"abc",
        b"\x28\xb5\x2f\xfd\x00\xff" + (3 << 3 | 1).to_bytes(3, "little") + b"abc",
    ],
    ids=["from the fuzzer", "reserved bit", "dictionary", "window too wide"],
)
def test_zstd_frame_header_that_cannot_be_served_is_refused(data: bytes) -> None:
    assert refusal(Codec.ZSTD, data) is Problem.COMPRESSION


def test_zstd_size_that_means_unknown_does_not_lift_the_limit() -> None:
    packed = zstd_claim(2**64 - 1)
    assert opened(Codec.ZSTD, packed, 128 * 1024) == b"a" * 128 * 1024
    assert refusal(Codec.ZSTD, packed, 128 * 1024 - 1) is Problem.TOO_LARGE


def test_zstd_that_states_its_size_is_read() -> None:
    assert opened(Codec.ZSTD, zstd_claim(128 * 1024)) == b"a" * 128 * 1024


def test_skippable_zstd_frames_are_skipped() -> None:
    skippable = b"\x5a\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    packed = bytes(compress(Codec.ZSTD, b"body"))
    assert opened(Codec.ZSTD, skippable + packed + skippable) == b"body"
    assert refusal(Codec.ZSTD, packed + skippable[:-1]) is Problem.COMPRESSION


def test_zstd_of_endless_empty_blocks_is_refused() -> None:
    assert refusal(Codec.ZSTD, b"\x28\xb5\x2f\xfd\x00\x38" + bytes(3) * (MAX_BLOCKS + 1)) is Problem.COMPRESSION


def test_bodies_from_any_buffer_are_taken() -> None:
    for codec in Codec:
        body = memoryview(bytearray(b"xx" + b"abc" * 100))[2:]
        packed = memoryview(bytearray(b"y") + compress(codec, body))[1:]
        assert bytes(decompress(codec, packed, max_output_bytes=300)) == b"abc" * 100


def test_zlib_without_the_gzip_header_is_refused() -> None:
    assert refusal(Codec.GZIP, zlib.compress(b"abc")) is Problem.COMPRESSION


class CountingStream:
    """A gzip stream that adds up what it was given."""

    given_bytes = 0

    def __init__(self, wbits: int) -> None:
        self._stream = REAL_STREAM(wbits=wbits)

    def decompress(self, data: memoryview, max_length: int) -> bytes:
        CountingStream.given_bytes += len(data)
        return self._stream.decompress(data, max_length)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def test_many_gzip_members_before_a_long_one_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "GZIP_STEP_BYTES", 100)
    monkeypatch.setattr(CountingStream, "given_bytes", 0)
    monkeypatch.setattr("zlib.decompressobj", CountingStream)
    members = [gzip.compress(b"")] * 500 + [gzip.compress(bytes(range(256)) * 1000, 0)]
    body = b"".join(members)
    assert opened(Codec.GZIP, body) == bytes(range(256)) * 1000
    # Given all that is left each time, the library would copy it for each of the members.
    assert CountingStream.given_bytes <= 500 * 100 + 2 * len(body)
