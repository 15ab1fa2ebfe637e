"""Judge what readers saw against what was acknowledged. Pure: everything has happened already.

A record may be missing only where its topic's life allows it: too old, too far from the end, or overtaken by a later
record of its key. Whatever is there must be what was acknowledged at its place.
"""

from collections.abc import Iterator

from benchmarks.soak.clients import Ledger, Place, Sightings
from benchmarks.soak.plan import Life, SoakTopic

MAX_PROBLEMS = 20
RECORD_BYTES = 60
"""At most so many bytes does a record take beside its value: its share of the batch's head, its header, its key."""


class Judge:
    """Knows one topic's ledger and what may be gone of it."""

    def __init__(self, topic: SoakTopic, ledger: Ledger) -> None:
        self._topic = topic
        self._ledger = ledger
        self._latest = self._latest_places()

    def of_follower(self, seen: Sightings) -> list[str]:
        """Judge a reader that went along: it saw everything, but for what was gone before it came there."""
        problems = [*self._ledger.failures, *seen.problems, *self._unknown(seen)]
        if self._topic.life is not Life.COMPACTED:
            for skip in seen.skips:
                for offset in range(skip.start_offset, skip.end_offset):
                    place = (skip.partition, offset)
                    if place in self._ledger.at and not self._may_be_gone(place, skip.at):
                        problems.append(f"{self._topic.name}: the follower was not given {place}")
        return problems[:MAX_PROBLEMS]

    def of_reader(self, seen: Sightings, *, at: float) -> list[str]:
        """Judge a reader that read from the log start to the end when nobody wrote any more."""
        problems = [*seen.problems, *self._unknown(seen)]
        problems += [
            f"{self._topic.name}: {place}, record {number}, is gone and may not be"
            for place, number in self._ledger.at.items()
            if place not in seen.at and not self._may_be_gone(place, at)
        ]
        return problems[:MAX_PROBLEMS]

    def _unknown(self, seen: Sightings) -> Iterator[str]:
        """Say what was seen at a place where nothing, or something else, was acknowledged."""
        for place, number in seen.at.items():
            if self._ledger.at.get(place) != number:
                known = self._ledger.at.get(place)
                yield f"{self._topic.name}: record {number} stands at {place}, where {known} was acknowledged"

    def _may_be_gone(self, place: Place, at: float) -> bool:
        config = self._topic.config
        match self._topic.life:
            case Life.KEPT:
                return False
            case Life.AGED:
                # The record's time is the client's, from before it was sent: so it is older than its acknowledgement.
                return at - self._ledger.acknowledged_at[place] >= int(config["retention.ms"]) / 1000
            case Life.SIZED:
                partition, offset = place
                behind = self._ends[partition] - offset
                return behind * (self._topic.value_bytes + RECORD_BYTES) >= int(config["retention.bytes"])
            case Life.COMPACTED:
                number = self._ledger.at[place]
                is_latest = self._latest[self._topic.key_of(number)] == place
                return not is_latest or self._topic.value_of(number) is None

    def _latest_places(self) -> dict[bytes | None, Place]:
        """Return where the latest record of each key stands, and remember how far each partition goes."""
        self._ends: dict[int, int] = {}
        latest: dict[bytes | None, Place] = {}
        for place, number in sorted(self._ledger.at.items()):
            self._ends[place[0]] = place[1] + 1
            latest[self._topic.key_of(number)] = place
        return latest
