"""Whatever producers wrote comes back from the table side as they wrote it: through the WAL, Parquet, and batches."""

import asyncio
from dataclasses import dataclass
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import Corrupt
from headrace.index.objects import wal_object_id, wal_object_key
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectKey
from headrace.objects.memory import MemoryObjects
from headrace.pipeline import wal_windows
from headrace.pipeline.plans import WalPiece
from headrace.pipeline.writing import write_file
from headrace.records.batch import CONTROL_BIT, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, BatchView, Codec, iter_batches
from headrace.records.columns import ColumnBuilder
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.tables.files import WrittenFile
from headrace.tables.parquet_reading import parse_footer, read_row_group
from headrace.testing.clock import ManualClock
from tests.table_kit import (
    APPEND_MS,
    DOMAIN,
    WRITER,
    Told,
    footer_range,
    group_range,
    read_columns,
    table_file,
    task_of,
    told,
)
from tests.unit.records.making import Batch, marker

byte_strings = st.one_of(
    st.none(), st.just(b""), st.binary(max_size=20), st.integers(1, 9000).map(lambda size: b"x" * size)
)
header_keys = st.one_of(
    st.sampled_from([b"", b"type", b"type", "schlüssel".encode(), b"\xff", b"\xc3", b"\xed\xa0\x80", b"a\x00b"]),
    st.binary(max_size=5),
)
headers = st.lists(st.tuples(header_keys, byte_strings), max_size=4).map(tuple)
timestamps = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_001_000),
    st.sampled_from(
        [-1, 0, 2**63 - 1, -(2**63), 9_223_372_036_854_775, 9_223_372_036_854_776, -9_223_372_022_400_001]
    ),
    st.integers(-(2**63), 2**63 - 1),
)
sequences = st.one_of(st.just(-1), st.integers(0, 50), st.integers(2**31 - 5, 2**31 - 1))
gaps = st.one_of(st.just(1), st.just(1), st.integers(1, 5), st.integers(1, 2**31 // 16))


@dataclass(frozen=True)
class Produced:
    """Batches as they lie in the WAL, and whether they can be opened and are shown to consumers."""

    data: bytes
    is_shown: bool


@st.composite
def data_batches(draw: st.DrawFn) -> Produced:
    steps = draw(st.lists(gaps, min_size=1, max_size=6))
    is_append_time = draw(st.booleans())
    append_time_ms = draw(timestamps)
    offset = 0
    records = []
    for step in steps:
        records.append(
            Record(
                offset=offset,
                timestamp_ms=append_time_ms if is_append_time else draw(timestamps),
                key=draw(byte_strings),
                value=draw(byte_strings),
                headers=draw(headers),
            )
        )
        offset += step
    columns = columns_of(
        records,
        attributes=(LOG_APPEND_TIME_BIT if is_append_time else 0) | draw(st.sampled_from([0, TRANSACTIONAL_BIT])),
        producer_id=draw(st.sampled_from([-1, 0, 5, 2**63 - 1])),
        producer_epoch=draw(st.sampled_from([-1, 0, 2**15 - 1])),
        base_sequence=draw(sequences),
    )
    encoder = BatchEncoder(codec=draw(st.sampled_from(Codec)), max_batch_bytes=draw(st.sampled_from([100, 1 << 20])))
    return Produced(bytes(encoder.encode(columns, end_offset=offset)), True)


def _built(batch: Batch) -> Produced:
    return Produced(bytes(batch.build()), False)


hidden_batches = st.sampled_from(
    [
        _built(Batch(body=marker(commit=True), attributes=CONTROL_BIT)),
        _built(Batch(body=b"", record_count=0, last_offset_delta=3)),
        _built(Batch(body=b"", attributes=Codec.GZIP, last_offset_delta=2, record_count=3)),
        _built(Batch(body=b"\xff" * 30, attributes=Codec.LZ4)),
        _built(Batch(body=b"x" * 30)),
    ]
)
batches = st.one_of(data_batches(), data_batches(), data_batches(), hidden_batches)


@dataclass(frozen=True)
class Layout:
    """How the batches lie in WAL objects, and how they are read and cut."""

    pieces: list[list[Produced]]
    padding: bytes
    start_offset: int
    row_group_bytes: int
    read_bytes: int


layouts = st.builds(
    Layout,
    pieces=st.lists(st.lists(batches, min_size=1, max_size=4), min_size=1, max_size=4),
    padding=st.sampled_from([b"", b"other streams' bytes"]),
    start_offset=st.sampled_from([0, 1000, 2**40]),
    row_group_bytes=st.sampled_from([1, 300, 5000, 1 << 23]),
    read_bytes=st.sampled_from([50, 1000, 1 << 22]),
)


def opened(data: bytes, start_offset: int) -> tuple[list[Told], int]:
    """Return what a consumer sees of batches that begin at an offset, and where they end."""
    builder = ColumnBuilder()
    for view in iter_batches(memoryview(data)):
        view.base_offset = start_offset
        start_offset = view.end_offset
        builder.append(view)
    return told(builder.columns()), start_offset


async def stored(layout: Layout) -> tuple[MemoryObjects, list[WalPiece], list[Told]]:
    """Store the WAL objects; return the index entries and what consumers must see."""
    objects = MemoryObjects(ManualClock())
    offset = layout.start_offset
    pieces: list[WalPiece] = []
    expected: list[Told] = []
    for number, produced in enumerate(layout.pieces):
        first_offset = offset
        for each in produced:
            if each.is_shown:
                records, offset = opened(each.data, offset)
                expected += records
            else:
                offset += BatchView(memoryview(each.data)).last_offset_delta + 1
        data = b"".join(each.data for each in produced)
        object_id = wal_object_id(WRITER, number)
        await objects.put(wal_object_key(DOMAIN, object_id), [layout.padding, data, layout.padding])
        extent = WalExtent(object_id, len(layout.padding), len(data))
        pieces.append(WalPiece(first_offset, offset, APPEND_MS + number, extent))
    return objects, pieces, expected


async def written(layout: Layout) -> tuple[MemoryObjects, WrittenFile, list[Told]]:
    objects, pieces, expected = await stored(layout)
    task = task_of(pieces, row_group_bytes=layout.row_group_bytes)
    with mock.patch.object(wal_windows, "READ_BYTES", layout.read_bytes):
        return objects, await write_file(task, objects, attempt="0"), expected


@settings(max_examples=150, deadline=None)
@given(layout=layouts, codec=st.sampled_from(Codec), max_batch_bytes=st.sampled_from([1, 200, 1 << 20]))
def test_records_survive_the_table(layout: Layout, codec: Codec, max_batch_bytes: int) -> None:
    async def run() -> None:
        objects, file, expected = await written(layout)
        [slice_] = file.slices
        assert file.row_count == slice_.row_count == len(expected)
        columns = await read_columns(objects, file, slice_)
        assert [row for each in columns for row in told(each)] == expected

        rebuilt: list[Told] = []
        for each in columns:
            data = BatchEncoder(codec=codec, max_batch_bytes=max_batch_bytes).encode(each)
            views = list(iter_batches(data))
            assert all(view.size_bytes <= max_batch_bytes or view.record_count <= 1 for view in views)
            assert (views[0].base_offset, views[-1].end_offset) == (each.start_offset, each.end_offset)
            builder = ColumnBuilder()
            for view in views:
                builder.append(view)
            rebuilt += told(builder.columns())
        assert rebuilt == expected

    asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(layout=layouts)
def test_every_offset_is_in_a_group_held_back_or_in_a_hole(layout: Layout) -> None:
    async def run() -> None:
        objects, file, _ = await written(layout)
        [slice_] = file.slices
        groups = [(group.first_offset, group.row_count) for group in slice_.row_groups]
        assert groups == sorted(groups)
        assert all(slice_.start_offset <= first < slice_.end_offset for first, _ in groups)
        found = [record.offset for each in await read_columns(objects, file, slice_) for record, *_ in told(each)]
        assert found == sorted(set(found))
        held = [(each.start_offset, each.end_offset) for each in slice_.held_back]
        assert held == sorted(held)
        for start_offset, end_offset in held:
            assert not any(start_offset <= offset < end_offset for offset in found)
            # No group has rows on both sides: the next one begins behind.
            assert not any(start_offset < first < end_offset for first, _ in groups)
            behind = [offset for offset in found if offset >= end_offset]
            assert not behind or any(end_offset <= first <= behind[0] for first, _ in groups)

    asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(layout=layouts, data=st.data())
def test_damage_is_found_before_it_is_decoded(layout: Layout, data: st.DataObject) -> None:
    async def run() -> None:
        objects, file, _ = await written(layout)
        if not file.path:
            return
        named = table_file(file, file.slices[0])
        group = data.draw(st.sampled_from(named.row_groups))
        found = await objects.get_ranges(ObjectKey(file.path), [footer_range(named), group_range(group)])
        footer, group_data = (bytearray(each) for each in found)
        good = parse_footer(named, footer)
        flip = 1 << data.draw(st.integers(0, 7))
        footer[data.draw(st.integers(0, len(footer) - 1))] ^= flip
        group_data[data.draw(st.integers(0, len(group_data) - 1))] ^= flip
        with pytest.raises(Corrupt):
            parse_footer(named, footer)
        with pytest.raises(Corrupt):
            read_row_group(named, group, good, group_data, start_offset=0, end_offset=2**62)

    asyncio.run(run())
