"""How long clients take from our answer to their next request: measured once per connection, at its beginning.

A client sends ApiVersions first, waits for the answer, and sends at once what it has to send. So the time from that
answer to the next request is one round trip, and what the client takes to read and write. It is never less than a
round trip; it is more if the client had nothing to ask.

Must stay true: what is remembered is bounded, however many connections come and go.
"""

from typing import TypeVar

T = TypeVar("T")

MAX_CONNECTIONS = 16_384
"""How many connections are remembered; beyond them the oldest are forgotten, and their turns are not known."""

MAX_TURN_MS = 60_000
"""A client that was silent for this long, in milliseconds, after its greeting had nothing to ask."""


class Greetings:
    """The connections of one broker by their peers, `host:port`."""

    def __init__(self) -> None:
        self._greeted_at: dict[str, float] = {}
        self._turns_ms: dict[str, int] = {}

    def greeted(self, peer: str, now: float) -> None:
        """Take note that a greeting was answered just now (monotonic seconds)."""
        _put(self._greeted_at, peer, now)

    def turn_ms(self, peer: str, arrived_at: float) -> int | None:
        """Take note of a request, and return how long this client takes; `None`: nobody knows."""
        greeted_at = self._greeted_at.pop(peer, None)
        if greeted_at is None:
            return self._turns_ms.get(peer)
        turn_ms = max(0, round((arrived_at - greeted_at) * 1000))
        if turn_ms >= MAX_TURN_MS:
            return None
        _put(self._turns_ms, peer, turn_ms)
        return turn_ms


def _put(remembered: dict[str, T], peer: str, value: T) -> None:
    remembered.pop(peer, None)
    if len(remembered) >= MAX_CONNECTIONS:
        del remembered[next(iter(remembered))]
    remembered[peer] = value
