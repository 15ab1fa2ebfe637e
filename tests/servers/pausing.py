"""Stop a process at a moment that a test chooses: inside a transaction of the SQLite store, or between two.

A process that is stopped inside one holds the store's lock for as long as it sleeps, and nobody can take it away. A
test that is about something else must not meet that by chance.
"""

import signal
import subprocess
import time
from pathlib import Path

from headrace.metadata.sqlite.lock_holders import lock_holder

LIMIT_SECONDS = 120.0
LOOK_SECONDS = 0.005


def stop_process(process: "subprocess.Popen[str]", database: Path, *, in_transaction: bool = False) -> None:
    """Stop a process while it holds the lock of the database, or while it does not."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        process.send_signal(signal.SIGSTOP)
        while not _is_stopped(process.pid):
            assert time.monotonic() < deadline, f"process {process.pid} does not stop"
            time.sleep(LOOK_SECONDS)
        if (lock_holder(str(database)) == process.pid) is in_transaction:
            return
        process.send_signal(signal.SIGCONT)
        time.sleep(LOOK_SECONDS)
    raise AssertionError(
        f"process {process.pid} was never caught {'in' if in_transaction else 'outside'} transactions"
    )


def _is_stopped(pid: int) -> bool:
    # 4711 (headrace) T …: the name may hold anything, brackets too.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] == "T"
