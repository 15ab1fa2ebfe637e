"""Shares of cohorts: how far they are evened out, and what happens when the search runs into its limit."""

from headrace.groups.cohorts import Cohort, share_out
from headrace.model.topics import TopicId

TOPICS = [TopicId(bytes([number]) * 16) for number in range(1, 21)]
A, B, C = TOPICS[:3]


def test_a_cohort_knows_its_least_and_its_most_loaded_member() -> None:
    cohort = Cohort(0, 3, [A, B], {A: 3, B: 4})
    assert (cohort.load, cohort.least, cohort.most) == (7, 2, 3)


def test_free_partitions_fill_up_the_cohort_whose_members_have_least() -> None:
    one, many = Cohort(0, 1, [A, B], {B: 3}), Cohort(1, 4, [A], {A: 2})
    share_out([one, many], {A: 10, B: 0})
    assert (one.shares, many.shares) == ({A: 0, B: 3}, {A: 12})


def test_large_cohorts_are_levelled_to_one() -> None:
    few, many = Cohort(0, 100, [A, B], {A: 1000, B: 1000}), Cohort(1, 300, [A], {A: 0})
    share_out([few, many], {})
    assert (few.load, many.load) == (1000, 1000)
    few, many = Cohort(0, 100, [A, B], {A: 4000, B: 0}), Cohort(1, 300, [A], {A: 0})
    share_out([few, many], {})
    assert (few.load, many.load) == (1000, 3000)


def test_who_is_cut_off_from_the_rest_stays_as_it_is() -> None:
    high, low, other = Cohort(0, 1, [A], {A: 50}), Cohort(1, 1, [B, C], {B: 1}), Cohort(2, 1, [C], {C: 7})
    share_out([high, low, other], {})
    assert [cohort.load for cohort in (high, low, other)] == [50, 4, 4]


def test_a_search_that_runs_into_its_limit_leaves_right_shares() -> None:
    def chain() -> list[Cohort]:
        return [
            Cohort(place, 1, TOPICS[max(0, place - 1) : place + 1], {TOPICS[place]: 40 - 2 * place})
            for place in range(20)
        ]

    def totals(cohorts: list[Cohort]) -> dict[TopicId, int]:
        return {topic: sum(cohort.shares.get(topic, 0) for cohort in cohorts) for topic in TOPICS}

    even, cut = chain(), chain()
    before = totals(even)
    share_out(even, {})
    share_out(cut, {}, max_steps=20)
    assert totals(even) == totals(cut) == before
    assert all(cohort.load == sum(cohort.shares.values()) for cohort in even + cut)
    assert sum(cohort.load**2 for cohort in even) < sum(cohort.load**2 for cohort in cut)


def test_no_cohorts_and_no_topics_are_fine() -> None:
    share_out([], {})
    bare = Cohort(0, 2, [], {})
    share_out([bare], {})
    assert bare.shares == {}


def test_who_joins_takes_a_little_from_everybody_so_that_nobody_needs_anything_back() -> None:
    # The last topics have no partitions; they only make these three want different things.
    old = [
        Cohort(0, 1, [A, B, TOPICS[17]], {B: 10}),
        Cohort(1, 1, [A, B, TOPICS[18]], {A: 5, B: 5}),
        Cohort(2, 1, [A, B, TOPICS[19]], {A: 5, B: 5}),
    ]
    newcomer = Cohort(3, 1, [B], {})
    share_out([*old, newcomer], {})
    assert sorted(cohort.load for cohort in (*old, newcomer)) == [7, 7, 8, 8]
    assert [cohort.shares[A] for cohort in old] == [0, 5, 5]
