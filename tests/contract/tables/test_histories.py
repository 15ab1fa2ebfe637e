"""Random histories: pipelines, people, lost answers and expiry, one after the other, against a list of files.

After every step the branch names exactly the files of the runs that were done, each once, and `main` none twice.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from headrace.errors import OutcomeUnknown, Retryable
from headrace.tables.port import ExpiryRule, TableAppend
from tests.contract.tables.kit import Place, Runs, append_as_a_person, new_topic

STEPS = 25
RULES = (ExpiryRule(max_snapshots=1), ExpiryRule(max_snapshots=4), ExpiryRule())


def lost_before(commit: Callable[[], Any]) -> Any:
    raise CommitStateUnknownException("lost on its way")


def lost_after(commit: Callable[[], Any]) -> Any:
    commit()
    raise CommitStateUnknownException("lost on its way back")


def refused(commit: Callable[[], Any]) -> Any:
    raise CommitFailedException("somebody else was quicker")


class History:
    """One table's life, as a list of files and of runs that may come again."""

    def __init__(self, place: Place, runs: Runs, chance: random.Random) -> None:
        self._place = place
        self._runs = runs
        self._chance = chance
        self._old: list[TableAppend] = []

    async def step(self, number: int) -> None:
        act = self._chance.choice([self._run, self._run, self._run, self._come_late, self._add, self._delete])
        await act(number)
        main, log = await self._runs.named()
        assert log == sorted(self._runs.paths)
        assert len(main) == len(set(main))

    async def _run(self, number: int) -> None:
        """Do a run as a pipeline does: try until it is in the table, whatever the answers."""
        append = self._runs.plan(f"saga-{number}", partition=self._chance.randrange(3))
        if self._chance.random() < 0.2:
            append = self._runs.plan(append.saga_id, files=[])
        faults = [lost_before, lost_after, refused]
        self._place.faults.next.extend(self._chance.choices(faults, k=self._chance.randrange(3)))
        while True:
            try:
                done = await self._runs.do(append, expiry=self._chance.choice(RULES))
                break
            except (OutcomeUnknown, Retryable):
                continue
        if done.was_there:
            self._runs.remember(append)
        assert dict(done.head.ends) == self._runs.ends
        self._place.faults.next.clear()
        self._old.append(append)

    async def _come_late(self, number: int) -> None:
        """Let a pipeline wake up with a run that was done long ago."""
        if not self._old:
            return
        late = self._chance.choice(self._old)
        try:
            done = await self._runs.catalog.append(late, now_ms=self._runs.now_ms, expiry=ExpiryRule())
        except Retryable:
            return
        assert done.was_there
        assert late is self._old[-1]

    async def _add(self, number: int) -> None:
        with self._place.loaded(self._runs.info) as table:
            append_as_a_person(table, f"foreign-{number}")

    async def _delete(self, number: int) -> None:
        if not (await self._runs.named())[0]:
            return  # PyIceberg warns of a delete that finds nothing.
        with self._place.loaded(self._runs.info) as table:
            table.delete()


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_the_branch_names_the_files_of_all_runs_once(place: Place, seed: int) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    history = History(place, runs, random.Random(seed))
    for number in range(STEPS):
        await history.step(number)
