"""Read files below a root. Everything here blocks; the store calls it on its executor."""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.errors import Corrupt, Invalid, Missing
from headrace.model.ids import ObjectKey
from headrace.objects.disk import refusal
from headrace.objects.port import Buffer, ByteRange, ObjectInfo, object_key
from headrace.objects.walk import Level

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def read_whole(root: Path, key: ObjectKey) -> Buffer:
    """Return all bytes of an object."""
    with _opened(root, key) as fd:
        return _read(fd, key, ByteRange(start_byte=0, size_bytes=os.fstat(fd).st_size))


def read_ranges(root: Path, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
    """Return the bytes of each range, all from the same file even if the key is overwritten meanwhile."""
    with _opened(root, key) as fd:
        return [_read(fd, key, wanted) for wanted in ranges]


def stat_object(root: Path, key: ObjectKey) -> ObjectInfo:
    """Return size and age."""
    with _opened(root, key) as fd:
        return _info(key, os.fstat(fd))


def read_level(root: Path, directory: str) -> Level:
    """Return what a directory holds; one that is not there holds nothing.

    Names that cannot stand in a key are not ours: our own temporary files, a file system's `lost+found`.
    """
    directories, objects = [], []
    try:
        entries = list(os.scandir(root / directory))
    except (FileNotFoundError, NotADirectoryError):
        entries = []
    except OSError as error:
        raise refusal(error, f"list {directory or root}") from error
    for entry in entries:
        if not _is_key(entry.name):
            continue
        key = directory + entry.name
        if entry.is_dir(follow_symlinks=False):
            directories.append(key + "/")
        else:
            # It may be deleted between the listing and this look at it.
            with contextlib.suppress(FileNotFoundError):
                objects.append(_info(ObjectKey(key), entry.stat(follow_symlinks=False)))
    return Level(directories=directories, objects=objects)


def _is_key(name: str) -> bool:
    try:
        object_key(name)
    except Invalid:
        return False
    return True


@contextlib.contextmanager
def _opened(root: Path, key: ObjectKey) -> Iterator[int]:
    try:
        fd = os.open(root / object_key(key), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise IsADirectoryError
            yield fd
        finally:
            os.close(fd)
    except _ABSENT as error:
        raise Missing(f"object {key} is not there") from error
    except OSError as error:
        raise refusal(error, key) from error


def _read(fd: int, key: ObjectKey, wanted: ByteRange) -> Buffer:
    pieces: list[bytes] = []
    position = wanted.start_byte
    while position < wanted.end_byte:
        # One call gives at most 2 GiB, and fewer bytes than asked for where it pleases.
        piece = os.pread(fd, wanted.end_byte - position, position)
        if not piece:
            raise Corrupt(
                f"object {key} ends at byte {os.fstat(fd).st_size},"
                f" but {wanted.size_bytes} bytes from {wanted.start_byte} on were asked for"
            )
        pieces.append(piece)
        position += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _info(key: ObjectKey, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=found.st_size, modified_at_ms=found.st_mtime_ns // 1_000_000)
