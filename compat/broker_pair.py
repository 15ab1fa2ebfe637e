"""Two `headrace serve` on one data directory, for drivers that see how their client takes the loss of one.

    python -m compat.broker_pair

prints one JSON line with both addresses, then obeys its standard input: `kill N` kills broker N (0 or 1) as if the
power went, and says so in one more line. Both end when the input ends.
"""

import contextlib
import json
import sys
import tempfile
from pathlib import Path

from tests.servers.headrace import running_headrace


def main() -> None:
    """Serve until the input ends."""
    with contextlib.ExitStack() as stack:
        data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-pair-")))
        pair = [stack.enter_context(running_headrace(data_dir, node_id=node_id)) for node_id in (1, 2)]
        print(json.dumps({"bootstrap": [broker.bootstrap for broker in pair]}), flush=True)
        for line in sys.stdin:
            number = int(line.removeprefix("kill "))
            pair[number].kill()
            print(json.dumps({"killed": number}), flush=True)


if __name__ == "__main__":
    main()
