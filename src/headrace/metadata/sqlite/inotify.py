"""Linux tells when a file was written to: a small piece of inotify, without which watches poll."""

import ctypes
import errno
import os
import sys
from pathlib import Path

IN_MODIFY = 0x0000_0002
IN_CLOSE_WRITE = 0x0000_0008
IN_ONESHOT = 0x8000_0000
_EVENT_BYTES = 64 * 1024


class Inotify:
    """One inotify instance. `fileno` becomes readable when something happened to a watched file."""

    def __init__(self) -> None:
        """Raise `OSError` where the system has no inotify, or no instance left."""
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, "inotify is a thing of Linux")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def fileno(self) -> int:
        return self._fd

    def watch(self, path: Path, mask: int) -> None:
        """Watch a file for the events of `mask`; watching it once more is no error."""
        self._checked(self._libc.inotify_add_watch(self._fd, os.fsencode(path), ctypes.c_uint32(mask)))

    def drain(self) -> None:
        """Forget the events that have come in; that there was one is all we want to know."""
        try:
            while len(os.read(self._fd, _EVENT_BYTES)) == _EVENT_BYTES:
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self._fd)

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
