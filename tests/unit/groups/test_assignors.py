"""The assignors by example: what comes out for groups as people run them."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from headrace.groups.assignors import (
    ASSIGNORS,
    DEFAULT_ASSIGNOR,
    Assignor,
    MemberSubscription,
    Targets,
    assign_ranges,
    assign_uniformly,
)
from headrace.model.topics import TopicId

A, B, C, D = (TopicId(bytes([number]) * 16) for number in range(1, 5))


def member(
    member_id: str,
    *topics: TopicId,
    current: Mapping[TopicId, Sequence[int]] | None = None,
    instance_id: str | None = None,
) -> MemberSubscription:
    return MemberSubscription(
        member_id=member_id,
        instance_id=instance_id,
        topics=frozenset(topics),
        current={topic: frozenset(partitions) for topic, partitions in (current or {}).items()},
    )


def plain(targets: Targets) -> dict[str, dict[TopicId, list[int]]]:
    return {
        member_id: {topic: sorted(target[topic]) for topic in sorted(target)} for member_id, target in targets.items()
    }


def loads(targets: Targets) -> list[int]:
    return sorted(sum(map(len, target.values())) for target in targets.values())


def holding(targets: Targets, *topics: TopicId) -> list[MemberSubscription]:
    """Return members that hold these targets and want these topics."""
    return [
        MemberSubscription(member_id=member_id, topics=frozenset(topics), current=target)
        for member_id, target in targets.items()
    ]


def moves(before: Sequence[MemberSubscription], after: Targets) -> int:
    """Return how many partitions their holders have lost."""
    return sum(
        len(partitions - after[one.member_id].get(topic, frozenset()))
        for one in before
        for topic, partitions in one.current.items()
    )


def test_uniform_is_the_default() -> None:
    assert DEFAULT_ASSIGNOR == "uniform"
    assert dict(ASSIGNORS) == {"uniform": assign_uniformly, "range": assign_ranges}


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS)
class TestEveryAssignor:
    def test_a_group_without_members_gets_nothing(self, assign: Assignor) -> None:
        assert assign([], {A: 3}) == {}

    def test_who_wants_nothing_gets_an_empty_target(self, assign: Assignor) -> None:
        assert plain(assign([member("m", A), member("n")], {A: 2})) == {"m": {A: [0, 1]}, "n": {}}
        assert assign([member("m"), member("n")], {A: 2}) == {"m": {}, "n": {}}

    def test_topics_that_are_gone_are_passed_over(self, assign: Assignor) -> None:
        members = [member("m", A, B, current={A: [0], B: [0, 1], C: [4]})]
        assert plain(assign(members, {A: 2})) == {"m": {A: [0, 1]}}

    def test_a_topic_without_partitions_is_in_no_target(self, assign: Assignor) -> None:
        assert plain(assign([member("m", A, B)], {A: 0, B: 1})) == {"m": {B: [0]}}

    def test_more_members_than_partitions_leave_some_with_nothing(self, assign: Assignor) -> None:
        targets = assign([member(name, A) for name in "klmn"], {A: 2})
        assert loads(targets) == [0, 0, 1, 1]


class TestRange:
    def test_ranges_are_contiguous_and_the_first_ones_are_longer(self) -> None:
        targets = assign_ranges([member(name, A) for name in "nml"], {A: 8})
        assert plain(targets) == {"l": {A: [0, 1, 2]}, "m": {A: [3, 4, 5]}, "n": {A: [6, 7]}}

    def test_topics_with_as_many_partitions_line_up(self) -> None:
        targets = assign_ranges([member(name, A, B, C) for name in "lmn"], {A: 5, B: 5, C: 2})
        assert all(target[A] == target[B] for target in targets.values())
        assert plain(targets)["m"] == {A: [2, 3], B: [2, 3], C: [1]}
        assert C not in targets["n"]

    def test_static_members_come_first_in_the_order_of_their_instance_ids(self) -> None:
        members = [member("a", A), member("z", A, instance_id="1"), member("b", A, instance_id="2"), member("c", A)]
        assert plain(assign_ranges(members, {A: 4})) == {"z": {A: [0]}, "b": {A: [1]}, "a": {A: [2]}, "c": {A: [3]}}

    def test_a_static_member_that_restarts_keeps_its_range(self) -> None:
        before = assign_ranges([member("a", A, instance_id="x"), member("b", A, instance_id="y")], {A: 4})
        after = assign_ranges([member("zz", A, instance_id="x"), member("b", A, instance_id="y")], {A: 4})
        assert before["a"] == after["zz"]
        assert before["b"] == after["b"]

    def test_only_subscribers_of_a_topic_count_for_it(self) -> None:
        targets = assign_ranges([member("l", A), member("m", A, B), member("n", B)], {A: 3, B: 3})
        assert plain(targets) == {"l": {A: [0, 1]}, "m": {A: [2], B: [0, 1]}, "n": {B: [2]}}

    def test_what_members_hold_does_not_matter(self) -> None:
        fresh = assign_ranges([member("l", A), member("m", A)], {A: 4})
        assert fresh == assign_ranges([member("l", A, current={A: [3, 2]}), member("m", A, current={A: [0]})], {A: 4})


class TestUniformWithEqualTopics:
    def test_a_fresh_group_is_dealt_round_and_each_topic_is_spread(self) -> None:
        targets = assign_uniformly([member("l", A, B), member("m", A, B)], {A: 3, B: 3})
        assert plain(targets) == {"l": {A: [0, 2], B: [1]}, "m": {A: [1], B: [0, 2]}}

    def test_nothing_moves_in_a_group_that_is_even(self) -> None:
        members = [member("l", A, current={A: [0, 4, 2]}), member("m", A, current={A: [1, 3]})]
        assert plain(assign_uniformly(members, {A: 5})) == {"l": {A: [0, 2, 4]}, "m": {A: [1, 3]}}

    def test_the_extra_partition_stays_with_whoever_has_it(self) -> None:
        members = [member("l", A, current={A: [0]}), member("m", A, current={A: [1, 2]})]
        assert plain(assign_uniformly(members, {A: 3})) == {"l": {A: [0]}, "m": {A: [1, 2]}}

    def test_who_joins_takes_no_more_than_a_fair_share(self) -> None:
        counts = {A: 50, B: 50}
        old = holding(assign_uniformly([member(name, A, B) for name in "klmn"], counts), A, B)
        targets = assign_uniformly([*old, member("z", A, B)], counts)
        assert loads(targets) == [20] * 5
        assert moves(old, targets) == 20

    def test_who_joins_gets_partitions_of_all_topics(self) -> None:
        counts = {A: 9, B: 9, C: 9, D: 9}
        old = holding(assign_uniformly([member(name, *counts) for name in "lmn"], counts), *counts)
        target = assign_uniformly([*old, member("z", *counts)], counts)["z"]
        assert {len(partitions) for partitions in target.values()} <= {2, 3}
        assert set(target) == set(counts)

    def test_what_a_leaver_had_is_all_that_moves(self) -> None:
        counts = {A: 30}
        before = assign_uniformly([member(name, A) for name in "lmn"], counts)
        rest = [one for one in holding(before, A) if one.member_id != "m"]
        targets = assign_uniformly(rest, counts)
        assert loads(targets) == [15, 15]
        assert moves(rest, targets) == 0

    def test_new_partitions_go_to_who_has_least(self) -> None:
        members = [member("l", A, current={A: [0, 1, 2]}), member("m", A, current={A: [3]})]
        targets = assign_uniformly(members, {A: 6})
        assert plain(targets) == {"l": {A: [0, 1, 2]}, "m": {A: [3, 4, 5]}}

    def test_partitions_that_are_gone_are_dropped(self) -> None:
        members = [member("l", A, current={A: [0, 8, 9]}), member("m", A, current={A: [1]})]
        assert plain(assign_uniformly(members, {A: 2})) == {"l": {A: [0]}, "m": {A: [1]}}

    def test_a_partition_that_two_claim_goes_to_one(self) -> None:
        members = [member("l", A, current={A: [0, 1]}), member("m", A, current={A: [0, 1]})]
        assert plain(assign_uniformly(members, {A: 2})) in (
            {"l": {A: [0]}, "m": {A: [1]}},
            {"l": {A: [1]}, "m": {A: [0]}},
        )

    def test_topics_that_are_not_there_make_no_difference_between_members(self) -> None:
        targets = assign_uniformly([member("l", A, B), member("m", A), member("n", A, C)], {A: 10})
        assert loads(targets) == [3, 3, 4]

    def test_a_large_group_is_even_and_sticky(self) -> None:
        counts = {TopicId(number.to_bytes(16, "big")): 100 for number in range(1, 21)}
        old = holding(assign_uniformly([member(f"m{n}", *counts) for n in range(150)], counts), *counts)
        joined = [*old, *(member(f"z{n}", *counts) for n in range(50))]
        targets = assign_uniformly(joined, counts)
        assert Counter(loads(targets)) == {10: 200}
        assert moves(old, targets) == 500


class TestUniformWithMixedTopics:
    def test_who_has_fewer_choices_is_served_first(self) -> None:
        targets = assign_uniformly([member("l", A), member("m", A, B)], {A: 2, B: 2})
        assert plain(targets) == {"l": {A: [0, 1]}, "m": {B: [0, 1]}}

    def test_as_even_as_the_topics_allow(self) -> None:
        targets = assign_uniformly([member("l", A), member("m", B), member("n", B)], {A: 9, B: 3})
        assert loads(targets) == [1, 2, 9]

    def test_a_new_topic_shifts_the_old_one_to_those_who_cannot_have_it(self) -> None:
        old = assign_uniformly([member(name, A) for name in "klmn"], {A: 20})
        members = [
            MemberSubscription(member_id=one, topics=frozenset({A} if one in "kl" else {A, B}), current=target)
            for one, target in old.items()
        ]
        targets = assign_uniformly(members, {A: 20, B: 20})
        assert loads(targets) == [10] * 4
        assert moves(members, targets) == 10

    def test_evenness_is_found_through_a_member_in_between(self) -> None:
        members = [
            member("l", A, current={A: [0, 1, 2, 3]}),
            member("m", A, B, current={B: [0, 1]}),
            member("n", B),
        ]
        assert loads(assign_uniformly(members, {A: 4, B: 2})) == [2, 2, 2]

    def test_a_chain_of_members_is_evened_out_from_end_to_end(self) -> None:
        topics = [TopicId(number.to_bytes(16, "big")) for number in range(1, 31)]
        members = [
            member(f"m{place:02}", *topics[max(0, place - 1) : place + 1], current={topics[place]: [0]})
            for place in range(30)
        ]
        counts = dict.fromkeys(topics, 1) | {topics[0]: 31}
        # Only the first two read the large topic; the second hands all else on, and so does everybody behind it.
        assert loads(assign_uniformly(members, counts)) == [1] * 27 + [2, 15, 16]

    def test_who_stops_to_want_a_topic_loses_only_that(self) -> None:
        counts = {A: 4, B: 4}
        before = assign_uniformly([member("l", A, B), member("m", A, B)], counts)
        members = [
            MemberSubscription(member_id="l", topics=frozenset({A}), current=before["l"]),
            MemberSubscription(member_id="m", topics=frozenset({A, B}), current=before["m"]),
        ]
        targets = assign_uniformly(members, counts)
        assert loads(targets) == [4, 4]
        assert targets["l"] == {A: frozenset(range(4))}

    def test_who_joins_takes_directly_from_those_who_have_most(self) -> None:
        counts = {A: 30, B: 10, C: 10, D: 10}
        members = [member(f"{other[0]}{place}", A, other) for other in (B, C, D) for place in range(2)]
        before = assign_uniformly(members, counts)
        old = [
            MemberSubscription(member_id=one.member_id, topics=one.topics, current=before[one.member_id])
            for one in members
        ]
        targets = assign_uniformly([*old, member("z", A)], counts)
        assert loads(targets) == [8, 8, 8, 9, 9, 9, 9]
        assert moves(old, targets) == len(targets["z"][A]) == 8
