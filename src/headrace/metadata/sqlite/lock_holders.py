"""Which process holds the write lock of a database: for people who wonder why nothing is written any more.

In WAL mode SQLite's write lock is a POSIX lock on one byte of the `-shm` file, and Linux lists all such locks.

Must stay true: the file itself is not opened. A process that closes a file drops all POSIX locks that it holds on it,
those of its SQLite connections too.
"""

import os
import threading
from pathlib import Path

from headrace.runtime.clock import Clock
from headrace.runtime.logs import Log

REPORT_AGAIN_S = 10.0
"""How long a process that waits for the lock of another one says so only once."""

WRITE_LOCK_BYTE = 120
"""Where the write lock lies in the `-shm` file; SQLite's file format fixes it."""

LOCKS = Path("/proc/locks")
PROCESSES = Path("/proc")


class LongWaits:
    """Logs that another process holds the lock for long, and which one; any thread may call it."""

    def __init__(self, path: str, *, clock: Clock, log: Log | None) -> None:
        self._path = path
        self._clock = clock
        self._log = log
        self._lock = threading.Lock()
        self._silent_until: float | None = None

    def note(self) -> None:
        """Take note that somebody has waited for long."""
        with self._lock:
            now = self._clock.monotonic()
            if self._log is None or (self._silent_until is not None and now < self._silent_until):
                return
            self._silent_until = now + REPORT_AGAIN_S
        self._log.warning("nothing can be written to the metadata store", why=holder_in_words(self._path))


def lock_holder(path: str, *, locks: Path = LOCKS) -> int | None:
    """Return the process that writes to a database now; `None` if none does, or the host does not tell."""
    try:
        status = Path(path + "-shm").stat()
        lines = locks.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in lines:
        # 3: POSIX  ADVISORY  WRITE 4711 fe:00:9989475 120 120
        fields = line.split()
        if fields[1:2] != ["POSIX"] or fields[3:4] != ["WRITE"] or fields[5:6] != [file]:
            continue
        first_byte, last_byte = fields[6:8]
        if int(first_byte) <= WRITE_LOCK_BYTE and (last_byte == "EOF" or int(last_byte) >= WRITE_LOCK_BYTE):
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None


def holder_in_words(path: str, *, locks: Path = LOCKS, processes: Path = PROCESSES) -> str:
    """Say who holds the lock of a database, and what can be done about it."""
    pid = lock_holder(path, locks=locks)
    if pid is None or pid == os.getpid():
        return f"another process holds the lock of {path}"
    name, is_stopped = _look_at(processes / str(pid))
    if is_stopped:
        what_to_do = f"let it go on (kill -CONT {pid}) or end it"
        return f"process {pid} ({name}) holds the lock of {path} and is stopped: {what_to_do}"
    return f"process {pid} ({name}) holds the lock of {path}: if it stays, look at that process or end it"


def _look_at(process: Path) -> tuple[str, bool]:
    """Return a process's name, and whether a signal or a debugger has stopped it."""
    try:
        # 4711 (headrace) T …: the name may hold anything, brackets too.
        head, _, rest = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")
    except OSError:
        return "gone by now", False
    return head.partition(" (")[2], rest[:1] in ("T", "t")
