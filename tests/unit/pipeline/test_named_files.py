"""What the index names is read whole, and of large files no more than their names."""

import msgspec

from headrace.index.values import IndexEntry
from headrace.model.extents import RowGroup, TableExtent, TableFile, WalExtent
from headrace.model.ids import ObjectId
from headrace.pipeline.named_files import IndexNames, named_entry, read_named
from tests.unit.pipeline.pipeline_kit import PipelineKit
from tests.unit.pipeline.test_runner import logged

FILE = TableFile("path", 100, 10, 0, (RowGroup(0, 5, 4, 50, 5, 0, 0),))
ENTRY = IndexEntry(5, 10, 5, 0, 77, 0, 0, 0, 0, 0, TableExtent((FILE,)))


def test_an_entry_of_a_small_file_can_be_rewritten() -> None:
    found = named_entry(ENTRY, small_bytes=101)
    assert found.piece is not None
    assert (found.piece.start_offset, found.piece.end_offset, found.piece.file) == (5, 10, FILE)
    assert (found.paths, found.append_time_ms, found.is_wal) == (("path",), 77, False)


def test_an_entry_that_cannot_be_rewritten_keeps_its_files_names() -> None:
    two = msgspec.structs.replace(ENTRY, extent=TableExtent((FILE, FILE)))
    trimmed = msgspec.structs.replace(ENTRY, start_offset=7)
    for entry, small_bytes in ((ENTRY, 100), (two, 1000), (trimmed, 1000)):
        found = named_entry(entry, small_bytes=small_bytes)
        assert found.piece is None and set(found.paths) == {"path"}
    wal = named_entry(msgspec.structs.replace(ENTRY, extent=WalExtent(ObjectId("o"), 0, 1)), small_bytes=1000)
    assert wal.piece is None and wal.is_wal and wal.paths == ()


def test_an_entry_without_rows_goes_with_its_neighbours() -> None:
    found = named_entry(msgspec.structs.replace(ENTRY, extent=TableExtent(())), small_bytes=1000)
    assert found.piece is not None and found.piece.file is None


async def test_all_that_is_below_the_vector_is_read_and_nothing_else() -> None:
    kit = PipelineKit()
    topic = await kit.topic(partitions=2)
    await logged(kit, topic, 3)
    process = await kit.pipeline()
    await process.run()
    await logged(kit, topic, 1, first=3)
    state = await kit.state(topic)
    named = await read_named(kit.metadata, kit.keys, topic.streams, state.ends, small_bytes=1 << 20)
    path = kit.catalog.tables["orders"].files[0].path
    assert named.paths == {path} and named.is_whole
    assert [(one.partition, len(one.entries), one.is_trimmed) for one in named.streams] == [
        (0, 1, True),
        (1, 1, True),
    ]
    few = await read_named(kit.metadata, kit.keys, topic.streams, state.ends, small_bytes=1 << 20, max_pieces=1)
    assert few.paths == {path} and not few.is_whole
    names = IndexNames(kit.metadata, kit.keys)
    assert await names.among({path, "other"}, topic.streams, state.ends) == {path}
    assert await names.among({"other"}, topic.streams, state.ends) == set()
