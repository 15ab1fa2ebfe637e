"""The few system calls that durability on local disk is made of, and what their failures mean.

Everything that changes the disk goes through `Disk`, so that a test can fail any one of these calls or cut the
power between two of them, and then look at what is left.

Must stay true: a failed fsync is never tried again and believed. The kernel may have dropped the pages that it
could not write and report success the next time; so the first such failure ends the trust in this disk.
"""

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import HeadraceError, Invalid, OutcomeUnknown, Retryable, Unusable
from headrace.objects.port import Buffer

# How many buffers one system call may take.
PAGE_BYTES = 4096
MAX_BUFFERS_PER_CALL = os.sysconf("SC_IOV_MAX")

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSING = DISK_FULL | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_UNFIT_NAME = frozenset({errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR})


class SyncFailed(OSError):
    """An fsync failed: what was written before it may be lost, however often it is tried again."""


class Disk:
    """The real one. Every method blocks; positions and sizes are in bytes."""

    def create(self, path: Path) -> int:
        """Create a file that must not exist and return it open for writing and reading."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def open_to_write(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers back to back from `position` on, without joining them."""
        left = [view for buffer in buffers if (view := memoryview(buffer)).nbytes]
        left = [view if view.format == "B" and view.ndim == 1 else view.cast("B") for view in left]
        first = 0
        while first < len(left):
            written = os.pwritev(fd, left[first : first + MAX_BUFFERS_PER_CALL], position)
            if written == 0:
                raise OSError(errno.EIO, "the disk takes no more bytes and gives no reason")
            position += written
            while first < len(left) and written >= left[first].nbytes:
                written -= left[first].nbytes
                first += 1
            if written:
                left[first] = left[first][written:]

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def sync(self, fd: int) -> None:
        """Make a file's bytes and its size durable. Raises `SyncFailed`."""
        try:
            os.fsync(fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error

    def sync_data(self, fd: int) -> None:
        """Make a file's bytes durable, and of the rest only what reading them takes. Raises `SyncFailed`."""
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error

    def drop_cached(self, fd: int, start_byte: int, end_byte: int) -> None:
        """Tell the kernel that nobody will read these bytes from its cache soon; whole pages only. A hint."""
        first, end = -(-start_byte // PAGE_BYTES) * PAGE_BYTES, end_byte // PAGE_BYTES * PAGE_BYTES
        if end > first and hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, first, end - first, os.POSIX_FADV_DONTNEED)

    def sync_directory(self, path: Path) -> None:
        """Make a directory's entries durable. Raises `SyncFailed`."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(fd)
        finally:
            os.close(fd)

    def make_directory(self, path: Path) -> None:
        """Create a directory; one that is there already is as good."""
        try:
            path.mkdir()
        except FileExistsError:
            if not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None

    def link(self, path: Path, target: Path) -> None:
        """Give a file a second name, which must be free: the one atomic "create if absent" of a file system."""
        os.link(path, target)

    def rename(self, path: Path, target: Path) -> None:
        """Move a file over another one, atomically."""
        path.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()


class Trust:
    """Whether the bytes that this disk took may still be believed."""

    def __init__(self) -> None:
        self._lost: str | None = None

    def require(self) -> None:
        """Raise `Unusable` once an fsync has failed."""
        if self._lost is not None:
            raise Unusable(f"{self._lost}; nothing more is written: check the disk, then start again")

    def lose(self, error: OSError, what: str) -> OutcomeUnknown:
        """Take note of a failed fsync and return what its caller is told."""
        self._lost = f"fsync failed at {what}: {error.strerror} (errno {error.errno})"
        return OutcomeUnknown(f"{self._lost}; what was written may be lost")


def refusal(error: OSError, what: str) -> HeadraceError:
    """Return what to raise when a call failed before it changed anything a reader can see."""
    told = f"{what}: {error.strerror} (errno {error.errno})"
    if error.errno in _PASSING:
        return Retryable(f"{told}; nothing was stored: free some, then try again")
    if error.errno in _UNFIT_NAME:
        return Invalid(f"{told}; this key cannot be a file here: choose another")
    return Unusable(f"{told}; check the disk and its permissions")
