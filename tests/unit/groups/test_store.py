"""Walking over all groups: small ones many at a time, large ones without what they hold."""

import pytest

from headrace.groups import store as home
from headrace.groups.records import GROUP_HEAD, OFFSET_RECORD, GroupHead, GroupKind
from headrace.groups.store import walk, walk_all
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Decision, Key, Range, Reads, Versioned
from headrace.runtime.rng import seeded_rng
from tests.unit.groups.office import KEYS, TOPIC, offset


class CountingMetadata(MemoryMetadata):
    def __init__(self) -> None:
        super().__init__(seeded_rng(1))
        self.reads = 0

    async def range(self, range_: Range) -> list[Versioned]:
        self.reads += 1
        return await super().range(range_)


async def add(store: MemoryMetadata, group_id: str, *, offsets: int = 0, has_head: bool = True) -> None:
    keys = KEYS.group(group_id)
    head = GroupHead(group_id=group_id, kind=GroupKind.CLASSIC, epoch=1, empty_since_ms=1)
    puts: dict[Key, bytes] = {
        keys.offset(TOPIC, number): OFFSET_RECORD.encode(offset(1)) for number in range(offsets)
    }
    if has_head:
        puts[keys.head] = GROUP_HEAD.encode(head)
    await store.transact([keys.unit], Reads(), lambda seen: Decision(result=None, puts=puts))


async def names(store: MemoryMetadata, per_read: int) -> list[str]:
    walked = walk_all(store, KEYS, per_read=per_read)
    return [facts.head.group_id async for facts in walked if facts.head is not None]


@pytest.mark.parametrize("per_read", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("keys_per_walk", [1, 2, 3, 5, 8, 1000])
async def test_every_group_is_met_once_whatever_the_pages(
    monkeypatch: pytest.MonkeyPatch, per_read: int, keys_per_walk: int
) -> None:
    monkeypatch.setattr(home, "KEYS_PER_WALK", keys_per_walk)
    store = MemoryMetadata(seeded_rng(1))
    wanted = [f"group-{number:02}" for number in range(12)]
    for number, name in enumerate(wanted):
        await add(store, name, offsets=number % 5)
    await add(store, "group-05-only-offsets", offsets=2, has_head=False)
    assert await names(store, per_read) == wanted


async def test_small_groups_cost_few_reads_and_a_large_one_is_jumped_over() -> None:
    store = CountingMetadata()
    for number in range(500):
        await add(store, f"small-{number:03}", offsets=1)
    await add(store, "large", offsets=5_000)
    store.reads = 0
    assert len(await names(store, 1_000)) == 501
    assert store.reads < 10


async def test_an_empty_store_has_no_groups() -> None:
    assert await walk(MemoryMetadata(seeded_rng(1)), KEYS, after=None, limit=10) == []
