"""Segments on local disk: files that one process appends to, with an fdatasync for each append.

The file is filled with zeros ahead of the appends, off their path. An append then changes no size and takes no new
blocks, so its fdatasync has only the bytes to write: about half of what a growing file costs. A large append gains
nothing from that and would write its bytes twice, so it simply lets the file grow.

Must stay true:
- Zeros are written behind `prepared` only, and nothing is appended there before they are done.
- After any error no byte is appended any more: what lies behind the last success is unknown.
- Files are never used a second time: a slow reader that still holds an old path open would get foreign bytes.
"""

import asyncio
import os
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from headrace.errors import Corrupt, Exists, Invalid, Missing, OutcomeUnknown
from headrace.model.ids import ObjectKey
from headrace.objects.cancellation import run_or_undo
from headrace.objects.disk import DISK_FULL, Disk, SyncFailed, refusal
from headrace.objects.port import Buffer
from headrace.objects.publishing import Publisher, require_file
from headrace.runtime.executor import Executor

# How far ahead of the appends the file is filled; it is filled up again when half of it is used.
PREPARED_WINDOW_BYTES = 2 * 1024 * 1024

# Appends above this let the file grow: writing the bytes takes longer than what preparing would save.
MAX_PREPARED_APPEND_BYTES = 128 * 1024

_ZEROS = bytes(256 * 1024)


class LocalSegments:
    """The appending capability of a local store."""

    def __init__(self, publisher: Publisher, executor: Executor) -> None:
        self._publisher = publisher
        self._executor = executor
        self._open: set[LocalSegment] = set()

    async def create_segment(self, key: ObjectKey, *, capacity_bytes: int) -> "LocalSegment":
        prepared_bytes = min(PREPARED_WINDOW_BYTES, capacity_bytes)
        # A cancelled caller leaves the segment behind, as a crash would, but not the open file.
        create = partial(self._create, key, prepared_bytes)
        path, fd = await run_or_undo(self._executor, create, lambda made: self._publisher.disk.close(made[1]))
        segment = LocalSegment(
            key,
            path,
            fd,
            publisher=self._publisher,
            executor=self._executor,
            prepared_bytes=prepared_bytes,
            capacity_bytes=capacity_bytes,
        )
        self._open = {other for other in self._open if not other.is_closed}
        self._open.add(segment)
        return segment

    async def seal_segment(self, key: ObjectKey, *, size_bytes: int) -> None:
        await self._executor.run(partial(self._seal, key, size_bytes))

    async def release(self) -> None:
        """Close the files of all segments and leave them unsealed, as a crash would."""
        for segment in self._open:
            await segment.release()
        self._open.clear()

    def _create(self, key: ObjectKey, prepared_bytes: int) -> tuple[Path, int]:
        disk = self._publisher.disk
        self._publisher.trust.require()
        path = self._publisher.make_way(key)
        with self._publisher.refusing(key):
            try:
                fd = disk.create(path)
            except FileExistsError as error:
                require_file(path)
                raise Exists(f"segment {key} is there already") from error
        try:
            with self._publisher.refusing(key, path):
                _fill(disk, fd, 0, prepared_bytes)
                disk.sync(fd)
            self._publisher.sync_directory(path.parent)
        except BaseException:
            disk.close(fd)
            raise
        return path, fd

    def _seal(self, key: ObjectKey, size_bytes: int) -> None:
        disk = self._publisher.disk
        self._publisher.trust.require()
        with self._publisher.refusing(key):
            try:
                fd = disk.open_to_write(self._publisher.path(key))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise Missing(f"segment {key} is not there") from error
            try:
                found_bytes = os.fstat(fd).st_size
                if found_bytes < size_bytes:
                    raise Corrupt(f"segment {key} has {found_bytes} bytes, but {size_bytes} are said to be committed")
                _cut(disk, fd, key, size_bytes)
            finally:
                disk.close(fd)


class LocalSegment:
    """One open segment. Appends run one after the other, in the order of the calls."""

    def __init__(
        self,
        key: ObjectKey,
        path: Path,
        fd: int,
        *,
        publisher: Publisher,
        executor: Executor,
        prepared_bytes: int,
        capacity_bytes: int,
    ) -> None:
        self._key = key
        self._path = path
        self._fd = fd
        self._publisher = publisher
        self._executor = executor
        self._size_bytes = 0
        self._prepared_bytes = prepared_bytes
        self._capacity_bytes = capacity_bytes
        self._preparing: asyncio.Task[None] | None = None
        self._takes_appends = True
        self._closed = False
        self._turn = asyncio.Lock()
        # A cancelled append leaves its thread at work: whoever seals waits for that thread, not for the caller.
        self._file_lock = threading.Lock()

    @property
    def key(self) -> ObjectKey:
        return self._key

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def append(self, data: Sequence[Buffer]) -> int:
        async with self._turn:
            self._require_open()
            position = self._size_bytes
            added_bytes = sum(memoryview(buffer).nbytes for buffer in data)
            if position + added_bytes > self._prepared_bytes:
                await self._wait_for_zeros()
            # Set back only by success, so that an error and a cancelled caller both end the segment.
            self._takes_appends = False
            await self._executor.run(partial(self._write, position, data))
            self._takes_appends = True
            self._size_bytes += added_bytes
            self._prepared_bytes = max(self._prepared_bytes, self._size_bytes)
            self._prepare_ahead(added_bytes)
            return position

    async def seal(self) -> None:
        async with self._turn:
            self._takes_appends = False
            await self._wait_for_zeros()
            if not self._closed:
                await self._executor.run(self._seal)

    async def release(self) -> None:
        """Close the file and leave it as it is, for `seal_segment`."""
        async with self._turn:
            self._takes_appends = False
            await self._wait_for_zeros()
            if not self._closed:
                await self._executor.run(self._close)

    def _require_open(self) -> None:
        self._publisher.trust.require()
        if not self._takes_appends:
            raise Invalid(f"segment {self._key} takes no more appends: seal it and begin another")

    def _write(self, position: int, data: Sequence[Buffer]) -> None:
        with self._file_lock:
            # A cancelled append may come here after the seal, when the descriptor's number is another file's.
            if self._closed:
                raise Invalid(f"segment {self._key} was closed before the append began: begin another")
            try:
                self._publisher.disk.write(self._fd, data, position)
                self._publisher.disk.sync_data(self._fd)
            except SyncFailed as error:
                if error.errno in DISK_FULL:
                    raise OutcomeUnknown(f"segment {self._key}: fdatasync: {error.strerror}; seal it") from error
                raise self._publisher.trust.lose(error, self._key) from error
            except OSError as error:
                if error.errno in DISK_FULL:
                    # Some bytes may lie there, but not all of them: the append certainly did not happen.
                    raise refusal(error, f"segment {self._key}") from error
                raise OutcomeUnknown(f"segment {self._key}: write: {error.strerror}; seal it") from error

    def _seal(self) -> None:
        self._publisher.trust.require()
        with self._file_lock, self._publisher.refusing(self._key):
            # A cancelled caller may have left another thread that seals.
            if not self._closed:
                _cut(self._publisher.disk, self._fd, self._key, self._size_bytes)
                self._close_file()

    def _close(self) -> None:
        with self._file_lock:
            if not self._closed:
                self._close_file()

    def _close_file(self) -> None:
        self._closed = True
        self._publisher.disk.close(self._fd)

    def _prepare_ahead(self, last_append_bytes: int) -> None:
        """Begin to write zeros when half of the window is used, unless that is under way."""
        if self._preparing is not None or last_append_bytes > MAX_PREPARED_APPEND_BYTES:
            return
        end_byte = min(self._size_bytes + PREPARED_WINDOW_BYTES, self._capacity_bytes)
        if self._prepared_bytes - self._size_bytes <= PREPARED_WINDOW_BYTES // 2 and end_byte > self._prepared_bytes:
            self._preparing = asyncio.create_task(self._prepare(end_byte))

    async def _prepare(self, end_byte: int) -> None:
        try:
            await self._executor.run(partial(self._write_zeros, self._prepared_bytes, end_byte))
            self._prepared_bytes = end_byte
        except (OSError, OutcomeUnknown):
            # The disk is full or worse. The file may still grow, so the next append finds out and tells its caller.
            self._capacity_bytes = 0
        except BaseException:
            # The thread may still be writing zeros, and nothing may be appended where they fall.
            self._takes_appends = False
            raise
        finally:
            self._preparing = None

    async def _wait_for_zeros(self) -> None:
        if self._preparing is not None:
            await asyncio.shield(self._preparing)

    def _write_zeros(self, start_byte: int, end_byte: int) -> None:
        # The kernel tells a write error once per open file. With a file of its own, this fdatasync cannot swallow
        # the error that an append must hear of.
        disk = self._publisher.disk
        fd = disk.open_to_write(self._path)
        try:
            _fill(disk, fd, start_byte, end_byte)
            disk.sync_data(fd)
        except SyncFailed as error:
            if error.errno in DISK_FULL:
                # Nobody relies on these zeros.
                raise
            raise self._publisher.trust.lose(error, self._key) from error
        finally:
            disk.close(fd)


def _cut(disk: Disk, fd: int, key: ObjectKey, size_bytes: int) -> None:
    """Give back what lies behind the committed bytes. Those are durable already, so a full disk costs no trust."""
    disk.truncate(fd, size_bytes)
    try:
        disk.sync(fd)
    except SyncFailed as error:
        if error.errno in DISK_FULL:
            raise refusal(error, f"segment {key}") from error
        raise


def _fill(disk: Disk, fd: int, start_byte: int, end_byte: int) -> None:
    for position in range(start_byte, end_byte, len(_ZEROS)):
        disk.write(fd, [memoryview(_ZEROS)[: end_byte - position]], position)
