"""The assignors against what they promise, for random groups: small ones, so that the best outcome can be tried out.

Groups have a history here: partitions and members come and go, subscriptions change, and each target is what members
hold in the next round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.assignors import (
    ASSIGNORS,
    Assignor,
    MemberSubscription,
    Targets,
    assign_ranges,
    assign_uniformly,
)
from headrace.model.topics import TopicId

TOPICS = [TopicId(bytes([number]) * 16) for number in range(1, 5)]
MAX_MEMBERS = 5
MAX_PARTITIONS = 4

some_topics = st.frozensets(st.sampled_from(TOPICS))
counts_of_topics = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, MAX_PARTITIONS), max_size=len(TOPICS))
Group = list[MemberSubscription]


@st.composite
def groups(draw: st.DrawFn, *, is_equal: bool | None = None, is_disjoint: bool = False) -> Group:
    """Draw members that hold anything: what is gone, what they do not want, and what others hold, too."""
    topics = draw(some_topics)
    ids = draw(st.lists(st.text("abc", min_size=1, max_size=2), unique=True, min_size=1, max_size=MAX_MEMBERS))
    everything = [(topic, partition) for topic in TOPICS for partition in range(MAX_PARTITIONS + 1)]
    holders = draw(st.lists(st.none() | st.sampled_from(ids), min_size=len(everything), max_size=len(everything)))
    members = []
    for place, member_id in enumerate(ids):
        held: dict[TopicId, set[int]] = {}
        for (topic, partition), holder in zip(everything, holders, strict=True):
            if holder == member_id or (not is_disjoint and holder is not None and draw(st.integers(0, 9)) == 0):
                held.setdefault(topic, set()).add(partition)
        members.append(
            MemberSubscription(
                member_id=member_id,
                # Instance ids are unique in a group.
                instance_id=draw(st.none() | st.just(f"{9 - place}")),
                rack=draw(st.none() | st.just("zone")),
                topics=topics if is_equal else draw(some_topics),
                current={topic: frozenset(partitions) for topic, partitions in held.items()},
            )
        )
    return members


def loads_of(targets: Targets) -> list[int]:
    return [sum(map(len, target.values())) for target in targets.values()]


def squares(loads: Sequence[int]) -> int:
    return sum(load * load for load in loads)


def holding(group: Group, targets: Targets) -> Group:
    return [replace(member, current=targets[member.member_id]) for member in group]


def kept(group: Group, targets: Targets) -> int:
    """Return how many partitions stay where they are."""
    return sum(
        len(partitions & targets[member.member_id].get(topic, frozenset()))
        for member in group
        for topic, partitions in member.current.items()
    )


def assert_right(group: Group, counts: Mapping[TopicId, int], targets: Targets) -> None:
    """Every partition that somebody wants is given exactly once, and only to one who wants it."""
    assert targets.keys() == {member.member_id for member in group}
    given_out = []
    for member in group:
        for topic, partitions in targets[member.member_id].items():
            assert partitions, "no topic is named for nothing"
            assert topic in member.topics
            given_out += [(topic, partition) for partition in partitions]
    wanted = frozenset[TopicId]().union(*(member.topics for member in group))
    assert sorted(given_out) == [
        (topic, partition) for topic in TOPICS if topic in wanted for partition in range(counts.get(topic, 0))
    ]


def best_squares(group: Group, counts: Mapping[TopicId, int]) -> int:
    """Try out all assignments; return the smallest sum of squares of the members' loads."""
    reachable = {(0,) * len(group)}
    for topic, count in counts.items():
        takers = [place for place, member in enumerate(group) if topic in member.topics]
        for _ in range(count if takers else 0):
            reachable = {
                (*loads[:place], loads[place] + 1, *loads[place + 1 :]) for loads in reachable for place in takers
            }
    return min(map(squares, reachable))


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS)
@given(group=groups(), counts=counts_of_topics)
def test_every_wanted_partition_is_given_once_to_one_who_wants_it(
    assign: Assignor, group: Group, counts: dict[TopicId, int]
) -> None:
    assert_right(group, counts, assign(group, counts))


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS)
@given(group=groups(), counts=counts_of_topics, data=st.data())
def test_the_order_of_the_input_makes_no_difference(
    assign: Assignor, group: Group, counts: dict[TopicId, int], data: st.DataObject
) -> None:
    first = assign(group, counts)
    shuffled = [
        replace(member, current=dict(data.draw(st.permutations(list(member.current.items())))))
        for member in data.draw(st.permutations(group))
    ]
    assert assign(shuffled, dict(reversed(counts.items()))) == first


@given(group=groups(is_equal=True), counts=counts_of_topics)
def test_uniform_loads_of_equal_members_differ_by_one_at_most(group: Group, counts: dict[TopicId, int]) -> None:
    loads = loads_of(assign_uniformly(group, counts))
    assert max(loads) - min(loads) <= 1


@given(group=groups(is_equal=True, is_disjoint=True), counts=counts_of_topics)
def test_uniform_moves_the_fewest_among_equal_members(group: Group, counts: dict[TopicId, int]) -> None:
    held = [
        sum(
            partition < counts.get(topic, 0)
            for topic, partitions in member.current.items()
            if topic in member.topics
            for partition in partitions
        )
        for member in group
    ]
    total = sum(counts.get(topic, 0) for topic in group[0].topics)
    quota, extras = divmod(total, len(group))
    most_kept = max(
        sum(min(count, quota + (place in chosen)) for place, count in enumerate(held))
        for chosen in combinations(range(len(group)), extras)
    )
    assert kept(group, assign_uniformly(group, counts)) == most_kept


@given(group=groups(), counts=counts_of_topics)
def test_uniform_is_as_even_as_it_can_be_with_any_topics(group: Group, counts: dict[TopicId, int]) -> None:
    assert squares(loads_of(assign_uniformly(group, counts))) == best_squares(group, counts)


@given(group=groups(), counts=counts_of_topics)
def test_members_with_the_same_topics_differ_by_one_at_most(group: Group, counts: dict[TopicId, int]) -> None:
    targets = assign_uniformly(group, counts)
    loads: dict[frozenset[TopicId], list[int]] = {}
    for member in group:
        loads.setdefault(member.topics, []).append(sum(map(len, targets[member.member_id].values())))
    assert all(max(alike) - min(alike) <= 1 for alike in loads.values())


@given(group=groups(), counts=counts_of_topics)
def test_uniform_leaves_alone_what_is_even(group: Group, counts: dict[TopicId, int]) -> None:
    targets = assign_uniformly(group, counts)
    assert assign_uniformly(holding(group, targets), counts) == targets


@given(group=groups(), counts=counts_of_topics, data=st.data())
def test_uniform_leaves_alone_what_is_even_whoever_made_it_so(
    group: Group, counts: dict[TopicId, int], data: st.DataObject
) -> None:
    made: dict[str, dict[TopicId, frozenset[int]]] = {member.member_id: {} for member in group}
    for topic, count in counts.items():
        takers = [member.member_id for member in group if topic in member.topics]
        for partition in range(count if takers else 0):
            target = made[data.draw(st.sampled_from(takers))]
            target[topic] = target.get(topic, frozenset()) | {partition}
    targets = assign_uniformly(holding(group, made), counts)
    if squares(loads_of(made)) == best_squares(group, counts):
        assert targets == made


@given(group=groups(), counts=counts_of_topics, data=st.data())
def test_who_leaves_takes_nothing_from_those_who_stay_with_equal_topics(
    group: Group, counts: dict[TopicId, int], data: st.DataObject
) -> None:
    equal = [replace(member, topics=group[0].topics) for member in group]
    before = holding(equal, assign_uniformly(equal, counts))
    leaver = data.draw(st.sampled_from(before))
    rest = [member for member in before if member is not leaver]
    targets = assign_uniformly(rest, counts)
    for member in rest:
        for topic, partitions in member.current.items():
            assert partitions <= targets[member.member_id][topic]


@given(first=groups(), counts=counts_of_topics, data=st.data())
def test_promises_hold_through_a_history(first: Group, counts: dict[TopicId, int], data: st.DataObject) -> None:
    group = first
    for _ in range(4):
        targets = assign_uniformly(group, counts)
        assert_right(group, counts, targets)
        assert squares(loads_of(targets)) == best_squares(group, counts)
        now = holding(group, targets)
        match data.draw(st.sampled_from(["join", "leave", "change", "grow", "delete"])):
            case "join":
                newcomer = MemberSubscription(member_id=f"new-{len(now)}", topics=data.draw(some_topics))
                known = {member.member_id for member in now}
                group = [*now, newcomer] if len(now) < MAX_MEMBERS and newcomer.member_id not in known else now
            case "leave":
                group = now[1:] or now
            case "change":
                group = [replace(now[0], topics=data.draw(some_topics)), *now[1:]]
            case "grow":
                group, counts = now, {topic: min(count + 1, MAX_PARTITIONS) for topic, count in counts.items()}
            case _:
                group, counts = now, dict(list(counts.items())[1:])


@given(group=groups(), counts=counts_of_topics)
def test_ranges_are_contiguous_in_order_and_differ_by_one_at_most(group: Group, counts: dict[TopicId, int]) -> None:
    targets = assign_ranges(group, counts)
    ordered = sorted(group, key=lambda one: (one.instance_id is None, one.instance_id or one.member_id))
    for topic, count in counts.items():
        takers = [member for member in ordered if topic in member.topics]
        ranges = [sorted(targets[member.member_id].get(topic, ())) for member in takers]
        assert [partition for part in ranges for partition in part] == (list(range(count)) if takers else [])
        sizes = list(map(len, ranges))
        assert sizes == sorted(sizes, reverse=True)
        assert not sizes or sizes[0] - sizes[-1] <= 1


@given(group=groups(), counts=counts_of_topics)
def test_ranges_of_topics_alike_line_up(group: Group, counts: dict[TopicId, int]) -> None:
    targets = assign_ranges(group, counts)
    for one, other in combinations(counts, 2):
        are_shared = all((one in member.topics) == (other in member.topics) for member in group)
        if are_shared and counts[one] == counts[other]:
            assert all(target.get(one) == target.get(other) for target in targets.values())
