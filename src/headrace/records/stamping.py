"""Write the fields of a batch that belong to the broker, in place.

Base offset and leader epoch lie outside the CRC, so a batch can be stamped after its commit without reading it again.
The timestamp lies inside: stamping it costs one pass over the bytes for the new CRC. A `BatchView` made before shows
the old values.
"""

from struct import Struct

from crc32c import crc32c

from headrace.records.batch import CHECKED_FROM, CRC_AT, HEADER_BYTES, LOG_APPEND_TIME_BIT

_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_MAX_TIMESTAMP = Struct(">q")

LEADER_EPOCH_AT = 12
ATTRIBUTES_AT = 21
MAX_TIMESTAMP_AT = 35

NO_LEADER_EPOCH = -1
"""What every batch is served with: partitions have no leaders whose epochs could differ."""


def stamp_offset(batch: memoryview, *, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch; the CRC stays valid."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(batch: memoryview, *, append_time_ms: int) -> None:
    """Give all records of the batch the append time: LogAppendTime bit, max timestamp, new CRC.

    Base timestamp and deltas stay as produced, as in Kafka: a reader who sees the bit takes the max timestamp for
    every record. `batch` is exactly one batch.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(batch, ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(batch, ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_BIT)
    stamp_max_timestamp(batch, max_timestamp_ms=append_time_ms)


def stamp_max_timestamp(batch: memoryview, *, max_timestamp_ms: int) -> None:
    """Correct the max timestamp that a client stated wrongly, with a new CRC."""
    _MAX_TIMESTAMP.pack_into(batch, MAX_TIMESTAMP_AT, max_timestamp_ms)
    stamp_crc(batch)


def stamp_crc(batch: memoryview) -> None:
    """Write the CRC that the bytes have now."""
    assert len(batch) >= HEADER_BYTES, "a batch has a whole header"
    _CRC.pack_into(batch, CRC_AT, crc32c(batch[CHECKED_FROM:]))
