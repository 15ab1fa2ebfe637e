"""Who owns which partition and what was read: all members of a group tell it here, as it happens.

All members live in this process, so what one of them tells first also happened first. What is wrong is written down
as a fault: two owners of one partition at the same time, or a record that is read although it was committed.
"""

import threading
from collections import Counter
from collections.abc import Iterable

Place = tuple[str, int]
"""A topic and a partition of it."""


class Ledger:
    """What the members of one group have told."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._lock = threading.Lock()
        self._owners: dict[Place, str] = {}
        self._committed: dict[Place, int] = {}
        self._reads: Counter[tuple[Place, int]] = Counter()

    def take(self, member: str, places: Iterable[Place]) -> None:
        """Hear that a member was given partitions."""
        with self._lock:
            for place in places:
                before = self._owners.get(place)
                if before is not None:
                    self.faults.append(f"{place} went to {member} while {before} had it")
                self._owners[place] = member

    def release(self, member: str, places: Iterable[Place] | None = None) -> None:
        """Hear that a member gives partitions back, or all that it has."""
        with self._lock:
            for place in [place for place, owner in self._owners.items() if owner == member]:
                if places is None or place in places:
                    del self._owners[place]

    def read(self, member: str, place: Place, offset: int) -> None:
        """Hear of one record."""
        with self._lock:
            if offset < self._committed.get(place, 0):
                self.faults.append(f"{member} read {place}@{offset}, and {self._committed[place]} is committed")
            self._reads[place, offset] += 1

    def commit(self, place: Place, offset: int) -> None:
        """Hear that a commit was answered."""
        with self._lock:
            if offset < self._committed.get(place, 0):
                self.faults.append(f"the committed offset of {place} went back to {offset}")
            self._committed[place] = offset

    def owned_by(self, member: str) -> set[Place]:
        """Return the partitions that a member has."""
        with self._lock:
            return {place for place, owner in self._owners.items() if owner == member}

    @property
    def committed(self) -> dict[Place, int]:
        """What members know to be committed."""
        with self._lock:
            return dict(self._committed)

    @property
    def records_read(self) -> int:
        """How many different records were read."""
        with self._lock:
            return len(self._reads)

    @property
    def topics_read(self) -> set[str]:
        """The topics that records came from."""
        with self._lock:
            return {place[0] for place, _ in self._reads}

    @property
    def read_again(self) -> list[tuple[Place, int]]:
        """Records that were read more than once."""
        with self._lock:
            return [record for record, times in self._reads.items() if times > 1]
