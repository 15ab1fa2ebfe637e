"""How often KIP-848 members should be heard of: often while that helps them, seldom while nothing happens.

A member learns of a new assignment by its next heartbeat, so the interval decides how long a hand-over takes: with
Apache Kafka's fixed five seconds it takes five seconds. Ours is short, and grows with the number of members that this
broker has to listen to, so that heartbeats at rest never take more than a share of a core.

Must stay true: no member is given an interval within which our answers do not reach it. librdkafka takes the interval
that it heard last for the timeout of its next heartbeat: a member that was once given too short a one may never hear
of a longer one.
"""

import msgspec

BUSY_INTERVAL_MS = 200
SHORTEST_INTERVAL_MS = 500
LONGEST_INTERVAL_MS = 5_000
BUSY_SHARE = 3
"""How much more often members report while their group reconciles, where many members share a broker."""

TURNS_PER_INTERVAL = 3
"""An interval is at least so many times as long as a member takes to hear an answer and to send its next request."""


class BrokerPace(msgspec.Struct):
    """The pace of one broker; `member_count` is kept by the coordinator and counts the members of all its groups."""

    beats_per_second: int
    member_count: int = 0

    @property
    def busy_interval_ms(self) -> int:
        """Return the interval while a group reconciles: shorter than at rest, by as much as the load allows."""
        return max(BUSY_INTERVAL_MS, self.stable_interval_ms(0) // BUSY_SHARE)

    def stable_interval_ms(self, member_count: int) -> int:
        """Return the interval at which all members of this broker together keep to `beats_per_second`."""
        shared = max(member_count, self.member_count) * 1000 // self.beats_per_second
        return min(max(SHORTEST_INTERVAL_MS, shared), LONGEST_INTERVAL_MS)


def patient_interval_ms(interval_ms: int, turn_ms: int | None) -> int:
    """Return the interval for a member that takes `turn_ms` from an answer to its next request; `None`: not known."""
    if turn_ms is None:
        return interval_ms
    return max(interval_ms, min(turn_ms * TURNS_PER_INTERVAL, LONGEST_INTERVAL_MS))
