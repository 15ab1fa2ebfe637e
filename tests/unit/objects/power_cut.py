"""A disk whose power can be cut, to see what is left.

It works on real files and remembers beside them what would survive: the bytes of a file as of its last fsync, the
entries of a directory as of its last fsync. Everything younger survives by chance, each piece for itself, as it does
on a real disk: a name without its bytes, bytes without their name, a longer file full of zeros.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

from headrace.objects.disk import Disk
from headrace.objects.port import Buffer
from headrace.objects.temporary import DIRECTORY as TEMPORARY_DIRECTORY


class PowerCut(BaseException):
    """The power is gone: this process does nothing any more."""


class PowerCutDisk(Disk):
    """Cuts the power before the n-th step, and may be told to skip a kind of sync, as a bug would."""

    def __init__(self, *, steps: int | None = None, skipping: str = "") -> None:
        self.steps_done = 0
        self._steps = steps
        self._skipping = skipping
        self._file_ids: dict[int, int] = {}
        self._synced_bytes: dict[int, bytes] = {}
        self._synced_entries: dict[Path, dict[str, int | None]] = {}

    def create(self, path: Path) -> int:
        self._step()
        fd = super().create(path)
        # An inode number is used again after an unlink; the id is not.
        file_id = len(self._synced_bytes)
        self._file_ids[os.fstat(fd).st_ino] = file_id
        self._synced_bytes[file_id] = b""
        return fd

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        self._step()
        super().write(fd, buffers, position)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._step()
        super().truncate(fd, size_bytes)

    def sync(self, fd: int) -> None:
        self._step()
        if self._skipping != "sync":
            self._remember(fd)

    def sync_data(self, fd: int) -> None:
        self._step()
        if self._skipping != "sync_data":
            self._remember(fd)

    def sync_directory(self, path: Path) -> None:
        self._step()
        if self._skipping != "sync_directory":
            self._synced_entries[path] = self._entries(path)

    def make_directory(self, path: Path) -> None:
        self._step()
        super().make_directory(path)

    def link(self, path: Path, target: Path) -> None:
        self._step()
        super().link(path, target)

    def rename(self, path: Path, target: Path) -> None:
        self._step()
        super().rename(path, target)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def survive(self, root: Path, target: Path, rng: Random) -> None:
        """Write to `target` what a restart finds of `root`."""
        target.mkdir()
        now, then = self._entries(root), self._synced_entries.get(root, {})
        for name in sorted(now.keys() | then.keys()):
            here = now if rng.random() < 0.5 else then
            if name == TEMPORARY_DIRECTORY or name not in here:
                continue
            file_id = here[name]
            if file_id is None:
                self.survive(root / name, target / name, rng)
            else:
                (target / name).write_bytes(self._surviving_bytes(root / name, file_id, now.get(name), rng))

    def _surviving_bytes(self, path: Path, file_id: int, current_id: int | None, rng: Random) -> bytes:
        synced = self._synced_bytes[file_id]
        if current_id != file_id:
            return synced
        current = path.read_bytes()
        grown_without_bytes = synced + bytes(max(0, len(current) - len(synced)))
        return rng.choice([synced, current, grown_without_bytes])

    def _step(self) -> None:
        if self._steps is not None and self.steps_done >= self._steps:
            raise PowerCut
        self.steps_done += 1

    def _remember(self, fd: int) -> None:
        found = os.fstat(fd)
        self._synced_bytes[self._file_ids[found.st_ino]] = os.pread(fd, found.st_size, 0)

    def _entries(self, directory: Path) -> dict[str, int | None]:
        with os.scandir(directory) as entries:
            return {e.name: None if e.is_dir() else self._file_ids.get(e.inode(), -1) for e in entries}
