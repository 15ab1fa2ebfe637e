"""Bodies that are small and become large, or say that they do. Run as a program it opens all and prints the cost.

The program is for `test_codec_limits.py`: only a process of its own can say honestly how much memory it has used.
"""

import re
import resource
import sys
import zlib
from pathlib import Path

import cramjam
import lz4.frame

from headrace.records.batch import Codec
from headrace.records.codecs import XERIAL_HEADER, decompress
from headrace.records.problems import InvalidBatch, Problem

MEBIBYTE = 1 << 20
LIMIT_BYTES = 4 * MEBIBYTE
BOMB_BYTES = 256 * MEBIBYTE
SNAPPY_BOMB_BYTES = 64 * MEBIBYTE
"""Snappy shrinks nothing to less than a twentieth, so its bomb is the largest."""

ROOM_BYTES = 512 * MEBIBYTE
"""Address space beyond what the process has at the start: a claim that is believed does not fit."""


def gzip_bomb() -> bytes:
    stream = zlib.compressobj(1, wbits=31)
    zeros = bytes(MEBIBYTE)
    parts = [stream.compress(zeros) for _ in range(BOMB_BYTES // MEBIBYTE)]
    return b"".join(parts) + stream.flush()


def gzip_member_bomb() -> bytes:
    member = zlib.compress(bytes(MEBIBYTE), wbits=31)
    return member * (BOMB_BYTES // MEBIBYTE)


def snappy_bomb() -> bytes:
    """A true raw block: one literal byte, then copies of 64 bytes from one byte back."""
    copies = SNAPPY_BOMB_BYTES // 64
    return _plain_varint(64 * copies + 1) + b"\x00a" + b"\xfe\x01\x00" * copies


def xerial_bomb() -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(MEBIBYTE)))
    return XERIAL_HEADER + (len(block).to_bytes(4, "big") + block) * (SNAPPY_BOMB_BYTES // MEBIBYTE)


def xerial_claim() -> bytes:
    block = _plain_varint(2**32 - 1) + b"\x00a"
    return XERIAL_HEADER + len(block).to_bytes(4, "big") + block


def lz4_bomb() -> bytes:
    frame = lz4.frame.compress(
        bytes(4 * MEBIBYTE), block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False, store_size=False
    )
    header, block = frame[:7], frame[7:-4]
    return bytes(header + block * (BOMB_BYTES // (4 * MEBIBYTE)) + bytes(4))


def lz4_claim() -> bytes:
    """A frame whose header claims a tebibyte, and holds one byte."""
    honest = lz4.frame.compress(b"a", block_linked=False, store_size=False)
    header = lz4.frame.LZ4FrameCompressor(block_linked=False).begin(source_size=2**40)
    return bytes(header + honest[7:])


def zstd_bomb(window_log: int = 17) -> bytes:
    """Blocks that repeat one byte, in a frame that does not say how long it becomes."""
    block = (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    last = (0 << 3 | 1).to_bytes(3, "little")
    header = b"\x28\xb5\x2f\xfd\x00" + bytes([(window_log - 10) << 3])
    return header + block * (BOMB_BYTES // (128 * 1024)) + last


def zstd_claim(size: int, *, blocks: int = 1) -> bytes:
    """A frame that states its size in eight bytes, whatever its blocks hold."""
    block = (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    last = (0 << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\xc0\x38" + size.to_bytes(8, "little") + block * blocks + last


def _plain_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


BOMBS = {
    "gzip": (Codec.GZIP, gzip_bomb),
    "gzip members": (Codec.GZIP, gzip_member_bomb),
    "snappy": (Codec.SNAPPY, snappy_bomb),
    "snappy claim": (Codec.SNAPPY, lambda: _plain_varint(2**32 - 1) + b"\x00a"),
    "xerial": (Codec.SNAPPY, xerial_bomb),
    "xerial claim": (Codec.SNAPPY, xerial_claim),
    "lz4": (Codec.LZ4, lz4_bomb),
    "zstd": (Codec.ZSTD, zstd_bomb),
    "zstd wide window": (Codec.ZSTD, lambda: zstd_bomb(window_log=27)),
    "zstd claim": (Codec.ZSTD, lambda: zstd_claim(2**62)),
    "zstd true claim": (Codec.ZSTD, lambda: zstd_claim(64 * MEBIBYTE, blocks=512)),
}


def _status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    """Open every bomb, see each refused, and print how many bytes the resident memory rose at its peak."""
    bombs = {name: (codec, memoryview(make())) for name, (codec, make) in BOMBS.items()}
    # The first use of a codec loads what it needs, which is not the bomb's doing.
    for codec in Codec:
        try:
            decompress(codec, memoryview(b"rubbish"), max_output_bytes=100)
        except InvalidBatch:
            continue
    room = _status_bytes("VmSize") + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resident_before = _status_bytes("VmRSS")
    for name, (codec, body) in bombs.items():
        try:
            opened = decompress(codec, body, max_output_bytes=LIMIT_BYTES)
        except InvalidBatch as error:
            assert error.problem is Problem.TOO_LARGE, (name, error)
        else:
            sys.exit(f"{name} was opened into {len(opened)} bytes")
    sys.stdout.write(str(_status_bytes("VmHWM") - resident_before))


if __name__ == "__main__":
    main()
