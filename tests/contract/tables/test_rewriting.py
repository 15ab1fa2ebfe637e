"""Files are taken out of a table and replaced by others: what both refs name then, and who is refused."""

from collections.abc import Sequence

import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus
from pyiceberg.table import Table

from headrace.errors import OutcomeUnknown, Retryable
from headrace.tables.iceberg.manifests import MERGE_COUNT
from headrace.tables.port import (
    LOG_BRANCH,
    ExpiryRule,
    MainPolicy,
    RewriteOperation,
    Rewritten,
    RowSpan,
    TableRewrite,
    TableStale,
)
from tests.contract.tables.kit import (
    BUCKET,
    KEEP_ALL,
    LAST_OFFSET,
    PARTITIONS,
    ROWS_PER_FILE,
    Place,
    Runs,
    append_as_a_person,
    delete_rows_as_a_person,
    new_topic,
    summary_of,
    written,
)
from tests.contract.tables.test_conflicts import answered_by, first


def merge(
    runs: Runs,
    saga_id: str,
    inputs: Sequence[str],
    *,
    operation: RewriteOperation = RewriteOperation.REPLACE,
    main: MainPolicy = MainPolicy.WHERE_UNTOUCHED,
    files: int = 1,
) -> TableRewrite:
    """Plan a rewrite of files into one."""
    return TableRewrite(
        table=runs.table,
        saga_id=saga_id,
        epoch=4,
        inputs=inputs,
        files=[written(runs.info, saga_id)] * files,
        operation=operation,
        main=main,
    )


def release(runs: Runs, saga_id: str, inputs: Sequence[str], main: MainPolicy) -> TableRewrite:
    return merge(runs, saga_id, inputs, operation=RewriteOperation.DELETE, main=main, files=0)


async def do(runs: Runs, rewrite: TableRewrite, *, expiry: ExpiryRule = KEEP_ALL) -> Rewritten:
    return await runs.catalog.rewrite(rewrite, now_ms=runs.now_ms, expiry=expiry)


async def three_runs(place: Place) -> Runs:
    runs = await Runs.begin(place.open(), new_topic())
    for number in range(3):
        await runs.do(runs.plan(f"saga-{number}"))
    return runs


def entries_of(table: Table, ref: str) -> list[ManifestEntry]:
    """Return all entries of a ref's snapshot, deleted ones included."""
    snapshot = table.metadata.snapshot_by_name(ref)
    assert snapshot is not None
    return [
        entry
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    ]


async def test_a_merge_replaces_files_in_both_refs_with_one_snapshot(place: Place) -> None:
    runs = await three_runs(place)
    done = await do(runs, merge(runs, "merge", runs.paths[:2]))
    new = written(runs.info, "merge").path
    wanted = sorted([new, runs.paths[2]])
    assert await runs.named() == (wanted, wanted)
    assert done.main_moved
    assert done.head.saga_id == "merge"
    assert dict(done.head.ends) == runs.ends
    with place.loaded(runs.info) as table:
        refs = {ref.snapshot_id for ref in table.metadata.refs.values()}
        assert refs == {done.head.snapshot_id}
        summary = summary_of(table, "main")
        entries = entries_of(table, "main")
    assert summary["operation"] == "replace"
    counts = {name: summary[name] for name in summary if name.startswith(("added", "deleted", "removed", "total"))}
    rows = ROWS_PER_FILE
    assert counts == {
        "added-data-files": "1",
        "added-records": str(rows),
        "added-files-size": "1000",
        "deleted-data-files": "2",
        "deleted-records": str(2 * rows),
        "removed-files-size": "2000",
        "total-data-files": "2",
        "total-records": str(2 * rows),
        "total-files-size": "2000",
        "total-delete-files": "0",
        "total-position-deletes": "0",
        "total-equality-deletes": "0",
    }
    gone = [entry for entry in entries if entry.status == ManifestEntryStatus.DELETED]
    assert {entry.snapshot_id for entry in gone} == {done.head.snapshot_id}
    assert sorted(entry.sequence_number or 0 for entry in gone) == [1, 2], "they keep the numbers they had"
    assert len([entry for entry in entries if entry.status != ManifestEntryStatus.DELETED]) == 2


async def test_runs_and_merges_go_on_behind_a_merge(place: Place) -> None:
    runs = await three_runs(place)
    await do(runs, merge(runs, "merge-1", runs.paths))
    await runs.do(runs.plan("saga-3"))
    await do(runs, merge(runs, "merge-2", [written(runs.info, "merge-1").path, runs.paths[-1]]))
    new = [written(runs.info, "merge-2").path]
    assert await runs.named() == (new, new)
    listing = await runs.catalog.listing(runs.table)
    assert listing is not None
    (file,) = listing.files
    assert (file.path, file.row_count, file.size_bytes, file.bucket) == (new[0], ROWS_PER_FILE, 1000, BUCKET)
    assert listing.formats[file.spec_id] == runs.info.format
    assert listing.held_twice_bytes == 0


async def test_a_merge_that_is_there_already_is_done(place: Place) -> None:
    runs = await three_runs(place)
    rewrite = merge(runs, "merge", runs.paths)
    await do(runs, rewrite)
    commits = place.faults.commits
    again = await do(runs, rewrite)
    assert again.was_there
    assert place.faults.commits == commits


async def test_a_merge_of_files_that_are_not_there_is_stale(place: Place) -> None:
    runs = await three_runs(place)
    await do(runs, merge(runs, "merge", runs.paths[:2]))
    with pytest.raises(TableStale):
        await do(runs, merge(runs, "late", runs.paths[1:]))
    other = await Runs.begin(place.open(), new_topic())
    with pytest.raises(TableStale):
        await do(other, merge(other, "elsewhere", runs.paths))


async def test_main_that_a_person_appended_to_is_merged_beside_the_branch(place: Place) -> None:
    runs = await three_runs(place)
    with place.loaded(runs.info) as table:
        append_as_a_person(table, "theirs")
    done = await do(runs, merge(runs, "merge", runs.paths))
    assert done.main_moved
    main, log = await runs.named()
    assert log == [written(runs.info, "merge").path]
    assert len(main) == 2
    assert log[0] in main
    with place.loaded(runs.info) as table:
        assert summary_of(table, "main")["total-data-files"] == "2"
        assert summary_of(table, "headrace_log")["total-data-files"] == "1"


async def test_main_stays_as_it_is_where_a_person_took_an_input_out(place: Place) -> None:
    runs = await three_runs(place)
    with place.loaded(runs.info) as table:
        take_out_as_a_person(table, runs.paths[0])
    before = (await runs.named())[0]
    assert len(before) == 2
    done = await do(runs, merge(runs, "merge", runs.paths))
    assert done.main_moved is False
    assert await runs.named() == (before, [written(runs.info, "merge").path])
    listing = await runs.catalog.listing(runs.table)
    assert listing is not None
    assert listing.held_twice_bytes == 1000, "the branch has 1,000 bytes of its own, main has 2,000"


@pytest.mark.parametrize("policy", [MainPolicy.WHERE_UNTOUCHED, MainPolicy.ALONG])
async def test_main_stays_as_it_is_where_a_delete_file_applies(place: Place, policy: MainPolicy) -> None:
    runs = await three_runs(place)
    with place.loaded(runs.info) as table:
        delete_rows_as_a_person(table, BUCKET)
    before = (await runs.named())[0]
    done = await do(runs, merge(runs, "merge", runs.paths, main=policy))
    assert done.main_moved is False
    assert await runs.named() == (before, [written(runs.info, "merge").path])


async def test_a_delete_file_of_another_day_is_nobodys_harm(place: Place) -> None:
    runs = await three_runs(place)
    with place.loaded(runs.info) as table:
        delete_rows_as_a_person(table, BUCKET + 1)
    assert (await do(runs, merge(runs, "merge", runs.paths))).main_moved


@pytest.mark.parametrize("policy", [MainPolicy.NEVER, MainPolicy.WHERE_UNTOUCHED, MainPolicy.ALONG])
async def test_a_release_takes_files_from_the_branch_and_from_main_where_it_follows(
    place: Place, policy: MainPolicy
) -> None:
    runs = await three_runs(place)
    done = await do(runs, release(runs, "release", runs.paths[:2], policy))
    main, log = await runs.named()
    assert log == runs.paths[2:]
    assert main == (sorted(runs.paths) if policy is MainPolicy.NEVER else runs.paths[2:])
    assert done.main_moved is (policy is not MainPolicy.NEVER)
    with place.loaded(runs.info) as table:
        summary = summary_of(table, "headrace_log")
    assert (summary["operation"], summary["total-data-files"]) == ("delete", "1")
    await runs.do(runs.plan("saga-3"))
    main, log = await runs.named()
    assert log == sorted(runs.paths[2:])


async def test_a_release_that_follows_takes_what_main_still_has(place: Place) -> None:
    runs = await three_runs(place)
    with place.loaded(runs.info) as table:
        take_out_as_a_person(table, runs.paths[0])
    await do(runs, release(runs, "release", runs.paths[:2], MainPolicy.ALONG))
    main, log = await runs.named()
    assert main == log == runs.paths[2:]


async def test_everything_can_be_released(place: Place) -> None:
    runs = await three_runs(place)
    await do(runs, release(runs, "release", runs.paths, MainPolicy.ALONG))
    assert await runs.named() == ([], [])
    await runs.do(runs.plan("saga-3"))
    assert await runs.named() == (runs.paths[3:], runs.paths[3:])


async def test_what_a_person_commits_meanwhile_makes_a_merge_fail_and_the_next_try_decide_anew(place: Place) -> None:
    runs = await three_runs(place)
    rewrite = merge(runs, "merge", runs.paths)
    with place.loaded(runs.info) as table:
        place.faults.next.append(first(lambda: delete_rows_as_a_person(table, BUCKET)))
        with pytest.raises(Retryable):
            await do(runs, rewrite)
    before = await runs.named()
    assert before[1] == sorted(runs.paths)
    assert (await do(runs, rewrite)).main_moved is False
    assert await runs.named() == (before[0], [written(runs.info, "merge").path])


async def test_a_merge_whose_answer_was_lost_is_found_at_the_branchs_head(place: Place) -> None:
    runs = await three_runs(place)
    rewrite = merge(runs, "merge", runs.paths)
    place.faults.next.append(answered_by(CommitStateUnknownException("500")))
    with pytest.raises(OutcomeUnknown):
        await do(runs, rewrite)
    assert (await do(runs, rewrite)).was_there
    new = [written(runs.info, "merge").path]
    assert await runs.named() == (new, new)


async def test_files_come_free_when_the_last_snapshot_that_names_them_has_expired(place: Place) -> None:
    runs = await three_runs(place)
    one = ExpiryRule(max_snapshots=1, max_age_ms=10**12)
    await runs.do(runs.plan("saga-3"), expiry=one)
    freed: list[str] = []
    done = await do(runs, merge(runs, "merge", runs.paths[:2]), expiry=one)
    freed += done.freed
    data = {path for path in freed if path.endswith(".parquet")}
    assert data == set(runs.paths[:2]), "both refs have moved on, and nothing else holds them"
    assert not set((await runs.named())[1]) & set(freed)


async def test_a_file_that_a_tag_or_main_still_names_is_not_free(place: Place) -> None:
    runs = await three_runs(place)
    with place.loaded(runs.info) as table:
        snapshot = table.metadata.snapshot_by_name("main")
        assert snapshot is not None
        table.manage_snapshots().create_tag(snapshot.snapshot_id, "kept").commit()
    one = ExpiryRule(max_snapshots=1, max_age_ms=10**12)
    done = await do(runs, merge(runs, "merge", runs.paths), expiry=one)
    assert not [path for path in done.freed if path.endswith(".parquet")]
    with place.loaded(runs.info) as table:
        table.manage_snapshots().remove_tag("kept").commit()
    freed = await runs.catalog.expire(runs.table, now_ms=runs.now_ms, expiry=one)
    assert {path for path in freed if path.endswith(".parquet")} == set(runs.paths)


async def test_a_release_that_main_does_not_follow_frees_nothing_it_names(place: Place) -> None:
    runs = await three_runs(place)
    one = ExpiryRule(max_snapshots=1, max_age_ms=10**12)
    done = await do(runs, release(runs, "release", runs.paths[:2], MainPolicy.NEVER), expiry=one)
    assert not [path for path in done.freed if path.endswith(".parquet")]
    await runs.do(runs.plan("saga-3"), expiry=one)
    assert (await runs.named())[0] == sorted(runs.paths)


async def left_in_main(place: Place) -> Runs:
    """Return a table whose branch has let go of the files of two runs of three, which `main` keeps."""
    runs = await three_runs(place)
    await do(runs, release(runs, "release", runs.paths[:2], MainPolicy.NEVER))
    return runs


def gather(runs: Runs, saga_id: str, inputs: Sequence[str]) -> TableRewrite:
    return merge(runs, saga_id, inputs, main=MainPolicy.ALONE)


async def test_what_only_main_has_of_ours_is_listed_and_whether_a_delete_file_applies(place: Place) -> None:
    runs = await left_in_main(place)
    with place.loaded(runs.info) as table:
        append_as_a_person(table, "theirs")
    listing = await runs.catalog.listing(runs.table)
    assert listing is not None
    assert [file.path for file in listing.files] == runs.paths[2:]
    assert sorted(file.path for file in listing.left) == sorted(runs.paths[:2]), "a person's own file is not ours"
    oldest, newest = sorted(listing.left, key=lambda file: file.sequence_number)
    assert (oldest.path, newest.path) == tuple(runs.paths[:2])
    assert (oldest.row_count, oldest.size_bytes, oldest.bucket) == (ROWS_PER_FILE, 1000, BUCKET)
    assert {(file.is_touched, file.span) for file in listing.left} == {(False, None)}
    with place.loaded(runs.info) as table:
        delete_rows_as_a_person(table, BUCKET)
    listing = await runs.catalog.listing(runs.table, with_spans=True)
    span = RowSpan(first_partition=PARTITIONS[0], last_partition=PARTITIONS[1], last_offset=LAST_OFFSET)
    assert listing is not None and [(file.is_touched, file.span) for file in listing.left] == [(True, span)] * 2


async def test_main_alone_is_merged_and_the_branch_says_so_and_keeps_its_files(place: Place) -> None:
    runs = await left_in_main(place)
    rewrite = gather(runs, "gather", runs.paths[:2])
    done = await do(runs, rewrite)
    new = written(runs.info, "gather").path
    assert await runs.named() == (sorted([new, runs.paths[2]]), runs.paths[2:])
    assert done.main_moved and done.head.saga_id == "gather" and dict(done.head.ends) == runs.ends
    with place.loaded(runs.info) as table:
        main, log = summary_of(table, "main"), summary_of(table, "headrace_log")
    assert (main["operation"], main["total-data-files"], main["deleted-data-files"]) == ("replace", "2", "2")
    assert (log["operation"], log["total-data-files"], log.get("added-data-files")) == ("replace", "1", None)
    commits = place.faults.commits
    assert (await do(runs, rewrite)).was_there and place.faults.commits == commits
    await runs.do(runs.plan("saga-3"))
    await do(runs, merge(runs, "merge", runs.paths[2:]))
    merged = written(runs.info, "merge").path
    assert await runs.named() == (sorted([new, merged]), [merged])


async def test_main_alone_is_left_as_it_is_where_an_input_is_the_branchs_or_a_persons(place: Place) -> None:
    runs = await left_in_main(place)
    before = await runs.named()
    for inputs in (runs.paths[1:], [*runs.paths[:2], "nowhere"]):
        with pytest.raises(TableStale):
            await do(runs, gather(runs, "gather", inputs))
    rewrite = gather(runs, "gather", runs.paths[:2])
    with place.loaded(runs.info) as table:
        place.faults.next.append(first(lambda: delete_rows_as_a_person(table, BUCKET)))
        with pytest.raises(Retryable):
            await do(runs, rewrite)
    with pytest.raises(TableStale, match="touched"):
        await do(runs, rewrite)
    assert await runs.named() == before


async def test_files_go_from_main_alone_whatever_a_person_did_to_their_rows(place: Place) -> None:
    runs = await left_in_main(place)
    with place.loaded(runs.info) as table:
        delete_rows_as_a_person(table, BUCKET)
    done = await do(runs, release(runs, "late", runs.paths[:2], MainPolicy.ALONE))
    assert done.main_moved and done.head.saga_id == "late"
    main, log = await runs.named()
    assert main == log == runs.paths[2:]
    with place.loaded(runs.info) as table:
        operations = [summary_of(table, ref)["operation"] for ref in ("main", "headrace_log")]
    assert operations == ["delete", "replace"], "the branch has the files that it had"


async def test_files_of_main_alone_come_free_as_others_do(place: Place) -> None:
    runs = await left_in_main(place)
    one = ExpiryRule(max_snapshots=1, max_age_ms=10**12)
    done = await do(runs, gather(runs, "gather", runs.paths[:2]), expiry=one)
    assert {path for path in done.freed if path.endswith(".parquet")} == set(runs.paths[:2])


def take_out_as_a_person(table: Table, path: str) -> None:
    """Take a file out of `main` with PyIceberg's own means, as an overwrite does."""
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
        for task in table.scan().plan_files():
            if task.file.file_path.endswith(path):
                update.delete_data_file(task.file)


@pytest.mark.parametrize("policy", [MainPolicy.WHERE_UNTOUCHED, MainPolicy.NEVER])
async def test_manifests_stay_in_proportion_however_many_runs_and_merges_there_were(
    place: Place, policy: MainPolicy
) -> None:
    """After 1,000 runs and 52 merges by twenty there were 4 manifests, 12 files and 3 MB, as after 200."""
    rule = ExpiryRule(max_snapshots=5, max_age_ms=10**12)
    runs = await Runs.begin(place.open(), new_topic())
    tiers: list[list[str]] = [[], [], []]
    for number in range(45):
        await runs.do(runs.plan(f"saga-{number}"), expiry=rule)
        tiers[0].append(runs.paths[-1])
        for tier in (0, 1):
            if len(tiers[tier]) == 5:
                rewrite = merge(runs, f"merge-{number}-{tier}", tiers[tier], main=policy)
                await do(runs, rewrite, expiry=rule)
                tiers[tier] = []
                tiers[tier + 1].append(rewrite.files[0].path)
    with place.loaded(runs.info) as table:
        entries = entries_of(table, LOG_BRANCH)
        gone = [entry for entry in entries if entry.status is ManifestEntryStatus.DELETED]
        # What the last merge took out stands in its snapshot once more, and nothing that was taken out before.
        assert len(entries) - len(gone) == sum(map(len, tiers)) and len(gone) == 5
        heads = {ref: table.metadata.snapshot_by_name(ref) for ref in (LOG_BRANCH, "main")}
        counts = {ref: len(head.manifests(table.io)) for ref, head in heads.items() if head is not None}
        assert counts[LOG_BRANCH] < MERGE_COUNT
        assert counts["main"] < MERGE_COUNT + 5  # A `main` that is not merged names 45 files, each from its own run.
        assert len(table.metadata.snapshots) <= 2 * 5 + 2
