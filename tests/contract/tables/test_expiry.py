"""Old snapshots go in every run; heads, and what people have named, stay; what is freed is named by nothing."""

import pytest

from headrace.tables.format import DAY_MS
from headrace.tables.iceberg import catalog
from headrace.tables.iceberg.locations import objects_root
from headrace.tables.port import LOG_BRANCH, ExpiryRule
from tests.contract.tables.kit import Place, Runs, append_as_a_person, new_topic

THREE = ExpiryRule(max_snapshots=3, max_age_ms=10**12)


async def test_the_number_of_snapshots_is_bounded_and_what_is_freed_can_be_deleted(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    root = objects_root(place.objects_url)
    freed: set[str] = set()
    for number in range(30):
        done = await runs.do(runs.plan(f"saga-{number}"), expiry=THREE)
        assert not freed & set(done.freed), "nothing is freed twice"
        freed.update(done.freed)
        with place.loaded(runs.info) as table:
            assert len(table.metadata.snapshots) <= 3
            for key in done.freed:
                assert key.startswith(runs.info.data_prefix.removesuffix("data/"))
                table.io.delete(root.uri_of(key))
    # 30 commits leave 30 lists and 30 manifests, of which 20 were merged into one.
    assert len(freed) > 40
    assert await runs.named() == (sorted(runs.paths), sorted(runs.paths))
    with place.loaded(runs.info) as table:
        for snapshot in table.metadata.snapshots:
            for manifest in snapshot.manifests(table.io):
                manifest.fetch_manifest_entry(io=table.io)
        assert len(table.metadata.metadata_log) <= 21


async def test_snapshots_go_by_age_but_never_the_newest(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    for number in range(4):
        await runs.do(runs.plan(f"saga-{number}"), expiry=ExpiryRule())
    with place.loaded(runs.info) as table:
        assert len(table.metadata.snapshots) == 4
    # So short an age that what was made this very millisecond is too old.
    again = await runs.do(runs.plan("last"), expiry=ExpiryRule(max_age_ms=-10_000))
    with place.loaded(runs.info) as table:
        assert [snapshot.snapshot_id for snapshot in table.metadata.snapshots] == [again.head.snapshot_id]


async def test_what_a_person_has_tagged_or_branched_stays_readable(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    tagged = (await runs.do(runs.plan("tagged"))).head.snapshot_id
    branched = (await runs.do(runs.plan("branched"))).head.snapshot_id
    with place.loaded(runs.info) as table:
        table.manage_snapshots().create_tag(tagged, "keep").create_branch(branched, "work").commit()
    freed: list[str] = []
    for number in range(25):
        freed.extend((await runs.do(runs.plan(f"saga-{number}"), expiry=THREE)).freed)
    root = objects_root(place.objects_url)
    with place.loaded(runs.info) as table:
        for key in freed:
            table.io.delete(root.uri_of(key))
    assert await runs.catalog.data_files(runs.table, ref="keep") == runs.paths[:1]
    assert sorted(await runs.catalog.data_files(runs.table, ref="work")) == sorted(runs.paths[:2])
    assert await runs.named() == (sorted(runs.paths), sorted(runs.paths))


async def test_a_branch_with_a_past_of_its_own_is_bounded_too(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    await runs.do(runs.plan("saga"))
    with place.loaded(runs.info) as table:
        append_as_a_person(table, "apart")
    for number in range(8):
        await runs.do(runs.plan(f"saga-{number}"), expiry=THREE)
    with place.loaded(runs.info) as table:
        assert len(table.metadata.snapshots) <= 6
    main, log = await runs.named()
    assert log == sorted(runs.paths)
    assert len(main) == len(log) + 1


async def test_a_person_who_expires_everything_does_not_make_us_forget(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    for number in range(3):
        await runs.do(runs.plan(f"saga-{number}"))
    last = runs.plan("last")
    await runs.do(last)
    with place.loaded(runs.info) as table:
        heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in heads]
        table.maintenance.expire_snapshots().by_ids(old).commit()
    assert (await runs.do(last)).was_there
    await runs.do(runs.plan("next"))
    assert await runs.named() == (sorted(runs.paths), sorted(runs.paths))


async def test_a_failure_to_expire_is_no_failure_to_append(place: Place) -> None:
    def refuse(commit: object) -> None:
        raise ConnectionResetError("gone")

    runs = await Runs.begin(place.open(), new_topic())
    for number in range(3):
        await runs.do(runs.plan(f"saga-{number}"), expiry=THREE)
    place.faults.next.extend([lambda commit: commit(), refuse])
    done = await runs.do(runs.plan("fourth"), expiry=THREE)
    assert not done.was_there
    assert not done.freed
    with place.loaded(runs.info) as table:
        assert len(table.metadata.snapshots) == 4
    assert (await runs.do(runs.plan("fifth"), expiry=THREE)).freed


@pytest.mark.parametrize("back_ms", [1, 10**9])
async def test_a_clock_that_went_back_does_not_disorder_history(place: Place, back_ms: int) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    await runs.do(runs.plan("saga-1"))
    await runs.catalog.append(runs.plan("saga-2"), now_ms=runs.now_ms - back_ms, expiry=THREE)
    with place.loaded(runs.info) as table:
        times = [snapshot.timestamp_ms for snapshot in table.metadata.snapshots]
        assert times == sorted(times)


async def test_expiry_of_a_table_that_only_grows_does_not_go_through_its_files(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[str]:
        raise AssertionError("every run would read all manifests, whatever the size of the table")

    monkeypatch.setattr(catalog, "freed_data", refuse)
    runs = await Runs.begin(place.open(), new_topic())
    done = [await runs.do(runs.plan(f"saga-{number}"), expiry=ExpiryRule(max_snapshots=5)) for number in range(12)]
    assert any(one.freed for one in done)


async def test_the_branch_asks_other_peoples_expiry_for_a_day_and_its_own_does_not_wait(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    for number in range(6):
        await runs.do(runs.plan(f"saga-{number}"), expiry=THREE)
    with place.loaded(runs.info) as table:
        assert len(table.metadata.snapshots) <= 3
        refs = table.metadata.refs
        assert (refs["main"].max_snapshot_age_ms, refs[LOG_BRANCH].max_snapshot_age_ms) == (None, DAY_MS)
    await runs.do(runs.plan("next"))
    with place.loaded(runs.info) as table:
        assert table.metadata.refs[LOG_BRANCH].max_snapshot_age_ms == DAY_MS
