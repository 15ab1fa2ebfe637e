"""Make a file appear under its key: whole, at once, durably, or not at all.

    temporary file → fsync → rename, or link where the key must be free → fsync of the directory

Must stay true: the directory that an object lies in is durable before the object is acknowledged, all the way up
to the root, even if it was another process that created it a moment ago.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.errors import Exists, OutcomeUnknown
from headrace.model.ids import ObjectKey
from headrace.objects.disk import DISK_FULL, Disk, SyncFailed, Trust, refusal
from headrace.objects.port import Buffer, object_key
from headrace.objects.temporary import TemporaryFiles
from headrace.runtime.crash_points import CrashPoint, CrashPoints

# How many directories are remembered as durable; past this the memory begins anew, at the price of a few fsyncs.
MAX_KNOWN_DIRECTORIES = 10_000


class Publisher:
    """Writes below one root. Every method blocks and is safe to call from several threads."""

    def __init__(self, root: Path, *, disk: Disk, crash_points: CrashPoints) -> None:
        self.disk = disk
        self.trust = Trust()
        self._root = root
        self._crash_points = crash_points
        self._durable_directories = {root}
        try:
            _make_root(disk, root)
            self._temporary = TemporaryFiles(root)
        except OSError as error:
            raise refusal(error, f"cannot open the object store at {root}") from error

    def write(self, key: ObjectKey, data: Sequence[Buffer], *, exclusive: bool) -> None:
        """Write an object; `exclusive` raises `Exists` where the key is taken."""
        self.trust.require()
        final = self.make_way(key)
        temporary, fd = self.create_temporary(key)
        try:
            with self.refusing(key, temporary):
                self.disk.write(fd, data, 0)
                self.disk.sync(fd)
        finally:
            self.disk.close(fd)
        self.publish(key, temporary, final, exclusive=exclusive)

    def create_temporary(self, key: ObjectKey) -> tuple[Path, int]:
        """Return a new file that is going to be this object, open."""
        temporary = self._temporary.next_path()
        with self.refusing(key):
            return temporary, self.disk.create(temporary)

    def publish(self, key: ObjectKey, temporary: Path, final: Path, *, exclusive: bool) -> None:
        """Give a whole and durable file its name, and make the name durable."""
        self._crash_points.reach(CrashPoint.OBJECT_AFTER_TEMPORARY)
        taken = False
        with self.refusing(key, temporary):
            if not exclusive:
                self.disk.rename(temporary, final)
            else:
                try:
                    self.disk.link(temporary, final)
                except FileExistsError:
                    require_file(final)
                    taken = True
        self._crash_points.reach(CrashPoint.OBJECT_AFTER_RENAME)
        # Also before saying "it exists": whoever hears that acts on it, so it must hold after a power cut.
        self.sync_directory(final.parent)
        if exclusive:
            self.discard(temporary)
        if taken:
            raise Exists(f"object {key} is there already")

    def discard(self, path: Path) -> None:
        """Remove a file that no reader can see. What cannot be removed is swept at the next start."""
        with contextlib.suppress(OSError):
            self.disk.unlink(path)

    def make_way(self, key: ObjectKey) -> Path:
        """Return the path of a key, after its directory has been created and is durable."""
        path = self.path(key)
        with self.refusing(key):
            self._make_directory(path.parent)
        return path

    def path(self, key: ObjectKey) -> Path:
        """Return where a key lies. The check keeps every path below the root."""
        return self._root / object_key(key)

    def sync_directory(self, directory: Path) -> None:
        """Make names durable that readers may have seen already."""
        try:
            self.disk.sync_directory(directory)
        except SyncFailed as error:
            raise self.trust.lose(error, str(directory)) from error
        except OSError as error:
            raise OutcomeUnknown(f"cannot sync {directory}: {error.strerror}; look before writing again") from error

    @contextlib.contextmanager
    def refusing(self, key: ObjectKey, temporary: Path | None = None) -> Iterator[None]:
        """Turn errors of steps that no reader can see into ours, and give the temporary file back."""
        try:
            yield
        except OSError as error:
            if temporary is not None:
                self.discard(temporary)
            # A temporary file that did not fit is thrown away, so nobody will believe its bytes later.
            unfit = temporary is not None and error.errno in DISK_FULL
            if isinstance(error, SyncFailed) and not unfit:
                raise self.trust.lose(error, key) from error
            raise refusal(error, key) from error

    def close(self) -> None:
        self._temporary.close()

    def _make_directory(self, directory: Path) -> None:
        if directory in self._durable_directories:
            return
        self._make_directory(directory.parent)
        self.disk.make_directory(directory)
        self.disk.sync_directory(directory.parent)
        if len(self._durable_directories) >= MAX_KNOWN_DIRECTORIES:
            self._durable_directories = {self._root}
        self._durable_directories.add(directory)


def require_file(path: Path) -> None:
    """Raise `IsADirectoryError` where a taken name is that of a directory, in which objects lie."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def _make_root(disk: Disk, root: Path) -> None:
    """Create the root, and make it and all directories above it durable as far as its file system reaches."""
    root.mkdir(parents=True, exist_ok=True)
    device = root.stat().st_dev
    for directory in root.parents:
        if directory.stat().st_dev != device:
            break
        # A directory that we may not open was not created by us.
        with contextlib.suppress(PermissionError):
            disk.sync_directory(directory)
