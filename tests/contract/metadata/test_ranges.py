"""Order of keys, bounds, limits and direction of `range`."""

import pytest

from headrace.errors import Invalid
from headrace.metadata import keys
from headrace.metadata.port import MAX_KEY_BYTES, Decision, Key, MetadataStore, Range, Reads, Seen
from tests.contract.metadata.rules import DOMAIN, OTHER_DOMAIN

# In the order of their bytes, which is neither a dictionary's nor that of path segments.
NAMES = [
    "#",
    "%2F",
    "-",
    "0",
    "00",
    "1",
    "10",
    "2",
    "A",
    "Z",
    "_",
    "a",
    "a ",
    "a!",
    "a/",
    "a/b",
    "a0",
    "aa",
    "b",
    "~",
]
PREFIX = DOMAIN.unit + "names/"
START, END = Key(PREFIX), Key(PREFIX[:-1] + "0")


@pytest.fixture
async def filled(store: MetadataStore) -> MetadataStore:
    puts = {Key(PREFIX + name): name.encode() for name in reversed(NAMES)}
    beyond = {Key(DOMAIN.unit + "name"): b"before", Key(DOMAIN.unit + "names0"): b"behind"}
    await store.transact([DOMAIN.unit], Reads(), lambda _: Decision(result=None, puts={**puts, **beyond}))
    return store


async def names_in(store: MetadataStore, range_: Range) -> list[str]:
    """Read a range outside and inside of a transaction, and demand the same answer."""
    outside = await store.range(range_)

    def decide(seen: Seen) -> Decision[object]:
        return Decision(result=seen.ranges[0])

    assert (await store.transact([DOMAIN.unit], Reads(ranges=[range_]), decide)).result == outside
    assert [row.value.decode() for row in outside] == [row.key.removeprefix(PREFIX) for row in outside]
    return [row.key.removeprefix(PREFIX) for row in outside]


async def test_keys_come_in_the_order_of_their_bytes(filled: MetadataStore) -> None:
    assert sorted(NAMES) == NAMES
    assert await names_in(filled, Range(START, END)) == NAMES


async def test_reverse_is_the_same_backwards(filled: MetadataStore) -> None:
    assert await names_in(filled, Range(START, END, reverse=True)) == NAMES[::-1]


@pytest.mark.parametrize("limit", [1, 2, len(NAMES), len(NAMES) + 1])
async def test_a_limit_cuts_at_the_far_end(filled: MetadataStore, limit: int) -> None:
    assert await names_in(filled, Range(START, END, limit=limit)) == NAMES[:limit]
    assert await names_in(filled, Range(START, END, limit=limit, reverse=True)) == NAMES[::-1][:limit]


async def test_the_start_is_inclusive_and_the_end_exclusive(filled: MetadataStore) -> None:
    between = Range(Key(PREFIX + "10"), Key(PREFIX + "a/b"))
    expected = NAMES[NAMES.index("10") : NAMES.index("a/b")]
    assert await names_in(filled, between) == expected
    assert await names_in(filled, Range(between.start, between.end, reverse=True)) == expected[::-1]


async def test_bounds_need_not_exist(filled: MetadataStore) -> None:
    assert await names_in(filled, Range(Key(PREFIX + "B"), Key(PREFIX + "Y"))) == []
    assert await names_in(filled, Range(Key(PREFIX + "9"), Key(PREFIX + "Y"))) == ["A"]


async def test_an_empty_or_reversed_range_is_empty(filled: MetadataStore) -> None:
    assert await names_in(filled, Range(START, START)) == []
    assert await names_in(filled, Range(END, START)) == []


async def test_a_prefix_is_read_in_pages(filled: MetadataStore) -> None:
    found: list[str] = []
    after: Key | None = None
    while page := await filled.range(keys.prefix_range(PREFIX, limit=3, after=after)):
        found += [row.key.removeprefix(PREFIX) for row in page]
        after = page[-1].key
    assert found == NAMES


async def test_numbers_sort_as_numbers(store: MetadataStore) -> None:
    numbers = [0, 1, 9, 10, 99, 100, 2**32, 2**63]
    puts = {DOMAIN.log(number): b"" for number in numbers}
    await store.transact([DOMAIN.unit], Reads(), lambda _: Decision(result=None, puts=puts))
    rows = await store.range(DOMAIN.log_range(9, limit=100))
    assert [row.key for row in rows] == [DOMAIN.log(number) for number in numbers[2:]]


async def test_units_do_not_see_each_other(filled: MetadataStore) -> None:
    assert await filled.range(keys.prefix_range(OTHER_DOMAIN.unit, limit=10)) == []


async def test_a_range_without_a_sensible_limit_is_refused(store: MetadataStore) -> None:
    for limit in (0, -1, 10_001):
        with pytest.raises(Invalid):
            await store.range(Range(START, END, limit=limit))


async def test_reading_goes_on_behind_the_longest_key_of_all(store: MetadataStore) -> None:
    longest = Key(PREFIX.ljust(MAX_KEY_BYTES, "k"))
    behind = Key(PREFIX + "l")
    await store.transact([DOMAIN.unit], Reads(), lambda _: Decision(result=None, puts={longest: b"1", behind: b"2"}))
    [first] = await store.range(keys.prefix_range(PREFIX, limit=1))
    rest = await store.range(keys.prefix_range(PREFIX, limit=10, after=first.key))
    assert (first.key, [row.key for row in rest]) == (longest, [behind])
