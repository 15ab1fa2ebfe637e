"""Batches read back from an object: checked, placed, stamped."""

import struct

import pytest
from crc32c import crc32c

from headrace.errors import Corrupt
from headrace.model.ids import ObjectKey
from headrace.records.batch import HEADER_BYTES, BatchView
from headrace.wal.chunks import iter_chunk, stamp_offsets

SOURCE = ObjectKey("wal/object")


def batch(records: int, body: bytes = b"records", *, base_offset: int = 0) -> bytes:
    """Return a batch whose header is right; nobody here opens its records."""
    checked = struct.pack(">hiqqqhii", 0, records - 1, 5, 9, -1, -1, -1, records) + body
    raw = struct.pack(">qiibI", base_offset, 9 + len(checked), 0, 2, crc32c(checked)) + checked
    assert len(raw) == HEADER_BYTES + len(body)
    return raw


def test_batches_are_found_in_order() -> None:
    data = batch(1, b"a") + batch(5, b"bcd") + batch(2, b"")
    found = list(iter_chunk(data, source=SOURCE, start_byte=0))
    assert [view.record_count for view in found] == [1, 5, 2]
    assert [bytes(view.body) for view in found] == [b"a", b"bcd", b""]


def test_stamping_gives_contiguous_offsets_and_keeps_the_checksum() -> None:
    data = bytearray(batch(3, base_offset=77) + batch(1) + batch(10))
    stamp_offsets(data, 100, end_offset=114, source=SOURCE, start_byte=0)
    found = list(iter_chunk(data, source=SOURCE, start_byte=0))
    assert [(view.base_offset, view.end_offset, view.leader_epoch) for view in found] == [
        (100, 103, -1),
        (103, 104, -1),
        (104, 114, -1),
    ]


@pytest.mark.parametrize("end_offset", [112, 114])
def test_batches_that_do_not_cover_the_entry_are_refused_and_left_as_they_are(end_offset: int) -> None:
    data = bytearray(batch(3) + batch(10))
    before = bytes(data)
    with pytest.raises(Corrupt, match=f"offsets 100 to 113 .* from 4096 on.* end at {end_offset}"):
        stamp_offsets(data, 100, end_offset=end_offset, source=SOURCE, start_byte=4096)
    assert data == before


def test_damage_is_named_with_object_and_position_and_nothing_is_stamped() -> None:
    first = batch(1)
    data = bytearray(first + batch(1))
    data[-1] ^= 1
    before = bytes(data)
    with pytest.raises(Corrupt, match=rf"wal/object is damaged at byte {1000 + len(first)}: .*CRC"):
        stamp_offsets(data, 0, end_offset=2, source=SOURCE, start_byte=1000)
    assert data == before


def test_every_cut_is_refused() -> None:
    first = batch(1)
    data = first + batch(2)
    for cut in range(1, len(data)):
        if cut != len(first):
            with pytest.raises(Corrupt):
                list(iter_chunk(data[:cut], source=SOURCE, start_byte=0))


def test_every_flipped_bit_behind_the_stamped_fields_is_refused() -> None:
    data = batch(2, b"some records")
    stamped = {*range(8), *range(12, 16)}
    for at in set(range(len(data))) - stamped:
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(Corrupt):
                list(iter_chunk(damaged, source=SOURCE, start_byte=0))


def test_views_are_read_only_windows_on_the_bytes() -> None:
    data = bytearray(batch(1))
    (view,) = iter_chunk(data, source=SOURCE, start_byte=0)
    assert isinstance(view, BatchView)
    assert view.data.readonly
    assert view.data.obj is data
