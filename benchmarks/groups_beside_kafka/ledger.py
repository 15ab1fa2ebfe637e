"""Who owns which partition of one group, as the members themselves see it, and whether the group has settled.

Settled: every partition has an owner and no member holds more than one partition more than another. All members live
in one process, so a partition that two of them hold at one moment is a fault of the coordinator, unless it threw out
one of them that has not heard of it yet.
"""

from benchmarks.groups_beside_kafka.actions import NOTHING


class Ledger:
    """The owners of a group's partitions. A member is known by its number, from `expect` until `forget`."""

    def __init__(self, partitions: int) -> None:
        self.owned_twice = 0
        self._partitions = partitions
        self._owned: dict[int, frozenset[int]] = {}
        self._owners: dict[int, int] = {}

    def expect(self, member: int) -> None:
        """Count on a member from now on: the group has not settled before it has its share."""
        self._owned[member] = NOTHING

    def forget(self, member: int) -> None:
        """Count on a member no longer. What it owned is free."""
        self.note(member, NOTHING)
        del self._owned[member]

    def note(self, member: int, owned: frozenset[int]) -> bool:
        """Take down what a member owns now; tell whether that is a change. One that is forgotten owns nothing."""
        before = self._owned.get(member)
        if before is None or before == owned:
            return False
        for partition in before - owned:
            if self._owners.get(partition) == member:
                del self._owners[partition]
        for partition in owned - before:
            self.owned_twice += partition in self._owners
            self._owners[partition] = member
        self._owned[member] = owned
        return True

    def has_settled(self) -> bool:
        """Tell whether all is owned, evenly, by the members that are expected."""
        if len(self._owners) != self._partitions or not self._owned:
            return False
        sizes = [len(owned) for owned in self._owned.values()]
        return sum(sizes) == self._partitions and max(sizes) - min(sizes) <= 1

    def describe(self) -> str:
        """Return how many partitions each member has, for a message that says what is wrong."""
        sizes = sorted(len(owned) for owned in self._owned.values())
        return f"{len(self._owners)} of {self._partitions} partitions owned, by members with {sizes}"
