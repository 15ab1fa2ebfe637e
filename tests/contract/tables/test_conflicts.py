"""What happens between looking and committing, and when nobody knows whether a commit was made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitStateUnknownException, ServiceUnavailableError

from headrace.errors import OutcomeUnknown, Retryable
from headrace.tables.port import ExpiryRule, TableStale
from tests.contract.tables.kit import Place, Runs, append_as_a_person, new_topic


def first(act: Callable[[], None]) -> Callable[[Callable[[], Any]], Any]:
    """Let somebody act right before the commit."""

    def fault(commit: Callable[[], Any]) -> Any:
        act()
        return commit()

    return fault


def answered_by(error: Exception) -> Callable[[Callable[[], Any]], Any]:
    """Make the commit, and lose its answer."""

    def fault(commit: Callable[[], Any]) -> Any:
        commit()
        raise error

    return fault


async def test_what_a_person_appends_meanwhile_makes_the_commit_fail_and_the_next_try_succeed(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    await runs.do(runs.plan("saga-1"))
    append = runs.plan("saga-2")
    with place.loaded(runs.info) as table:
        place.faults.next.append(first(lambda: append_as_a_person(table, "meanwhile")))
        before = place.faults.commits
        with pytest.raises(Retryable, match="refused"):
            await runs.do(append)
    assert place.faults.commits == before + 1, "nothing is tried again by itself"
    assert (await runs.named())[1] == runs.paths
    await runs.do(append)
    main, log = await runs.named()
    assert log == sorted(runs.paths)
    assert len(main) == len(set(main)) == 3


async def test_of_two_pipelines_over_the_same_offsets_one_commits(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    winner = await Runs.begin(place.open(), runs.table)
    append = runs.plan("slow")
    # The winner's whole run happens while the slow one is about to send its commit.
    prepared = winner.plan("quick")

    def win() -> None:
        catalog = winner.catalog._catalog()
        winner.catalog._append(catalog, prepared, now_ms=winner.now_ms, expiry=ExpiryRule())

    place.faults.next.append(first(win))
    with pytest.raises(Retryable):
        await runs.do(append)
    with pytest.raises(TableStale):
        await runs.do(append)
    path = prepared.files[0].path
    assert await runs.named() == ([path], [path])


@pytest.mark.parametrize(
    "error",
    [
        CommitStateUnknownException("500"),
        ServiceUnavailableError("503"),
        ConnectionResetError("gone"),
        TimeoutError("too late"),
        ValueError("an answer that is no JSON"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_commit_whose_answer_is_lost_is_unknown_and_then_found(place: Place, error: Exception) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    await runs.do(runs.plan("saga-1"))
    append = runs.plan("saga-2")
    place.faults.next.append(answered_by(error))
    with pytest.raises(OutcomeUnknown):
        await runs.do(append)
    again = await runs.do(append)
    assert again.was_there
    runs.remember(append)
    assert await runs.named() == (sorted(runs.paths), sorted(runs.paths))


async def test_a_commit_that_was_lost_on_its_way_is_unknown_and_then_made(place: Place) -> None:
    def lose(commit: Callable[[], Any]) -> Any:
        raise CommitStateUnknownException("504")

    runs = await Runs.begin(place.open(), new_topic())
    append = runs.plan("saga-1")
    place.faults.next.append(lose)
    with pytest.raises(OutcomeUnknown):
        await runs.do(append)
    assert not (await runs.do(append)).was_there
    assert await runs.named() == (runs.paths, runs.paths)


async def test_a_paused_pipeline_that_wakes_up_after_expiry_never_appends_twice(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    paused = runs.plan("paused")
    place.faults.next.append(answered_by(CommitStateUnknownException("500")))
    with pytest.raises(OutcomeUnknown):
        await runs.do(paused)
    runs.remember(paused)
    for number in range(3):
        await runs.do(runs.plan(f"saga-{number}"), expiry=ExpiryRule(max_snapshots=1, max_age_ms=0))
    with place.loaded(runs.info) as table:
        assert len(table.metadata.snapshots) == 1, "the snapshot of the paused run is gone"
    with pytest.raises(TableStale):
        await runs.do(paused)
    assert await runs.named() == (sorted(runs.paths), sorted(runs.paths))


async def test_a_refused_commit_leaves_no_files_behind(local_place: Place) -> None:
    runs = await Runs.begin(local_place.open(), new_topic())
    await runs.do(runs.plan("saga-1"))
    metadata = Path(runs.info.location.removeprefix("file://")) / "metadata"
    before = {path.name for path in metadata.glob("*.avro")}
    other = await Runs.begin(local_place.open(), runs.table)
    other.ends.update(runs.ends)
    prepared = other.plan("other")
    catalog = other.catalog._catalog()
    local_place.faults.next.append(
        first(lambda: _ignore(other.catalog._append(catalog, prepared, now_ms=2, expiry=ExpiryRule())))
    )
    with pytest.raises(Retryable):
        await runs.do(runs.plan("saga-2"))
    left = {path.name for path in metadata.glob("*.avro")} - before
    assert len(left) == 2, "the manifest and the manifest list of the run that won"


def _ignore(value: object) -> None:
    del value
