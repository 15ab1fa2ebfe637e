"""How many partitions of each topic go to which cohort, where the members of a group want different topics.

A *cohort* is all members with the same topics. Inside of one every partition fits every member, so its members' loads
differ by one at most, and numbers are enough here: which partitions those are, and which member gets them, is settled
afterwards (`assignors.py`).

1. What is held stays where it is.
2. What is free goes, one by one, to the cohort whose least loaded member has least; topics with few takers first.
3. While there is a way, over any number of cohorts, to take one from a member and give one to another that has at
   least two less, that is done, along the shortest such way, so that little moves. When there is none, no sharing is
   more even: the sum of the squares of all members' loads is as small as it can be.

Must stay true: a topic's shares add up to its partitions, and only cohorts that want a topic have a share in it. The
third step has a limit; one that ran into it leaves a sharing that is right and less even.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from headrace.model.topics import TopicId

MAX_SEARCH_STEPS = 2_000_000
"""How many links between topics and cohorts the search for a more even sharing looks at: some 200 ms."""


class Cohort:
    """One cohort's side of the sharing. `shares` begins as what its members hold."""

    __slots__ = ("load", "member_count", "number", "shares")

    def __init__(
        self, number: int, member_count: int, topics: Iterable[TopicId], held: Mapping[TopicId, int]
    ) -> None:
        self.number = number
        self.member_count = member_count
        # In order of topics, so that the outcome does not depend on the order in which somebody names them.
        self.shares = {topic: held.get(topic, 0) for topic in sorted(topics)}
        self.load = sum(self.shares.values())

    @property
    def least(self) -> int:
        """What its least loaded member has."""
        return self.load // self.member_count

    @property
    def most(self) -> int:
        """What its most loaded member has."""
        return -(-self.load // self.member_count)


_Takers: TypeAlias = Mapping[TopicId, Sequence[Cohort]]
_Step: TypeAlias = tuple[Cohort, TopicId, Cohort]
"""Who gives, a partition of which topic, and who takes it."""
_Way: TypeAlias = list[_Step]


def share_out(cohorts: Collection[Cohort], free: Mapping[TopicId, int], *, max_steps: int = MAX_SEARCH_STEPS) -> None:
    """Add what is free to the shares of the cohorts, which are numbered in their order, and even them out."""
    takers: dict[TopicId, list[Cohort]] = {}
    for cohort in cohorts:
        for topic in cohort.shares:
            takers.setdefault(topic, []).append(cohort)
    _fill(takers, free)
    if cohorts and max(cohort.most for cohort in cohorts) - min(cohort.least for cohort in cohorts) >= 2:
        _Levelling(cohorts, takers, max_steps).run()


def _fill(takers: _Takers, free: Mapping[TopicId, int]) -> None:
    def fewest_takers_first(topic: TopicId) -> tuple[int, TopicId]:
        return sum(cohort.member_count for cohort in takers[topic]), topic

    for topic in sorted((topic for topic, count in free.items() if count), key=fewest_takers_first):
        cohorts = takers[topic]
        queue = [(cohort.least, place) for place, cohort in enumerate(cohorts)]
        heapify(queue)
        for _ in range(free[topic]):
            place = queue[0][1]
            cohort = cohorts[place]
            cohort.shares[topic] += 1
            cohort.load += 1
            heapreplace(queue, (cohort.least, place))


class _Levelling:
    """The search for ways that lead from cohorts with high loads to those with low ones.

    It begins at the lowest one, because a member that has just joined is alone down there: whoever gives to it
    directly is found at once. When no way leads to it from one that is high enough, none leads to any cohort that
    could give to it, for these are not lower; and nobody who is higher will ever have reason to take from them. So
    they are settled and left out, and every link that led nowhere is looked at once.
    """

    def __init__(self, cohorts: Collection[Cohort], takers: _Takers, max_steps: int) -> None:
        self._unsettled = {cohort.number: cohort for cohort in cohorts}
        self._takers = takers
        self._steps_left = max_steps

    def run(self) -> None:
        queue = [(cohort.least, number) for number, cohort in self._unsettled.items()]
        heapify(queue)
        while queue:
            least, number = heappop(queue)
            cohort = self._unsettled.get(number)
            if cohort is None or cohort.least != least:
                continue
            way = self._way_to(cohort)
            if self._steps_left < 0:
                return
            if way:
                _shift(way)
                for end in (way[0][0], way[-1][2]):
                    heappush(queue, (end.least, end.number))

    def _way_to(self, target: Cohort) -> _Way:
        """Find the shortest way from a cohort whose most loaded member has at least two more than our least loaded.

        Without one, settle all that could give to us and return an empty way.
        """
        enough = target.least + 2
        steps: dict[int, _Step | None] = {target.number: None}
        seen_topics: set[TopicId] = set()
        frontier = [target]
        while frontier and self._steps_left >= 0:
            frontier = [giver for taker in frontier for giver in self._givers_to(taker, seen_topics, steps)]
            highest = max(frontier, key=lambda cohort: (cohort.most, -cohort.number), default=None)
            if highest is not None and highest.most >= enough:
                return _way_from(highest, steps)
        for number in steps:
            del self._unsettled[number]
        return []

    def _givers_to(self, taker: Cohort, seen: set[TopicId], steps: dict[int, _Step | None]) -> list[Cohort]:
        """Find who can give something to this one and was not found before, and note the step."""
        topics = [topic for topic in taker.shares if topic not in seen]
        seen.update(topics)
        self._steps_left -= len(taker.shares) + sum(len(self._takers[topic]) for topic in topics)
        givers = []
        for topic in topics:
            for giver in self._takers[topic]:
                if giver.shares[topic] and giver.number not in steps and giver.number in self._unsettled:
                    steps[giver.number] = giver, topic, taker
                    givers.append(giver)
        return givers


def _way_from(source: Cohort, steps: Mapping[int, _Step | None]) -> _Way:
    way: _Way = []
    step = steps[source.number]
    while step is not None:
        way.append(step)
        step = steps[step[2].number]
    return way


def _shift(way: _Way) -> None:
    """Send partitions along a way until one of its ends has come to another level.

    More would be too much: a giver that sank to the level of the taker would be filled up again by all the others
    that are as high as it was.
    """
    first, last = way[0][0], way[-1][2]
    most, least = first.most, last.least
    limit = min(giver.shares[topic] for giver, topic, _ in way)
    count = 0
    while count < limit and first.most == most and last.least == least:
        first.load -= 1
        last.load += 1
        count += 1
    for giver, topic, taker in way:
        giver.shares[topic] -= count
        taker.shares[topic] += count
