"""Walking the index: every entry once, gaps and overlaps told, and nothing that moves underneath is called damage."""

import itertools

import msgspec
import pytest

from headrace.errors import Retryable
from headrace.fetch.index_walk import IndexWalk
from headrace.index.streams import advance_log_start
from headrace.index.values import INDEX_ENTRY, IndexEntry
from headrace.metadata.port import Range, Versioned
from headrace.model.ids import StreamId
from tests.unit.fetch.kit import FetchKit
from tests.unit.fetch.tabled import entries_of, swap_step, write_table
from tests.unit.fetch.verified import overwrite, walking
from tests.unit.gc.folded import fold_all

ENTRIES = 7


async def log_of(count: int = ENTRIES) -> tuple[FetchKit, StreamId]:
    kit = FetchKit(tail_bytes=0)
    (stream,) = await kit.start()
    for n in range(count):
        await kit.put(stream, b"%d" % n, b"second")
    return kit, stream


async def walk(index: IndexWalk, stream: StreamId) -> tuple[list[IndexEntry], list[tuple[int, int, str]]]:
    entries: list[IndexEntry] = []
    damages: list[tuple[int, int, str]] = []
    offset, end = 0, 1
    while offset < end:
        page = await index.page(stream, offset)
        assert page is not None and page.next_offset > offset, "a walk always moves on"
        entries += page.entries
        damages += [(damage.start_offset, damage.end_offset, damage.why) for damage in page.damages]
        offset, end = page.next_offset, page.head.high_watermark
    return entries, damages


@pytest.mark.parametrize("entries_per_page", [2, 3, 100])
@pytest.mark.parametrize("folded", [0, 3, ENTRIES])
async def test_every_entry_is_walked_once_folded_or_not(folded: int, entries_per_page: int) -> None:
    kit, stream = await log_of(folded)
    await fold_all(kit)
    for _ in range(ENTRIES - folded):
        await kit.put(stream, b"tail", b"second")
    entries, damages = await walk(walking(kit, entries_per_page=entries_per_page), stream)
    assert [(entry.start_offset, entry.end_offset) for entry in entries] == [
        (n, n + 2) for n in range(0, 2 * ENTRIES, 2)
    ]
    assert damages == []


@pytest.mark.parametrize("entries_per_page", [2, 3, 100])
@pytest.mark.parametrize("lost", range(ENTRIES))
async def test_an_entry_that_is_gone_is_a_gap(lost: int, entries_per_page: int) -> None:
    kit, stream = await log_of()
    await fold_all(kit)
    await overwrite(kit, {}, [kit.keys.entry(stream, 2 * lost + 2)])
    entries, damages = await walk(walking(kit, entries_per_page=entries_per_page), stream)
    assert len(entries) == ENTRIES - 1
    assert damages == [(2 * lost, 2 * lost + 2, "no index entry covers these offsets")]


@pytest.mark.parametrize("entries_per_page", [2, 3, 100])
async def test_an_entry_that_begins_within_another_is_an_overlap(entries_per_page: int) -> None:
    kit, stream = await log_of()
    await fold_all(kit)
    entry = (await entries_of(kit, stream))[3]
    wider = INDEX_ENTRY.encode(msgspec.structs.replace(entry, start_offset=entry.start_offset - 1))
    await overwrite(kit, {kit.keys.entry(stream, entry.end_offset): wider})
    _, damages = await walk(walking(kit, entries_per_page=entries_per_page), stream)
    assert damages == [(5, 6, "two index entries cover these offsets")]


@pytest.mark.parametrize("entries_per_page", [2, 3, 100])
@pytest.mark.parametrize("spoilt", range(ENTRIES))
async def test_an_entry_that_cannot_be_read_is_named_by_its_key(spoilt: int, entries_per_page: int) -> None:
    kit, stream = await log_of()
    await fold_all(kit)
    key = kit.keys.entry(stream, 2 * spoilt + 2)
    await overwrite(kit, {key: b"\x01not an entry"})
    entries, damages = await walk(walking(kit, entries_per_page=entries_per_page), stream)
    assert len(entries) == ENTRIES - 1
    (why,) = [why for _, _, why in damages if "no index entry" not in why]
    assert key in why


async def test_commit_records_that_are_gone_are_told_and_their_offsets_are_a_gap() -> None:
    kit, stream = await log_of(2)
    await fold_all(kit)
    for _ in range(3):
        await kit.put(stream, b"tail", b"second")
    lost = [record.seq for record in await kit.log() if any(entry.start_offset == 6 for entry in record.entries)]
    await overwrite(kit, {}, [kit.keys.log(seq) for seq in lost])
    index = walking(kit)
    entries, damages = await walk(index, stream)
    assert [entry.start_offset for entry in entries] == [0, 2, 4, 8]
    assert damages == [(6, 8, "no index entry covers these offsets")]
    (told,) = index.lost_records
    assert f"commit records {lost[0]} to {lost[0]}" in told.why


async def test_the_walk_begins_at_the_log_start_and_ends_with_the_stream() -> None:
    kit, stream = await log_of()
    await advance_log_start(kit.keys, stream, 5, now_ms=0).apply(kit.metadata)
    entries, damages = await walk(walking(kit), stream)
    assert entries[0].start_offset == 4 and damages == []
    assert await walking(kit).page(StreamId(stream + 1), 0) is None


async def test_a_swap_between_two_pages_is_no_overlap() -> None:
    kit, stream = await log_of()
    file = await write_table(kit, stream)
    assert file is not None
    index = walking(kit, entries_per_page=3)
    first = await index.page(stream, 0)
    assert first is not None and first.next_offset == 6
    while await swap_step(kit, file, max_entries=ENTRIES):
        pass
    second = await index.page(stream, first.next_offset)
    assert second is not None and second.damages == [] and second.next_offset == 2 * ENTRIES
    assert [(entry.start_offset, entry.end_offset) for entry in second.entries] == [(0, 2 * ENTRIES)]


async def test_a_fold_and_a_swap_while_a_page_is_read_are_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    kit, stream = await log_of()
    through = kit.metadata.range

    async def meanwhile(range_: Range) -> list[Versioned]:
        if "/index/" in range_.start:
            monkeypatch.undo()
            file = await write_table(kit, stream, entry_count=4)
            assert file is not None
            while await swap_step(kit, file, max_entries=ENTRIES):
                pass
        return await through(range_)

    index = walking(kit)
    monkeypatch.setattr(kit.metadata, "range", meanwhile)
    entries, damages = await walk(index, stream)
    assert damages == []
    assert [(entry.start_offset, entry.end_offset) for entry in entries] == [(0, 8), (8, 10), (10, 12), (12, 14)]


async def test_an_index_that_never_says_the_same_twice_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    kit, stream = await log_of()
    await fold_all(kit)
    through = kit.metadata.range
    left_out = itertools.cycle([8, 10])

    async def shifting(range_: Range) -> list[Versioned]:
        end = next(left_out) if "/index/" in range_.start else 0
        return [item for item in await through(range_) if not item.key.endswith(f"{end:020d}")]

    monkeypatch.setattr(kit.metadata, "range", shifting)
    with pytest.raises(Retryable, match="changed during each"):
        await walking(kit).page(stream, 0)
