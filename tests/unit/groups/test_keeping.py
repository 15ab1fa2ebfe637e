"""What is forgotten of groups, and what is not."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from headrace.errors import Corrupt
from headrace.groups import keeping
from headrace.groups.keeping import GroupKeeper, KeepLimits
from headrace.groups.records import GROUP_HEAD
from headrace.groups.store import walk
from headrace.metadata.keys import prefix_range
from headrace.metadata.leases import LEASE_CODEC
from headrace.metadata.port import Decision, Key, Range, Reads, Versioned
from headrace.model.topics import TopicId
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock
from headrace.topics.admin import NewTopic, TopicAdmin
from headrace.topics.configs import TopicDefaults
from tests.unit.groups.office import IDLE_S, KEYS, NOBODY, FlakyMetadata, Office, joined, offset, open_office

RETENTION_MS = 3_600_000
LONE_LEASE_MS = 600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> FlakyMetadata:
    return FlakyMetadata()


@pytest.fixture
async def office(store: FlakyMetadata, clock: ManualClock) -> AsyncIterator[Office]:
    opened = await open_office(store, clock)
    yield opened
    await opened.close()


@pytest.fixture
def keeper(store: FlakyMetadata, clock: ManualClock, office: Office) -> GroupKeeper:
    return make_keeper(store, clock, office)


def make_keeper(store: FlakyMetadata, clock: ManualClock, office: Office, *, keys_per_tick: int = 100) -> GroupKeeper:
    return GroupKeeper(
        store=store,
        keys=KEYS,
        topics=office.topics,
        answers_for=office.coordinator.answers_for,
        session=lambda: office.seats.session,
        clock=clock,
        crash_points=NoCrashes(),
        limits=KeepLimits(
            retention_ms=RETENTION_MS,
            groups_per_tick=2,
            lone_lease_ms=LONE_LEASE_MS,
            keys_per_tick=keys_per_tick,
        ),
    )


async def make_topic(store: FlakyMetadata, clock: ManualClock, office: Office, name: str) -> TopicId:
    admin = TopicAdmin(
        store=store,
        keys=KEYS,
        directory=office.topics,
        clock=clock,
        rng=seeded_rng(name),
        defaults=TopicDefaults(),
        default_partition_count=4,
    )
    await admin.create(NewTopic(name=name))
    await office.topics.refresh()
    topic = office.topics.get(name)
    assert topic is not None
    return topic.id


async def run(keeper: GroupKeeper, times: int = 4) -> int:
    return sum([await keeper.tick() for _ in range(times)])


async def test_offsets_of_an_empty_group_expire_after_the_retention_and_the_group_with_them(
    store: FlakyMetadata, clock: ManualClock, office: Office, keeper: GroupKeeper
) -> None:
    topic = await make_topic(store, clock, office, "orders")
    await office.coordinator.commit(
        "g", NOBODY, {(topic, part): offset(1, at_ms=clock.now_ms()) for part in range(3)}
    )
    await clock.advance(RETENTION_MS / 1000 - 1)
    assert await run(keeper) == 0
    await office.coordinator.commit("g", NOBODY, {(topic, 0): offset(2, at_ms=clock.now_ms())})
    await clock.advance(10)
    assert await run(keeper) == 2, "the offset that was committed since is younger"
    await clock.advance(RETENTION_MS / 1000)
    await office.seats.tick()
    assert await run(keeper) == 1
    assert await office.coordinator.describe("g") is None
    assert [facts.head for facts in await walk(store, KEYS, after=None, limit=10)] == [None]
    await run(keeper)
    await clock.advance(LONE_LEASE_MS / 1000 + 1)
    await run(keeper)
    assert await walk(store, KEYS, after=None, limit=10) == [], "in the end even its lease is gone"


async def test_a_group_with_members_keeps_its_offsets_for_ever(
    store: FlakyMetadata, clock: ManualClock, office: Office, keeper: GroupKeeper
) -> None:
    topic = await make_topic(store, clock, office, "orders")
    await joined(office, "g")
    await office.coordinator.commit("g", NOBODY, {(topic, 0): offset(1)})
    head = await store.get(KEYS.group("g").head)
    assert head is not None and GROUP_HEAD.decode(head.value, head.key).empty_since_ms is None
    clock.jump_wall(100 * RETENTION_MS)
    assert await run(keeper) == 0


async def test_offsets_go_with_their_topic(
    store: FlakyMetadata, clock: ManualClock, office: Office, keeper: GroupKeeper
) -> None:
    orders, bills = [await make_topic(store, clock, office, name) for name in ("orders", "bills")]
    wanted = {(orders, 0): offset(1, at_ms=clock.now_ms()), (bills, 0): offset(2, at_ms=clock.now_ms())}
    await office.coordinator.commit("g", NOBODY, wanted)
    admin = TopicAdmin(
        store=store,
        keys=KEYS,
        directory=office.topics,
        clock=clock,
        rng=seeded_rng(1),
        defaults=TopicDefaults(),
        default_partition_count=1,
    )
    await admin.delete(orders)
    assert await run(keeper) == 1
    assert list(await office.coordinator.fetch("g", None, None)) == [(bills, 0)]


async def test_a_topic_that_the_directory_has_not_heard_of_yet_is_not_taken_for_deleted(
    store: FlakyMetadata, clock: ManualClock, office: Office, keeper: GroupKeeper
) -> None:
    other = await open_office(store, clock, 2)
    topic = await make_topic(store, clock, other, "new")
    await other.coordinator.commit("g", NOBODY, {(topic, 0): offset(1, at_ms=clock.now_ms())})
    await other.close()
    await office.cluster.refresh()
    assert office.topics.get("new") is None
    assert await run(keeper) == 0
    assert office.topics.get("new") is not None


async def test_the_expiry_that_an_old_client_asked_for_counts(
    store: FlakyMetadata, clock: ManualClock, office: Office, keeper: GroupKeeper
) -> None:
    topic = await make_topic(store, clock, office, "orders")
    soon = msgspec.structs.replace(offset(1, at_ms=clock.now_ms()), expires_at_ms=clock.now_ms() + 5_000)
    late = msgspec.structs.replace(offset(1, at_ms=clock.now_ms()), expires_at_ms=clock.now_ms() + 9 * RETENTION_MS)
    await office.coordinator.commit("g", NOBODY, {(topic, 0): soon, (topic, 1): late})
    await clock.advance(6)
    assert await run(keeper) == 1
    await clock.advance(RETENTION_MS / 1000 + 1)
    assert await run(keeper) == 0


async def test_the_lease_of_a_deleted_group_stays_until_nothing_can_be_on_its_way(
    store: FlakyMetadata, clock: ManualClock, office: Office, keeper: GroupKeeper
) -> None:
    topic = await make_topic(store, clock, office, "orders")
    await office.coordinator.commit("g", NOBODY, {(topic, 0): offset(1)})
    await office.coordinator.delete("g")
    await run(keeper)
    await clock.advance(IDLE_S)
    await run(keeper)
    lease = await store.get(KEYS.group("g").lease)
    assert lease is not None and LEASE_CODEC.decode(lease.value, lease.key).epoch == 1
    await office.coordinator.commit("g", NOBODY, {(topic, 0): offset(1)})
    lease = await store.get(KEYS.group("g").lease)
    assert lease is not None and LEASE_CODEC.decode(lease.value, lease.key).epoch == 2, "its epoch never goes back"


async def test_a_group_that_somebody_takes_while_it_is_deleted_stays_and_the_walk_goes_on(
    store: FlakyMetadata, clock: ManualClock, office: Office, keeper: GroupKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await make_topic(store, clock, office, "orders")
    for group_id in ("a", "b", "c"):
        await office.coordinator.commit(group_id, NOBODY, {(topic, 0): offset(1, at_ms=clock.now_ms())})
    await clock.advance(max(RETENTION_MS / 1000, IDLE_S) + 1)
    await office.seats.tick()
    heads = {KEYS.group(group_id).head: group_id for group_id in ("a", "b", "c")}
    taken: list[str] = []
    get = store.get

    async def get_and_lose_the_lease(key: Key) -> Versioned | None:
        if key in heads and not taken:
            taken.append(heads[key])
            await office.seats.take(heads[key])
        return await get(key)

    monkeypatch.setattr(store, "get", get_and_lose_the_lease)
    await run(keeper)
    left = [facts.head.group_id for facts in await walk(store, KEYS, after=None, limit=10) if facts.head is not None]
    assert left == taken and len(taken) == 1, "the others went, in the same walk"


async def end_round(keeper: GroupKeeper) -> tuple[int, int]:
    """Make the steps of one round; return how many there were, and how many offsets went."""
    steps, removed = 1, await keeper.tick()
    while not keeper.is_round_over:
        steps, removed = steps + 1, removed + await keeper.tick()
    return steps, removed


async def test_a_round_goes_on_in_steps_until_every_group_was_seen(
    store: FlakyMetadata, clock: ManualClock, office: Office, keeper: GroupKeeper
) -> None:
    topic = await make_topic(store, clock, office, "orders")
    for number in range(7):
        await office.coordinator.commit(f"g{number}", NOBODY, {(topic, 0): offset(1, at_ms=clock.now_ms())})
    assert keeper.is_round_over, "none has begun"
    transactions = store.transactions
    assert await end_round(keeper) == (4, 0)
    assert store.transactions == transactions, "where nothing has to go, nothing is locked"
    await clock.advance(RETENTION_MS / 1000 + 1)
    assert await end_round(keeper) == (4, 7), "one round sees all of them"


async def test_a_step_is_bounded_by_keys_and_the_next_one_goes_on_in_the_same_group(
    store: FlakyMetadata, clock: ManualClock, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "OFFSETS_PER_STEP", 2)
    keeper = make_keeper(store, clock, office, keys_per_tick=3)
    topic = await make_topic(store, clock, office, "orders")
    wanted = {(topic, partition): offset(1, at_ms=clock.now_ms()) for partition in range(4)}
    for group_id in ("large", "other"):
        await office.coordinator.commit(group_id, NOBODY, wanted)
    await clock.advance(max(RETENTION_MS / 1000, IDLE_S) + 1)
    await office.seats.tick()
    read: list[int] = []
    range_of = store.range

    async def count(range_: Range) -> list[Versioned]:
        rows = await range_of(range_)
        if "/offsets/" in range_.start:
            read[-1] += len(rows)
        return rows

    monkeypatch.setattr(store, "range", count)
    removed = 0
    while not read or not keeper.is_round_over:
        read.append(0)
        removed += await keeper.tick()
    assert removed == 8 and sum(read) == 8 and len(read) >= 3 and max(read) <= 4, read
    assert [facts.head for facts in await walk(store, KEYS, after=None, limit=10)] == [None, None]


async def test_a_damaged_offset_holds_up_no_other_group(
    store: FlakyMetadata, clock: ManualClock, office: Office, keeper: GroupKeeper
) -> None:
    topic = await make_topic(store, clock, office, "orders")
    for group_id in ("a", "b", "c"):
        await office.coordinator.commit(group_id, NOBODY, {(topic, 0): offset(1, at_ms=clock.now_ms())})
    damaged = KEYS.group("a")
    await store.transact(
        [damaged.unit], Reads(), lambda _: Decision(result=None, puts={damaged.offset(topic, 0): b"\x01junk"})
    )
    await clock.advance(RETENTION_MS / 1000 + 1)
    removed, failures = 0, 0
    for _ in range(2):
        try:
            removed += await keeper.tick()
        except Corrupt:
            failures += 1
    assert (removed, failures) == (1, 1) and keeper.is_round_over
    left = [group_id for group_id in ("a", "b", "c") if await store.range(offsets_of(group_id))]
    assert left == ["a"]


def offsets_of(group_id: str) -> Range:
    return prefix_range(KEYS.group(group_id).offsets_prefix, limit=10)
