import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from headrace.errors import Retryable
from headrace.metadata.port import Unit
from headrace.metadata.postgres.turns import ABREAST, Turns

A, B = Unit("/a/"), Unit("/b/")
LIMIT_S = 60


async def test_few_at_a_time_have_the_turn_of_a_unit_first_come_first_served() -> None:
    turns = Turns(limit_s=LIMIT_S)
    inside = most = 0
    order = []

    async def pass_through(number: int) -> None:
        nonlocal inside, most
        # Each names the units in another order, and one of them twice: nobody waits in a circle.
        async with turns.take([A, B] if number % 2 else [B, A, B]):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            order.append(number)
            inside -= 1

    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(pass_through(number) for number in range(10)))
    assert most == ABREAST
    assert order == list(range(10))


@contextlib.asynccontextmanager
async def taken_by_all(turns: Turns, unit: Unit) -> AsyncIterator[None]:
    """Take every turn that there is for a unit."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(ABREAST):
            await stack.enter_async_context(turns.take([unit]))
        yield


async def test_other_units_do_not_wait() -> None:
    turns = Turns(limit_s=LIMIT_S)
    async with asyncio.timeout(LIMIT_S), taken_by_all(turns, A), turns.take([B]):
        pass


async def test_a_turn_that_does_not_come_is_a_definite_failure_and_leaves_none_taken() -> None:
    turns = Turns(limit_s=0.01)
    async with taken_by_all(turns, B):
        with pytest.raises(Retryable, match="nothing was written"):
            async with turns.take([A, B]):
                pass
        async with taken_by_all(turns, A):
            pass


async def test_a_caller_that_is_cancelled_or_fails_gives_its_turn_back() -> None:
    turns = Turns(limit_s=LIMIT_S)

    async def take() -> None:
        async with turns.take([A]):
            raise LookupError

    async with taken_by_all(turns, A):
        waiting = asyncio.ensure_future(take())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    with pytest.raises(LookupError):
        await take()
    async with asyncio.timeout(LIMIT_S), taken_by_all(turns, A):
        pass


async def test_units_that_nobody_wants_are_forgotten() -> None:
    turns = Turns(limit_s=LIMIT_S)
    async with turns.take([A, B]):
        assert len(turns._turns) == 2
    assert len(turns._turns) == 0
