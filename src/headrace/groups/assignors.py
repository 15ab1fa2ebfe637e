"""Who reads which partition: the assignors that a coordinator runs for groups of the consumer protocol (KIP-848).

An assignor is a plain function from what the members want and hold to what each of them shall hold. It knows no
epochs and no reconciliation: the state machine takes the target and leads the members there.

* `uniform`, the default: as even as the subscriptions allow, and a partition stays where it is unless evenness needs
  it elsewhere. Among members with equal topics the loads differ by one at most. If all members want the same, that
  is reached with the fewest moves.
* `range`: per topic, contiguous ranges in the order of the members. Topics with as many partitions and the same
  subscribers line up, so that one member reads what belongs together. It holds on to nothing.

Must stay true, for both: every partition of a topic that somebody wants goes to exactly one member, and that one
wants it. The same input gives the same output, in whatever order it comes.

Members' racks are not looked at: partitions have no home here, every zone's brokers serve all of them. Apache Kafka's
assignors pass over them as well.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import TypeAlias

from headrace.groups.cohorts import Cohort, share_out
from headrace.model.topics import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """One member as an assignor sees it.

    `topics` is what its names and its regular expression stand for. `current` is its target so far; what is not there
    any more, or is not wanted any more, is passed over.
    """

    member_id: str
    instance_id: str | None = None
    rack: str | None = None
    topics: frozenset[TopicId]
    current: Mapping[TopicId, frozenset[int]] = field(default_factory=dict)


Targets: TypeAlias = dict[str, dict[TopicId, frozenset[int]]]
"""What each member shall hold, by member id. Everybody is in it; who gets nothing has an empty one."""

Assignor: TypeAlias = Callable[[Collection[MemberSubscription], Mapping[TopicId, int]], Targets]
"""From members and the number of partitions of each topic to targets. Topics without a number are not assigned."""


def assign_ranges(members: Collection[MemberSubscription], partition_counts: Mapping[TopicId, int]) -> Targets:
    """Give each topic's subscribers, in order, contiguous ranges of its partitions."""
    ordered = _in_order(members)
    targets: Targets = {member.member_id: {} for member in ordered}
    takers: dict[TopicId, list[dict[TopicId, frozenset[int]]]] = {}
    for member in ordered:
        target = targets[member.member_id]
        for topic in member.topics:
            takers.setdefault(topic, []).append(target)
    for topic, its_targets in takers.items():
        count = partition_counts.get(topic, 0)
        quota, extras = divmod(count, len(its_targets))
        start = 0
        for target in its_targets[:count]:
            end = start + quota + (extras > 0)
            target[topic] = frozenset(range(start, end))
            start = end
            extras -= 1
    return targets


def assign_uniformly(members: Collection[MemberSubscription], partition_counts: Mapping[TopicId, int]) -> Targets:
    """Spread all partitions over their subscribers evenly, and move as few as that takes."""
    wanted: dict[frozenset[TopicId], frozenset[TopicId]] = {}
    cohorts: dict[frozenset[TopicId], list[_Hand]] = {}
    free: dict[TopicId, set[int]] = {}
    hands = []
    for member in _in_order(members):
        topics = wanted.get(member.topics)
        if topics is None:
            topics = wanted[member.topics] = frozenset(topic for topic in member.topics if topic in partition_counts)
            free |= {topic: set(range(partition_counts[topic])) for topic in topics if topic not in free}
        hand = _Hand(member.member_id)
        # Two members that claim the same partition are nothing that a group's history leads to; the first has it.
        for topic in topics & member.current.keys():
            hand.take_back(topic, member.current[topic], free[topic])
        cohorts.setdefault(topics, []).append(hand)
        hands.append(hand)
    _deal(cohorts, free)
    return {hand.member_id: hand.target() for hand in hands}


DEFAULT_ASSIGNOR = "uniform"

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({"uniform": assign_uniformly, "range": assign_ranges})
"""By the names that members and settings use."""


def _in_order(members: Collection[MemberSubscription]) -> list[MemberSubscription]:
    """Sort as Kafka does: static members by instance id, which outlives restarts, then the others by member id."""
    return sorted(members, key=lambda one: (one.instance_id is None, one.instance_id or "", one.member_id))


class _Hand:
    """What one member holds while partitions are dealt."""

    __slots__ = ("count", "dealt", "held", "member_id")

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.held: dict[TopicId, frozenset[int]] = {}
        self.dealt: dict[TopicId, list[int]] = {}
        self.count = 0

    def take_back(self, topic: TopicId, partitions: frozenset[int], free: set[int]) -> None:
        """Hold again what the member had, as far as it is free."""
        if not free.issuperset(partitions):
            partitions = partitions & free
        if partitions:
            free -= partitions
            self.held[topic] = partitions
            self.count += len(partitions)

    def release(self, topic: TopicId, partitions: Collection[int], free: set[int]) -> None:
        free.update(partitions)
        self.held[topic] -= frozenset(partitions)
        self.count -= len(partitions)

    def release_surplus(self, surplus: int, free: Mapping[TopicId, set[int]], rank: int) -> None:
        """Let go of so many partitions, spread over all topics that are held.

        `rank` makes neighbours that hold alike begin at different places: otherwise a member that joins would get one
        topic from all of them, and all of that topic's load.
        """
        places = [(topic, partition) for topic in sorted(self.held) for partition in sorted(self.held[topic])]
        gone: dict[TopicId, list[int]] = {}
        for number in range(surplus):
            topic, partition = places[(rank + number * len(places) // surplus) % len(places)]
            gone.setdefault(topic, []).append(partition)
        for topic, partitions in gone.items():
            self.release(topic, partitions, free[topic])

    def target(self) -> dict[TopicId, frozenset[int]]:
        target = {topic: partitions for topic, partitions in self.held.items() if partitions}
        for topic, partitions in self.dealt.items():
            target[topic] = target.get(topic, frozenset()).union(partitions)
        return target


def _deal(cohorts: Mapping[frozenset[TopicId], list[_Hand]], free: dict[TopicId, set[int]]) -> None:
    if len(cohorts) == 1:
        for hands in cohorts.values():
            _level(hands, free)
        return
    for hands, its_free in _split(cohorts, free):
        _level(hands, its_free)


def _split(
    cohorts: Mapping[frozenset[TopicId], list[_Hand]], free: dict[TopicId, set[int]]
) -> list[tuple[list[_Hand], dict[TopicId, set[int]]]]:
    """Divide all partitions among the cohorts: members let go of what is too much, what is free is handed out."""
    sharings: list[tuple[list[_Hand], dict[TopicId, int], Cohort]] = []
    for topics, hands in cohorts.items():
        if not topics:
            continue
        held: dict[TopicId, int] = {}
        for hand in hands:
            for topic, partitions in hand.held.items():
                held[topic] = held.get(topic, 0) + len(partitions)
        sharings.append((hands, held, Cohort(len(sharings), len(hands), topics, held)))
    share_out([cohort for _, _, cohort in sharings], {topic: len(partitions) for topic, partitions in free.items()})
    for hands, held, cohort in sharings:
        for topic, share in cohort.shares.items():
            if held.get(topic, 0) > share:
                _release_from_fullest(hands, topic, held[topic] - share, free[topic])
    stacks = {topic: sorted(partitions, reverse=True) for topic, partitions in free.items()}
    split = []
    for hands, held, cohort in sharings:
        its_free = {topic: set[int]() for topic in cohort.shares}
        for topic, share in cohort.shares.items():
            for _ in range(share - held.get(topic, 0)):
                its_free[topic].add(stacks[topic].pop())
        split.append((hands, its_free))
    return split


def _release_from_fullest(hands: list[_Hand], topic: TopicId, count: int, free: set[int]) -> None:
    """Take partitions of one topic from the members of a cohort, each time from the one that holds most."""
    queue = [(-hand.count, rank) for rank, hand in enumerate(hands) if hand.held.get(topic)]
    heapify(queue)
    stacks = {rank: sorted(hands[rank].held[topic]) for _, rank in queue}
    gone: dict[int, list[int]] = {}
    for _ in range(count):
        negative_load, rank = heappop(queue)
        gone.setdefault(rank, []).append(stacks[rank].pop())
        if stacks[rank]:
            heappush(queue, (negative_load + 1, rank))
    for rank, partitions in gone.items():
        hands[rank].release(topic, partitions, free)


def _level(hands: list[_Hand], free: dict[TopicId, set[int]]) -> None:
    """Even out the members of one cohort and give them all that is free, in the fewest moves.

    Some members may have one more than the others. Those that hold too much come first, because each of them then
    keeps one that would have to move.
    """
    quota, extras = divmod(sum(hand.count for hand in hands) + sum(map(len, free.values())), len(hands))
    needs: deque[tuple[_Hand, int]] = deque()
    full = [hand for hand in hands if hand.count > quota]
    for rank, hand in enumerate(full):
        surplus = hand.count - quota - (rank < extras)
        if surplus:
            hand.release_surplus(surplus, free, rank)
    extras -= min(extras, len(full))
    for hand in hands:
        if hand.count <= quota:
            need = quota - hand.count + (extras > 0)
            extras -= extras > 0
            if need:
                needs.append((hand, need))
    for topic in sorted(free):
        for partition in sorted(free[topic]):
            hand, need = needs.popleft()
            hand.dealt.setdefault(topic, []).append(partition)
            if need > 1:
                needs.append((hand, need - 1))
    assert not needs, "quotas add up to the partitions"
