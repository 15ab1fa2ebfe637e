"""One hostile process: goes through all kinds again and again, in an order of its own, until its time is over.

Prints what it has counted as one line of JSON. It speaks to the broker through sockets and bytes made by hand.
"""

import json
import sys
import time
from collections.abc import Sequence
from random import Random

from benchmarks.hostile.kinds import KINDS
from benchmarks.hostile.stage import SILENT, Stage, Tally


def drive(port: int, *, until: float, seed: int, kinds: Sequence[str]) -> Tally:
    """Be hostile until a moment of the monotonic clock."""
    rng, tally = Random(seed), Tally()
    while True:
        order = list(kinds)
        rng.shuffle(order)
        for kind in order:
            if time.monotonic() >= until:
                return tally
            take_turn(Stage(kind, port, rng, tally), tally)


def take_turn(stage: Stage, tally: Tally) -> None:
    """Let one kind have its turn; a connection that was lost where none should be is a surprise."""
    try:
        KINDS[stage.kind](stage)
    except TimeoutError:
        stage.heard(SILENT, "an answer")
    except (ConnectionError, AssertionError) as error:
        tally.surprise(f"{stage.kind}: {type(error).__name__}: {error}")


def main(arguments: Sequence[str]) -> None:
    """Take port, seconds, seed and kinds."""
    port, seconds, seed, kinds = arguments
    until = time.monotonic() + float(seconds)
    tally = drive(int(port), until=until, seed=int(seed), kinds=kinds.split(","))
    answers = [[kind, answer, count] for (kind, answer), count in sorted(tally.answers.items())]
    print(json.dumps({"answers": answers, "surprises": tally.surprises}))


if __name__ == "__main__":
    main(sys.argv[1:])
