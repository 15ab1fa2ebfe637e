"""Whole files that only `main` names become one: every row once, by partition and offset, found in their footers."""

import pytest

from headrace.errors import Corrupt, Missing
from headrace.model.ids import ObjectKey, StreamId
from headrace.objects.memory import MemoryObjects
from headrace.pipeline.gathering import gather_files
from headrace.pipeline.performing import perform_task
from headrace.pipeline.rewrites import GatheredFile, GatherPlan, GatherTask
from headrace.tables.files import WrittenFile
from headrace.testing.clock import ManualClock
from tests.table_kit import DATA_PREFIX, DAY, STREAM, table_format
from tests.unit.pipeline.test_rewriting import STREAMS, rows_of, write_inputs

ROWS = 20


def gather_of(
    inputs: list[WrittenFile], *, streams: int = STREAMS, row_group_bytes: int = 1 << 20, more_rows: int = 0
) -> GatherTask:
    files = [GatheredFile(file.path, file.size_bytes, file.row_count + more_rows) for file in inputs]
    return GatherTask(
        saga_id="ab" * 16,
        epoch=5,
        data_prefix=DATA_PREFIX,
        format=table_format(),
        file=GatherPlan(1, DAY, None, tuple(files)),
        streams=tuple(StreamId(STREAM + stream) for stream in range(streams)),
        row_group_bytes=row_group_bytes,
    )


async def test_all_rows_come_over_in_the_order_of_their_offsets() -> None:
    objects = MemoryObjects(ManualClock())
    inputs = await write_inputs(objects, files=5)
    shuffled = [inputs[number] for number in (3, 0, 4, 1, 2)]
    written = await perform_task(gather_of(shuffled), objects, attempt="a")
    assert written.row_count == 5 * STREAMS * ROWS
    assert [len(part.row_groups) for part in written.slices] == [1] * STREAMS
    assert (written.bucket, written.partition) == (DAY, None)
    for stream in range(STREAMS):
        assert await rows_of(objects, [written], stream) == await rows_of(objects, inputs, stream)


async def test_files_need_not_follow_each_other() -> None:
    objects = MemoryObjects(ManualClock())
    inputs = await write_inputs(objects, files=6)
    chosen = [inputs[0], inputs[2], inputs[5]]
    written = await gather_files(gather_of(chosen), objects, attempt="a")
    assert [len(part.row_groups) for part in written.slices] == [1] * STREAMS, (
        "groups are joined over what is missing"
    )
    for stream in range(STREAMS):
        assert await rows_of(objects, [written], stream) == await rows_of(objects, chosen, stream)


async def test_groups_are_filled_up_to_their_size_and_gathered_files_can_be_gathered_again() -> None:
    objects = MemoryObjects(ManualClock())
    inputs = await write_inputs(objects, files=6)
    halves = [
        await gather_files(gather_of(inputs[first::2], row_group_bytes=4000), objects, attempt=f"half-{first}")
        for first in range(2)
    ]
    assert all(len(part.row_groups) > 1 for half in halves for part in half.slices)
    written = await gather_files(gather_of(halves, row_group_bytes=4000), objects, attempt="b")
    for stream in range(STREAMS):
        found = await rows_of(objects, [written], stream)
        assert sorted(found, key=lambda row: row[0].offset) == await rows_of(objects, inputs, stream)


async def test_damage_and_missing_files_are_told_apart() -> None:
    objects = MemoryObjects(ManualClock())
    inputs = await write_inputs(objects, files=2)
    with pytest.raises(Corrupt, match="its manifest says"):
        await gather_files(gather_of(inputs, more_rows=1), objects, attempt="a")
    with pytest.raises(Corrupt, match="the topic has 1"):
        await gather_files(gather_of(inputs, streams=1), objects, attempt="b")
    key = ObjectKey(inputs[0].path)
    data = bytes(await objects.get(key))
    for damaged in (data[:-1] + b"x", data[:-8] + b"\xff\xff\xff\x7fPAR1", data[:-8] + bytes(4) + b"PAR1"):
        await objects.delete([key])
        await objects.put(key, [damaged])
        with pytest.raises(Corrupt, match=inputs[0].path):
            await gather_files(gather_of(inputs), objects, attempt="c")
    await objects.delete([key])
    with pytest.raises(Missing):
        await gather_files(gather_of(inputs), objects, attempt="d")
