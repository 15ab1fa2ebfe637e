"""Producer ids: never the same twice, whichever broker is asked and whatever becomes of the store's answers."""

import asyncio

import pytest

from headrace.errors import OutcomeUnknown, Retryable
from headrace.metadata.keys import PRODUCER_IDS
from headrace.produce.producer_ids import IDS_PER_BLOCK, NEXT_PRODUCER_ID, ProducerIds
from tests.restoring import restore, save
from tests.unit.topics.registry_kit import UnsureStore


async def test_ids_begin_at_0_and_one_block_is_taken_for_many() -> None:
    store = UnsureStore()
    ids = ProducerIds(store)
    assert [await ids.take() for _ in range(5)] == [0, 1, 2, 3, 4]
    raw = await store.get(PRODUCER_IDS)
    assert raw is not None and NEXT_PRODUCER_ID.decode(raw.value, raw.key).next_id == IDS_PER_BLOCK


async def test_brokers_never_give_the_same_id() -> None:
    store = UnsureStore()
    brokers = [ProducerIds(store) for _ in range(3)]
    taken = [await brokers[n % 3].take() for n in range(3 * IDS_PER_BLOCK + 30)]
    assert len(set(taken)) == len(taken)


async def test_those_who_ask_at_once_share_a_block() -> None:
    store = UnsureStore()
    ids = ProducerIds(store)
    taken = await asyncio.gather(*[ids.take() for _ in range(IDS_PER_BLOCK)])
    assert sorted(taken) == list(range(IDS_PER_BLOCK))


@pytest.mark.parametrize(
    ("fate", "error"), [("lost", OutcomeUnknown), ("never", OutcomeUnknown), ("busy", Retryable)]
)
async def test_failure_is_told_and_the_next_try_gives_an_id_that_nobody_has(
    fate: str, error: type[Exception]
) -> None:
    store = UnsureStore()
    ids, other = ProducerIds(store), ProducerIds(store)
    store.plan = [fate]
    with pytest.raises(error):
        await ids.take()
    taken = [await ids.take(), await other.take(), await ids.take()]
    assert len(set(taken)) == 3


async def test_caller_who_gives_up_takes_nothing_from_the_others() -> None:
    store = UnsureStore()
    ids = ProducerIds(store)
    gone, waiting = asyncio.create_task(ids.take()), asyncio.create_task(ids.take())
    await asyncio.sleep(0)
    gone.cancel()
    assert await waiting >= 0
    assert await ids.take() != await waiting


async def test_a_block_of_a_store_that_was_taken_back_is_not_handed_out_any_more() -> None:
    store = UnsureStore()
    backup = save(store)
    ids = ProducerIds(store)
    assert await ids.take() == 0
    restore(store, backup)
    others = ProducerIds(store)
    assert await others.take() == 0, "the store gives the block again"
    ids.forget()
    assert await ids.take() == IDS_PER_BLOCK
