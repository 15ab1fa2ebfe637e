"""A run's files become part of the table once, in both refs, fenced by the branch head's vector."""

import msgspec
import pytest

from headrace.tables.port import TableAppend, TableStale
from tests.contract.tables.kit import (
    KEEP_ALL,
    ROWS_PER_FILE,
    Place,
    Runs,
    append_as_a_person,
    new_topic,
    summary_of,
    written,
)


async def test_a_run_is_in_both_refs_and_its_head_says_how_far_the_table_is(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    assert runs.info.head is None
    first = await runs.do(runs.plan("saga-1"))
    second = await runs.do(runs.plan("saga-2", partition=4))
    assert not second.was_there
    assert dict(first.head.ends) == {0: ROWS_PER_FILE}
    assert dict(second.head.ends) == {0: ROWS_PER_FILE, 4: ROWS_PER_FILE}
    assert (second.head.saga_id, second.head.epoch) == ("saga-2", 3)
    assert await runs.named() == (sorted(runs.paths), sorted(runs.paths))
    info = await place.open().find(runs.table)
    assert info is not None
    assert info.head == second.head
    with place.loaded(info) as table:
        assert table.metadata.refs["main"].snapshot_id == second.head.snapshot_id
        summary = summary_of(table, "main")
        assert summary["operation"] == "append"
        assert summary["added-records"] == str(ROWS_PER_FILE)
        assert summary["total-records"] == str(2 * ROWS_PER_FILE)
        assert summary["total-data-files"] == "2"


async def test_a_run_that_is_in_the_table_is_not_appended_again(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    append = runs.plan("saga-1")
    done = await runs.do(append)
    again = await place.open().append(append, now_ms=runs.now_ms, expiry=KEEP_ALL)
    assert again.was_there
    assert again.head == done.head
    assert await runs.named() == (runs.paths, runs.paths)


async def test_a_run_that_was_planned_from_an_old_vector_is_refused(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    paused, other = runs.plan("paused"), runs.plan("other")
    await runs.do(other)
    with pytest.raises(TableStale, match="plan again"):
        await runs.do(paused)
    await runs.do(runs.plan("third"))
    with pytest.raises(TableStale):
        await runs.do(paused)
    assert len((await runs.named())[0]) == 2
    assert paused.files[0].path not in (await runs.named())[0]


async def test_a_run_without_files_moves_the_vector_only(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    empty = await runs.do(runs.plan("empty", files=[]))
    assert dict(empty.head.ends) == {0: ROWS_PER_FILE}
    assert await runs.named() == ([], [])
    await runs.do(runs.plan("full"))
    assert await runs.named() == (runs.paths, runs.paths)
    nobody = msgspec.structs.replace(written(runs.info, "none"), path="", row_count=0)
    nothing = await runs.do(runs.plan("held-back", files=[nobody]))
    assert dict(nothing.head.ends) == {0: 3 * ROWS_PER_FILE}
    assert await runs.named() == (runs.paths, runs.paths)


async def test_what_a_person_adds_to_main_stays_there_and_is_not_in_the_log(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    with place.loaded(runs.info) as table:
        append_as_a_person(table, "before")
    await runs.do(runs.plan("saga-1"))
    with place.loaded(runs.info) as table:
        append_as_a_person(table, "between")
    await runs.do(runs.plan("saga-2"))
    empty = await runs.do(runs.plan("empty", files=[]))
    main, log = await runs.named()
    assert log == sorted(runs.paths)
    assert set(main) - set(log) == {f"{runs.info.data_prefix}{name}.parquet" for name in ("before", "between")}
    assert set(log) <= set(main)
    assert dict(empty.head.ends) == {0: 3 * ROWS_PER_FILE}
    with place.loaded(runs.info) as table:
        assert summary_of(table, "main")["total-records"] == str(2 * ROWS_PER_FILE + 2 * 5)
        assert summary_of(table, "headrace_log")["total-records"] == str(2 * ROWS_PER_FILE)


async def test_what_a_person_deletes_from_main_is_still_in_the_log(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    await runs.do(runs.plan("saga-1"))
    with place.loaded(runs.info) as table:
        table.delete()
    after = await runs.do(runs.plan("saga-2"))
    assert dict(after.head.ends) == {0: 2 * ROWS_PER_FILE}
    main, log = await runs.named()
    assert main == [runs.paths[1]]
    assert log == sorted(runs.paths)


async def test_manifests_are_merged_and_no_file_is_lost_or_doubled(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    for number in range(45):
        await runs.do(runs.plan(f"saga-{number}"))
    main, log = await runs.named()
    assert main == log == sorted(runs.paths)
    with place.loaded(runs.info) as table:
        snapshot = table.metadata.snapshot_by_name("main")
        assert snapshot is not None
        manifests = snapshot.manifests(table.io)
        assert len(manifests) < 25
        entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(io=table.io)]
        # A merge must not make an old file look new: streaming readers and deletes go by these numbers.
        assert sorted(entry.sequence_number or 0 for entry in entries) == list(range(1, 46))
        assert summary_of(table, "main")["total-data-files"] == "45"


async def test_many_partitions_fit_into_the_vector(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    append = runs.plan("wide")
    ends = dict.fromkeys(range(1000), 2**62)
    wide = TableAppend(table=append.table, saga_id="wide", epoch=9, after={}, ends=ends, files=append.files)
    assert dict((await runs.do(wide)).head.ends) == ends
    info = await runs.catalog.find(runs.table)
    assert info is not None
    assert info.head is not None
    assert dict(info.head.ends) == ends
