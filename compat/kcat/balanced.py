"""kcat as a member of a group (`-G`): it prints records on one stream, and what it was assigned on the other."""

import contextlib
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from compat.driver_kit import check, wait_until

STOP_LIMIT_SECONDS = 60
# With an eager assignor it says `(memberid ID): assigned: PARTITIONS`, with the cooperative one `: incremental
# assignment of 2 partition(s) (...): PARTITIONS`.
_REBALANCED = re.compile(r"% Group \S+ rebalanced.*?(assign|revoke).*: (.*)")


class BalancedConsumer:
    """A running kcat."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None and process.stderr is not None
        self._process = process
        self.records: list[str] = []
        self._said: list[str] = []
        self._readers = [_collect(process.stdout, self.records), _collect(process.stderr, self._said)]

    @property
    def owned(self) -> set[str]:
        """The partitions that it has, as kcat writes them: `topic [0]`."""
        owned: set[str] = set()
        for line in list(self._said):
            found = _REBALANCED.match(line)
            if found is not None:
                parts = set(filter(None, found[2].split(", ")))
                owned = owned | parts if found[1] == "assign" else owned - parts
        return owned

    def wait_for_owned(self, count: int) -> None:
        """Wait until it has so many partitions."""
        wait_until(lambda: self._alive() and len(self.owned) == count, f"a member owns {count} partitions")

    def stop(self) -> None:
        """Interrupt it, as a person does at the keyboard: it commits and leaves its group."""
        self._process.terminate()
        self._process.wait(STOP_LIMIT_SECONDS)
        for reader in self._readers:
            reader.join(STOP_LIMIT_SECONDS)

    def _alive(self) -> bool:
        check(self._process.poll() is None, f"kcat has ended: {self._said[-20:]}")
        return True


@contextlib.contextmanager
def balanced_consumer(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[BalancedConsumer]:
    """Start it, and end it on the way out."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=dict(environment)) as process:
        try:
            yield BalancedConsumer(process)
        finally:
            if process.poll() is None:
                process.kill()


def _collect(stream: IO[str], lines: list[str]) -> threading.Thread:
    def read() -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader
