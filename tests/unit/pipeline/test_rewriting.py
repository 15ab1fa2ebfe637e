"""Row groups become row groups of another file: every row as it was, nothing over a gap, dropped rows left out."""

import pytest

from headrace.errors import Corrupt, Invalid, Missing
from headrace.model.ids import ObjectKey, StreamId
from headrace.objects.memory import MemoryObjects
from headrace.pipeline.dropped_offsets import pack_offsets, unpack_offsets
from headrace.pipeline.rewrites import RewritePlan, RewriteSlice, RewriteTask, TablePiece
from headrace.pipeline.rewriting import rewrite_file
from headrace.pipeline.writing import write_file
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.tables.files import WrittenFile
from headrace.testing.batches import make_batch
from headrace.testing.clock import ManualClock
from tests.table_kit import (
    DATA_PREFIX,
    DAY,
    STREAM,
    Told,
    put_piece,
    read_columns,
    table_file,
    table_format,
    task_of,
    told,
)

STREAMS = 2


async def write_inputs(
    objects: MemoryObjects, *, files: int, rows: int = 20, row_group_bytes: int = 1500
) -> list[WrittenFile]:
    """Write files of two streams each, one behind the other."""
    written = []
    for number in range(files):
        pieces = [
            await put_piece(
                objects,
                [make_batch(values(number, stream, rows), at_ms=1000 * number)],
                start_offset=number * rows,
                number=10 * number + stream,
            )
            for stream in range(STREAMS)
        ]
        task = task_of(*([piece] for piece in pieces), row_group_bytes=row_group_bytes)
        written.append(await write_file(task, objects, attempt=f"in-{number}"))
    return written


def values(number: int, stream: int, rows: int) -> list[bytes]:
    return [b"%d/%d/%d" % (stream, number, row) + b"x" * 40 for row in range(rows)]


def rewrite_of(
    inputs: list[WrittenFile], *, row_group_bytes: int = 1 << 20, dropped: dict[int, str] | None = None
) -> RewriteTask:
    slices = [
        RewriteSlice(
            partition=stream,
            stream=StreamId(STREAM + stream),
            pieces=tuple(
                TablePiece(part.start_offset, part.end_offset, table_file(file, part) if part.row_groups else None)
                for file in inputs
                for part in file.slices
                if part.stream == STREAM + stream
            ),
        )
        for stream in range(STREAMS)
    ]
    return RewriteTask(
        saga_id="saga-2",
        epoch=5,
        data_prefix=DATA_PREFIX,
        format=table_format(),
        file=RewritePlan(1, DAY, None, tuple(slices)),
        row_group_bytes=row_group_bytes,
        dropped=dropped or {},
    )


async def rows_of(objects: MemoryObjects, files: list[WrittenFile], stream: int) -> list[Told]:
    return [
        row
        for file in files
        for part in file.slices
        if part.stream == STREAM + stream
        for columns in await read_columns(objects, file, part)
        for row in told(columns)
    ]


async def test_all_rows_come_over_as_they_were_in_fewer_groups() -> None:
    objects = MemoryObjects(ManualClock())
    inputs = await write_inputs(objects, files=5)
    written = await rewrite_file(rewrite_of(inputs), objects, attempt="a")
    assert written.row_count == 5 * STREAMS * 20
    assert [(part.start_offset, part.end_offset) for part in written.slices] == [(0, 100)] * STREAMS
    assert [len(part.row_groups) for part in written.slices] == [1] * STREAMS
    for stream in range(STREAMS):
        assert await rows_of(objects, [written], stream) == await rows_of(objects, inputs, stream)
    assert {column.value_count for column in written.columns} >= {written.row_count}


async def test_groups_are_filled_up_to_their_size_and_know_what_they_cover() -> None:
    objects = MemoryObjects(ManualClock())
    inputs = await write_inputs(objects, files=6)
    written = await rewrite_file(rewrite_of(inputs, row_group_bytes=6000), objects, attempt="a")
    for part in written.slices:
        assert 1 < len(part.row_groups) < 6
        assert part.row_groups[0].first_offset == 0
        newest = [group.max_timestamp_ms for group in part.row_groups]
        assert newest == sorted(newest)
        assert newest[-1] == max(
            group.max_timestamp_ms for file in inputs for s in file.slices for group in s.row_groups
        )
    assert await rows_of(objects, [written], 1) == await rows_of(objects, inputs, 1)


async def test_no_group_reaches_over_a_gap_where_a_batch_was_held_back() -> None:
    objects = MemoryObjects(ManualClock())
    inputs = await write_inputs(objects, files=4)
    task = rewrite_of([inputs[0], inputs[1], inputs[3]])
    written = await rewrite_file(task, objects, attempt="a")
    for part in written.slices:
        assert [group.first_offset for group in part.row_groups] == [0, 60]
        assert (part.start_offset, part.end_offset) == (0, 80)


async def test_rows_that_are_listed_are_left_out_and_their_offsets_stay_covered() -> None:
    objects = MemoryObjects(ManualClock())
    inputs = await write_inputs(objects, files=3)
    gone = [0, 1, *range(20, 40), 59]
    await objects.put(ObjectKey("tables/x/list"), [pack_offsets(gone)])
    task = rewrite_of(inputs, dropped={STREAM: "tables/x/list"})
    written = await rewrite_file(task, objects, attempt="a")
    first, second = written.slices
    assert (first.start_offset, first.end_offset, first.row_count) == (0, 60, 60 - len(gone))
    assert first.row_groups[0].first_offset == 0
    assert second.row_count == 60
    left = await rows_of(objects, [written], 0)
    wanted = await rows_of(objects, inputs, 0)
    assert left == [row for number, row in enumerate(wanted) if number not in gone]


async def test_a_file_of_which_all_rows_are_dropped_is_not_written() -> None:
    objects = MemoryObjects(ManualClock())
    inputs = await write_inputs(objects, files=1)
    await objects.put(ObjectKey("tables/x/list"), [pack_offsets(range(20))])
    task = rewrite_of(inputs, dropped={STREAM: "tables/x/list", STREAM + 1: "tables/x/list"})
    written = await rewrite_file(task, objects, attempt="a")
    assert (written.path, written.row_count) == ("", 0)
    assert [part.row_groups for part in written.slices] == [(), ()]


async def test_what_columns_cannot_hold_comes_over_too() -> None:
    objects = MemoryObjects(ManualClock())
    far_ms = 2**62
    records = [
        Record(offset=0, timestamp_ms=far_ms, key=None, value=b"v", headers=((b"\xff\xfe", b"h"),)),
        Record(offset=1, timestamp_ms=5, key=b"k", value=None, headers=()),
    ]
    piece = await put_piece(objects, [bytes(BatchEncoder().encode(columns_of(records)))])
    inputs = [await write_file(task_of([piece], [piece]), objects, attempt="in")]
    written = await rewrite_file(rewrite_of(inputs), objects, attempt="a")
    assert await rows_of(objects, [written], 0) == await rows_of(objects, inputs, 0)
    assert written.slices[0].row_groups[0].max_timestamp_ms == far_ms


async def test_damage_and_missing_files_are_told_apart() -> None:
    objects = MemoryObjects(ManualClock())
    inputs = await write_inputs(objects, files=2)
    data = bytearray(await objects.get(ObjectKey(inputs[0].path)))
    data[60] ^= 1
    await objects.delete([ObjectKey(inputs[0].path)])
    with pytest.raises(Missing):
        await rewrite_file(rewrite_of(inputs), objects, attempt="a")
    await objects.put(ObjectKey(inputs[0].path), [bytes(data)])
    with pytest.raises(Corrupt, match="CRC"):
        await rewrite_file(rewrite_of(inputs), objects, attempt="b")
    assert [info.key async for info in objects.list(f"{DATA_PREFIX}saga-2/")] == []


async def test_a_plan_that_goes_backwards_is_refused() -> None:
    objects = MemoryObjects(ManualClock())
    inputs = await write_inputs(objects, files=2)
    with pytest.raises(Invalid, match="reaches to"):
        await rewrite_file(rewrite_of([inputs[1], inputs[0]]), objects, attempt="a")


@pytest.mark.parametrize("offsets", [[], [7], list(range(1000))])
def test_lists_of_offsets_round_trip(offsets: list[int]) -> None:
    assert unpack_offsets(pack_offsets(offsets), "x").to_pylist() == offsets


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:3], lambda d: bytes([d[0] ^ 1]) + d[1:]])
def test_damaged_lists_are_refused(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(Corrupt):
        unpack_offsets(damage(pack_offsets([1, 2, 3])), "x")
