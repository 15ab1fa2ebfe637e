"""A file lock that says: on this data directory, this process is that node, and no other is.

The kernel frees the lock when its holder ends, however it ends. So whoever holds it knows that every earlier holder
is dead, and a broker that was killed and started again need not wait for its old session to time out.

Must stay true: `identity` names one file of one running kernel. Two processes that report the same identity for the
same node have locked the very same file, so they cannot have lived at the same time. A copied directory, a
deleted and newly made file, another host and another boot all have another identity, and prove nothing.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from headrace.errors import Invalid, Unusable

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MAX_PID_BYTES = 20


class NodeLock:
    """The lock of one node, held until `release` or the end of the process."""

    def __init__(self, path: Path, fd: int, identity: str | None) -> None:
        self.path = path
        self.identity = identity
        """Names the locked file among all files of all hosts; `None` where the host does not tell its boots apart."""
        self._fd: int | None = fd

    @classmethod
    def take(cls, data_dir: Path, node_id: int, *, boot_id_file: Path = BOOT_ID) -> "NodeLock":
        """Take the lock. Raises `Invalid` if a living process holds it, `Unusable` if there can be no lock here."""
        path = data_dir / f"node-{node_id}.lock"
        try:
            fd = _lock(path, node_id)
        except OSError as error:
            raise Unusable(
                f"the lock file {path} cannot be used ({error.strerror}): make it writable for this user,"
                " or choose another --data-dir"
            ) from error
        # The number is there for people only: a full disk must not keep a broker from its data.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        boot_id, status = _boot_id(boot_id_file), os.fstat(fd)
        return cls(path, fd, boot_id and f"{boot_id}:{status.st_dev}:{status.st_ino}")

    def release(self) -> None:
        """Let the next process be this node. The file stays: a deleted one could be locked twice, old and new."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _lock(path: Path, node_id: int) -> int:
    """Open and lock the file that is at the path now, and return its descriptor. It is not inherited by programs."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, fd):
                return fd
        except BlockingIOError:
            holder = _holder(fd)
            os.close(fd)
            raise Invalid(
                f"node {node_id} runs already on {path.parent} ({holder} holds {path.name}): give this broker"
                " another --node-id, or stop that one first"
            ) from None
        except BaseException:
            os.close(fd)
            raise
        # Somebody deleted the file between opening and locking: what we hold keeps nobody else away.
        os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _holder(fd: int) -> str:
    written = os.pread(fd, MAX_PID_BYTES, 0).strip()
    return f"process {int(written)}" if written.isdigit() else "a process"


def _boot_id(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
