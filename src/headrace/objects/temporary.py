"""Where half-written files lie until they are whole: `~temporary/<slot>/<process>-<n>` below the root.

`~` cannot stand in a key, so nothing in there is ever listed or read as an object. Every open store owns a slot by
holding the lock of `~temporary/<slot>.lock`. The kernel drops the lock when the process dies, however it dies; so
whoever gets a slot's lock may remove what lies in the slot. No clock and no process list is asked.

Lock files are never removed: a lock on a file that another process has just unlinked would protect nothing.
"""

import contextlib
import fcntl
import itertools
import os
from pathlib import Path

DIRECTORY = "~temporary"

# Never begun anew in this process: a thread may still be at work for a store that was closed, and the slot's next
# owner must not give that thread's path to another file.
_numbers = itertools.count()


class TemporaryFiles:
    """One store's slot, taken at construction, together with the removal of what dead owners left."""

    def __init__(self, root: Path) -> None:
        self._parent = root / DIRECTORY
        self._parent.mkdir(exist_ok=True)
        self._lock_fd, slot = self._claim()
        self._directory = self._parent / str(slot)
        self._sweep_dead_slots()
        self._directory.mkdir(exist_ok=True)
        _empty(self._directory)

    def next_path(self) -> Path:
        """Return a path that nobody else uses. Safe to call from any thread."""
        return self._directory / f"{os.getpid()}-{next(_numbers)}"

    def close(self) -> None:
        """Give the slot back."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _claim(self) -> tuple[int | None, int]:
        for slot in itertools.count():
            fd = _try_lock(self._parent / f"{slot}.lock")
            if fd is not None:
                return fd, slot
        raise AssertionError("there is always another slot")

    def _sweep_dead_slots(self) -> None:
        for lock in self._parent.glob("*.lock"):
            if lock.stem == self._directory.name:
                continue
            fd = _try_lock(lock)
            if fd is not None:
                _empty(self._parent / lock.stem)
                os.close(fd)


def _try_lock(path: Path) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _empty(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        for leftover in directory.iterdir():
            leftover.unlink(missing_ok=True)
