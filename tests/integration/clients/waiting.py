"""Waiting for conditions: as long as a busy machine may need, and not a moment longer than it takes."""

import random
import socket
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_SECONDS = 60.0
PAUSE_SECONDS = 0.02

# Below the ephemeral ports: a client that keeps trying to reach a dead broker could else be given that very port for
# its own side, and talk to itself.
LOWEST_PORT = 22_001
HIGHEST_PORT = 32_000


def eventually(what: str, condition: Callable[[], T], *, limit_seconds: float = LIMIT_SECONDS) -> T:
    """Return the condition's first true value; fail if there is none within the limit."""
    deadline = time.monotonic() + limit_seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {limit_seconds} s"
        time.sleep(PAUSE_SECONDS)


def free_port() -> int:
    """Return a port that a broker can have again and again, however often it is killed."""
    rng = random.SystemRandom()
    while True:
        port = rng.randrange(LOWEST_PORT, HIGHEST_PORT)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
