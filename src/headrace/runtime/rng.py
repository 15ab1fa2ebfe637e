"""Chance, as a thing that is handed over, so that one seed replays one history."""

import random
from typing import Protocol


class Rng(Protocol):
    """The part of `random.Random` that Headrace uses."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float, /) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...
    def randrange(self, start: int, stop: int, /) -> int: ...


def system_rng() -> Rng:
    """Return an unpredictable rng; only the composition root calls this."""
    return random.SystemRandom()


def seeded_rng(seed: int | str) -> random.Random:
    """Return an rng that repeats itself for the same seed."""
    return random.Random(seed)
