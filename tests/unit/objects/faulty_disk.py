"""A disk that does as it is told, writes down what it did, and fails the calls it is told to fail."""

import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from headrace.objects.disk import Disk, SyncFailed
from headrace.objects.port import Buffer

SYNCS = ("sync", "sync_data", "sync_directory")


class FaultyDisk(Disk):
    """`fail("write", errno.ENOSPC)` fails the next write; `steps` holds the names of the calls so far."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._failures: dict[str, list[int]] = {}

    def fail(self, step: str, number: int = errno.EIO, *, after: int = 0) -> None:
        """Fail one call of this name, after letting `after` of them pass."""
        self._failures[step] = [0] * after + [number]

    def create(self, path: Path) -> int:
        self._step("create")
        return super().create(path)

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        self._step("write")
        super().write(fd, buffers, position)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._step("truncate")
        super().truncate(fd, size_bytes)

    def sync(self, fd: int) -> None:
        self._step("sync")
        super().sync(fd)

    def sync_data(self, fd: int) -> None:
        self._step("sync_data")
        super().sync_data(fd)

    def sync_directory(self, path: Path) -> None:
        self._step("sync_directory")
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def make_directory(self, path: Path) -> None:
        self._step("make_directory")
        super().make_directory(path)

    def link(self, path: Path, target: Path) -> None:
        self._step("link")
        super().link(path, target)

    def rename(self, path: Path, target: Path) -> None:
        self._step("rename")
        super().rename(path, target)

    def unlink(self, path: Path) -> None:
        self._step("unlink")
        super().unlink(path)

    def _step(self, name: str) -> None:
        self.steps.append(name)
        planned = self._failures.get(name)
        if planned and (number := planned.pop(0)):
            raise (SyncFailed if name in SYNCS else OSError)(number, os.strerror(number))


class HeldCreation(Disk):
    """Creates a file and then holds its thread back until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.held = threading.Event()

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self.held.set()
        self.go.wait()
        return fd


def open_files(directory: Path) -> list[str]:
    """Return the files below `directory` that this process holds open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return sorted(path for path in found if path.startswith(str(directory)))
