"""Who owns what, as the members themselves believe it, and what was committed: checked at every step of a history.

- In a generation of a classic group every partition has one owner, whoever coordinated it.
- A member of KIP-848 owns what it was told until it has said that it lets go, or was silent for its session. Nobody
  else is given it before.
- A committed offset that was acknowledged is what the next reader finds, or a later one: also if an earlier commit
  got no answer, and could still be on its way.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.groups.store import Partition
from headrace.testing.simulation.history import Violation


@dataclass(slots=True)
class Holder:
    """A member that believes to own partitions, and when it last sent a heartbeat that was answered."""

    name: str
    group_id: str
    session_s: float
    owned: frozenset[Partition] = frozenset()
    heard_at: float = 0.0


@dataclass(slots=True)
class _Committed:
    """What is known of one partition's offset in one group."""

    acknowledged: int = -1
    in_doubt: set[int] = field(default_factory=set)


class Ledger:
    """The memory of all members of a history, which no process has."""

    def __init__(self) -> None:
        self._generations: dict[tuple[str, int, Partition], str] = {}
        self._holders: dict[str, Holder] = {}
        self._offsets: dict[tuple[str, Partition], _Committed] = {}
        self._next_value = 0
        self.assignment_count = 0
        self.commit_count = 0
        self.fetch_count = 0

    # Who owns what

    def assigned_in(self, group_id: str, generation: int, member_id: str, partitions: Iterable[Partition]) -> None:
        """Take note of what a member of a classic group was told for a generation."""
        self.assignment_count += 1
        for partition in partitions:
            known = self._generations.setdefault((group_id, generation, partition), member_id)
            if known != member_id:
                raise Violation(
                    f"{partition[1]} of {partition[0].hex()[:6]} belongs to {known} and to {member_id} in generation"
                    f" {generation} of {group_id}"
                )

    def told(self, holder: Holder, partitions: frozenset[Partition], *, sent_at: float, now: float) -> None:
        """Take note of what a member owns from now on; nobody else may, who has been heard of lately."""
        self.assignment_count += 1
        for other in self._holders.values():
            is_alive = now - other.heard_at < other.session_s
            both = other.owned & partitions
            if other is not holder and other.group_id == holder.group_id and both and is_alive:
                raise Violation(
                    f"{holder.name} is given {len(both)} partitions that {other.name} owns, which was heard of"
                    f" {now - other.heard_at:.1f} s ago"
                )
        holder.owned, holder.heard_at = partitions, sent_at
        self._holders[holder.name] = holder

    def released(self, holder: Holder, kept: frozenset[Partition] = frozenset()) -> None:
        """Take note that a member lets go of all but these, before it says so to anybody."""
        holder.owned &= kept

    def owners(self, group_id: str) -> dict[Partition, str]:
        """Return who owns what in a group."""
        return {
            partition: holder.name
            for holder in self._holders.values()
            if holder.group_id == group_id
            for partition in holder.owned
        }

    # What was committed

    def next_offset(self, group_id: str, partition: Partition) -> int:
        """Return a value to commit that is greater than all before, and in doubt until it is known to be durable."""
        self._next_value += 1
        self._committed(group_id, partition).in_doubt.add(self._next_value)
        return self._next_value

    def acknowledged(self, group_id: str, partition: Partition, value: int) -> None:
        """Take note that a commit is durable."""
        self.commit_count += 1
        known = self._committed(group_id, partition)
        known.in_doubt.discard(value)
        known.acknowledged = max(known.acknowledged, value)

    def refused(self, group_id: str, partition: Partition, value: int) -> None:
        """Take note that a commit has surely not happened."""
        self._committed(group_id, partition).in_doubt.discard(value)

    def newest(self, group_id: str, partition: Partition) -> int:
        """Return what a reader who asks now must find, or something later."""
        return self._committed(group_id, partition).acknowledged

    def fetched(self, group_id: str, partition: Partition, value: int, *, at_least: int) -> None:
        """Check what a reader found, against what was acknowledged when it asked."""
        self.fetch_count += 1
        known = self._committed(group_id, partition)
        if value < at_least:
            raise Violation(f"group {group_id} had committed {at_least}, and a reader found {value}")
        if value > known.acknowledged and value not in known.in_doubt:
            raise Violation(f"group {group_id}: a reader found {value}, which was refused or never committed")

    def _committed(self, group_id: str, partition: Partition) -> _Committed:
        return self._offsets.setdefault((group_id, partition), _Committed())
