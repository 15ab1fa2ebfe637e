import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from headrace.errors import Retryable
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Unit
from headrace.metadata.postgres.turns import ABREAST, Turns
from headrace.model.ids import DomainId

A, B = Unit("/a/"), Unit("/b/")
LIMIT_S = 60
GROUPS = [DomainKeys(DomainId(0)).group(f"g{number}").unit for number in range(10)]


def turns_of(*, limit_s: float = LIMIT_S, pool_size: int = 5) -> Turns:
    return Turns(limit_s=limit_s, pool_size=pool_size)


async def test_few_at_a_time_have_the_turn_of_a_unit_first_come_first_served() -> None:
    turns = turns_of()
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
    turns = turns_of()
    async with asyncio.timeout(LIMIT_S), taken_by_all(turns, A), turns.take([B]):
        pass


async def test_a_turn_that_does_not_come_is_a_definite_failure_and_leaves_none_taken() -> None:
    turns = turns_of(limit_s=0.01)
    async with taken_by_all(turns, B):
        with pytest.raises(Retryable, match="nothing was written"):
            async with turns.take([A, B]):
                pass
        async with taken_by_all(turns, A):
            pass


async def test_a_caller_that_is_cancelled_or_fails_gives_its_turn_back() -> None:
    turns = turns_of()

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
    turns = turns_of()
    async with turns.take([A, B]):
        assert len(turns._turns) == 2
    assert len(turns._turns) == 0


@pytest.mark.parametrize("pool_size", [1, 2, 3, 5])
async def test_groups_leave_connections_to_others_however_many_they_are(pool_size: int) -> None:
    turns = turns_of(pool_size=pool_size)
    inside = most = 0
    go_on = asyncio.Event()

    async def commit(unit: Unit) -> None:
        nonlocal inside, most
        async with turns.take([unit]):
            inside += 1
            most = max(most, inside)
            await go_on.wait()
            inside -= 1

    async with asyncio.timeout(LIMIT_S):
        committing = [asyncio.ensure_future(commit(unit)) for unit in GROUPS]
        await asyncio.sleep(0)
        async with turns.take([A]), turns.take([GROUPS[0], A]):
            assert inside == max(1, pool_size - ABREAST), "one that names another unit, too, is no part of the crowd"
        go_on.set()
        await asyncio.gather(*committing)
    assert most == max(1, pool_size - ABREAST)
