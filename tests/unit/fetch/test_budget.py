"""The budget lends what it has, first come, first served, and nothing is lost when somebody goes away."""

import asyncio

from headrace.fetch.budget import ReadBudget
from headrace.testing.clock import ManualClock


class Borrower:
    """Borrows and holds until told to let go."""

    def __init__(self, budget: ReadBudget, size_bytes: int) -> None:
        self.has_it = False
        self._release = asyncio.Event()
        self.task = asyncio.create_task(self._borrow(budget, size_bytes))

    async def _borrow(self, budget: ReadBudget, size_bytes: int) -> None:
        async with budget.lend(size_bytes):
            self.has_it = True
            await self._release.wait()

    async def let_go(self) -> None:
        self._release.set()
        await self.task


async def borrowers(budget: ReadBudget, *sizes: int) -> list[Borrower]:
    made = [Borrower(budget, size) for size in sizes]
    await ManualClock().settle()
    return made


async def test_no_more_is_lent_than_there_is() -> None:
    budget = ReadBudget(100, max_reads=3)
    a, b, c = await borrowers(budget, 60, 40, 1)
    assert (a.has_it, b.has_it, c.has_it) == (True, True, False)
    await a.let_go()
    await ManualClock().settle()
    assert c.has_it and budget.lent_bytes == 41
    await b.let_go()
    await c.let_go()
    assert budget.lent_bytes == 0


async def test_no_more_reads_are_under_way_than_there_may_be() -> None:
    budget = ReadBudget(100, max_reads=2)
    a, b, c = await borrowers(budget, 1, 1, 1)
    assert (a.has_it, b.has_it, c.has_it) == (True, True, False)
    await b.let_go()
    await ManualClock().settle()
    assert [budget.reads, budget.lent_bytes] == [2, 2]
    await a.let_go()
    await c.let_go()
    assert budget.reads == 0


async def test_small_read_does_not_pass_a_large_one_that_waits() -> None:
    budget = ReadBudget(100, max_reads=3)
    a, b, c = await borrowers(budget, 60, 60, 10)
    assert (a.has_it, b.has_it, c.has_it) == (True, False, False)
    assert budget.waiting_count == 2 and not budget.is_free
    for borrower in (a, b, c):
        await borrower.let_go()
    assert budget.lent_bytes == 0 and budget.is_free


async def test_read_larger_than_the_budget_waits_until_it_is_alone() -> None:
    budget = ReadBudget(100, max_reads=3)
    a, b = await borrowers(budget, 1, 1000)
    assert (a.has_it, b.has_it) == (True, False)
    await a.let_go()
    await ManualClock().settle()
    assert (a.has_it, b.has_it) == (True, True)
    await b.let_go()
    assert budget.lent_bytes == 0


async def test_whoever_stops_waiting_makes_way() -> None:
    budget = ReadBudget(100, max_reads=3)
    a, b, c = await borrowers(budget, 60, 60, 40)
    b.task.cancel()
    await ManualClock().settle()
    assert c.has_it and b.task.cancelled()
    await a.let_go()
    await c.let_go()
    assert budget.lent_bytes == 0


async def test_turn_that_comes_with_the_cancellation_is_given_back() -> None:
    budget = ReadBudget(100, max_reads=3)
    a, b = await borrowers(budget, 100, 100)
    budget._give_back(100)  # b's turn has come, but it has not run yet
    b.task.cancel()
    await ManualClock().settle()
    assert b.task.cancelled() and not b.has_it
    budget.lent_bytes += 100  # what was given back above in a's name
    budget.reads += 1
    await a.let_go()
    assert budget.lent_bytes == 0
