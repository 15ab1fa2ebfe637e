"""Isolation, atomicity and versions of `transact`."""

import asyncio
import contextlib
import weakref
from collections.abc import Sequence
from functools import partial

import pytest

from headrace.errors import Invalid
from headrace.metadata import keys
from headrace.metadata.port import MAX_KEY_BYTES, Decision, Key, MetadataStore, Range, Reads, Seen, Unit
from headrace.model.ids import SessionId
from tests.contract.metadata.rules import COUNTER, DOMAIN, OTHER_DOMAIN, decided, delete, increment, put, value
from tests.contract.metadata.test_watches import LIMIT_S
from tests.unit.circles import Buffer, is_gone, no_collection

ROUNDS = 15


async def test_what_was_put_is_read_back(store: MetadataStore) -> None:
    revision = await put(store, a=b"1", empty=b"", odd=bytes(range(256)))
    row = await store.get(Key(DOMAIN.unit + "a"))
    assert row is not None
    assert (row.value, row.version) == (b"1", revision)
    assert await value(store, Key(DOMAIN.unit + "empty")) == b""
    assert await value(store, Key(DOMAIN.unit + "odd")) == bytes(range(256))
    assert await store.get(Key(DOMAIN.unit + "absent")) is None


async def test_decide_sees_keys_and_ranges_as_they_were_asked_for(store: MetadataStore) -> None:
    await put(store, a=b"1", b=b"2", c=b"3")
    low, high = Key(DOMAIN.unit + "a"), Key(DOMAIN.unit + "c")
    ranges = [
        Range(low, high),
        Range(low, Key(high + " "), reverse=True),
        Range(Key(DOMAIN.unit + "x"), Key(DOMAIN.unit + "y")),
        Range(low, high, limit=1),
    ]

    def decide(seen: Seen) -> Decision[Seen]:
        return Decision(result=seen)

    committed = await store.transact(
        [DOMAIN.unit], Reads(keys=[high, low, Key(DOMAIN.unit + "absent")], ranges=ranges), decide
    )
    assert committed.revision == 0, "nothing was written"
    seen = committed.result
    assert {key: row.value for key, row in seen.values.items()} == {low: b"1", high: b"3"}
    assert [[row.value for row in rows] for rows in seen.ranges] == [[b"1", b"2"], [b"3", b"2", b"1"], [], [b"1"]]


async def test_hundreds_of_keys_go_through_one_transaction(store: MetadataStore) -> None:
    wanted = [Key(f"{DOMAIN.unit}many/{number:04d}") for number in range(333)]
    puts = {key: key.encode() * 3 for key in wanted}
    await store.transact([DOMAIN.unit], Reads(), lambda _: Decision(result=None, puts=puts))

    def decide(seen: Seen) -> Decision[dict[Key, bytes]]:
        found = {key: row.value for key, row in seen.values.items()}
        return Decision(result=found, deletes=wanted[:300])

    assert (await store.transact([DOMAIN.unit], Reads(keys=wanted), decide)).result == puts
    left = await store.range(keys.prefix_range(DOMAIN.unit + "many/", limit=1000))
    assert [row.key for row in left] == wanted[300:]


async def test_concurrent_increments_are_never_lost(store: MetadataStore, other: MetadataStore) -> None:
    await asyncio.gather(*(increment(one) for _ in range(ROUNDS) for one in (store, other)))
    assert await value(store, COUNTER) == str(2 * ROUNDS).encode()


async def test_concurrent_increments_see_every_state_once(store: MetadataStore, other: MetadataStore) -> None:
    seen = await asyncio.gather(*(increment(one) for _ in range(ROUNDS) for one in (store, other)))
    assert sorted(seen) == list(range(2 * ROUNDS))


async def test_of_two_that_create_an_absent_key_one_wins(store: MetadataStore, other: MetadataStore) -> None:
    def create(key: Key, name: bytes, seen: Seen) -> Decision[bool]:
        if seen.get(key) is not None:
            return Decision(result=False)
        return Decision(result=True, puts={key: name})

    for number in range(ROUNDS):
        key = Key(f"{DOMAIN.unit}lock/{number}")
        won = await asyncio.gather(
            *(
                one.transact([DOMAIN.unit], Reads(keys=[key]), partial(create, key, b"x"))
                for one in (store, other, store, other)
            )
        )
        assert [committed.result for committed in won].count(True) == 1


async def test_of_two_that_insert_into_an_empty_range_one_wins(store: MetadataStore, other: MetadataStore) -> None:
    def insert(prefix: str, name: str, seen: Seen) -> Decision[bool]:
        if seen.ranges[0]:
            return Decision(result=False)
        return Decision(result=True, puts={Key(prefix + name): b"x"})

    for number in range(ROUNDS):
        prefix = f"{DOMAIN.unit}room{number}/"
        reads = Reads(ranges=[keys.prefix_range(prefix, limit=1)])
        won = await asyncio.gather(
            *(
                one.transact([DOMAIN.unit], reads, partial(insert, prefix, name))
                for name, one in zip("abcd", (store, other, store, other), strict=True)
            )
        )
        assert [committed.result for committed in won].count(True) == 1
        assert len(await store.range(keys.prefix_range(prefix, limit=10))) == 1


async def test_two_keys_of_one_unit_cannot_be_skewed(store: MetadataStore, other: MetadataStore) -> None:
    """Each goes off duty only if the other is on duty: with write skew both would."""

    def leave(mine: Key, other_key: Key, seen: Seen) -> Decision[None]:
        return Decision(result=None, puts={mine: b"off"} if seen.get(other_key) == b"on" else {})

    for number in range(ROUNDS):
        pair = (Key(f"{DOMAIN.unit}duty/{number}/a"), Key(f"{DOMAIN.unit}duty/{number}/b"))
        on = Decision(result=None, puts=dict.fromkeys(pair, b"on"))
        await store.transact([DOMAIN.unit], Reads(), partial(decided, on))
        await asyncio.gather(
            *(
                one.transact([DOMAIN.unit], Reads(keys=pair), partial(leave, mine, their))
                for one, mine, their in ((store, pair[0], pair[1]), (other, pair[1], pair[0]))
            )
        )
        assert {await value(store, key) for key in pair} == {b"on", b"off"}


async def test_units_named_in_any_order_do_not_lock_each_other_out(
    store: MetadataStore, other: MetadataStore
) -> None:
    pair = (Key(DOMAIN.unit + "n"), Key(OTHER_DOMAIN.unit + "n"))

    def both(seen: Seen) -> Decision[None]:
        return Decision(result=None, puts={key: str(int(seen.get(key) or b"0") + 1).encode() for key in pair})

    orders: Sequence[list[Unit]] = ([DOMAIN.unit, OTHER_DOMAIN.unit], [OTHER_DOMAIN.unit, DOMAIN.unit])
    await asyncio.gather(
        *(
            one.transact(units, Reads(keys=pair), both)
            for _ in range(ROUNDS)
            for one, units in zip((store, other), orders, strict=True)
        )
    )
    assert [await value(store, key) for key in pair] == [str(2 * ROUNDS).encode()] * 2


async def test_a_write_is_seen_by_every_later_read(store: MetadataStore, other: MetadataStore) -> None:
    for number in range(ROUNDS):
        await put(store, a=str(number).encode())
        assert await value(other, Key(DOMAIN.unit + "a")) == str(number).encode()


async def test_what_decide_raises_reaches_the_caller_and_leaves_nothing(store: MetadataStore) -> None:
    class PrivateError(Exception):
        pass

    def decide(seen: Seen) -> Decision[None]:
        raise PrivateError("no")

    with pytest.raises(PrivateError, match="no"):
        await store.transact([DOMAIN.unit], Reads(keys=[COUNTER]), decide)
    assert await increment(store) == 0, "the unit is free again"


async def test_one_that_fails_does_not_harm_its_neighbours(store: MetadataStore) -> None:
    def fail(seen: Seen) -> Decision[int]:
        raise LookupError("mine alone")

    async def failing() -> None:
        with pytest.raises(LookupError):
            await store.transact([DOMAIN.unit], Reads(keys=[COUNTER]), fail)

    await asyncio.gather(*(work for _ in range(ROUNDS) for work in (increment(store), failing())))
    assert await value(store, COUNTER) == str(ROUNDS).encode()


async def test_a_decide_that_runs_out_of_an_iterator_fails_alone(store: MetadataStore) -> None:
    """A coroutine turns `StopIteration` into `RuntimeError`; a future refuses it, and then nobody gets an answer."""

    def take_from_nothing(seen: Seen) -> Decision[int]:
        return Decision(result=next(iter(())))

    async with asyncio.timeout(LIMIT_S):
        outcomes = await asyncio.gather(
            increment(store),
            store.transact([DOMAIN.unit], Reads(keys=[COUNTER]), take_from_nothing),
            increment(store),
            return_exceptions=True,
        )
    assert isinstance(outcomes[1], RuntimeError)
    assert sorted([outcomes[0], outcomes[2]]) == [0, 1]  # type: ignore[type-var]


async def test_versions_are_store_wide_and_grow(store: MetadataStore, other: MetadataStore) -> None:
    revisions = [await put(one, **{name: b"x"}) for one, name in ((store, "a"), (other, "b"), (store, "a"))]
    revisions.append(await delete(other, Key(DOMAIN.unit + "b")))
    revisions.append(await put(store, b=b"again"))
    assert revisions == sorted(set(revisions))
    rows = await store.range(Range(Key(DOMAIN.unit + "a"), Key(DOMAIN.unit + "c")))
    assert [row.version for row in rows] == [revisions[2], revisions[4]]


async def test_all_keys_of_a_transaction_have_its_revision(store: MetadataStore) -> None:
    revision = await put(store, a=b"1", b=b"2")
    rows = await store.range(Range(Key(DOMAIN.unit + "a"), Key(DOMAIN.unit + "c")))
    assert [row.version for row in rows] == [revision, revision]


async def test_deleting_what_is_absent_succeeds(store: MetadataStore) -> None:
    await delete(store, Key(DOMAIN.unit + "absent"))
    assert await store.get(Key(DOMAIN.unit + "absent")) is None


OUTSIDE = Key(OTHER_DOMAIN.unit + "x")
INSIDE = Key(DOMAIN.unit + "x")


@pytest.mark.parametrize(
    ("units", "reads"),
    [
        ([], Reads()),
        ([DOMAIN.unit], Reads(keys=[OUTSIDE])),
        ([DOMAIN.unit], Reads(keys=[INSIDE, keys.FORMAT])),
        ([DOMAIN.unit], Reads(keys=[Key(DOMAIN.unit + "groups/=g/head")])),
        ([DOMAIN.unit], Reads(keys=[Key(DOMAIN.unit + "k" * MAX_KEY_BYTES)])),
        ([DOMAIN.unit], Reads(keys=[Key(DOMAIN.unit + "line\nbreak")])),
        ([DOMAIN.unit], Reads(ranges=[Range(INSIDE, OUTSIDE)])),
        ([DOMAIN.unit], Reads(ranges=[keys.prefix_range(DOMAIN.unit, limit=10)])),
        ([DOMAIN.unit], Reads(ranges=[keys.prefix_range(OTHER_DOMAIN.log_prefix, limit=10)])),
        ([DOMAIN.unit], Reads(ranges=[keys.prefix_range(DOMAIN.log_prefix, limit=0)])),
        ([DOMAIN.unit], Reads(ranges=[keys.prefix_range(DOMAIN.log_prefix, limit=10_001)])),
    ],
)
async def test_reads_outside_the_units_are_refused(store: MetadataStore, units: list[Unit], reads: Reads) -> None:
    with pytest.raises(Invalid):
        await store.transact(units, reads, lambda _: Decision(result=None))


@pytest.mark.parametrize(
    "decision",
    [
        Decision(result=None, puts={INSIDE: b"", OUTSIDE: b""}),
        Decision(result=None, deletes=[OUTSIDE]),
        Decision(result=None, puts={INSIDE: b""}, deletes=[INSIDE]),
        Decision(result=None, ephemerals={INSIDE: b""}),
        Decision(result=None, puts={Key(DOMAIN.unit + "k" * MAX_KEY_BYTES): b""}),
        Decision(result=None, puts={keys.session(SessionId("forged")): b""}),
    ],
)
async def test_writes_outside_the_units_or_twice_are_refused(store: MetadataStore, decision: Decision[None]) -> None:
    with pytest.raises(Invalid):
        await store.transact([DOMAIN.unit], Reads(), lambda _: decision)
    assert await store.get(INSIDE) is None


async def test_a_cancelled_caller_leaves_all_or_nothing(store: MetadataStore) -> None:
    for _ in range(ROUNDS):
        task = asyncio.ensure_future(put(store, a=b"1", b=b"2"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        # Whoever comes next waits for the unit, so nothing of the cancelled one happens after it.
        seen = await store.transact(
            [DOMAIN.unit],
            Reads(keys=[Key(DOMAIN.unit + "a"), Key(DOMAIN.unit + "b")]),
            lambda seen: Decision(result=len(seen.values), deletes=list(seen.values)),
        )
        assert seen.result in (0, 2)


async def test_refused_transaction_keeps_nothing_of_its_caller_alive(store: MetadataStore) -> None:
    async def ask() -> "weakref.ref[Buffer]":
        buffer = Buffer()

        def refuse(seen: Seen) -> Decision[None]:
            raise Invalid(f"{type(buffer).__name__} is not taken")

        with contextlib.suppress(Invalid):
            await store.transact([DOMAIN.unit], Reads(), refuse)
        return weakref.ref(buffer)

    with no_collection():
        first = await ask()
        await ask()  # whatever a thread keeps of its last work, the next one takes its place
        assert is_gone(first)
