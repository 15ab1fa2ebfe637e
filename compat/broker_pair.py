"""One or two `headrace serve` on one data directory, for drivers that see how their client takes the loss of one.

    python -m compat.broker_pair [COUNT]

prints one JSON line with all addresses (of two brokers, unless told otherwise), then obeys its standard input and
says in one more line that an order is done: `kill N` kills broker N (0 or 1) as if the power went, `start N` starts a
killed one again, at its old address. All end when the input ends.
"""

import contextlib
import json
import sys
import tempfile
from pathlib import Path

from tests.servers.headrace import running_headrace


def main() -> None:
    """Serve until the input ends."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with contextlib.ExitStack() as stack:
        data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-pair-")))
        brokers = [stack.enter_context(running_headrace(data_dir, node_id=1 + number)) for number in range(count)]
        print(json.dumps({"bootstrap": [broker.bootstrap for broker in brokers]}), flush=True)
        for line in sys.stdin:
            order, number = line.split()[0], int(line.split()[1])
            if order == "kill":
                brokers[number].kill()
                print(json.dumps({"killed": number}), flush=True)
            else:
                assert order == "start", f"an order that nobody has told of: {line!r}"
                again = running_headrace(data_dir, node_id=1 + number, kafka_port=brokers[number].kafka_port)
                brokers[number] = stack.enter_context(again)
                print(json.dumps({"started": number}), flush=True)


if __name__ == "__main__":
    main()
