"""The records' values, and the tally by which both ends are compared.

Values are random bytes, so that no codec and no file system can make them smaller. They come from a pool that is
made once, so that the client spends its time on sending. A tally counts records and bytes and adds up the CRC of
every value, whatever the order in which partitions deliver: a record that is lost, doubled or damaged shows.
"""

import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

POOL_BYTES = 4_000_000
POOL_MAX_RECORDS = 10_000
CHECKSUM_MODULUS = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many records and bytes, and the sum of their checksums; `None` where nobody took it."""

    records: int
    size_bytes: int
    checksum: int | None

    def __add__(self, other: "Tally") -> "Tally":
        checksum = None
        if self.checksum is not None and other.checksum is not None:
            checksum = (self.checksum + other.checksum) % CHECKSUM_MODULUS
        return Tally(
            records=self.records + other.records, size_bytes=self.size_bytes + other.size_bytes, checksum=checksum
        )


NOTHING = Tally(records=0, size_bytes=0, checksum=0)


class RecordsDiffer(Exception):
    """What was read is not what was written. The benchmark's figures are worth nothing then."""


def make_pool(record_bytes: int) -> list[bytes]:
    """Return random values of that size, enough of them that no two close neighbours are alike."""
    count = max(1, min(POOL_MAX_RECORDS, POOL_BYTES // record_bytes))
    data = os.urandom(count * record_bytes)
    return [data[n * record_bytes : (n + 1) * record_bytes] for n in range(count)]


def tally_of(values: Iterable[bytes]) -> Tally:
    """Count the values and add up their CRCs."""
    records = size_bytes = checksum = 0
    for value in values:
        records += 1
        size_bytes += len(value)
        checksum += zlib.crc32(value)
    return Tally(records=records, size_bytes=size_bytes, checksum=checksum % CHECKSUM_MODULUS)


def tally_of_cycles(pool: Sequence[bytes], records: int) -> Tally:
    """Return the tally of `records` values that are taken from the pool again and again, in order."""
    cycles, rest = divmod(records, len(pool))
    whole, part = tally_of(pool), tally_of(pool[:rest])
    assert whole.checksum is not None
    assert part.checksum is not None
    return Tally(
        records=records,
        size_bytes=cycles * whole.size_bytes + part.size_bytes,
        checksum=(cycles * whole.checksum + part.checksum) % CHECKSUM_MODULUS,
    )


def compare(written: Tally, read: Tally, *, where: str) -> None:
    """Raise `RecordsDiffer` unless what was read is what was written. A checksum that nobody took is not compared."""
    is_same_sum = written.checksum == read.checksum or written.checksum is None or read.checksum is None
    if (written.records, written.size_bytes) == (read.records, read.size_bytes) and is_same_sum:
        return
    raise RecordsDiffer(f"{where}: {written} was written, but {read} was read")
